"""SkipScope: why do identity connections help? Measured, not argued."""

__version__ = "0.1.0"
