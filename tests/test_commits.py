"""Every commit that a result names is in the history, but for those that docs/results/README.md lists as lost."""

import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
ABOUT = ROOT / "docs" / "results" / "README.md"
NAME = re.compile(
    r"(?<![\w.])(?=\d*[a-f])[0-9a-f]{7,40}\+?(?!\w|\.\w)"
)  # of a commit; without letters it may be a number
IN_TEXT = re.compile(r"\bcommit `?([0-9a-f]{7,40})", re.IGNORECASE)
FIRST = "2a22a942409f"  # commit of this project
FOLDERS = ("results", "docs/results")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


@cache
def history() -> frozenset[str]:
    try:
        if Path(_git("rev-parse", "--show-toplevel").strip()).resolve() != ROOT:
            pytest.skip("no checkout of its own")
        whole = _git("rev-parse", "--is-shallow-repository").strip() == "false"
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no checkout of git")
    if not whole:
        pytest.skip("a clone with a part of the history")
    commits = frozenset(_git("rev-list", "HEAD").split())
    if not any(commit.startswith(FIRST) for commit in commits):
        pytest.skip("files of this project in a history of their own")
    return commits


def _of_keys(tree: Any) -> Iterator[str]:
    """Values of all keys "commit"."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from [value] if key == "commit" and isinstance(value, str) else _of_keys(value)
    if isinstance(tree, list):
        for each in tree:
            yield from _of_keys(each)


def named() -> dict[str, set[str]]:
    """Commit -> files that name it."""
    found: dict[str, set[str]] = {}
    for file in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.*"))):
        commits: list[str] = []
        if file.suffix == ".json":
            commits += _of_keys(json.loads(file.read_text(encoding="utf-8")))
        elif file.suffix == ".jsonl":
            commits += _of_keys([json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()])
        elif file.suffix in (".csv", ".txt"):
            head = [line for line in file.read_text(encoding="utf-8").splitlines()[:5] if line.startswith("# commit")]
            commits += [name for line in head for name in NAME.findall(line)]
        for commit in commits:
            found.setdefault(commit.removesuffix("+"), set()).add(str(file.relative_to(ROOT)))
    for row in ABOUT.read_text(encoding="utf-8").splitlines():
        for name in NAME.findall(row.rsplit("|", 2)[1]) if row.startswith("|") else ():
            found.setdefault(name.removesuffix("+"), set()).add(str(ABOUT.relative_to(ROOT)))
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for name in IN_TEXT.findall(page.read_text(encoding="utf-8")):
            found.setdefault(name, set()).add(str(page.relative_to(ROOT)))
    return found


def test_commits_that_results_name_are_in_the_history():
    commits, (lost,) = history(), re.findall(r"not in the history[^:]*:(.*?)\n\n", ABOUT.read_text("utf-8"), re.DOTALL)
    known = tuple(NAME.findall(lost))
    missing = {
        name: sorted(files)
        for name, files in named().items()
        if not any(commit.startswith(name) for commit in commits) and not name.startswith(known)
    }
    assert not missing
    assert not [name for name in known if any(commit.startswith(name) for commit in commits)]
