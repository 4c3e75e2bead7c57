"""Speeds as ratios from interleaved runs; `timing` is how, the other files are what."""
