"""What the server lets in: the page to whoever has its address, nothing else, and nothing that keeps others waiting."""

import contextlib
import hashlib
import random
import socket
import threading
import time
from base64 import b64encode
from http.client import HTTPConnection
from types import SimpleNamespace

import pytest

from lightning_app.board import server as module
from lightning_app.board.server import SCRIPT, Server
from lightning_app.board.views import EMPTY
from lightning_app.common.errors import UserError
from lightning_app.report import interactive
from lightning_app.report.page import render
from lightning_app.report.page_data import PageData

POLICY = "default-src &#39;none&#39;; connect-src data:; script-src &#39;sha256-own&#39;; form-action &#39;none&#39;"
HEAD = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
SHELL = (f"<!DOCTYPE html><html><head>{HEAD}</head><body><main>", "</main></body></html>")


def page(chosen):
    return 3, SHELL[0], f"the page of {chosen}", SHELL[1]


def news(chosen, step, looking, seconds):
    return 3 if looking == ["learning", "weights"] else step


@pytest.fixture(scope="module")
def server():
    """One for the module: what any test leaves behind is met by the others."""
    with Server(SimpleNamespace(page=page, news=news), 0) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server, path=None, method="GET", **headers):
    connection = HTTPConnection(*server.server_address, timeout=120)
    connection.request(method, f"/{server.token}/" if path is None else path, headers=headers)
    answer = connection.getresponse()
    return answer.status, dict(answer.headers), answer.read().decode()


def raw(server, request: bytes) -> bytes:
    """What the server says to these bytes, after which nothing comes."""
    with socket.create_connection(server.server_address, timeout=120) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))
        except TimeoutError:
            raise
        except OSError:  # it has answered before all had come, and closed
            return b""


def test_the_page_and_its_policy(server):
    status, headers, text = ask(server, f"/{server.token}/?run=a&run=b%2Fc")
    assert status == 200 and "the page of ['a', 'b/c']" in text and 'data-step="3"' in text
    assert SCRIPT in text and len(SCRIPT.encode()) <= 1700 and "http-equiv" not in text
    digest = b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert headers["Content-Security-Policy"] == (
        f"default-src 'none'; connect-src 'self' data:; script-src 'sha256-{digest}' 'sha256-own'; "
        "form-action 'self'; frame-ancestors 'none'"
    )
    assert headers["Cache-Control"] == "no-store" and headers["Referrer-Policy"] == "no-referrer"
    assert "Python" not in headers["Server"]


def test_what_is_there_before_a_page_lets_its_style_and_script_in():
    """News are written into it, which leaves its policy as it is."""
    own = interactive.script()
    empty = module._page(SimpleNamespace(page=lambda chosen: (0, EMPTY[0], "", EMPTY[1])), [])[1]
    page = render([], "", PageData([], []))
    drawn = module._page(SimpleNamespace(page=lambda chosen: (1, *page.partition("</main>"))), [])[1]
    assert (
        empty == drawn and "style-src" in drawn and b64encode(hashlib.sha256(own.encode()).digest()).decode() in drawn
    )


