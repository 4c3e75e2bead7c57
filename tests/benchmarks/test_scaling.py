"""Exponents of known growth, what goes through each series, and what memory is compared with."""

from pathlib import Path

import pytest
import torch
import yaml

from benchmarks import report, scaling
from benchmarks.report import stretch
from benchmarks.timing import Comparison
from lightning_app.runs import Row, RunFolder

SIZES = (10, 20, 40, 80)


def grown(*powers: float, sizes=SIZES) -> Comparison:
    """t = 3 n^a, a round for each a."""
    return Comparison({f"{n}": [3 * n**power for power in powers] for n in sizes})


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> RunFolder:
    """A run of two nets of which only learning was measured."""
    run = RunFolder(tmp_path_factory.mktemp("runs") / "short")
    for epoch in (0, 1):
        run.append(
            Row(member, epoch, epoch * 10, name, value)
            for member in ("plain", "residual")
            for name, value in {"train/risk": 2.3 - epoch, "test/error": 0.9 - epoch / 2}.items()
        )
        run.save_arrays(epoch, "made", {"plain/w": torch.ones(2).numpy(), "residual/w": torch.zeros(2).numpy()})
    arms = {
        arm: {"net": {"class_path": "SimplifiedNet", "init_args": {"depth": 8, "residual": arm == "residual"}}}
        for arm in ("plain", "residual")
    }
    (run.path / "config.yaml").write_text(yaml.safe_dump({"seed_everything": 0, "model": {"arms": arms}}))
    return run


def test_exponents_are_of_each_round():
    assert scaling.exponents(SIZES, grown(1.0, 2.0)) == pytest.approx([1, 2])


def test_exponents_are_of_the_three_largest_sizes():
    """A constant at the smallest size, which would flatten a fit to all, does not count."""
    measured = grown(1.0)
    measured.values["10"] = [1000.0]
    assert scaling.exponents(SIZES, measured) == pytest.approx([1])


@pytest.mark.parametrize(
    ("power", "expected", "met"), [(1.05, 1, True), (1.2, 1, False), (2.05, 2, True), (2.2, 2, False)]
)
def test_growth_worse_than_the_mathematics_misses_its_goal(power, expected, met):
    line = scaling.Series("some", SIZES, lambda n: lambda: n, expected).line(grown(power))
    assert (line.met, line.against) == (met, scaling.GROWTH[expected])


@pytest.mark.slow
def test_every_series_runs(found, short, monkeypatch):
    for name, sizes in {
        "DEPTHS": (8, 14),
        "PATH_DEPTHS": (5, 8),
        "SEEDS": (1, 2),
        "PROBES": (4, 8),
        "RUNS": (2, 4),
    }.items():
        monkeypatch.setattr(scaling, name, sizes)
    findings = found(scaling, "--run", str(short.path), "--quick", "--rounds", "1", "--images", "4")
    assert [line.what for line in findings.lines if line.what.endswith(", exponent")] == [
        f"{name}, exponent" for name in findings.values
    ]
    assert len(findings.values) == 10
    assert [line.what for line in findings.lines[:2]] == ["memory that a seed adds", "peak memory of 3 seeds"]


def test_only_what_is_asked_is_timed(found):
    findings = found(scaling, "--only", "seeds: training step", "--quick", "--rounds", "1", "--images", "4")
    assert [*findings.values] == ["seeds: training step"] and [*findings.values["seeds: training step"].values] == [
        "1",
        "2",
    ]


def test_a_step_of_a_bank_leaves_no_gradient_behind_and_steps_every_net(root):
    images, labels = torch.randn(2, 3, 32, 32), torch.tensor([0, 1])
    _, seeds = scaling.of_training(images, labels)
    stepped = []
    original = torch.optim.SGD.step

    def step(self, *args):
        stepped.append([w.grad is not None for group in self.param_groups for w in group["params"]])
        return original(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.SGD, "step", step)
        seeds.at(3)()
    one = len(list(scaling.SimplifiedNet(20).parameters()))
    assert stepped == [[True] * (3 * one)]


def test_runs_on_the_page_are_half_plain(short, tmp_path):
    reading, _ = scaling.of_report(short.path, tmp_path, epochs=2)
    logs = reading.at(4)()
    assert [len(log) for log in logs] == [6 * 1] * 4  # three epochs of two numbers
    assert len([*tmp_path.glob("plain-*")]) == len([*tmp_path.glob("residual-*")]) == 13


def test_stretched_runs_have_a_net_each_and_no_two_equal_numbers(short, tmp_path):
    stretch(short, tmp_path, seeds=2, epochs=1)
    values = [value for folder in sorted(tmp_path.iterdir()) for value in RunFolder(folder).log()["value"]]
    assert len(values) == len(set(values)) == 2 * 2 * 2 * 2
    config = yaml.safe_load(Path(tmp_path / "residual-seed01" / "config.yaml").read_text())
    assert config["model"]["net"]["init_args"]["residual"] and config["model"]["seeds"] == "1"


def test_bytes_of_the_images_as_they_lie_on_the_device(root):
    assert scaling.resident_images(root) == pytest.approx(400 * 3 * 40 * 40 * 2 / 2**20)


@pytest.mark.slow  # writes the page by its command
def test_the_page_is_timed_on_stretched_runs(found, short, tmp_path):
    words = (
        "--run",
        str(short.path),
        "--seeds",
        "1",
        "--epochs",
        "2",
        "--rounds",
        "1",
        "--work",
        str(tmp_path / "work"),
    )
    findings = found(report, *words)
    assert findings.more["runs"] == 2 and findings.more["rows"] == 2 * 3 * 2
    wall = findings.values["page"].values[report.WALL][0]
    assert (findings.lines[0].ratio.median, findings.lines[0].goal) == (wall, 10)
    assert (tmp_path / "work" / "report.html").stat().st_size / 1e6 == findings.more["megabytes of page"]
