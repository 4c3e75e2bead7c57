"""Every benchmark at a tiny size: what it compares, never how long it takes."""

import functools

import pytest
import torch
import yaml

from benchmarks import (
    board,
    data,
    epoch,
    hessian,
    host,
    interlayer,
    linear_hessian,
    measures,
    peers,
    report,
    scaling,
    seeds,
    solo,
    training,
)
from benchmarks.harness import Comparison
from benchmarks.loops import Pictures, public_script
from lightning_app.datamodules import CIFAR10
from lightning_app.measures.core import probe
from lightning_app.networks import CifarResNet, SimplifiedNet
from lightning_app.runs import Row, RunFolder
from tests.forked import Popen
from tests.report.chromium import needs_chromium

TINY = ("--images", "64", "--rounds", "1", "--depth", "5")
SIZES = (10, 20, 40, 80)


def test_training_compares_lightning_with_a_bare_loop(found):
    results = found(training, *TINY, "--skip-switches")
    row, kept = results.rows
    assert (row.what, row.against, row.goal) == ("training epoch through Lightning", training.KEPT, 1.03)
    values = results.values["epochs"].values
    assert row.ratio.median == pytest.approx(values[training.OURS][0] / values[training.KEPT][0])
    assert kept.ratio.median == pytest.approx(values[training.KEPT][0] / values[training.BARE][0])


def test_convolutions_alone_are_those_of_every_step_and_their_gradients(monkeypatch):
    """But the gradient of the images, of which a step takes none."""
    convolved, differentiated = [], []
    conv2d, grad = torch.nn.functional.conv2d, torch.autograd.grad
    monkeypatch.setattr(training.F, "conv2d", lambda *a, **b: convolved.append(a[0].shape[1:]) or conv2d(*a, **b))
    monkeypatch.setattr("torch.autograd.grad", lambda out, of, g: differentiated.append(len(of)) or grad(out, of, g))
    timed = training.convolutions(training.parser().parse_args(["--images", "192", "--depth", "8"]))
    convolved.clear()
    assert timed() > 0
    maps = [(3, 32, 32), (16, 32, 32), (16, 32, 32), (16, 32, 32), (32, 16, 16), (32, 16, 16), (64, 8, 8)]
    assert sorted(map(tuple, convolved)) == sorted(2 * maps)  # two steps
    assert sorted(differentiated) == sorted(2 * ([1] + 6 * [2]))


def test_the_hosts_part_of_a_step_is_of_a_fit_in_which_almost_nothing_is_computed(found, monkeypatch):
    steps = []
    monkeypatch.setattr("torch.optim.SGD.step", lambda self, closure=None: steps.append(closure and closure()))
    values = found(host, "--nets", "1", "--depth", "5", "--rounds", "1").values["steps"].values
    assert values["1 nets"][0] > values["1 nets, of it, weights"][0] > 0
    assert 3 <= len(steps) <= 6  # of 720 a fit: the first, and one of each size of batch


def test_a_bank_is_counted_in_nets(found, monkeypatch):
    monkeypatch.setattr(seeds, "BANKS", {"": (False, None)})
    results = found(seeds, *TINY, "--nets", "1", "3", "--stacked")
    values = results.values["epochs"].values
    assert results.rows[1].ratio.median == pytest.approx(values["3 nets"][0] / values[seeds.ONE][0] / 3)
    assert [row.goal for row in results.rows] == [None, 0.85]


def test_a_member_of_the_loop_is_the_net_trained_alone(found, monkeypatch):
    """Compiled nets, which are not compiled here, are goals and names: tests/modules has what compiling changes."""
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda net, **_: compiled.append(net))
    rows = found(solo, "--seeds", "2", "--depth", "5", "--steps", "2").rows
    assert [(row.ratio.median, row.goal) for row in rows] == [(0, 0), (0, 1e-4), (0, 0), (0, None)]
    assert [", compiled" in row.what for row in rows] == [False, True] * 2 and len(compiled) == 2 * 4


