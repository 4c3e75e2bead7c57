"""Benchmarks of speed, one after the other, each a command of its own.

    python -m benchmarks --root data --out results [NAME ...] [--rounds 5] [--run runs/digits/quickstart]

Without names all of them: an hour on two cores. ``--run``, a short run as `make quickstart` leaves one, is what pages are
made of; without it reports and the board are not measured. `benchmarks.page` makes tables of the results. Not here:
`benchmarks.gpu`, `benchmarks.host` (the host's part of a step on a GPU), `benchmarks.soak` (is anything lost when a run is
killed?), `benchmarks.guard` (what continuous integration can check).
"""

import argparse
import subprocess
import sys

NAMES = (
    *("commands", "data", "training", "seeds", "solo", "epoch", "measures", "interlayer", "hessian", "linear_hessian"),
    *("scaling", "peers", "report", "board"),
)
PAGES = ("report", "board")
SHARED = ("root", "out", "rounds")
OF_RUNS = ("scaling", *PAGES)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    for option in (*SHARED, "run"):
        parser.add_argument(f"--{option}")
    options = parser.parse_args(argv)
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}: there are {', '.join(NAMES)}.")
    failed = []
    for name in options.names or [name for name in NAMES if name not in PAGES or options.run]:
        print(f"\n== {name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *_words(name, options)]).returncode:
            failed.append(name)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def _words(name: str, options: argparse.Namespace) -> list[str]:
    asked = {key: getattr(options, key) for key in (*SHARED, *(("run",) if name in OF_RUNS else ()))}
    return [word for key, value in asked.items() if value is not None for word in (f"--{key}", value)]


if __name__ == "__main__":
    main()
