"""Run folders in, one self-contained HTML page out; knows neither torch nor Lightning, so that it starts fast.

``page_data`` reads runs and names their nets, ``pairs`` says which plain net belongs to which residual one. Each file of
``sections`` turns them into ``blocks`` (figures, tables, texts); ``page`` puts these through the template, ``exports`` into
files. A section is one file and one name in ``page``, with the families of keys that it shows; measures without a section of
their own have their curves in ``sections.further``.
"""

from lightning_app.report.command import main
from lightning_app.report.findings import findings
from lightning_app.report.page import write_report
from lightning_app.report.summary import summary

__all__ = ["findings", "main", "summary", "write_report"]
