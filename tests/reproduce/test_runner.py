"""Finding, reusing, resuming and training runs; the last with real training processes on a few made images."""

import os
import re
import signal
import subprocess
import sys

import pytest

from lightning_app.cli import main
from lightning_app.common.seeds import parse_seeds, spell_seeds
from lightning_app.papers.parts import PAPER, SMOKE, Run
from lightning_app.reproduce.job import JobOptions
from lightning_app.reproduce.training import RunFailed, TrainingJob
from tests.forked import MAIN, WAIT_AT, Popen
from tests.helpers import ROOT, command
from tests.reproduce.conftest import tiny_cifar10
from tests.waiting import go_on, until_it_waits

RUN = Run("depth20", seeds=3)
PLAN = TrainingJob("yu-tomasi", RUN, PAPER)


def one(*_) -> dict[str, float]:
    return {"train/risk": 1.0}


def test_states_in_words(leave, tmp_path):
    runs = tmp_path / "runs"
    assert PLAN.state(runs) == "not run"
    leave(RUN, one, epochs=(0, 12), finished=False, seeds=(0, 1))
    assert PLAN.state(runs) == "epoch 12 of 200"
    leave(RUN, one, seeds=(2,), name="depth20~2")
    assert PLAN.state(runs) == "1 of 3 seeds, 2 more at epoch 12 of 200"
    leave(RUN, one, epochs=(0, 70), finished=False, seeds=(1,), name="depth20~4")
    assert PLAN.state(runs) == "1 of 3 seeds, 2 more at epochs 12 to 70 of 200"
    leave(RUN, one, seeds=(0, 1), name="depth20~3")
    assert PLAN.state(runs) == "finished"


def test_some_of_the_seeds(leave, tmp_path):
    leave(RUN, one, seeds=(0, 1))
    assert PLAN.state(tmp_path / "runs") == "2 of 3 seeds"


def test_a_run_stopped_before_its_first_checkpoint_counts_for_nothing(leave, tmp_path):
    folder = leave(RUN, one, epochs=(0,), finished=False)
    (folder.checkpoints / "last.ckpt").unlink()
    (found,) = PLAN.found(tmp_path / "runs")
    assert found.state == "lost"
    assert PLAN.state(tmp_path / "runs") == "not run"


def test_a_run_that_lost_its_checkpoint_is_said_but_is_trained_anew(leave, tmp_path, monkeypatch):
    """As the evidence of a first step, on which rows rest."""
    for epochs, name in ((1, "depth20"), (3, "depth20~2")):
        folder = leave(RUN, one, epochs=(0, epochs), finished=False, seeds=(0,), name=name)
        (folder.checkpoints / "last.ckpt").unlink()
    assert PLAN.state(tmp_path / "runs") == "epoch 3 of 200 without a checkpoint"
    leave(RUN, one, seeds=(1,), name="depth20~3")
    assert PLAN.state(tmp_path / "runs") == "1 of 3 seeds, 1 more at epoch 3 of 200 without a checkpoint"
    leave(RUN, one, epochs=(0, 2), finished=False, seeds=(0, 2), name="depth20~4")
    assert PLAN.state(tmp_path / "runs") == "1 of 3 seeds, 2 more at epoch 2 of 200"


def test_a_run_that_was_made_shorter_and_ended_is_not_finished(leave, tmp_path):
    """Epochs can be given on top of the plan's."""
    folder = leave(RUN, one, epochs=(0, 12))
    assert (folder.finished, PLAN.state(tmp_path / "runs")) == (12, "epoch 12 of 200 without a checkpoint")
    folder.checkpoints.mkdir()
    (folder.checkpoints / "last.ckpt").write_bytes(b"a checkpoint")
    assert PLAN.state(tmp_path / "runs") == "epoch 12 of 200"


def test_runs_of_other_names_and_settings_are_left_alone(leave, tmp_path):
    leave(RUN, one, name="depth200")
    leave(RUN, one, scale=SMOKE)
    assert PLAN.found(tmp_path / "runs") == []


class Recorder:
    """Stands in for the training process: notes what was asked, and leaves the run finished."""

    def __init__(self, monkeypatch, finish=None, code: int = 0):
        self.asked: list[list[str]] = []
        self.finish, self.code = finish, code
        monkeypatch.setattr("lightning_app.common.processes.subprocess.Popen", self)

    def __call__(self, words: list[str], **_):
        self.asked.append(words)
        if self.finish is not None:
            self.finish(parse_seeds(self.option("--model.seeds", -1)), len(self.asked))
        return self

    def wait(self) -> int:
        return self.code

    def option(self, name: str, call: int = 0) -> str | None:
        words = self.asked[call]
        return words[words.index(name) + 1] if name in words else None


def finishing(leave):
    return lambda seeds, call: leave(RUN, one, seeds=seeds, name=f"depth20~{call + 7}")


def test_only_the_missing_seeds_are_trained(leave, tmp_path, monkeypatch):
    leave(RUN, one, seeds=(1,))
    recorder = Recorder(monkeypatch, finishing(leave))
    PLAN.complete(tmp_path / "runs", JobOptions())
    assert len(recorder.asked) == 1
    assert recorder.option("--model.seeds") == "0,2"
    assert recorder.option("--trainer.max_epochs") == "200"


def test_other_seeds_are_left_to_other_machines(leave, tmp_path, monkeypatch):
    recorder = Recorder(monkeypatch, finishing(leave))
    PLAN.complete(tmp_path / "runs", JobOptions(seeds=(2, 7)))
    assert recorder.option("--model.seeds") == "2-2"


def test_nothing_is_trained_when_all_is_there(leave, tmp_path, monkeypatch):
    leave(RUN, one)
    recorder = Recorder(monkeypatch)
    PLAN.complete(tmp_path / "runs", JobOptions())
    assert recorder.asked == []


