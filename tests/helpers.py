"""Small real training runs for tests: the embedded digits, tiny nets, one thread."""

import copy
import csv
import fcntl
import os
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import termios
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import pytest
import pytorch_lightning as pl
import torch
import yaml

import callbacks
from callbacks.context import MeasureContext
from lightning_app.cli import main
from lightning_app.cli.training import TrainingCLI, run_training
from lightning_app.common.signals import stopping
from lightning_app.measures.core.losses import Loss, cross_entropy
from lightning_app.runs import RunFolder
from tests.banks import arm, classifier, digits, fit, identical, same_weights, sgd, trainer  # noqa: F401
from tests.forked import MAIN, NO_PAGE, Popen

ROOT = Path(__file__).resolve().parent.parent
OFFLINE = {"WANDB_MODE": "offline"}
# Whether torch.compile can work here.
COMPILES = shutil.which("c++") is not None and Path(sysconfig.get_path("include"), "Python.h").is_file()
TIMING = ("cost/", "time/")  # what may differ between two equal runs
CHEAP = {  # measures at a size of a tenth of a second
    callbacks.LossSurface: {"samples": 12, "radii": [0.1], "rays": 2},
    callbacks.NoiseStability: {"samples": 12, "draws": 1, "strengths": [0.1]},
    callbacks.InterlayerCushion: {"samples": 8, "probes": None},
    callbacks.HessianSpectrum: {"samples": 16, "steps": 6, "exact": 0},
    callbacks.EffectiveDepth: {"samples": 13},  # in pieces of 3: the last is smaller
    callbacks.DrivingForce: {"samples": 16},
}


def context(net: torch.nn.Module, loss: Loss = cross_entropy, **data) -> MeasureContext:
    """What a measure is given in a run on the digits, without the run."""
    return MeasureContext(net, digits(**data).probe_loader(), loss)


def shipped(kind: type = pl.Callback) -> list[type]:
    """The callbacks of a kind that need no argument: all but the classes to write one's own with."""
    found = [getattr(callbacks, name) for name in callbacks.__all__]
    return [each for each in found if issubclass(each, kind) and "callbacks.measure" not in each.__module__]


def callbacks_in(config: Path = ROOT / "configs" / "base.yaml") -> set[str]:
    """Class names of a configuration's callbacks."""
    listed = yaml.safe_load(config.read_text())["trainer"]["callbacks"]
    return {callback["class_path"].split(".")[-1] for callback in listed}


def checkpoint(run: Path) -> dict:
    return torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)


def assert_same_run(one: Path, other: Path) -> None:
    """Weights, the optimizer's state, log and measurements, bit for bit."""
    frames = [RunFolder(path).log() for path in (one, other)]
    frames = [frame[~frame["name"].str.startswith(TIMING)].reset_index(drop=True) for frame in frames]
    assert frames[0].equals(frames[1])
    saved = [checkpoint(run) for run in (one, other)]
    assert identical(*(each["state_dict"] for each in saved))
    assert identical(*(each["optimizer_states"][0]["state"] for each in saved))
    files = sorted(path.relative_to(one) for path in (one / "measurements").rglob("*.npz"))
    assert files
    for file in files:
        assert (one / file).read_bytes() == (other / file).read_bytes(), file


def command(
    *words: str | Path, cwd: Path, env: Mapping[str, str] = {}, page: bool = False
) -> subprocess.CompletedProcess:
    """The real command line in a process of its own, in a folder of its own: see tests/forked.py. W&B is off by default.

    Args:
        page: whether training and measuring draw their page at the end.
    """
    environment = os.environ | {"WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **env}
    if not page and words[0] in ("fit", "reproduce", "measure"):
        environment[NO_PAGE] = "1"
    environment.pop("WANDB_SERVICE", None)  # a W&B run of this process would lend the child its service
    words = [*map(str, words)]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
        with Popen([sys.executable, MAIN, *words], cwd=cwd, env=environment, **streams) as process:
            _wait(process, 600)
        return subprocess.CompletedProcess(words, process.returncode, _content(out), _content(err))


def built(*words: str | Path, cwd: Path) -> TrainingCLI:
    """A command that trains or measures, in this process, up to the point where it would."""
    found: list[TrainingCLI] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        patch.setattr(TrainingCLI, "_run_subcommand", lambda self, _: found.append(self))
        run_training([*map(str, words)])
    return found[0]


def refused(*words: str | Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> str:
    """The error message of a command that ends with 2, run in this process: a second instead of a process's four."""
    monkeypatch.setenv("SKIPSCOPE_RUN_FOLDER", "")  # what the command leaves there is taken back
    monkeypatch.setattr(stopping, "listen", lambda: None)
    with pytest.raises(SystemExit) as ended:
        sys.exit(main([*map(str, words)]))
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "Traceback" not in said
    error = said[said.index("error:") :]
    assert len(error.strip().splitlines()) <= 2
    return error


def _wait(process: subprocess.Popen, seconds: float) -> None:
    try:
        process.wait(seconds)
    except BaseException:
        process.kill()
        raise


def _content(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def on_terminal(*words: str | Path, cwd: Path, columns: int = 100, **env: str) -> tuple[int, str]:
    """Exit code and output of a command that finds a terminal of so many columns: a pseudo-terminal's other end."""
    environment = os.environ | {"WANDB_MODE": "offline", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment |= {"TERM": "xterm-256color"} | env
    for name in ("WANDB_SERVICE", "COLUMNS", "LINES", *({"NO_COLOR"} - env.keys())):
        environment.pop(name, None)
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    start = Popen if MAIN in map(str, words) else subprocess.Popen  # a line of Python may be about what it imports
    process = start([*map(str, words)], cwd=cwd, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    return process.wait(120), said.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # how Linux says that nobody holds the other end any more
        return b""


def log_rows(folder: Path, without: tuple[str, ...] = TIMING) -> list[tuple[str, ...]]:
    """log.csv as it stands, without what may differ between two equal runs."""
    with (folder / "log.csv").open() as file:
        return [tuple(row) for row in csv.reader(file) if not row[3].startswith(without)]


TINY = (  # options that make the quickstart a test of seconds
    *("fit", "--config", str(ROOT / "configs" / "quickstart.yaml")),
    *("--data.train_limit", "64", "--data.test_limit", "60", "--data.probe_size", "20", "--trainer.max_epochs", "2"),
    *("--model.seeds", "1", "--data.augment", "true"),
    *("--model.arms.plain.net.init_args.depth", "5", "--model.arms.residual.net.init_args.depth", "5"),
    *("--model.arms.plain.net.init_args.width", "16", "--model.arms.residual.net.init_args.width", "16"),
)
LEARNING = ("--trainer.callbacks", "TrainingMetrics")  # and no other measure: for what is not about measuring


def with_moved_norms(net: torch.nn.Module) -> torch.nn.Module:
    """BatchNorms that are not the identity, as after some training, from the global random state."""
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, 0.0, 0.3)
            module.running_mean.normal_(0.0, 0.3)
            module.running_var.uniform_(0.5, 1.5)
    return net


def with_statistics_of(images: torch.Tensor, net: torch.nn.Module) -> torch.nn.Module:
    """A copy in evaluation mode, with the statistics that a pass in training mode leaves in place of those of no data."""
    found = copy.deepcopy(net).train()
    for module in found.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        found(images)
    return found.eval()


def drawn(kind: type[torch.nn.Module], seed: int = 0, **arguments) -> torch.nn.Module:
    torch.manual_seed(seed)
    return with_moved_norms(kind(**arguments))


def images(count: int = 3, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1)).to(dtype)