@pytest.mark.parametrize("asked, trained", [("1", [3]), ("20", [3, 20])])
def test_on_a_gpu_a_member_is_compared_after_steps_of_the_graph(monkeypatch, asked, trained):
    """Of which the third is the first."""
    steps = []
    monkeypatch.setattr(solo, "differences", lambda options, count, ways: steps.append(count) or {})
    solo.measure(solo.parser().parse_args(["--device", "cuda", "--steps", asked]))
    assert steps == trained


@pytest.mark.slow  # all measures of base.yaml
def test_the_parts_of_an_epoch_are_scaled_and_weighed_by_their_schedule(found, capsys):
    with pytest.raises(SystemExit) as stopped:
        found(epoch, *TINY)
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and "error: --images must be at least --probe" in said and "got 64 and 1000" in said
    results = found(epoch, *TINY, "--modes", "eager", "--probe", "20")
    seconds = {name: values[0] for name, values in results.values["eager"].values.items()}
    by_name = {row.what: row.ratio.median for row in results.rows}
    spectrum = seconds.pop("HessianSpectrum") / 2
    assert by_name["evaluation"] == pytest.approx(seconds["evaluation"] / seconds["training"])
    assert by_name["HessianSpectrum, after every 2 epochs"] == pytest.approx(spectrum / seconds["training"])
    usual = sum(t for name, t in seconds.items() if name not in ("training", epoch.EVERYTHING, "InterlayerCushion"))
    expected = (usual + spectrum) / seconds["training"]
    assert by_name["evaluation and all measures of base.yaml"] == pytest.approx(expected)


@pytest.mark.slow
def test_measures_compares_cushions_with_an_evaluation_of_both_nets(found, monkeypatch):
    """What is asked to be compiled is not: how it computes is tested with the measures."""
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda function, **_: compiled.append(function) or function)
    monkeypatch.setattr(probe, "_compiled_step", lambda: torch.compile(probe._step))  # the true one is kept for ever
    results = found(measures, "--images", "8", "--rounds", "1", "--depth", "5", "--batch", "4")
    goals = [(row.what.split(":")[0], row.goal) for row in results.rows]
    assert goals == [(name, goal) for name in ("plain-5", "residual-5") for goal in (1.1, 3.0, 1.02)]
    assert probe._step in compiled and len({*compiled}) == 2


def test_the_closed_form_of_a_linear_hessian_is_autograds(found):
    rows = found(linear_hessian, "--units", "2", "--width", "3", "--samples", "10", "--rounds", "1").rows
    assert rows[-1].met and len(rows) == 3


def test_products_are_in_units_of_gradients_and_of_curvlinops(found, monkeypatch):
    monkeypatch.setattr(hessian, "TRUTH", 12)
    monkeypatch.setattr(hessian, "STEPS", 10)
    for size, small in {"LIGHT_IMAGES": 8, "LAYERS": 1, "SEQUENCES": 2, "LENGTH": 16}.items():
        monkeypatch.setattr(hessian, size, small)
    results = found(hessian, "--images", "4", "--rounds", "1", "--depth", "5", "--only", "plain", "tokens")
    assert [*results.values] == ["plain", "GPT-2 of 1 layers, 2 sequences of 16 tokens"]
    goals = {row.against: row.goal for row in results.rows if row.what.startswith("plain-5: H v")}
    assert goals == {"a gradient of the same images": 2.2, "curvlinops' product": 0.7}
    light = next(row for row in results.rows if row.what == f"plain-5: {hessian.LIGHT}")
    values = results.values["plain"].values
    assert light.ratio.median == pytest.approx(values[hessian.LIGHT][0] / values["gradient"][0] * 4 / 50_000)


def test_interlayer_norms_agree_and_cushions_are_a_share_of_an_epoch(found, monkeypatch):
    monkeypatch.setattr(interlayer, "CifarResNet", functools.partial(CifarResNet, width=2))
    words = ("--images", "10", "--rounds", "1", "--steps", "1", "--chunks", "2048", "--no-compile")
    by_what = {row.what: row for row in found(interlayer, *words).rows}
    assert by_what["residual-20: exact ||J||_F, relative difference"].met
    assert by_what["plain-20: exact ||J||_F, relative difference"].met
    assert by_what["plain-20: all interlayer cushions"].goal == 0.03


