"""SkipScope's public names, each imported when it is first used, and its command line.

The page docs/api.md says which of them are stable. To import this package imports neither torch nor Lightning nor pandas.
"""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callbacks import Measure, MeasureContext, Scalar
    from callbacks.notebook import measure
    from callbacks.watch import Watch as watch
    from lightning_app import __version__
    from lightning_app.common.errors import UserError
    from lightning_app.identity import id_entries, transfer, untransfer
    from lightning_app.report.command import report
    from lightning_app.runs import frames, open_run
    from lightning_app.runs.loggers import RunLogger
    from skipscope import callbacks, nets

__all__ = [
    # measure a net
    "measure",
    "watch",
    "callbacks",
    "nets",
    # write a measure of your own
    "Measure",
    "MeasureContext",
    "Scalar",
    # runs
    "RunLogger",
    "open_run",
    "frames",
    "report",
    # the map T between residual and plain nets
    "transfer",
    "untransfer",
    "id_entries",
    # what a mistake raises
    "UserError",
]

HOME = Path(__file__).resolve().parents[1]
SPINS = "GOMP_SPINCOUNT"
PACKAGES = ("lightning_app", "callbacks")  # names that PyPI's lightning-app, or a folder of the user's, may have too


def __getattr__(name: str) -> Any:
    if name not in (*__all__, "__version__"):
        raise AttributeError(f"module 'skipscope' has no attribute {name!r}; it has {', '.join(__all__)}")
    check()
    from lightning_app.common.lazy import lazy

    return lazy(__name__)(name)


def __dir__() -> list[str]:
    return [*__all__]  # what completion offers


def mirror(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """``__all__``, ``__getattr__`` and ``__dir__`` for a module that offers the names of one of our packages."""
    check()
    found = import_module(package)
    return found.__all__, partial(getattr, found), partial(dir, found)


def check() -> None:
    """Check that an import finds our packages.

    Raises:
        ImportError: if it finds another package instead; the message says which, where, and what to do.
    """
    for name in PACKAGES:
        if (found := _found(name)) != HOME / name / "__init__.py":
            what = f"expected SkipScope's own package `{name}` in {HOME}, found {found or 'none'}."
            raise ImportError(f"{what}\n       {_remedy(name, found)}")
        if "SkipScope" not in found.read_text(encoding="utf-8"):
            what = f"{found} was overwritten by another package."
            raise ImportError(f"{what}\n       Uninstall lightning-app, then install again.")


def _found(name: str) -> Path | None:
    """The file that ``import name`` would run, or the folder without ``__init__.py``; None: there is no such package."""
    spec = find_spec(name)
    places = [] if spec is None else [spec.origin] if spec.origin else [*(spec.submodule_search_locations or ())]
    return Path(places[0]).resolve() if places else None


def _remedy(name: str, found: Path | None) -> str:
    if found is None:
        return "Install SkipScope again: pip install, or pip install -e . in a checkout."
    if "site-packages" in found.parts:
        return f"Uninstall the package that it belongs to (for PyPI's `{PACKAGES[0]}`: pip uninstall lightning-app)."
    return f"Rename it, or take the folder {found.parent.parent if found.stem == '__init__' else found.parent} off PYTHONPATH."


def main() -> int:
    """The command ``skipscope``; returns the exit code, 2 if an import finds another package instead of one of ours."""
    try:
        return _main()
    except KeyboardInterrupt:  # while the program is imported; later each command says what it leaves
        return 128 + signal.SIGINT


def _main() -> int:
    try:
        check()
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.encoding.lower() not in ("utf-8", "utf8"):
        sys.stdout.reconfigure(errors="replace")  # some locales know no λ
    # Read when PyTorch loads OpenMP: threads that wait spin, by default so long that beside another program all processors
    # are busy waiting for a thread that has none. A thirtieth of it costs nothing on a quiet machine; none at all costs a third.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault(SPINS, "10000")
    from lightning_app.cli import main as run

    return run(sys.argv[1:])
