"""What made a run: said in its folder, once for each start and resume."""

import json

import pytest

from lightning_app.common import provenance
from lightning_app.common.errors import UserError
from lightning_app.runs import RunFolder


def test_a_tree_that_was_sent_without_git_is_told_its_commit(monkeypatch):
    monkeypatch.setenv("SKIPSCOPE_COMMIT", "0123456789ab")
    provenance.commit.cache_clear()
    assert provenance.commit() == "0123456789ab" == provenance.made_with()["commit"]
    monkeypatch.delenv("SKIPSCOPE_COMMIT")
    provenance.commit.cache_clear()
    assert provenance.commit() != "0123456789ab"


def test_a_library_that_is_not_installed_stops_nothing():
    assert provenance.versions(["numpy", "no-such-library"]).endswith("no-such-library not installed")


def test_what_made_a_run_is_json():
    found = json.loads(json.dumps(provenance.made_with()))
    assert {"commit", "python", "libraries", "processor", "threads"} == found.keys()
    assert found["threads"] >= 1 and found["processor"]


def test_each_part_of_a_run_adds_a_line(tmp_path):
    folder = RunFolder(tmp_path / "run")
    assert folder.made() == []
    folder.add_made({"commit": "a", "after_epoch": 0})
    folder.add_made({"commit": "b", "after_epoch": 7})
    assert [part["commit"] for part in folder.made()] == ["a", "b"]
    (folder.path / "made.jsonl").write_text("not json\n")
    with pytest.raises(UserError, match=r"made\.jsonl should hold one JSON object a line"):
        folder.made()
