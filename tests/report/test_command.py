"""The command: where the page goes, and one message for a mistake."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_app.cli import main

ROOT = Path(__file__).resolve().parents[2]


def test_finds_runs_below_a_folder(make, tmp_path, capsys):
    make("a", ["plain"], 1), make("b", ["residual"], 1)
    out = tmp_path / "both.html"
    assert main(["report", str(tmp_path / "runs"), "--out", str(out), "--layer", "layer03"]) == 0
    assert "layer03" in out.read_text() and capsys.readouterr().out.strip().endswith(str(out))


def test_a_fault_of_ours_says_how_to_see_where_it_is(monkeypatch, capsys):
    def broken(*_):
        raise ValueError("operands could not be broadcast")

    monkeypatch.setattr("lightning_app.report.command.report", broken)
    assert main(["report", "runs"]) == 2
    assert "could not be broadcast (ValueError; SKIPSCOPE_TRACEBACK=1 shows the traceback)" in capsys.readouterr().err
    monkeypatch.setenv("SKIPSCOPE_TRACEBACK", "1")
    with pytest.raises(ValueError, match="broadcast"):
        main(["report", "runs"])


@pytest.mark.parametrize(
    ("said", "words"),
    [
        *[("required", []), ("found no log.csv", ["{run}/nowhere"]), ("got layer99", ["{run}", "--layer", "layer99"])],
        *[("unrecognized arguments: --nonsense", ["{run}", "--nonsense"])],
    ],
)
def test_mistakes_are_one_message(finished, capsys, said, words):
    assert main(["report", *(word.format(run=finished.path) for word in words)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_foreign_log_and_broken_config(run, capsys):
    (run.path / "config.yaml").write_text("a: [1,\n")
    assert main(["report", str(run.path)]) == 2
    assert "is not YAML" in capsys.readouterr().err
    (run.path / "log.csv").write_text("loss\n1.0\n")
    assert main(["report", str(run.path)]) == 2
    assert "must begin with the line" in capsys.readouterr().err


def test_of_several_runs_a_damaged_one_is_named_and_left_out(make, tmp_path, capsys, caplog):
    make("a", ["plain"], 1)
    broken = make("b", ["residual"], 1).path
    with (broken / "log.csv").open("a") as log:
        log.write("residual,,,\n")
    assert main(["report", str(tmp_path / "runs")]) == 0
    assert f"{broken} is left out: " in caplog.text and "log.csv has a row" in caplog.text
    assert main(["report", str(broken)]) == 2
    assert "log.csv has a row" in capsys.readouterr().err


def test_of_several_runs_one_that_may_not_be_entered_is_left_out(make, tmp_path, caplog, monkeypatch):
    make("a", ["plain"], 1)
    closed, stat = make("b", ["residual"], 1).path, Path.stat

    def refused(path: Path, **options: bool) -> os.stat_result:
        if closed in path.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refused)  # as of a folder that can be listed only, for which root has no test
    assert main(["report", str(tmp_path / "runs")]) == 0
    assert f"{closed} is left out: " in caplog.text


def test_a_page_takes_the_place_of_no_other_file(make, tmp_path, capsys):
    log = make("a", ["plain"], 1).path / "log.csv"
    before = log.read_bytes()
    assert main(["report", str(tmp_path / "runs"), "--out", str(log)]) == 2
    assert log.read_bytes() == before and "a file, which is not overwritten" in capsys.readouterr().err
    index = tmp_path / "index.html"
    index.write_text("<title>Mine</title>")
    assert main(["report", str(tmp_path / "runs"), "--out", str(index)]) == 2
    assert index.read_text() == "<title>Mine</title>" and "a page of another kind, which is" in capsys.readouterr().err
    index.write_text("")  # as mktemp makes one
    for _ in range(2):
        assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "pages.v2")]) == 0
        assert main(["report", str(tmp_path / "runs"), "--out", str(index)]) == 0
    assert [path.name for path in (tmp_path / "pages.v2").iterdir()] == ["report.html"]


def test_starts_without_what_is_slow_to_import():
    script = (
        "import sys, lightning_app.report; "
        "print({'torch', 'pytorch_lightning', 'lightning', 'wandb', 'matplotlib.pyplot'} & set(sys.modules) or 'light')"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "light"


def test_a_disk_that_takes_nothing_more_is_no_mistake_of_the_user(make, tmp_path, monkeypatch, capsys):
    make("a", ["plain"], 1)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("tempfile.mkstemp", full)
        assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "page.html")]) == 1
    assert "page.html cannot be written: No space left on device" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "file" / "page.html")]) == 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("out", [[], ["--out=runs/a/new/folder"], ["--out=runs/a/log.csv/report.html"]])
def test_a_folder_that_one_cannot_write_is_said_before_the_page_is_made(make, tmp_path, monkeypatch, capsys, out):
    """Also one that is still to be made, and one that is a file."""
    make("a", ["plain"], 1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.access", lambda path, mode: os.path.abspath(path) != str(tmp_path / "runs" / "a"))
    monkeypatch.setattr("lightning_app.report.page.gather", None)
    assert main(["report", str(tmp_path / "runs" / "a"), *out]) == 1
    assert "report.html cannot be written" in (said := capsys.readouterr().err) and "with --out" in said


def test_a_page_may_be_below_the_home_folder(make, tmp_path, monkeypatch):
    make("a", ["plain"], 1)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["report", str(tmp_path / "runs"), "--out=~/page.html"]) == 0
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["report", "~nobody-of-that-name/runs"],
        ["board", "~nobody-of-that-name/runs"],
        ["compare", "~nobody-of-that-name/runs", "~nobody-of-that-name/runs"],
        ["reproduce", "--list", "--runs=~nobody-of-that-name/runs"],
        ["reproduce", "--list", "--data-root=~nobody-of-that-name/runs"],
        ["verify", "--results=~nobody-of-that-name/runs"],
        ["verify", "findings/notation", "--data-root=~nobody-of-that-name/runs"],
        ["extract", "~nobody-of-that-name/runs", "one.ckpt", "--member=net"],
    ],
)
def test_the_home_of_a_user_who_is_not_there_is_one_message(words, capsys):
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: expected a path, got ~nobody-of-that-name/runs") and "in full" in said
