"""SkipScope's command line: ``skipscope COMMAND`` where it is installed, ``python main.py COMMAND`` in a checkout.

A module of its own, because ``main`` is a name that others use too.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

__all__ = ["main"]

HOME = Path(__file__).resolve().parent
SPINS = "GOMP_SPINCOUNT"
PACKAGES = ("lightning_app", "callbacks")  # names that PyPI's lightning-app, or a folder of the user's, may have too


def main() -> int:
    """Run the command line; returns the exit code, 2 where another package stands in the place of one of ours."""
    for name in PACKAGES:
        if (found := _found(name)) != HOME / name / "__init__.py":
            return _refuse(f"`{name}` is {found or 'nowhere'}, not SkipScope's own in {HOME}.", _remedy(name, found))
        if "SkipScope" not in found.read_text():
            return _refuse(
                f"{found} was overwritten by another package.", "Uninstall lightning-app, then install again."
            )
    # Read when PyTorch loads OpenMP: threads that wait spin, by default so long that beside another program all processors
    # are busy waiting for a thread that has none. A thirtieth of it costs nothing on a quiet machine; none at all costs a third.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault(SPINS, "10000")
    from lightning_app.cli import main as run

    return run(sys.argv[1:])


def _found(name: str) -> Path | None:
    """The file that ``import name`` would run, or the folder without ``__init__.py``; None: there is no such package."""
    spec = find_spec(name)
    places = [] if spec is None else [spec.origin] if spec.origin else [*(spec.submodule_search_locations or ())]
    return Path(places[0]).resolve() if places else None


def _remedy(name: str, found: Path | None) -> str:
    if found is None:
        return "Install SkipScope again: pip install, or pip install -e . in a checkout."
    if "site-packages" in found.parts:
        return f"Uninstall the package that it belongs to (pip uninstall lightning-app has a `{PACKAGES[0]}`)."
    return f"Rename it, or take the folder {found.parent.parent if found.stem == '__init__' else found.parent} off PYTHONPATH."


def _refuse(what: str, remedy: str) -> int:
    print(f"error: {what}\n       {remedy}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
