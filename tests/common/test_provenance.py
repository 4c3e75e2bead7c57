"""What made a run: said in its folder, once for each start and resume."""

import io
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from lightning_app.common import provenance
from lightning_app.common.errors import UserError
from lightning_app.runs import RunFolder
from tests.helpers import ROOT

PROVENANCE = "lightning_app/common/provenance.py"


def test_a_tree_that_was_sent_without_git_is_told_its_commit(monkeypatch):
    monkeypatch.setenv("SKIPSCOPE_COMMIT", "0123456789ab")
    provenance.commit.cache_clear()
    assert provenance.commit() == "0123456789ab" == provenance.made_with()["commit"]
    monkeypatch.delenv("SKIPSCOPE_COMMIT")
    provenance.commit.cache_clear()
    assert provenance.commit() != "0123456789ab"


@pytest.fixture
def commit_of(monkeypatch):
    """commit_of(tree): what the provenance.py of a tree says, asked in a process of its own, with no variable set."""
    monkeypatch.delenv("SKIPSCOPE_COMMIT", raising=False)

    def said(tree: Path) -> str:
        file = str(tree / "lightning_app" / "common" / "provenance.py")
        code = f"import runpy; print(runpy.run_path({file!r})['commit']())"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    return said


def repository(folder: Path, *files: str) -> str:
    """A repository with files of ours; its commit."""
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "--allow-empty", "-m", "all"]):
        subprocess.run([*git, *words], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


def test_an_archive_knows_its_commit_and_a_copy_takes_no_other_programs(tmp_path, commit_of):
    ours, sent = tmp_path / "ours", tmp_path / "sent"
    ours.mkdir(), sent.mkdir()
    head = repository(ours, ".gitattributes", PROVENANCE)
    assert commit_of(ours) == head[:12]
    archive = subprocess.run(["git", "-C", str(ours), "archive", "HEAD"], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(sent, filter="data")
    assert commit_of(sent) == head[:12]
    shutil.copy(ours / PROVENANCE, sent / PROVENANCE)  # a plain copy, in a repository of somebody else
    repository(tmp_path)
    assert commit_of(sent).startswith("unknown") and "SKIPSCOPE_COMMIT" in commit_of(sent)


def test_a_library_that_is_not_installed_stops_nothing():
    assert provenance.versions(["numpy", "no-such-library"]).endswith("no-such-library not installed")


def test_what_made_a_run_is_json():
    found = json.loads(json.dumps(provenance.made_with()))
    assert {"commit", "python", "libraries", "processor", "threads"} == found.keys()
    assert found["threads"] >= 1 and found["processor"]


def test_a_command_of_other_words_than_texts_and_of_none(monkeypatch):
    """A notebook's own sys.argv ended the watching of its training."""
    for words, told in (([Path("a/train.py"), 3, "b c"], "train.py 3 'b c'"), ([], "''")):
        monkeypatch.setattr("sys.argv", words)
        assert provenance.command_line() == told


def test_each_part_of_a_run_adds_a_line(tmp_path):
    folder = RunFolder(tmp_path / "run")
    assert folder.made() == []
    folder.add_made({"commit": "a", "after_epoch": 0})
    folder.add_made({"commit": "b", "after_epoch": 7})
    assert [part["commit"] for part in folder.made()] == ["a", "b"]
    (folder.path / "made.jsonl").write_text("not json\n")
    with pytest.raises(UserError, match=r"made\.jsonl should hold one JSON object per line"):
        folder.made()
