"""The run folder: append-only log, config, atomic checkpoints, and reading it all back.

`loggers` and `checkpoints` meet Lightning and are imported by name; this package itself starts fast.
"""

from lightning_app.runs.folder import LayerRow, Row, RunFolder, find_runs
from lightning_app.runs.notebook import OpenRun, frames, open_run

__all__ = [
    # files
    "LayerRow",
    "Row",
    "RunFolder",
    "find_runs",
    # pandas frames of them
    "OpenRun",
    "frames",
    "open_run",
]
