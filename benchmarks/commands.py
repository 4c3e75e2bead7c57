"""What a command costs before it does anything: the wall time of processes, in units of a Python that does nothing.

    python -m benchmarks.commands [--rounds 7]

The goal for ``main.py --help`` is one second, the one figure here that is no ratio.
"""

import argparse
import subprocess
import sys
from functools import partial

from benchmarks.harness import MAIN, Ratio, Results, Row, interleave, options_of, run

NOTHING, HELP = "python that does nothing", "main.py --help"
COMMANDS = {
    NOTHING: ("-c", "pass"),
    HELP: (MAIN, "--help"),
    "import torch": ("-c", "import torch"),
    "import pytorch_lightning, torchmetrics": ("-c", "import pytorch_lightning, torchmetrics"),
    "main.py fit --help": (MAIN, "fit", "--help"),
}
parser = partial(options_of, __doc__, rounds=7)


def measure(options: argparse.Namespace) -> Results:
    found = Results("processes, from their start to their end")
    timed = {name: partial(wait, *words) for name, words in COMMANDS.items()}
    times = found.add("commands", interleave(timed, options.rounds), NOTHING)
    first = Row(HELP, "1 second", Ratio.of(*times.values[HELP]), goal=1)
    found.rows = [first, *(times.row(name, NOTHING) for name in COMMANDS if name != NOTHING)]
    return found


def wait(*words: str) -> None:
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    run(measure, parser())
