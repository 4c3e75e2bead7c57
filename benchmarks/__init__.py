"""Speeds as ratios from interleaved runs; `harness` is how, the other files are what."""
