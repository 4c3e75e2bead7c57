"""Weights: their mass, distance from initialisation, normalisation layers, and how far twins are apart."""
