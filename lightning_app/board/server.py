"""HTTP for a page on this machine: GET only, with a token in the path, and nothing of the disk by its path.

A token in the path and not a cookie: browsers send the cookies of 127.0.0.1 to every port, other people's servers among them.
"""

import hmac
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Sequence
from html import unescape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BufferedReader, RawIOBase
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from lightning_app.board.views import Board
from lightning_app.common.errors import UserError
from lightning_app.common.scripts import policy, source, squeezed

__all__ = ["Server"]

ADDRESS = "127.0.0.1"
HOSTS = ("127.0.0.1", "localhost")  # what a browser may call it: a name of somebody else's may lead here by his DNS
HEAD = 32_768  # bytes of a request: it has no body
ARRIVAL = 10.0  # seconds that a request may take to arrive
WAIT = 3.0  # seconds that a page waits for news; then it asks again, with what is on the screen now
MOST = 64  # requests at once
FIELDS = 1000  # of a query, such as runs that are chosen
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
HERE = Path(__file__).parent
SCRIPT = squeezed((HERE / "live.js").read_text(encoding="utf-8"))
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')
# Of the page that is there before anything is drawn: news are written into it, and it keeps the policy that it came with.
UNDRAWN = policy(squeezed((HERE.with_name("report") / "page.js").read_text(encoding="utf-8")))


class Server(ThreadingTCPServer):
    """Serves the pages of a board to this machine.

    Args:
        board: whose pages.
        port: 0 takes any that is free.

    Raises:
        UserError: if the port cannot be had.
    """

    daemon_threads = True
    allow_reuse_address = sys.platform != "win32"  # where it would share the port with another program
    request_queue_size = 128

    def __init__(self, board: Board, port: int) -> None:
        self.board = board
        self.token = secrets.token_urlsafe(32)
        self._room = threading.BoundedSemaphore(MOST)
        try:
            super().__init__((ADDRESS, port), Handler)
        except (OSError, OverflowError) as error:
            raise UserError(
                f"cannot listen on port {port} ({error}): choose another one, or --port 0 for any."
            ) from error

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_address[1]}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own, if not too many are there."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing where the browser has gone; other errors are ours, and shown."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One request, of one connection."""

    server: Server

    def setup(self) -> None:
        super().setup()
        self.rfile = BufferedReader(_Request(self.connection))

    def parse_request(self) -> bool:
        """Also False for what is not asked by this machine's browser of this server: then it is answered already."""
        if not super().parse_request():
            return False
        host = self.headers.get("Host", "")
        if re.sub(r":\d+$", "", host) not in HOSTS:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "expected the address that the board has printed")
        elif self.command not in ("GET", "HEAD"):
            self.send_error(HTTPStatus.METHOD_NOT_ALLOWED, "expected GET or HEAD: nothing can be changed here")
        else:
            return True
        return False

    def do_GET(self) -> None:
        """The page; for a request for news only if it has changed since the step named, else nothing."""
        board = self.server.board
        try:
            url = urlsplit(self.path)
            query = parse_qs(url.query, max_num_fields=FIELDS)
            runs, step = query.get("run", []), int(query.get("step", ["0"])[0])
        except ValueError:
            return self.send_error(HTTPStatus.BAD_REQUEST, "this page has no such address")
        token, _, place = url.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self.send_error(HTTPStatus.FORBIDDEN, "open the address that the board has printed: it has a token")
        elif place == "" and url.path.endswith("/"):
            self._answer(HTTPStatus.OK, "text/html", *_page(board, runs))
        elif place == "news":
            is_new = board.news(runs, step, query.get("looking", [""])[0].split(","), WAIT) != step
            self._answer(HTTPStatus.OK, "text/plain", _page(board, runs)[0] if is_new else "")
        else:
            self.send_error(HTTPStatus.NOT_FOUND, "there is nothing at this address")

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, kind: str, text: str, policy: str = "default-src 'none'") -> None:
        content = text.encode(errors="replace")
        self.send_response(status)
        kinds = {"Content-Type": f"{kind}; charset=utf-8", "Content-Security-Policy": policy}
        for name, value in (HEADERS | kinds).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A line of text, and nothing of what was asked."""
        self.close_connection = True
        status = HTTPStatus(code)
        self._answer(status, "text/plain", f"{status.value} {status.phrase}: {message or status.description}\n")

    def version_string(self) -> str:
        return "SkipScope"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: it would print the token."""


class _Request(RawIOBase):
    """What arrives on a connection: so many bytes, in so many seconds."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._left, self._end = connection, HEAD, time.monotonic() + ARRIVAL

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        seconds = self._end - time.monotonic()
        if self._left <= 0 or seconds <= 0:
            return 0
        self._connection.settimeout(seconds)
        count = self._connection.recv_into(buffer, min(len(buffer), self._left))
        self._connection.settimeout(ARRIVAL)  # of what is sent
        self._left -= count
        return count


def _page(board: Board, chosen: Sequence[str]) -> tuple[str, str]:
    """The page with what keeps it up to date, and its content security policy: its own, and what that needs."""
    step, before, main, after = board.page(chosen)
    own = POLICY.search(before)
    allowed = re.sub("(?<=script-src )", f"{source(SCRIPT)} ", unescape(own[1]) if own else UNDRAWN)
    allowed = allowed.replace("connect-src ", "connect-src 'self' ").replace("form-action 'none'", "form-action 'self'")
    live = f'<p id="live" class="notice" role="status" data-step="{step}"></p><script>{SCRIPT}</script>'
    page = POLICY.sub('<link rel="icon" href="data:,">', before) + main + after.replace("</body>", f"{live}</body>")
    return page, f"{allowed}; frame-ancestors 'none'"