def test_an_interrupted_run_is_resumed_with_its_own_seeds(leave, tmp_path, monkeypatch):
    folder = leave(RUN, one, epochs=(0, 12), finished=False, seeds=(0, 2))
    recorder = Recorder(monkeypatch, finishing(leave))
    PLAN.complete(tmp_path / "runs", JobOptions())
    assert recorder.option("--ckpt_path") == str(folder.checkpoints / "last.ckpt")
    assert [recorder.option("--model.seeds", call) for call in range(len(recorder.asked))] == ["0,2", "1-1"]


def test_of_two_interrupted_runs_of_a_seed_the_further_one_goes_on(leave, tmp_path, monkeypatch):
    leave(RUN, one, epochs=(0, 12), finished=False)
    further = leave(RUN, one, epochs=(0, 70), finished=False, name="depth20~2")
    leave(RUN, one, epochs=(0, 30), finished=False, name="depth20~3")
    assert PLAN.state(tmp_path / "runs") == "epoch 70 of 200"
    recorder = Recorder(monkeypatch, finishing(leave))
    PLAN.complete(tmp_path / "runs", JobOptions())
    assert [words[words.index("--ckpt_path") + 1] for words in recorder.asked] == [
        str(further.checkpoints / "last.ckpt")
    ]


def test_a_seed_is_not_trained_twice_because_another_one_went_further_alone(leave, tmp_path, monkeypatch):
    both = leave(RUN, one, epochs=(0, 12), finished=False, seeds=(0, 1))
    leave(RUN, one, epochs=(0, 70), finished=False, seeds=(0,), name="depth20~2")
    recorder = Recorder(monkeypatch, finishing(leave))
    PLAN.complete(tmp_path / "runs", JobOptions(seeds=(0, 1)))
    assert len(recorder.asked) == 1 and recorder.option("--ckpt_path") == str(both.checkpoints / "last.ckpt")


def test_an_interrupted_run_whose_seeds_are_finished_elsewhere_is_left_alone(leave, tmp_path, monkeypatch):
    leave(RUN, one, epochs=(0, 12), finished=False)
    leave(RUN, one, name="depth20~2")
    recorder = Recorder(monkeypatch)
    PLAN.complete(tmp_path / "runs", JobOptions())
    assert recorder.asked == []


def test_a_run_that_ends_well_before_its_last_epoch_is_not_begun_anew(leave, tmp_path, monkeypatch):
    leave(RUN, one, epochs=(0, 12), finished=False)
    recorder = Recorder(monkeypatch)
    with pytest.raises(RunFailed):
        PLAN.complete(tmp_path / "runs", JobOptions())
    assert len(recorder.asked) == 1


def test_one_seed_is_spelled_so_that_fit_does_not_count_to_it(capsys, tmp_path):
    words = ("fit", "--config", str(PLAN.config), "--model.seeds", spell_seeds([7]), "--print_config")
    said = command(*words, cwd=tmp_path)
    assert "seeds: 7-7" in said.stdout
    assert parse_seeds(spell_seeds([7])) == (7,)


def test_a_run_that_fails_stops_everything_with_its_code(tmp_path, monkeypatch):
    Recorder(monkeypatch, code=2)
    with pytest.raises(RunFailed, match=r"depth20 stopped \(exit code 2\)") as failure:
        PLAN.complete(tmp_path / "runs", JobOptions())
    assert failure.value.code == 2


@pytest.mark.parametrize(("code", "begins"), [(143, "stopped: "), (138, "stopped: "), (137, "error: "), (2, "error: ")])
def test_the_message_says_whether_a_signal_that_saves_ended_the_run(tmp_path, monkeypatch, capsys, code, begins):
    Recorder(monkeypatch, code=code)
    out = ("--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "results"))
    assert main(["reproduce", "yu-tomasi/fig-6", *out]) == code
    assert capsys.readouterr().err.startswith(f"{begins}the run equivalent20 stopped (exit code {code}).")


@pytest.mark.slow
def test_smoke_from_the_command_line_interrupted_resumed_and_reused(tmp_path):
    """Of the run with the fewest measures: what is measured is other tests' matter."""
    data = tiny_cifar10(tmp_path / "data")
    words = ("reproduce", "yu-tomasi/fig-2", "--data-root", str(data))
    process = Popen(
        [sys.executable, MAIN, *words],
        cwd=tmp_path,
        env=os.environ | {"WANDB_MODE": "offline", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), WAIT_AT: "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until_it_waits(process, tmp_path)
    process.send_signal(signal.SIGTERM)
    go_on(tmp_path)
    said = process.communicate(timeout=120)
    assert process.returncode == 143, said
    assert "again to resume it" in said[1]
    runs = tmp_path / "runs"
    assert TrainingJob("yu-tomasi", Run("fig2", seeds=13), SMOKE).state(runs) == "epoch 1 of 2"  # of one step each

    resumed = command(*words, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "--ckpt_path" in resumed.stdout
    assert re.search(r"^E of plain minus residual at L = .*  not tested  ", resumed.stdout, re.MULTILINE)
    assert re.search(r"not tested\. Evidence, smoke scale .*\. Files:", resumed.stdout)
    assert [path.name for path in (runs / "yu-tomasi-smoke").iterdir() if path.is_dir()] == ["fig2"]

    again = command(*words, cwd=tmp_path)
    assert "run fig2:" not in again.stdout
    folder = tmp_path / "results" / "yu-tomasi" / "fig-2" / "smoke"
    figure = {f"figure.{end}" for end in ("pdf", "svg", "png")}
    assert {file.name for file in folder.iterdir()} == {"table.md", "table.csv", "table.tex", "verdict.json"} | figure
