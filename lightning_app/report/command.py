"""The command ``python main.py report``."""

import argparse
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from lightning_app.common.arguments import Parser
from lightning_app.common.files import with_home
from lightning_app.report.exports import FORMATS, formats
from lightning_app.report.page import REPORT, export_folder, write_report
from lightning_app.report.sections.reproduced import artefacts
from lightning_app.runs import RunFolder, find_runs
from lightning_app.runs.folder import run_folders
from lightning_app.runs.naming import parent_of

log = logging.getLogger(__name__)

EPILOG = """\
examples:
  python main.py report runs/cifar10/res20                        one run: runs/cifar10/res20/report.html
  python main.py report runs/cifar10/res20 runs/cifar10/pln20     two runs side by side: runs/cifar10/report.html
  python main.py report runs/cifar10 --out all.html               every run below a folder
  python main.py report runs/cifar10/res32 --layer layer20        cushion histograms at another layer
  python main.py report runs/cifar10/res20 --export pdf,latex     figures and tables for a paper, in report-export/
  python main.py report runs/yu-tomasi results/yu-tomasi          with the verdicts that `reproduce` has written

The page is one file that needs no network: interactive figures, tables, and the numbers behind each figure as CSV.
"""


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    options = _parser().parse_args(argv)
    export = formats(options.export) if options.export is not None else ()
    page = report(options.runs, options.out, options.layer, export)
    print(f"report: {page}")
    if export:
        print(f"{', '.join(export)}: {export_folder(page)}")
    return 0


def report(
    runs: Path | str | Iterable[Path | str],
    out: Path | str | None = None,
    layer: str | None = None,
    export: Sequence[str] = (),
) -> Path:
    """Write one self-contained HTML page about runs; returns its path.

    Args:
        runs: run folders, folders that contain them, or results of ``reproduce``.
        out: the page's file, or a folder for ``report.html``. None: ``report.html`` beside the runs.
        layer: layer of the cushion histograms, such as "layer10". None: layer10, or the middle one.
        export: formats of figures and tables as files beside the page: some of "pdf", "svg", "csv", "latex", also as one text
            with commas.

    If there are several runs, those that cannot be read are left out with a warning.

    Raises:
        UserError: if a path holds no run, a single run cannot be read, ``layer`` was not measured, or a format is unknown.
    """
    export = formats(export if isinstance(export, str) else ",".join(export)) if export else ()
    paths = [runs] if isinstance(runs, str | Path) else runs
    found, verdicts = _found([*map(with_home, paths)])
    target = None if out is None else with_home(out)
    try:
        return write_report(found, target, layer, export, verdicts)
    except (ValueError, OSError):
        whole = [run for run in found if not _damage(run)]
        if len(whole) in (0, len(found)):
            raise
        for run in found:
            if why := _damage(run):
                log.warning(f"{run.path} is left out: {why}")
        return write_report(whole, target or parent_of([run.path for run in found]) / REPORT, layer, export, verdicts)


def _found(paths: list[Path]) -> tuple[list[RunFolder], list[Path]]:
    """The runs and the verdicts of ``reproduce`` at or below the paths. UserError: a path that holds neither."""
    having = [path for path in paths if next(run_folders(path), None) or not artefacts([path])]
    return find_runs(having), artefacts(paths)


def _damage(run: RunFolder) -> str:
    """Why a run cannot be read; empty if it can."""
    try:
        run.log(), run.config()
    except (ValueError, OSError) as error:
        return str(error)
    return ""


def _parser() -> argparse.ArgumentParser:
    what = "Turn run folders into one self-contained HTML page."
    parser = Parser(prog="python main.py report", description=what, epilog=EPILOG)
    runs, layer = "run folders, folders that contain them, or results of `reproduce`", "layer10, or the middle one"
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=runs)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the page (*.html), or a folder for it (default: beside the runs)"
    )
    parser.add_argument("--layer", metavar="NAME", help=f"layer of the cushion histograms (default: {layer})")
    files = f"figures and tables as files beside the page: some of {','.join(FORMATS)}"
    parser.add_argument("--export", metavar="FORMATS", help=files)
    return parser
