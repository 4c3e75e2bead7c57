"""Run folders in, one self-contained HTML page out; knows neither torch nor Lightning, so that it starts fast.

The way through: ``evidence`` reads runs once and names their nets (``pairs``: which plain belongs to which residual), one
file a section (``claims``, ``headline``, ``learning``, ...) turns them into ``blocks`` -- figures, tables, texts --, and
``page`` puts these through the template, ``exports`` into files. A new section is one file and one line in ``page.SECTIONS``.
"""

from lightning_app.report.command import main
from lightning_app.report.page import write_report
from lightning_app.report.summary import summary

__all__ = ["main", "summary", "write_report"]
