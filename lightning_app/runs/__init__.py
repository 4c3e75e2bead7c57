"""The run folder: append-only log, config, atomic checkpoints, and reading it all back.

`loggers` and `checkpoints` meet Lightning and are imported by name; this package itself starts fast.
"""

from typing import TYPE_CHECKING

from lightning_app.common.lazy import lazy

if TYPE_CHECKING:
    from lightning_app.runs.folder import LayerRow, MemberRow, Row, RunFolder, find_runs
    from lightning_app.runs.notebook import OpenRun, frames, open_run
    from lightning_app.runs.reader import Net, Run, read_runs

__getattr__ = lazy(__name__)
