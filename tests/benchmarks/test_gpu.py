"""The command for a GPU, at tiny sizes on the CPU: what a second call does, what is cut off, and what each case writes."""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import gpu
from benchmarks.harness import Comparison, rows_of
from benchmarks.page import section
from tests.gpu.stand_in import stand_in

CASES = {  # name -> number of rows where there are graphs
    "roofline, tf32": 1,
    "proof, 32-true, 3 steps": 2,
    "steps, tf32": 5,
    "streams, tf32": len(gpu.STREAM_COUNTS) + 1,
    "epochs, tf32": 3,
    "measuring, simplified": 2,
    "measuring, full": 2,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_case_runs_at_a_tiny_size(root, tmp_path, name):
    """With graphs, as on a GPU: each part is tried before a GPU is paid for."""
    out = tmp_path / "case.json"
    with stand_in() as graphs:
        gpu.main(["--case", name, "--root", str(root), "--out", str(out), "--device", "cpu", "--quick"])
    content = json.loads(out.read_text())
    assert {"command", "commit", "machine", "versions", "setting", "values"} <= content.keys()
    assert len(rows_of(content)) == CASES[name] and not content.get("left out") and graphs
    assert name in section(name, content)
    if name.startswith("proof"):
        assert [row.ratio.median for row in rows_of(content)] == [0, 0]  # on a CPU every bit, the graph's too


def test_measures_are_timed_without_rounding_as_they_run(monkeypatch):
    """On a GPU training rounds the factors of convolutions, and no measure does."""
    seen = []

    def look(*_, **__) -> SimpleNamespace:
        seen.append(torch.backends.cudnn.conv.fp32_precision)
        return SimpleNamespace(layers={})

    def once(made, rounds) -> Comparison:
        made["every epoch"]()
        return Comparison({name: [1.0] for name in made})

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "interleave", once)
    monkeypatch.setattr(gpu, "load_cifar10", lambda *_: [])
    monkeypatch.setattr(gpu, "through_lightning", lambda *_: None)
    for name in ("probe_forward", "interlayer_cushions"):
        monkeypatch.setattr(gpu, name, look)
    gpu.measuring(gpu.Run(Path(), "cpu", gpu.QUICK), "simplified")
    assert seen == ["ieee", "ieee"]


@pytest.fixture
def call(tmp_path, monkeypatch):
    """call(minutes, code): exit code of a command whose one case is a line of Python."""

    def command(minutes: float, code: str) -> int:
        monkeypatch.setattr(gpu, "CASES", {"made": gpu.Case(0.0, gpu.steps)})
        monkeypatch.setattr(gpu, "GRACE", 1.0)
        monkeypatch.setattr(gpu.signal, "signal", lambda *_: None)
        monkeypatch.setattr(gpu, "words_of", lambda name, options, out: [sys.executable, "-c", code, str(out)])
        return gpu.main(["--out", str(tmp_path), "--minutes", str(minutes), "--device", "cpu", "--quick"])

    return command


def writes(**differing: str) -> str:
    """Code of a case that writes what it was made by."""
    made = gpu.made_by("python -m benchmarks.gpu --out FOLDER --device cpu --quick") | differing
    return f"import json, sys; json.dump({made!r}, open(sys.argv[1], 'w'))"


def test_a_second_call_measures_only_what_is_not_done(call, tmp_path):
    assert call(1, "raise SystemExit(3)") == 1
    assert call(1, writes()) == 0
    assert json.loads((tmp_path / "gpu.json").read_text()).keys() == {"made"}
    assert call(1, "raise SystemExit(3)") == 0  # not run again


@pytest.mark.parametrize("differing", ["command", "commit"])
def test_what_another_command_or_commit_measured_is_measured_again(call, differing):
    assert call(1, writes(**{differing: "another"})) == 0
    assert call(1, "raise SystemExit(3)") == 1


def test_a_case_that_takes_too_long_is_cut_off_with_all_its_processes(call, tmp_path, monkeypatch):
    deaf = (
        "import os, signal, sys, time; child = os.fork(); "
        f"print(child, file=open({str(tmp_path / 'pid')!r}, 'w')) if child else signal.signal(15, signal.SIG_IGN); "
        "time.sleep(60)"
    )
    file, start = tmp_path / "pid", subprocess.Popen

    def started(*words, **options) -> subprocess.Popen:  # its time begins when it runs
        process = start(*words, **options)
        while not (file.exists() and file.read_text().endswith("\n")):
            time.sleep(0.01)
        return process

    monkeypatch.setattr(gpu.subprocess, "Popen", started)
    begun = time.monotonic()
    assert call(0.05, deaf) == gpu.AGAIN
    child = Path(f"/proc/{file.read_text().strip()}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it is gone
        while child.read_text().rpartition(")")[2].split()[0] not in "ZX":
            assert time.monotonic() - begun < 30  # of the minute that it would take
            time.sleep(0.1)


def test_missing_data_are_an_error_message(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "CASES", {})
    with pytest.raises(SystemExit) as stopped:
        gpu.main(["--root", str(tmp_path), "--out", str(tmp_path), "--device", "cpu"])
    assert stopped.value.code == 2 and "error: expected CIFAR-10" in capsys.readouterr().err


def test_without_a_gpu_it_is_an_error_message(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        gpu.main(["--out", str(tmp_path)])
    assert stopped.value.code == 2 and "PyTorch sees no GPU here" in capsys.readouterr().err
