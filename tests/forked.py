"""A process that has the libraries loaded and forks itself for every ``python main.py ...`` that tests ask for.

PyTorch, Lightning and W&B take seven seconds of processor time to import and to take down again, more than most
commands take for what they are tested for. A command still gets a process of its own, with its own environment, folder
and streams, in which everything of ours is imported anew; what it shares with those before it is the libraries as they
are after their import, and the order of hashes. Tests of signals, terminals and installations start Python itself.

Run as a script this reads requests, a JSON object a line, and answers each by the command's exit code.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = (
    *(
        "torch",
        "torchvision",
        "torchmetrics",
        "pytorch_lightning.cli",
        "jsonargparse",
        "wandb.sdk.launch",
        "rich.console",
    ),
    *("numpy", "scipy.stats", "pandas", "sklearn.datasets", "matplotlib.pyplot", "matplotlib.backends.backend_svg"),
)


def serve() -> None:
    """Answer requests until the input ends."""
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.freeze()  # else the children's collections look through the libraries, and copy their memory by doing so
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            _leave(_run(**json.loads(line)))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    _leave(0)


def _run(words: list[str], cwd: str, env: dict[str, str], out: str, err: str, seconds: int) -> int:
    """Be ``python main.py *words`` and return its exit code; SIGALRM ends it when it takes longer than it may."""
    for stream, file in enumerate((os.devnull, out, err)):
        os.dup2(os.open(file, os.O_RDWR), stream)
    signal.alarm(seconds)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [str(ROOT / "main.py"), *words]
    sys.path[:1] = [str(ROOT), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as stop:
        return stop.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _leave(code: int) -> None:
    """End as Python does, but leave memory to the system: two seconds less."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
