"""Noise in the place of CIFAR-10, and a way to run a benchmark as its command does."""

import json
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from benchmarks.guard import make_images
from benchmarks.harness import Results, run
from tests.forked import LIBRARIES, OURS


@pytest.fixture(scope="package", autouse=True)
def processes_have_the_libraries() -> Iterator[None]:
    """What a benchmark starts begins by a fork of a process that has imported them and ours already."""
    multiprocessing.set_forkserver_preload([*LIBRARIES, *OURS])
    forked = multiprocessing.get_context("forkserver")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.harness.multiprocessing", SimpleNamespace(get_context=lambda _: forked))
        yield


@pytest.fixture(scope="session")
def root(tmp_path_factory) -> Path:
    """A folder of data sets with 400 training and 40 test images."""
    folder = tmp_path_factory.mktemp("data")
    make_images(folder / "cifar10", 400, 40)
    return folder


@pytest.fixture
def found(root: Path, tmp_path: Path) -> Callable[..., Results]:
    """found(module, "--images", "8", ...): what a benchmark measures, and writes."""

    def measure(module: ModuleType, *words: str) -> Results:
        results = run(module.measure, module.parser(), ["--root", str(root), "--out", str(tmp_path), *words])
        name = module.__name__.removeprefix("benchmarks.")
        written = json.loads((tmp_path / f"{name}.json").read_text())
        assert [row["what"] for row in written["lines"]] == [row.what for row in results.rows]
        return results

    return measure
