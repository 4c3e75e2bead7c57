"""A real browser looks at pages: one headless Chromium, driven by its DevTools protocol over a pipe, a tab for each page.

A tab runs what a person does -- moves the pointer, presses keys -- and scripts that a page's own policy forbids it.
"""

import atexit
import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(PROGRAM is None, reason="needs Chromium, which is not installed")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)
PATIENCE = 600  # seconds: other work may hold the processor, and a board's drawing gives way to it
WATCH = """
const seen = {alerts: [], errors: []};
for (const name of ["alert", "confirm", "prompt"]) window[name] = text => { seen.alerts.push(String(text)); };
addEventListener("error", event => seen.errors.push(event.message || `${event.target.tagName} failed`), true);
addEventListener("securitypolicyviolation", event => seen.errors.push(`${event.violatedDirective} forbids ${event.blockedURI}`));
"""
LOOK = """
(() => {
  for (const fold of document.querySelectorAll("section > details")) fold.open = true;
  const all = [...document.body.querySelectorAll("*")];
  const sized = element => { const box = element.getBoundingClientRect(); return box.width > 0 && box.height > 0; };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const odd = [];
  while (texts.nextNode()) {
    const text = texts.currentNode;
    if (!text.parentElement.closest("pre, script") && /\\b(undefined|NaN)\\b|\\[object|^\\s*(nan|None|null)\\s*$/.test(text.data))
      odd.push(text.data);
  }
  return {
    ...seen,
    width: innerWidth,
    scroll: document.documentElement.scrollWidth,
    wide: all.filter(each => !each.closest(".scroll, .bar, nav, pre, svg") && each.getBoundingClientRect().right > innerWidth + 1)
      .map(each => `${each.tagName}.${each.className} ${each.textContent.slice(0, 60)}`),
    tags: all.map(each => each.tagName.toLowerCase()).reduce((n, tag) => ({...n, [tag]: (n[tag] || 0) + 1}), {}),
    handlers: all.flatMap(each => [...each.attributes]).map(each => each.name).filter(name => name.startsWith("on")),
    panels: document.querySelectorAll("svg.panel").length,
    empty: [...document.querySelectorAll("svg.panel")].filter(each => !sized(each)).map(each => each.parentElement.id),
    requests: performance.getEntriesByType("resource").map(each => each.name),
    dead: [...document.querySelectorAll('a[href^="#"]')].map(each => each.getAttribute("href"))
      .filter(href => !document.getElementById(decodeURIComponent(href.slice(1)))),
    odd,
    text: document.body.innerText,
  };
})()
"""


@contextmanager
def tab(page: Path, width: int = 1280, *, script: bool = True, dark: bool = False, anchor: str = "") -> Iterator["Tab"]:
    """The page, loaded, in a window of that width."""
    browser = running()
    target = browser.send("Target.createTarget", url="about:blank")["targetId"]
    tab = Tab(browser, browser.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
    for domain in ("Page", "Runtime", "Log"):
        tab.send(f"{domain}.enable")
    tab.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    tab.send(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    )
    tab.send("Emulation.setScriptExecutionDisabled", value=not script)
    tab.send("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
    tab.open(page.as_uri() + anchor)
    yield tab
    browser.send("Target.closeTarget", targetId=target)


@cache
def running() -> "Browser":
    """The one browser of a process."""
    folder = tempfile.TemporaryDirectory(prefix="chromium")
    browser = Browser(Path(folder.name))
    atexit.register(folder.cleanup)
    atexit.register(browser.close)
    return browser


class Browser:
    """A running Chromium; commands and their answers are JSON with a zero byte after each, on descriptors 3 and 4."""

    def __init__(self, folder: Path) -> None:
        self.numbers = itertools.count(1)
        self.console: dict[str, list[str]] = {}
        self.rest = b""
        theirs_in, self.out = os.pipe()
        self.inward, theirs_out = os.pipe()
        # A shell puts the pipes where Chromium looks for them. No network: its proxy is not there.
        shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        flags = [
            *QUIET,
            f"--user-data-dir={folder / 'profile'}",
            "--proxy-server=127.0.0.1:9",
            "--remote-debugging-pipe",
            "about:blank",  # instead of a page of the browser's own
        ]
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", shell, "bash", str(PROGRAM), *flags],
            pass_fds=(theirs_in, theirs_out),
            env=os.environ | {"HOME": str(folder)},
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        os.set_blocking(self.inward, False)

    def send(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """A command's result. RuntimeError: what the browser says against it."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self.out, json.dumps(message).encode() + b"\0")
        for answer in self.answers():
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
        raise AssertionError("unreachable")

    def answers(self) -> Iterator[dict[str, Any]]:
        """Messages as they come; what the consoles say is kept."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            head, zero, rest = self.rest.partition(b"\0")
            if not zero:
                try:
                    self.rest += os.read(self.inward, 1 << 20)
                except BlockingIOError:
                    time.sleep(0.002)
                continue
            self.rest, message = rest, json.loads(head)
            if message.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
                self.console.setdefault(message["sessionId"], []).append(json.dumps(message["params"]))
            yield message
        raise TimeoutError(f"no answer from Chromium within {PATIENCE} s")

    def close(self) -> None:
        self.send("Browser.close")
        self.process.wait(PATIENCE)


class Tab:
    """One page in the browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self.session = browser, session

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.send(method, self.session, **params)

    def open(self, address: str) -> None:
        """And wait until it is loaded."""
        self.send("Page.navigate", url=address)
        for message in self.browser.answers():
            if message.get("method") == "Page.loadEventFired" and message.get("sessionId") == self.session:
                return

    def run(self, expression: str) -> Any:
        """What a script in the page comes to, promises awaited. AssertionError: what it threw."""
        result = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, expression: str) -> Any:
        """The first value of the expression that is true; AssertionError if none comes."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if value := self.run(f"(found => found instanceof Node || found)({expression})"):
                return value
            time.sleep(0.02)
        raise AssertionError(f"never true: {expression}")

    def look(self) -> dict[str, Any]:
        """What is wrong with the page, what it has, and what its console says."""
        return self.run(LOOK) | {"console": self.browser.console.get(self.session, [])}

    def move(self, x: float, y: float) -> None:
        """The pointer, to a place in the window."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, shift: bool = False) -> None:
        """A key that writes nothing, by its name; " " and Enter do what they do to a button."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        text = {"Enter": "\r", " ": " "}.get(key, "")
        common = {"key": key, "windowsVirtualKeyCode": codes[key], "modifiers": 8 * shift}
        self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def picture(self, file: Path, whole: bool = False) -> None:
        """A PNG of the window, or of the whole page."""
        file.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", captureBeyondViewport=whole)["data"]))

    def printed(self) -> bytes:
        """The page as PDF."""
        return base64.b64decode(self.send("Page.printToPDF")["data"])
