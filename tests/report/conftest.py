"""Run folders as training writes them, made up: numbers of about the right size, no training."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from lightning_app.report import write_report
from lightning_app.report.page import render
from lightning_app.report.page_data import PageData, gather
from lightning_app.runs import Row, RunFolder

LAYERS = tuple(range(1, 20))
STEPS = 391  # an epoch
CONFIG = """\
# pytorch_lightning==2.6.6
seed_everything: {seed}
model:
  init_args:
    model:
      arms:
        plain: {{class_path: SimplifiedNet, init_args: {{depth: 20, residual: false}}}}
        residual: {{class_path: SimplifiedNet, init_args: {{depth: 20, residual: true}}}}
    lr: {lr}
"""


def is_residual(member: str) -> bool:
    return "res" in member


def learning(member: str, epoch: int, rng: np.random.Generator) -> Iterator[tuple[str, float]]:
    pace = 0.55 if is_residual(member) else 0.35
    risk = 2.3026 * np.exp(-pace * epoch) + 0.03 + 0.01 * rng.random()
    penalty = 5e-5 * (1306 if is_residual(member) else 1971)
    if epoch:
        yield from {"train/risk_running": risk * 1.15, "train/error_running": risk / 2.6}.items()
    yield from {
        "train/risk": risk,
        "train/error": risk / 2.6,
        "train/penalty": penalty,
        "train/cost": risk + penalty,
        "train/cost_paper": risk + penalty / 128,
        "test/risk": risk * 1.3 + 0.1,
        "test/error": min(0.9, risk / 2.6 + 0.08),
        "probe/risk": risk,
    }.items()


def drawn_weights(member: str, epoch: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """w and its mask of ID entries: normal weights of depth 20, those of a residual net small."""
    ids = np.arange(20_000) < 624
    spread = (0.02 + 0.004 * epoch) if is_residual(member) else 0.075
    return rng.normal(0, spread, ids.size), ids


def statistics(weights: np.ndarray, ids: np.ndarray) -> dict[str, float]:
    size = np.abs(weights)
    return {
        "count": weights.size,
        "mean": weights.mean(),
        "std": weights.std(),
        "all": size.sum(),
        "large": size[size >= 0.25].sum(),
        "id_entries": size[ids].sum(),
        "above_07": (size > 0.7).sum(),
        "above_07_signed": (weights > 0.7).sum(),
        "norm": np.linalg.norm(weights),
    }


def weight_mass(member: str, epoch: int, rng: np.random.Generator) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    weights, ids = drawn_weights(member, epoch, rng)
    forms = {"weight_mass": weights, "weight_mass_transferred": weights + ids * is_residual(member)}
    numbers, arrays = {}, {}
    for prefix, values in forms.items():
        numbers |= {f"{prefix}/{field}": value for field, value in statistics(values, ids).items()}
        for part, chosen in (("histogram", values), ("histogram_id", values[ids])):
            arrays[f"{prefix}/{part}/counts"], arrays[f"{prefix}/{part}/edges"] = np.histogram(chosen, 150, (-1.5, 1.5))
    return numbers, arrays


def cushions(member: str, rng: np.random.Generator) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    numbers, arrays = {}, {}
    for layer in LAYERS:
        level = 0.17 + 0.1 * np.exp(-layer / 5)
        for reading, scale in {"": 14.0, "_transferred": 1.1, "_branch": 0.7}.items():
            samples = level * (scale if is_residual(member) else 1) * rng.lognormal(0, 0.08, 500)
            arrays[f"cushion/layer{layer:02d}/samples{reading}"] = samples
            numbers[f"cushion/layer{layer:02d}/median{reading}"] = np.median(samples)
    return numbers, arrays


def of_member(member: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{member}/{key}": array for key, array in arrays.items()}


def rows(member: str, epoch: int, numbers: dict[str, float]) -> list[Row]:
    return [Row(member, epoch, epoch * STEPS, name, float(value)) for name, value in numbers.items()]


def make_run(path: Path, members: Sequence[str] = ("plain", "residual"), epochs: int = 6, seed: int = 0) -> RunFolder:
    """A run of `epochs` epochs with every family measured at epoch 0 and after each."""
    run, rng = RunFolder(path), np.random.default_rng(seed)
    for epoch in range(epochs + 1):
        masses, stability = {}, {}
        for member in members:
            run.append(rows(member, epoch, dict(learning(member, epoch, rng))))
            for family, found in ((weight_mass(member, epoch, rng), masses), (cushions(member, rng), stability)):
                run.append(rows(member, epoch, family[0]))
                found |= of_member(member, family[1])
        run.save_arrays(epoch, "weight_mass", masses)
        run.save_arrays(epoch, "cushion", stability)
        times = {"lr": 0.01, "cost/weight_mass": 0.12 + 0.01 * rng.random(), "cost/cushion": 1.7 + 0.1 * rng.random()}
        run.append(rows("", epoch, times | ({"time/epoch": 21 + rng.random()} if epoch else {})))
    (path / "config.yaml").write_text(CONFIG.format(seed=seed, lr=0.01 * (seed + 1)))
    return run


def bare_run(path: Path, members: Sequence[str] = ("plain", "residual"), epochs: int = 6) -> RunFolder:
    """A run in which only the risk was measured: for what a test measures besides."""
    run, rng = RunFolder(path), np.random.default_rng(0)
    for epoch in range(epochs + 1):
        for member in members:
            run.append(rows(member, epoch, dict(learning(member, epoch, rng))))
    (path / "config.yaml").write_text(CONFIG.format(seed=0, lr=0.01))
    return run


def only(module: ModuleType, *runs: RunFolder) -> str:
    """A page of one section alone: the others' panels would take seconds."""
    found = module.section(gather(runs))
    return render([found] if found else [], "one section", PageData([], []))


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> RunFolder:
    """The same as `run`, made once: for tests that only read."""
    return make_run(tmp_path_factory.mktemp("runs") / "quick")


@pytest.fixture(scope="session")
def page(finished) -> str:
    """The page on it, written once."""
    return write_report([finished]).read_text()


@pytest.fixture(scope="session")
def single(page, tmp_path_factory) -> Path:
    """It as a file."""
    file = tmp_path_factory.mktemp("page") / "page.html"
    file.write_text(page)
    return file


@pytest.fixture
def run(tmp_path) -> RunFolder:
    """Two arms, six epochs, everything measured; for the test to change."""
    return make_run(tmp_path / "runs" / "quick")


def on_validation_data(run: RunFolder) -> RunFolder:
    """The run, its test data called validation data."""
    (run.path / "log.csv").write_text((run.path / "log.csv").read_text().replace("test/", "val/"))
    return RunFolder(run.path)


@pytest.fixture
def make(tmp_path) -> Callable[..., RunFolder]:
    """make("name", members, epochs, seed): a run folder in one group."""
    return lambda name, *args, **kwargs: make_run(tmp_path / "runs" / name, *args, **kwargs)
