"""Run folders as `fit` would have left them, with numbers of our choosing: what verdicts are tested on."""

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from lightning_app.common.seeds import spell_seeds
from lightning_app.papers import find, predicates
from lightning_app.papers.parts import PAPER, Artefact, Computation, Run, Scale
from lightning_app.papers.results import Results
from lightning_app.reproduce.computing import ComputationJob
from lightning_app.reproduce.evidence import Reproduction
from lightning_app.reproduce.job import JobOptions
from lightning_app.reproduce.making import make, rows
from lightning_app.reproduce.training import TrainingJob
from lightning_app.runs import Row, RunFolder
from lightning_app.runs.configuration import layered
from lightning_app.statistics.paired import paired

# Rows of Yu & Tomasi's Fig. 7 that need no run.
SEPARATED = "share of the expected ||t_0 - p_0||² that is of the 1 in the ID entries, fan-in"
BY_PRINT = "||t_200 - t_0|| / ||t_0 - p_0||, arithmetic on the paper's own Table 3"


@pytest.fixture(autouse=True, scope="module")
def one_bootstrap_of_equal_numbers():
    """Its resamples are the same every time, and a claim's settings, an artefact's claims and their tests share numbers."""
    known = functools.cache(paired)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predicates, "paired", lambda ours, zeros: known(tuple(ours), tuple(zeros)))
        yield


Numbers = Callable[[str, int, int], Mapping[str, float]]  # of (arm, seed, epoch)


def written_config(plan: TrainingJob, seeds: tuple[int, ...]) -> dict:
    """config.yaml as the plan asks for it, as far as a plan can tell."""
    options: dict = {}
    for key, value in plan.options.items():
        place = options
        *path, last = key.split(".")
        for part in path:
            place = place.setdefault(part, {})
        place[last] = yaml.safe_load(value)
    config = copy.deepcopy(layered(plan.recipe, options))
    config["model"]["seeds"] = spell_seeds(seeds)
    config["run"]["plan"] = plan.digest
    return config


def leave_run(
    home: Path,
    run: Run,
    numbers: Numbers,
    scale: Scale = PAPER,
    epochs: tuple[int, ...] | None = None,
    finished: bool = True,
    seeds: tuple[int, ...] | None = None,
    arrays: Mapping[str, Mapping[str, np.ndarray]] | None = None,
    name: str | None = None,
    paper: str = "yu-tomasi",
) -> RunFolder:
    """Leave a run of a plan behind in home/runs: rows for each epoch given, finished or not."""
    plan = TrainingJob(paper, run, scale)
    seeds = seeds or plan.seeds
    folder = RunFolder(home / "runs" / plan.group / (name or run.name))
    folder.path.mkdir(parents=True)
    (folder.path / "config.yaml").write_text(yaml.safe_dump(written_config(plan, seeds)))
    members = [(arm if len(seeds) == 1 else f"{arm}-seed{seed:02d}", arm, seed) for arm in plan.arms for seed in seeds]
    epochs = (0, plan.epochs) if epochs is None else epochs
    folder.append(
        Row(member, epoch, 10 * epoch, key, value)
        for epoch in epochs
        for member, arm, seed in members
        for key, value in numbers(arm, seed, epoch).items()
    )
    for family, by_arm in (arrays or {}).items():
        found = {f"{member}/{key}": a for member, arm, _ in members for key, a in by_arm[arm].items()}
        for epoch in epochs:
            folder.save_arrays(epoch, family, found)
    if finished:
        folder.finish(epochs[-1])
    else:
        folder.checkpoints.mkdir()
        (folder.checkpoints / "last.ckpt").write_bytes(b"a checkpoint")
    return folder


@pytest.fixture
def leave(tmp_path) -> Callable[..., RunFolder]:
    """`leave_run` in the test's folder."""
    return functools.partial(leave_run, tmp_path)


@pytest.fixture
def results(tmp_path) -> Callable[..., tuple[Artefact, Results]]:
    """An artefact with what was left of it."""

    def results(artefact: str, paper: str, scale: Scale = PAPER) -> tuple[Artefact, Results]:
        ((its_paper, found),) = find(f"{paper}/{artefact}")
        asked = Reproduction(its_paper, found, scale, tmp_path / "results")
        return found, asked.evidence(tmp_path / "runs").results

    return results


@pytest.fixture
def made(tmp_path) -> Callable[..., dict[str, str]]:
    """Verdicts by quantity of an artefact, from the runs that were left; with ``files`` its record, tables and figure, too."""

    def made(artefact: str, scale: Scale = PAPER, paper: str = "yu-tomasi", files: bool = False) -> dict[str, str]:
        ((its_paper, found),) = find(f"{paper}/{artefact}")
        runs, asked = tmp_path / "runs", Reproduction(its_paper, found, scale, tmp_path / "results")
        if files:
            make(asked, runs)
        judged = rows(asked.evidence(runs))
        return {row["quantity"]: row["verdict"] for row in judged}

    return made


@pytest.fixture
def left(tmp_path) -> Callable[[str, Computation, Callable[..., dict]], None]:
    """Leave a computation of a paper behind whose numbers another function makes of the same parameters."""

    def left(paper: str, computation: Computation, numbers: Callable[..., dict]) -> None:
        other = replace(computation, compute=lambda source, **asked: numbers(**asked))
        ComputationJob(paper, other, PAPER).complete(tmp_path / "runs", JobOptions(tmp_path / "nowhere"))

    return left


def tiny_cifar10(root: Path, train: int = 60, test: int = 20) -> Path:
    """Random images in CIFAR-10's shape, as a user's own arrays."""
    random = np.random.default_rng(0)
    (root / "cifar10").mkdir(parents=True)
    for split, count in (("train", train), ("test", test)):
        images = random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        np.save(root / "cifar10" / f"{split}_images.npy", images)
        np.save(root / "cifar10" / f"{split}_labels.npy", np.arange(count, dtype=np.int64) % 10)
    return root