def test_news(server):
    """The page, or nothing when it is none but that of the step."""
    status, headers, text = ask(server, f"/{server.token}/news?step=2&looking=learning,weights&run=a")
    assert (status, headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    assert "the page of ['a']" in text and 'data-step="3"' in text
    assert ask(server, f"/{server.token}/news?step=2&looking=costs&run=a")[::2] == (200, "")


def test_head_has_no_body(server):
    status, headers, text = ask(server, method="HEAD")
    assert status == 200 and int(headers["Content-Length"]) > 100 and not text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get"])
def test_nothing_can_be_changed(server, method):
    assert ask(server, method=method)[0] == 405


@pytest.mark.parametrize("token", ["", "x", "{token}x", "{short}", "%00", "é", "{token}%2F"])
def test_a_wrong_token(server, token):
    wrong = token.format(token=server.token, short=server.token[:-1])
    answer = raw(server, f"GET /{wrong}/ HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.0 403") and server.token.encode() not in answer


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:80", "", "localhost@evil.example", "[::1", "0"]
)
def test_a_page_of_another_name_is_refused(server, host):
    """A name of a stranger's that leads to this machine (DNS rebinding) is in the browser's Host."""
    assert ask(server, Host=host)[0] == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:1"])
def test_a_tunnel_may_have_another_port(server, host):
    assert ask(server, Host=host)[0] == 200


@pytest.mark.parametrize(
    "path",
    ["../", "../../etc/passwd", "..%2f..%2fetc/passwd", "log.csv", "live.js", "//etc/passwd", "news/", "./", "\\..\\x"],
)
def test_no_file_is_served(server, path):
    answer = raw(server, f"GET /{server.token}/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.0 404") and b"root:" not in answer


@pytest.mark.parametrize("query", ["step=x", "step=1&" + "&".join(["run=a"] * 2000)])
def test_a_query_of_another_page(server, query):
    assert ask(server, f"/{server.token}/news?{query}")[0] == 400


def test_an_address_that_is_none(server, capfd):
    assert raw(server, b"GET http://[/ HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith(b"HTTP/1.0 400")
    assert "Traceback" not in capfd.readouterr().err


def test_a_thousand_malformed_requests(server, capfd):
    """Of bytes at random, of real requests damaged, and cut short: each is answered or dropped, and the page is there."""
    rng = random.Random(0)
    real = f"GET /{server.token}/ HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n".encode()
    answers = set()
    for number in range(1000):
        request = bytearray(real if number % 2 else rng.randbytes(rng.randrange(300)))
        for _ in range(rng.randrange(1, 6) if number % 2 else 0):
            request[rng.randrange(len(request))] = rng.randrange(256)
        answers.add(raw(server, bytes(request[: rng.randrange(len(request) + 1)]) or b"\r\n")[:12])
    assert ask(server)[0] == 200
    assert b"HTTP/1.0 500" not in answers and len(answers) > 3
    assert "Traceback" not in capfd.readouterr().err


def test_no_more_than_so_many_bytes(server):
    """The last line is what a request needs: without a limit of our own this one would be answered."""
    lines = (f"GET /{server.token}/ HTTP/1.1", f"A: {'b' * 40_000}", "Host: localhost", "", "")
    assert not raw(server, "\r\n".join(lines).encode()).startswith(b"HTTP/1.0 200")


@pytest.mark.parametrize("request_", [b"GET /" + b"a" * 200_000, b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 50_000])
def test_a_request_without_an_end_is_cut(server, request_):
    assert not raw(server, request_).startswith(b"HTTP/1.0 200")


def test_no_more_than_so_many_requests_at_once(server, monkeypatch):
    """Then the page is there again."""
    monkeypatch.setattr(module, "ARRIVAL", 600.0)
    for _ in range(module.MOST):  # until requests of earlier tests are gone
        assert server._room.acquire(timeout=120)
    server._room.release(module.MOST)
    held = [socket.create_connection(server.server_address, timeout=120) for _ in range(module.MOST)]
    with pytest.raises(ConnectionError):
        ask(server)
    for connection in held:
        connection.close()
    assert eventually(lambda: ask(server)[0] == 200)


def test_a_byte_now_and_then_is_cut(server, monkeypatch):
    """The limit is on the whole request, not on each byte."""
    monkeypatch.setattr(module, "ARRIVAL", 1.0)
    with socket.create_connection(server.server_address, timeout=0.2) as connection:

        def is_cut() -> bool:
            try:
                connection.sendall(b"a")
                connection.recv(1)  # nothing, or the answer that it is none of a browser's
            except TimeoutError:
                return False
            except ConnectionError:
                pass
            return True

        assert eventually(is_cut)
    monkeypatch.setattr(module, "ARRIVAL", 600.0)
    assert ask(server)[0] == 200


def eventually(is_so) -> bool:
    """Within a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(ConnectionError):
            if is_so():
                return True
        time.sleep(0.05)
    return False


def test_each_start_has_a_token_of_its_own(server):
    with Server(SimpleNamespace(), 0) as other:
        assert other.token != server.token and len(other.token) >= 43  # 256 bits


def test_a_port_that_is_taken(server):
    with pytest.raises(UserError, match=r"cannot listen on port \d+ .*--port 0"):
        Server(SimpleNamespace(), server.server_address[1])
    with pytest.raises(UserError, match="port 70000"):
        Server(SimpleNamespace(), 70_000)
