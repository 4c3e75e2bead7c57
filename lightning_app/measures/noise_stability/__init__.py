"""Noise stability: layer and interlayer cushions, contraction, smoothness, noise injection, and the bound they enter."""
