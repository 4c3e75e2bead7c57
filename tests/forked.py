"""Processes of ``python main.py ...`` and ``python -c ...`` that begin by a fork of one that has the libraries loaded.

PyTorch, Lightning and W&B take eight seconds of processor time to import and to take down again, more than most commands
take for what they are tested for. A command still gets a process of its own, with its own environment, folder and
streams; what it shares with those before it is the libraries and most of our modules as they are after their import, which
reads nothing from the environment, what jsonargparse knows of our classes, and the order of hashes. It waits for no disk.
It is a child of who asked, as it would be without: signals, exit codes and process groups are the system's own. What a
command starts of us itself (the other ranks, the runs of ``reproduce``) is forked too. Tests of installations and of the
import itself start Python.

Run as a script this serves: each request on a socket is answered by the number of a new process.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAIN = str(ROOT / "main.py")
SCRIPTS = {MAIN, str(ROOT / "skipscope" / "__main__.py")}  # `reproduce` runs the second
LIBRARIES = (
    *("torch", "torchvision", "torchmetrics", "pytorch_lightning.cli", "jsonargparse", "wandb.sdk.launch", "requests"),
    *("rich.console", "jinja2", "torch._decomp"),  # imported by the first forward-mode derivative
    *("numpy", "scipy.stats", "pandas", "sklearn.datasets", "matplotlib.pyplot", "matplotlib.backends.backend_svg"),
)
OURS = ("lightning_app.cli.training", "lightning_app.report", "lightning_app.reproduce")
PR_SET_CHILD_SUBREAPER = 36
WAIT_AT = "SKIPSCOPE_TESTS_WAIT_AT"  # set to the steps after which training waits for the test: tests/waiting.py
NO_PAGE = "SKIPSCOPE_TESTS_NO_PAGE"  # set for commands whose page nobody looks at: half of what a tiny run takes


class Popen(subprocess.Popen):
    """`subprocess.Popen`, whose ``[sys.executable, "main.py" or "-c", ...]`` is a fork; anything else is started as ever.

    Files of ``pass_fds`` are open there under other numbers: a lock is held by being open.
    """

    def _execute_child(self, args, *more) -> None:
        if not (args[0] == sys.executable and (SCRIPTS & {*args[1:3]} or args[1] == "-c")):
            return super()._execute_child(args, *more)
        _, _, _, kept, cwd, env, _, _, _, stdin, _, _, stdout, _, stderr = more[:15]
        asked = {"args": args[1:], "cwd": str(cwd or os.getcwd()), "env": {**(os.environ if env is None else env)}}
        files = [ours if fd == -1 else fd for ours, fd in enumerate((stdin, stdout, stderr))]
        socket.send_fds(server(), [json.dumps(asked | {"session": more[-2]}).encode()], [*files, *kept])
        self.pid, self._child_created = int(server().recv(100)), True
        self._close_pipe_fds(*more[9:15])


@functools.cache
def server() -> socket.socket:
    """To the process that forks for this one, started at the first call; it ends when this one does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    call = [sys.executable, __file__, str(theirs.fileno())]
    server.process = subprocess.Popen(call, pass_fds=[theirs.fileno()], env=os.environ | {"OMP_NUM_THREADS": "1"})
    theirs.close()
    _adopt()
    return ours


def _adopt() -> None:
    """What is forked for this process becomes its child when the one in between ends."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def serve(requests: socket.socket) -> None:
    """Answer requests until who asks has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, meant for the commands
    while True:
        asked, files, *_ = socket.recv_fds(requests, 1 << 18, 8)
        if not asked:
            os._exit(0)
        words = json.loads(asked)
        reader, writer = os.pipe()
        if (between := os.fork()) == 0:
            if os.fork():
                os._exit(0)
            requests.close()
            if words.pop("session"):  # before who asked can look which group it is in, to end that
                os.setsid()
            os.write(writer, b"%d" % os.getpid())
            _leave(_run(files=files, **words))
        os.waitpid(between, 0)
        requests.send(os.read(reader, 100))
        for file in (reader, writer, *files):
            os.close(file)


def _run(args: list[str], cwd: str, env: dict[str, str], files: list[int]) -> int:
    """Be ``python *args`` and return its exit code."""
    _fork_for_this_one(files)
    for stream, file in enumerate(files[:3]):
        os.dup2(file, stream)
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    Path("/proc/self/comm").write_text("skipscope")
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # tests/gpu has what a GPU does, in its own process
    _know_the_rank()
    sys.stdout.reconfigure(line_buffering=os.isatty(1), write_through=args[0] == "-u")
    sys.argv = args[args[0] == "-u" :]
    sys.path[:1] = [str(ROOT), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    if env.get(NO_PAGE):
        importlib.import_module("lightning_app.report").write_report = lambda runs, *_, **__: (
            runs[0].path / "report.html"
        )
    if env.get(WAIT_AT):
        importlib.import_module("tests.waiting").wait_at(int(env[WAIT_AT]))
    try:
        if args[0] == "-c":
            exec(compile(args[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as stop:
        return stop.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _know_the_rank() -> None:
    """Lightning reads it from the environment when it is imported."""
    from lightning_fabric.utilities.rank_zero import _get_rank, rank_zero_only

    rank_zero_only.rank = _get_rank() or 0


def _fork_for_this_one(files: list[int]) -> None:
    """A server of the command's own, forked before it has done anything."""
    global server
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        for file in (ours.detach(), *files):
            os.close(file)
        serve(theirs)
    theirs.close()
    _adopt()
    subprocess.Popen, server = Popen, lambda: ours


def _leave(code: int) -> None:
    """End as Python does, but leave memory to the system: two seconds less."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def _parse_once() -> None:
    """What is then known of classes, their arguments and docstrings would take every command 0.13 s."""
    from lightning_app.cli.training import run_training

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        run_training(["fit", "--config", str(ROOT / "configs" / "quickstart.yaml"), "--print_config"])


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    os.fsync = lambda _: None  # as in tests/conftest.py
    for name in (*LIBRARIES, *OURS):
        importlib.import_module(name)
    importlib.import_module("lightning_app.cli.parser").known_classes()  # imports what a configuration may name
    _parse_once()
    gc.freeze()  # else the children's collections look through the libraries, and copy their memory by doing so
    serve(socket.socket(fileno=int(sys.argv[1])))
