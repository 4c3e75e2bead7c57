"""Shared fixtures. The real CIFAR-10 is used where its arrays lie (SKIPSCOPE_DATA, ./data or ../shared) and skipped elsewhere."""

import argparse
import atexit
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

settings.register_profile("suite", deadline=None)  # an example may wait for a processor, or for the disk
settings.load_profile("suite")
for name in [name for name in os.environ if name.startswith("SLURM_")]:
    del os.environ[name]  # a command that gets SIGUSR1 would put the job that runs the tests into the queue again

ROOT = Path(__file__).resolve().parent.parent

TOGETHER = ("tests/golden/", "tests/deploy/", "tests/report/")  # folders whose files read the same long run or page


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """`--dist loadfile`, but all files of some folders on one worker too: what they share is made once."""
    from xdist.scheduler import LoadFileScheduling

    class LoadFileOrFolder(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return next((folder for folder in TOGETHER if file.startswith(folder)), file)

    return LoadFileOrFolder(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported and collected stays: looked through again and again, it would be a third of the time that this takes.

    Nor do later collections look through it, of which each, in a measure that ran out of memory say, would take half a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # else libraries would say at the end that theirs was never freed
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: workers that begin with what takes long end at the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True, scope="session")
def quiet_machine():
    """One thread: OpenMP barriers with a descheduled worker make two threads up to ten times slower on a busy machine."""
    os.environ["WANDB_MODE"] = "offline"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # in this process, not in others that load torch first
    os.environ["WANDB_SILENT"] = "true"
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk():
    """Of files that no test needs after a power cut. Where much is being written one call may take half a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def no_lent_wandb_service(monkeypatch):
    """A W&B run of this process would lend what a test starts its service, which may have ended: waited for for ever."""
    monkeypatch.delenv("WANDB_SERVICE", raising=False)


def real_data(name: str, sign: str, folder: Path) -> Path:
    """A data root with a real data set, unpacked from the folder beside the checkout when need be.

    Args:
        name: of the data set, as the unpacker knows it.
        sign: file or folder below the root that says it is there.
        folder: empty, to unpack into.
    """
    for root in filter(None, (os.environ.get("SKIPSCOPE_DATA"), ROOT / "data")):
        if (Path(root) / sign).exists():
            return Path(root)
    unpack = ROOT.parent / "shared" / "datasets" / "unpack.py"
    if not unpack.exists():
        pytest.skip(f"no {name} here: set SKIPSCOPE_DATA to a folder that has {sign}")
    subprocess.run([sys.executable, str(unpack), "--only", name, "--to", str(folder)], check=True)
    return folder


@pytest.fixture(scope="session")
def cifar10_root(tmp_path_factory) -> Path:
    return real_data("cifar10", "cifar10/train_images.npy", tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def mnist_root(tmp_path_factory) -> Path:
    return real_data("mnist", "MNIST/raw", tmp_path_factory.mktemp("data"))


class Parsed(BaseException):
    """A command line that the parser took."""


@pytest.fixture
def parsed(monkeypatch):
    """Run another command as far as its parser, and give what it understood."""
    from lightning_app.cli import main

    parse = argparse.ArgumentParser.parse_args

    def stop(self, *words):
        raise Parsed(parse(self, *words))

    def understood(words: list[str]) -> argparse.Namespace:
        with pytest.raises(Parsed) as caught:
            main(words)
        return caught.value.args[0]

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    return understood
