"""The command ``python main.py report``."""

import argparse
import sys
from pathlib import Path

from lightning_app.common.arguments import Parser
from lightning_app.report.exports import FORMATS, formats
from lightning_app.report.page import export_folder, write_report
from lightning_app.report.reproduced import artefacts
from lightning_app.runs import RunFolder, find_runs
from lightning_app.runs.folder import LOG, LOG_PACKED

__all__ = ["main"]

EPILOG = """\
examples:
  python main.py report runs/cifar10/res20                        one run: runs/cifar10/res20/report.html
  python main.py report runs/cifar10/res20 runs/cifar10/pln20     two runs side by side: runs/cifar10/report.html
  python main.py report runs/cifar10 --out all.html               every run below a folder
  python main.py report runs/cifar10/res32 --layer layer20        cushion histograms at another layer
  python main.py report runs/cifar10/res20 --export pdf,latex     figures and tables for a paper, in report-export/
  python main.py report runs/yu-tomasi results/yu-tomasi          with the verdicts that `reproduce` has written

The page is one file without script or network: figures, tables, and the numbers behind each figure as CSV.
"""


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code. A user's mistake is one line on stderr, and 2."""
    try:
        options = _parser().parse_args(argv)
        export = formats(options.export) if options.export is not None else ()
        runs, made = _found(options.runs)
        page = write_report(runs, options.out, options.layer, export, made)
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except SystemExit as done:  # argparse has shown its help
        return int(done.code or 0)
    print(f"report: {page}")
    if export:
        print(f"{', '.join(export)}: {export_folder(page)}")
    return 0


def _found(paths: list[Path]) -> tuple[list[RunFolder], list[Path]]:
    """The runs and the verdicts of ``reproduce`` at or below the paths.

    Raises:
        UserError: a path that holds neither.
    """
    made = artefacts(paths)
    with_runs = [path for path in paths if not artefacts([path]) or _holds_a_run(path)]
    return find_runs(with_runs), made


def _holds_a_run(path: Path) -> bool:
    return any(next(path.rglob(name), None) for name in (LOG, LOG_PACKED))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python main.py report",
        description="Turn run folders into one self-contained HTML page.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders of them, or of results"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the page (default: beside the runs)")
    parser.add_argument(
        "--layer", metavar="NAME", help="layer of the cushion histograms (default: layer10, or the middle one)"
    )
    parser.add_argument(
        "--export",
        metavar="FORMATS",
        help=f"figures and tables as files beside the page: some of {','.join(FORMATS)}",
    )
    return parser
