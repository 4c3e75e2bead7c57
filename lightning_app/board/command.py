"""The command ``python main.py board``."""

import os
import signal
import sys
import threading
import webbrowser
from pathlib import Path

from lightning_app.common.arguments import Parser
from lightning_app.common.errors import UserError

__all__ = ["main"]

EPILOG = """\
examples:
  python main.py board runs/                                      the newest runs below a folder, others to choose
  python main.py board runs/cifar10/res20 runs/cifar10/pln20      these runs side by side
  python main.py board runs/ --open                               and show it in a browser
  ssh -L 8765:127.0.0.1:8765 HOST                                 then open the address here, of a board on HOST

The page of `report`, updated as numbers are logged. Only this machine can open it, at the address that is printed. The
board writes nothing into run folders and runs nothing in the process that trains. Ctrl-C ends it.
"""
PORT = 8765


def main(argv: list[str]) -> int:
    """Serve until Ctrl-C or SIGTERM; returns the exit code.

    Raises:
        UserError: if a path is a file, or the port cannot be had.
    """
    parser = Parser(
        prog="python main.py board",
        description="Watch runs in a browser while they train.",
        epilog=EPILOG,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders that contain them")
    parser.add_argument("--port", type=int, default=PORT, help=f"on 127.0.0.1 (default: {PORT}); 0: any free port")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    options = parser.parse_args(argv)
    for folder in options.runs:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"expected a folder of runs, got the file {folder}: name the folder that it is in.")
        if not folder.exists():
            print(f"there is no folder {folder} yet: its runs are shown once it exists.", file=sys.stderr)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the process that draws: the cores are for training
    return _serve(options.runs, options.port, options.open)


def _serve(folders: list[Path], port: int, browser: bool) -> int:
    from lightning_app.board.server import Server
    from lightning_app.board.views import Board

    board = Board(folders)
    ended = threading.Event()
    with Server(board, port) as server:
        signal.signal(signal.SIGTERM, lambda *_: ended.set())
        board.start()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"board: {server.url}", flush=True)
        if browser and not webbrowser.open(server.url):
            print("there is no browser to open it: copy the address into one.", file=sys.stderr)
        try:
            ended.wait()
        except KeyboardInterrupt:
            print()
        board.close()
        server.shutdown()
    return 0
