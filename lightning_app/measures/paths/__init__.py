"""Paths through a residual net by their length: outputs, gradients, effective depth, driving force."""
