"""`--json`: the same numbers as in the run folder and in the tables, as the one thing on standard output."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_app.cli import main
from lightning_app.common.answer import answering
from lightning_app.papers import PAPERS, find
from lightning_app.runs import RunFolder
from tests.helpers import LEARNING, ROOT, TINY, command


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> tuple[Path, dict]:
    """Where a tiny run is, and what `fit --json` said of it."""
    cwd = tmp_path_factory.mktemp("fit")
    done = command(*TINY, *LEARNING, "--trainer.logger", "[]", "--json", cwd=cwd, page=True)
    assert done.returncode == 0, done.stderr
    assert "epoch 2/2" in done.stderr  # progress, tables and findings
    return cwd, json.loads(done.stdout)


@pytest.mark.slow
def test_fit_gives_the_last_numbers_of_the_log(fitted):
    cwd, found = fitted
    run = RunFolder(cwd / "runs" / "digits" / "quickstart")
    assert found["run"] == str(run.path.relative_to(cwd)) or Path(found["run"]) == run.path
    assert Path(cwd, found["report"]).is_file()
    last = run.log().query("epoch == 2").set_index(["member", "name"])["value"]
    assert {*found["nets"]} == {"", "plain", "residual"}
    for net in ("plain", "residual"):
        assert found["nets"][net]["test/error"] == {
            "value": last[net, "test/error"],
            "epoch": 2,
            "step": run.log()["step"].max(),
        }


@pytest.mark.slow
def test_a_run_of_which_nothing_was_logged_is_an_object_too(tmp_path):
    silent = ("--trainer.callbacks", "[]", "--trainer.logger", "[]", "--json", "--trainer.max_epochs")
    done = command(*TINY, *silent, "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"run": RUN, "nets": {}, "notes": [], "report": None}
    done = command(*TINY, *silent, "1", *CHECKPOINT, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "") and "nothing is left to train" in done.stderr


RUN = "runs/digits/quickstart"
CHECKPOINT = ("--ckpt_path", f"{RUN}/checkpoints/last.ckpt")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("validate", *TINY[1:], "--trainer.logger", "[]", "--ckpt_path", "last"),
        ("validate", *CHECKPOINT),  # net and data of its run
        ("test", *CHECKPOINT),
        ("test", "--config", f"{RUN}/config.yaml", *CHECKPOINT),  # with options that are those of a fit
    ],
    ids=" ".join,
)
def test_validate_gives_what_fit_gave(fitted, words):
    cwd, found = fitted
    done = command(*words, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)["nets"]
    for net in ("plain", "residual"):
        assert again[net]["test/error"] == found["nets"][net]["test/error"]["value"]


def test_verify_and_the_list_of_reproduce(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(["verify", "yu-tomasi/table-3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["records"], found["differences"], found["without_record"]) == (2, 0, 0)  # paper, reduced
    assert {"artefact": "yu-tomasi/table-3", "scale": "paper"}.items() <= found["compared"][0].items()
    assert main(["reproduce", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["artefacts"]
    assert len(listed) == sum(len([*find(paper)]) for paper in PAPERS)
    (table,) = [each for each in listed if each["artefact"] == "yu-tomasi/table-3"]
    assert sum(table["states"]["paper"]["verdicts"]["trained"].values()) > 0


def test_a_mistake_prints_no_object(capsys):
    assert main(["verify", "nobody/nothing", "--json"]) == 2
    assert capsys.readouterr().out == ""


def test_what_is_started_meanwhile_is_kept_off_too(capfd):
    with answering(True) as found:
        print("ours")
        subprocess.run([sys.executable, "-S", "-c", "print('theirs')"], check=True)
        found["infinite"] = float("inf")
    out, err = capfd.readouterr()
    assert json.loads(out) == {"infinite": None}
    assert {"ours", "theirs"} <= {*err.split()}
