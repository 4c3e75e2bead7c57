"""Noise in the place of CIFAR-10, and a way to run a benchmark as its command does."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.frame import Findings, run
from benchmarks.guard import make_images

TRAIN, TEST = 400, 40


@pytest.fixture(scope="session")
def root(tmp_path_factory) -> Path:
    """A folder of data sets with 400 training images."""
    folder = tmp_path_factory.mktemp("data")
    make_images(folder / "cifar10", TRAIN, TEST)
    return folder


@pytest.fixture
def found(root: Path, tmp_path: Path) -> Callable[..., Findings]:
    """found(module, "--images", "8", ...): what a benchmark finds, and writes."""

    def measure(module: ModuleType, *words: str) -> Findings:
        findings = run(module.measure, module.parser(), ["--root", str(root), "--out", str(tmp_path), *words])
        name = module.__name__.removeprefix("benchmarks.")
        written = json.loads((tmp_path / f"{name}.json").read_text())
        assert [line["what"] for line in written["lines"]] == [line.what for line in findings.lines]
        return findings

    return measure
