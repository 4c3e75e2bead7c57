"""The README's commands are the ones that exist. The fresh installation itself is checked by .ci/run."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml

from lightning_app.cli import TRAINING
from lightning_app.cli.training import TrainingCLI, run_training
from lightning_app.runs import open_run
from tests.helpers import LEARNING, ROOT, TINY, command

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(?:sh|bash)\n(.*?)```", README, re.DOTALL)
BLOCKS = [block.replace("\\\n", " ") for block in BLOCKS]  # one command a line
COMMANDS = [line.split("  #")[0].strip() for block in BLOCKS for line in block.splitlines() if line.strip()]
OURS = [line for line in COMMANDS if line.startswith("python main.py ")]


def test_the_two_commands_are_there():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = [line.split()[1] for line in COMMANDS if line.startswith("make ")]
    assert {"quickstart", "test"} <= set(made) <= set(targets)
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def is_of_a_run(line: str) -> bool:
    """Does it measure a checkpoint whose run has to be there?"""
    return "measure --ckpt_path runs/" in line


@pytest.mark.parametrize("line", [line for line in OURS if line.split()[2] in TRAINING and not is_of_a_run(line)])
def test_training_commands_parse_and_build(line, monkeypatch, tmp_path):
    built = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.setattr(TrainingCLI, "_run_subcommand", lambda self, _: built.append(self))
    run_training(shlex.split(line)[2:])
    assert built


@pytest.mark.slow
def test_the_quickstart_and_what_is_made_of_it(tmp_path):
    """The quickstart's own command at a size of seconds, then what the README does with it."""
    assert command(*TINY, cwd=tmp_path).returncode == 0
    lines = [line for line in OURS if "runs/digits/quickstart" in line]
    assert {line.split()[2] for line in lines} >= {"report", "measure"}
    for line in lines:
        assert command(*shlex.split(line)[2:], cwd=tmp_path).returncode == 0
    for page in ("digits/quickstart", "measured/quickstart-last"):
        assert (tmp_path / "runs" / page / "report.html").exists()


@pytest.mark.slow
def test_the_quickstart_ends_with_the_residual_net_far_ahead(tmp_path):
    """Whole but for its measures and two of its three seeds; thirteen others are in docs/quickstart-study.md."""
    words = ("--config", ROOT / "configs" / "quickstart.yaml", "--model.seeds", "1")
    done = command("fit", *words, *LEARNING, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    errors = open_run(tmp_path / "runs/digits/quickstart").finals()["test/error"]
    assert errors["residual"] < 0.25 and errors["plain"] > 0.5
    assert "the residual net is ahead." in done.stdout


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", README, re.DOTALL))
def test_yaml_examples_parse(block):
    assert yaml.safe_load(block)


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_python_examples_run(block, monkeypatch, tmp_path):
    from callbacks.measure import Measure
    from lightning_app.runs import Row, RunFolder

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "tests" / "data")  # my_project.py
    run = RunFolder(Path("runs/cifar10/pair20"))
    for epoch in (0, 1):
        for net in ("plain", "residual"):
            run.append(Row(net, epoch, 0, name, 0.1) for name in ("test/error", "cushion/layer10/median"))
        run.save_arrays(epoch, "cushion", {"plain/cushion/layer10/samples": np.full(3, 0.1)})
    assert len([line for line in block.splitlines() if line.strip()]) <= 30
    exec(compile(block, "README.md", "exec"), {"Measure": Measure})


def test_links_and_pictures_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / target).exists(), target
