"""What offline W&B files hold is what the run folder holds: every number, every histogram, nothing else.

Real runs with all callbacks of base.yaml, read back with W&B's own reader. The run folder is the truth: W&B gets its
numbers to the last bit, its histograms in fewer bins, and none of its arrays.
"""

import functools
import math
import statistics
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from lightning_app.runs import RunFolder
from lightning_app.runs.folder import CONFIG, find_runs
from tests.deploy.support import configuration, records_of
from tests.helpers import OFFLINE, TINY, callbacks_in, command

pytestmark = pytest.mark.slow

OF_WANDB = {"_runtime", "_step", "_timestamp", "epoch", "trainer/global_step"}  # in every row, and not in log.csv
BINS = 64
ARMS, SEEDS = ("plain", "residual"), (3, 4)
# Over seeds, with more of them than the number here: computed for W&B, not in log.csv.
STATISTICS = {"mean": (statistics.mean, 0), "sd": (statistics.stdev, 1), "min": (min, 0), "max": (max, 0)}

Numbers = dict[tuple[int, str], float]  # (epoch, key) -> value
Histograms = dict[tuple[int, str], tuple[np.ndarray, np.ndarray]]  # (epoch, key) -> counts and edges
Renamed = dict[str, str]  # member -> how W&B spells "{}", a name of log.csv, for this member


@pytest.fixture(scope="module")
def one_net(tmp_path_factory) -> RunFolder:
    """base.yaml on digits, with nothing else changed but sizes."""
    words = ("--data", "Digits", "--data.train_limit", "64", "--data.probe_size", "20", "--model.seeds", "7-7")
    net = ("--model.net", "SimplifiedNet", "--model.net.init_args.depth", "5", "--model.net.init_args.width", "4")
    return trained(tmp_path_factory.mktemp("one"), "fit", *words, *net)


@pytest.fixture(scope="module")
def four_nets(tmp_path_factory) -> RunFolder:
    return two_arms_and_seeds(tmp_path_factory.mktemp("four"), "job")


@pytest.fixture(scope="module")
def four_nets_by_seed(tmp_path_factory) -> RunFolder:
    return two_arms_and_seeds(tmp_path_factory.mktemp("seeds"), "seed")


def two_arms_and_seeds(folder: Path, run_per: str) -> RunFolder:
    logger = f"[{{class_path: AutoWandbLogger, init_args: {{run_per: {run_per}, tags: [mine]}}}}]"
    narrow = [word for arm in ARMS for word in (f"--model.arms.{arm}.net.init_args.width", "4")]
    return trained(folder, *TINY, "--model.seeds", f"{SEEDS[0]}-{SEEDS[1]}", "--trainer.logger", logger, *narrow)


def trained(folder: Path, *words: str) -> RunFolder:
    """The run of a command of one epoch."""
    done = command(*words, "--trainer.max_epochs", "1", "--data.test_limit", "40", cwd=folder, env=OFFLINE)
    assert done.returncode == 0, done.stderr
    return find_runs([folder])[0]


@functools.cache
def records(run: Path) -> dict[str, list[dict]]:
    """Of each W&B run below a run's folder, by its name; W&B's reader takes a second for each."""
    found = records_of(run).values()
    return {
        next(record["run"]["display_name"] for record in lines if record["type"] == "run"): lines for lines in found
    }


def history_of(run: RunFolder, name: str) -> list[dict]:
    return [record["history"]["item"] for record in records(run.path)[name] if record["type"] == "history"]


def numbers_of(history: list[dict]) -> Numbers:
    """Every number of a W&B run; none of them twice."""
    pairs = [
        ((row["epoch"], key), float(value))
        for row in history
        for key, value in row.items()
        if key not in OF_WANDB and not is_histogram(key)
    ]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def histograms_of(history: list[dict]) -> Histograms:
    found = {}
    for row in history:
        for name in (key.removesuffix(".values") for key in row if ".values" in key):
            found[row["epoch"], name] = tuple(np.array(row[f"{name}.{part}"]) for part in ("values", "bins"))
    return found


def is_histogram(key: str) -> bool:
    return key.endswith(("._type", ".bins", ".values"))


def logged(run: RunFolder, renamed: Renamed) -> Numbers:
    """log.csv, of these members and of the whole run, as W&B should spell it."""
    rows = run.log()
    own = rows[rows["member"].isin([*renamed, ""])]
    spelt = [(renamed | {"": "{}"})[member].format(name) for member, name in zip(own["member"], own["name"])]
    return dict(zip(zip(own["epoch"], spelt), own["value"], strict=True))


def saved(run: RunFolder, pooled: dict[str, Iterable[str]]) -> Histograms:
    """Histograms of the npz files, those of members with one spelling added up, in W&B's fewer bins."""
    return {
        (epoch, spelling.format(name)): coarse(
            sum(arrays[f"{member}/{name}/counts"] for member in members), arrays[f"{next(iter(members))}/{name}/edges"]
        )
        for epoch, arrays in all_arrays(run)
        for spelling, members in pooled.items()
        for name in names_of_histograms(arrays, members)
    }


def all_arrays(run: RunFolder) -> list[tuple[int, dict[str, np.ndarray]]]:
    files = sorted(run.path.glob("measurements/epoch=*/*.npz"))
    return [(epoch, run.arrays(epoch, file.stem)) for file in files for epoch in [int(file.parent.name.split("=")[1])]]


def names_of_histograms(arrays: dict, members: Iterable[str]) -> set[str]:
    keys = (key.removesuffix("/counts").split("/", 1) for key in arrays if key.endswith("/counts"))
    return {name for member, name in keys if member in members}


