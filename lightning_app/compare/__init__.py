"""Is A better than B, or is it noise? Two sides of nets seed by seed, with a verdict for each number."""

from lightning_app.compare.command import main

__all__ = ["main"]