def test_the_public_script_sees_every_training_image_and_evaluates_every_test_image(root, monkeypatch):
    seen = []
    forward = SimplifiedNet.forward
    monkeypatch.setattr(SimplifiedNet, "forward", lambda n, x: seen.append((n.training, len(x))) or forward(n, x))
    images = CIFAR10(root=str(root), train_limit=200, test_limit=20)
    public_script(5, images, "cpu", workers=0, evaluate=True)()
    assert seen == [(True, 128), (True, 72), (False, 20)]


@pytest.mark.slow
def test_scripts_and_libraries_are_timed_at_every_task_and_libraries_agree(found, monkeypatch):
    monkeypatch.setattr(peers, "DENSITY_STEPS", 6)
    monkeypatch.setattr(peers, "WORKERS", (0,))
    results = found(peers, *TINY, "--hessian-images", "2", "--no-compile")
    assert [*results.values["training epoch"].values] == ["usual script, 0 workers", peers.EAGER]
    assert len(results.values) == 5
    rows = {row.what: row for row in results.rows if row.against == peers.CURVLINOPS}
    assert rows["Hessian: product, relative difference"].met
    assert rows["Hessian: largest eigenvalue, relative difference"].met
    assert rows["Hessian: density (ours: and the ends), ours"].goal == 0.4


def test_every_loader_is_timed(found, monkeypatch):
    monkeypatch.setattr(data, "PIL_PEERS", {data.REFERENCE: 0})
    results = found(data, "--images", "130", "--rounds", "1", "--no-compile")
    assert len(results.values["batches"].values) == 5


def test_goals_of_loaders_are_against_the_fastest_peer():
    speeds = {"torchvision, 0 workers": 100.0, "torchvision, 1 workers": 50.0, "torchvision, 2 workers": 200.0}
    speeds |= {data.V2: 400.0, data.V2_BATCHES: 800.0} | dict.fromkeys(data.OURS, 8000.0) | {"eager": 2000.0}
    eager, *_, alone, v2, v2_batches = data.speed_rows(Comparison({name: [value] for name, value in speeds.items()}))
    assert (eager.against, eager.ratio.median, eager.met) == ("torchvision, 2 workers", 10, False)
    assert (alone.against, alone.ratio.median, alone.goal) == (data.REFERENCE, 80, 75)
    assert (v2.ratio.median, v2_batches.ratio.median) == (20, 10)


def test_peers_draw_for_each_sample_and_normalise(root):
    module = data.cifar10(root)
    black = ((0 - torch.tensor(module.mean)) / torch.tensor(module.std)).view(1, 3, 1)
    for name, loader in data.peers(module, images=64).items():
        if name in (data.REFERENCE, data.V2, data.V2_BATCHES):
            images, labels = next(iter(loader))
            assert images.shape == (64, 3, 32, 32) and images.dtype == torch.float32 and labels.dtype == torch.int64
            padded = torch.isclose(images[:, :, 0], black, atol=1e-5).all(2).all(1)
            assert 0 < padded.sum() < 64, name  # some crops reach above the image, some do not
    image, _ = Pictures(module, "test")[7]
    pixels = module.splits.test_images[7].permute(2, 0, 1) / 255
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (module.mean, module.std))
    torch.testing.assert_close(image, (pixels - mean) / std)


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> RunFolder:
    """A run of two nets with one number of each kind that a benchmark looks for."""
    run = RunFolder(tmp_path_factory.mktemp("runs") / "short")
    for number in (0, 1):
        values = {"train/risk": 2.3 - number, "test/error": 0.9 - number / 2, "weight_mass/mean": 0.1 + number}
        members = ("plain", "residual")
        run.append(Row(member, number, number * 10, *item) for member in members for item in values.items())
        run.save_arrays(number, "made", {f"{member}/w": torch.ones(2).numpy() for member in members})
    nets = {
        arm: {"class_path": "SimplifiedNet", "init_args": {"depth": 8, "residual": arm == "residual"}}
        for arm in members
    }
    config = {"seed_everything": 0, "model": {"arms": {arm: {"net": net} for arm, net in nets.items()}}}
    (run.path / "config.yaml").write_text(yaml.safe_dump(config))
    return run


