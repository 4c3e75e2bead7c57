"""A real browser looks at a page: headless Chromium, and a script in a copy of the page that writes down what it sees."""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(PROGRAM is None, reason="needs Chromium, which is not installed")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--enable-logging=stderr", "--virtual-time-budget=10000"),
)
WATCH = """
<script>
const seen = {alerts: [], errors: []};
for (const name of ["alert", "confirm", "prompt"]) window[name] = text => { seen.alerts.push(String(text)); };
addEventListener("error", event => seen.errors.push(event.message || `${event.target.tagName} failed`), true);
addEventListener("load", () => {
  const all = [...document.body.querySelectorAll("*")];
  const sized = element => { const box = element.getBoundingClientRect(); return box.width > 0 && box.height > 0; };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const odd = [];
  while (texts.nextNode()) {
    const text = texts.currentNode;
    if (!text.parentElement.closest("pre") && /\\b(undefined|NaN)\\b|\\[object|^\\s*(nan|None|null)\\s*$/.test(text.data))
      odd.push(text.data);
  }
  parent.postMessage(JSON.stringify({
    ...seen,
    width: innerWidth,
    scroll: document.documentElement.scrollWidth,
    wide: all.filter(each => !each.closest(".scroll, pre, svg") && each.getBoundingClientRect().right > innerWidth + 1)
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
  }), "*");
});
</script>
"""
FRAME = """<!DOCTYPE html><iframe src="page.html" width="{width}" height="900" style="border: 0"></iframe><pre></pre>
<script>addEventListener("message", event => {{ document.querySelector("pre").textContent = event.data; }});</script>"""


def look(page: str, folder: Path, width: int = 1280) -> dict:
    """What the browser saw, with the page in a frame of that width: below some 500 pixels no window is narrower."""
    folder.mkdir(exist_ok=True)
    (folder / "page.html").write_text(page.replace("<head>", f"<head>{WATCH}", 1))
    frame = folder / "frame.html"
    frame.write_text(FRAME.format(width=width))
    done = _run(folder, "--dump-dom", frame.as_uri())
    found = re.search(r"<pre>(.+?)</pre>", done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(found[1])) | {"console": console}


def printed(page: str, folder: Path) -> bytes:
    """The page as PDF."""
    folder.mkdir(exist_ok=True)
    file, pdf = folder / "printed.html", folder / "printed.pdf"
    file.write_text(page)
    _run(folder, f"--print-to-pdf={pdf}", file.as_uri())
    return pdf.read_bytes()


def after(script: str, page: Path, folder: Path) -> str:
    """The page's HTML after a script ran in it, which is written into a copy beside the page."""
    copy = page.with_name(f"copy-of-{page.name}")
    copy.write_text(page.read_text().replace("</body>", f"<script>{script}</script></body>", 1))
    return _run(folder, "--dump-dom", copy.as_uri()).stdout


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """With a profile of its own and no network: its proxy is not there."""
    profile = [f"--user-data-dir={folder / 'profile'}", "--proxy-server=127.0.0.1:9"]
    environment = os.environ | {"HOME": str(folder)}
    command = [str(PROGRAM), *QUIET, *profile, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=True)