def coarse(counts: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In at most 64 bins, by joining equally many neighbours."""
    joined = math.ceil(len(counts) / BINS)
    starts = np.arange(0, len(counts), joined)
    return np.add.reduceat(counts, starts), np.append(edges[starts], edges[-1])


def assert_same_numbers(found: Numbers, expected: Numbers) -> None:
    assert found.keys() == expected.keys()
    assert {key: repr(value) for key, value in found.items()} == {key: repr(value) for key, value in expected.items()}


def assert_same_histograms(found: Histograms, expected: Histograms) -> None:
    """Edges and counts to the last bit; a density's masses are real numbers, whose sum depends on its order."""
    assert found.keys() == expected.keys()
    for key, (counts, edges) in expected.items():
        rounding = 0 if np.issubdtype(counts.dtype, np.integer) else 1e-14
        np.testing.assert_allclose(found[key][0], counts, rtol=rounding, err_msg=str(key))
        np.testing.assert_array_equal(found[key][1], edges, err_msg=str(key))


def assert_steps_of_the_log(run: RunFolder, history: list[dict]) -> None:
    steps = dict(zip(run.log()["epoch"], run.log()["step"]))
    assert {0, 1} <= {*steps}  # and within the first epoch, where signals are measured
    assert {(row["epoch"], row["trainer/global_step"]) for row in history} == set(steps.items())


@pytest.mark.parametrize("which", ["one_net", "four_nets", "four_nets_by_seed"])
def test_the_runs_have_every_callback_of_base_and_every_kind_of_result(which, request):
    run = request.getfixturevalue(which)
    assert callbacks_in(run.path / CONFIG) >= callbacks_in()
    keys = [key for _, arrays in all_arrays(run) for key in arrays]
    assert any(key.endswith("/counts") for key in keys)
    assert any(not key.endswith(("/counts", "/edges", "/outside")) for key in keys)  # arrays, which W&B does not get


def test_a_net_s_numbers_and_histograms(one_net):
    (name,) = records(one_net.path)
    history = history_of(one_net, name)
    ((member, *_),) = one_net.members()
    assert_same_numbers(numbers_of(history), logged(one_net, {member: "{}"}))
    assert_same_histograms(histograms_of(history), saved(one_net, {"{}": [member]}))
    assert_steps_of_the_log(one_net, history)


def spelt(seed: int | None = None) -> Renamed:
    """Members of four_nets: in the run of the job, or of one seed."""
    own = {(arm, each): f"{arm}-seed{each:02d}" for arm in ARMS for each in SEEDS if seed in (None, each)}
    prefix = "" if seed is not None else "seed/{seed:02d}/"
    return {member: prefix.format(seed=each) + f"{{}}/{arm}" for (arm, each), member in own.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_each_seed_s_own_run(seed, four_nets_by_seed):
    name = f"quickstart-seed{seed:02d}"
    history = history_of(four_nets_by_seed, name)
    assert_same_numbers(numbers_of(history), logged(four_nets_by_seed, spelt(seed)))
    pooled = {f"{{}}/{arm}": [f"{arm}-seed{seed:02d}"] for arm in ARMS}
    assert_same_histograms(histograms_of(history), saved(four_nets_by_seed, pooled))
    assert_steps_of_the_log(four_nets_by_seed, history)
    run = next(record["run"] for record in records(four_nets_by_seed.path)[name] if record["type"] == "run")
    assert (run["run_group"], run["tags"][0]) == ("digits", "mine")
    assert configuration(records(four_nets_by_seed.path)[name]) == four_nets_by_seed.config() | {"seed": seed}


def test_the_run_of_the_job(four_nets):
    """Each seed's numbers, statistics over seeds, and histograms of each arm's seeds together."""
    history = history_of(four_nets, "quickstart")
    found, own = numbers_of(history), logged(four_nets, spelt())
    assert_same_numbers({key: value for key, value in found.items() if key in own}, own)
    over = {key: value for key, value in found.items() if key not in own}
    expected = over_seeds(own)
    assert over.keys() == expected.keys()
    np.testing.assert_allclose([over[key] for key in expected], list(expected.values()), rtol=1e-12, atol=1e-300)
    pooled = {f"{{}}/{arm}": [f"{arm}-seed{seed:02d}" for seed in SEEDS] for arm in ARMS}
    assert_same_histograms(histograms_of(history), saved(four_nets, pooled))
    assert_steps_of_the_log(four_nets, history)
    metrics = [record["metric"] for record in records(four_nets.path)["quickstart"] if record["type"] == "metric"]
    axes = {metric.get("glob_name"): metric.get("step_metric") for metric in metrics}
    assert axes["seed/*"] == axes["cushion/*"] == "epoch"


def over_seeds(own: Numbers) -> Numbers:
    """Of the seeds whose number is finite; nan where there are too few."""
    grouped: dict[tuple[int, str], list[float]] = {}
    for (epoch, key), value in own.items():
        if key.startswith("seed/"):
            grouped.setdefault((epoch, key.split("/", 2)[2]), []).append(value)
    found = {}
    for (epoch, key), values in grouped.items():
        finite = [value for value in values if math.isfinite(value)]
        for name, (function, few) in STATISTICS.items():
            found[epoch, f"{key}/{name}"] = float(function(finite)) if len(finite) > few else math.nan
    return found


def test_the_whole_configuration(one_net):
    (lines,) = records(one_net.path).values()
    assert configuration(lines) == one_net.config() | {"seed": 7}