def forked(words, check: bool) -> None:
    with Popen([*map(str, words)]) as process:
        assert process.wait(120) == 0


def grown(*powers: float) -> Comparison:
    """t = 3 n^a, a round for each a."""
    return Comparison({f"{n}": [3 * n**power for power in powers] for n in SIZES})


def test_exponents_are_of_the_three_largest_sizes_in_each_round():
    """A constant at the smallest size, which would flatten a fit to all, does not count."""
    measured = grown(1.0, 2.0)
    measured.values["10"] = [1000.0, 1000.0]
    assert scaling.exponents(SIZES, measured) == pytest.approx([1, 2])


@pytest.mark.parametrize(("power", "expected", "met"), [(1.05, 1, True), (1.2, 1, False), (2.2, 2, False)])
def test_growth_worse_than_the_mathematics_misses_its_goal(power, expected, met):
    assert scaling.Series("some", SIZES, lambda n: lambda: n, expected).row(grown(power)).met == met


@pytest.mark.slow
def test_every_series_runs(found, short, monkeypatch):
    sizes = {
        "DEPTHS": (8, 14),
        "PATH_DEPTHS": (5, 8),
        "SEEDS": (1, 2),
        "PROBES": (4, 8),
        "STEPS": (3, 6),
        "RUNS": (2, 4),
    }
    for name, values in (sizes | {"BANKS": (1, 3)}).items():
        monkeypatch.setattr(scaling, name, values)
    results = found(scaling, "--run", str(short.path), "--rounds", "1", "--images", "4")
    assert [row.what for row in results.rows[3:]] == [f"{name}, exponent" for name in results.values]
    assert len(results.values) == 10 and results.rows[0].what == "memory that a seed adds"


@pytest.mark.slow  # writes the page by its command
def test_the_page_is_timed_on_runs_of_which_no_two_have_equal_numbers(found, short, tmp_path, monkeypatch):
    monkeypatch.setattr(report.subprocess, "run", forked)
    results = found(report, "--run", str(short.path), "--seeds", "2", "--epochs", "1", "--rounds", "1")
    assert results.more["runs"] == 4 and results.more["rows"] == 4 * 2 * 3 and results.more["megabytes of page"] > 0
    assert results.rows[0].ratio.median == results.values["page"].values[report.WALL][0]
    report.stretch(short, tmp_path, seeds=2, epochs=1)
    values = [value for log in tmp_path.rglob("log.csv") for value in RunFolder(log.parent).log()["value"]]
    assert len(values) == len(set(values)) == 24


@pytest.mark.slow  # starts the command and a browser
@needs_chromium
def test_the_board_is_looked_at_until_it_shows_what_was_logged(found, short, monkeypatch):
    monkeypatch.setattr(board, "STEPS", 1)
    monkeypatch.setattr(board, "WAIT", 0.5)
    monkeypatch.setattr(board.subprocess, "Popen", Popen)
    results = found(board, "--run", str(short.path), "--rounds", "1", "--batch", "2", "--depth", "5")
    assert {row.what: row.goal for row in results.rows[:-1]} == {board.FIGURE: None, **board.GOALS}
    seconds = {name: values[0] for name, values in results.values["seconds"].values.items()}
    assert 0 < seconds[board.PAINT] <= seconds[board.FIGURE] and min(seconds.values()) > 0
    steps = results.values["step"].values
    assert results.rows[-1].ratio.median == steps[board.BESIDE][0] / steps[board.ALONE][0]
    assert short.last_epoch == 1  # what is logged goes to a copy
