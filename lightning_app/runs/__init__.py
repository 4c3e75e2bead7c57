"""The run folder: append-only log, config, atomic checkpoints, and reading it all back.

`loggers` and `checkpoints` meet Lightning and are imported by name; this package itself starts fast.
"""

from lightning_app.runs.folder import LayerRow, Row, RunFolder, find_runs

__all__ = ["LayerRow", "Row", "RunFolder", "find_runs"]
