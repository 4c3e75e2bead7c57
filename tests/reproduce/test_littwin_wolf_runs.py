"""Littwin & Wolf's claims about trained nets: configurations, verdicts on runs of our choosing, and the artefacts themselves."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lightning_app.datamodules import CIFAR10, CIFAR100, GaussianMixture
from lightning_app.networks.residual_mlp import MeanStdNorm
from lightning_app.papers.littwin_wolf import PAPER as LITTWIN_WOLF
from lightning_app.papers.littwin_wolf import ensemble, eq_22, fig_2_3, training
from lightning_app.papers.littwin_wolf.fig_1de import mean_lambda
from lightning_app.papers.littwin_wolf.training import DURATION, NORMALISED, UNNORMALISED, Setting, runs_of
from lightning_app.papers.parts import PAPER, SMOKE, Source
from lightning_app.papers.verdicts import Verdict, judge
from lightning_app.reproduce.training import TrainingJob
from lightning_app.statistics.paired import ENOUGH
from tests.helpers import ROOT, built, command
from tests.reproduce.conftest import tiny_cifar10
from tests.test_configs import check_recipe_of_fb_resnet_torch

KEY = "littwin-wolf"
CONFIGS = ROOT / "configs" / "papers" / KEY
REPRODUCED, NOT, DEPENDS = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.DEPENDS
DESCRIBED = Verdict.DESCRIBED
BOTH = (*NORMALISED, *UNNORMALISED)
EPOCHS = tuple(range(training.EPOCHS + 1))


@pytest.fixture
def verdicts(made):
    return partial(made, paper=KEY)


@pytest.fixture
def trained(leave) -> Callable:
    """Leave the runs of some settings behind; numbers are functions of (setting, seed, epoch)."""

    def trained(settings, numbers, epochs=EPOCHS, **more) -> None:
        for run in runs_of(settings):
            by_arm = {setting.arm: setting for setting in settings if setting.run == run}
            of_run = partial(lambda by, arm, *at: numbers(by[arm], *at), by_arm)
            leave(run, of_run, PAPER, epochs, paper=KEY, **more)

    return trained


@pytest.mark.parametrize("setting", BOTH, ids=lambda setting: f"{setting.run.name}-{setting.arm}")
def test_a_setting_says_what_its_yaml_does(setting):
    config = TrainingJob(KEY, setting.run, PAPER).recipe  # with base.yaml below
    net = config["model"]["arms"][setting.arm]["net"]
    assert (net["class_path"], net["init_args"]) == ("ResidualMLP", setting.arguments)
    assert config["data"]["init_args"]["separation"] == setting.separation
    assert config["model"]["optimizer"]["init_args"]["lr"] == setting.rate
    assert setting.run.seeds == ENOUGH


@pytest.mark.parametrize("run", runs_of(BOTH), ids=lambda run: run.name)
def test_all_arms_of_a_run_are_settings(run):
    assert TrainingJob(KEY, run, PAPER).arms == [setting.arm for setting in BOTH if setting.run == run]
    assert len({setting.words for setting in BOTH}) == len(BOTH)
    assert TrainingJob(KEY, run, PAPER).epochs == training.EPOCHS


@pytest.mark.parametrize("key", ["fig-1d", "fig-1e", "ensemble", "theorem-3", "theorem-4"])
def test_artefacts_of_trained_nets_say_that_their_duration_is_ours(key):
    (artefact,) = (artefact for artefact in LITTWIN_WOLF.artefacts if artefact.key == key)
    assert DURATION.strip() in artefact.convention


@pytest.mark.parametrize("run", ["separable", "mixture"])
def test_nets_and_data_of_appendix_c(run, tmp_path):
    folder = CONFIGS if run == "separable" else ROOT / "configs"
    cli = built("fit", "--config", folder / f"{run}.yaml", cwd=tmp_path)
    data = cli.datamodule
    assert type(data) is GaussianMixture
    assert (data.samples, data.dimensions, data.classes, data.batch_size) == (10_000, 50, 10, 50)
    for _, net in cli.model.members:
        assert [tuple(layer.weight.shape) for layer in net.layers()] == [(20, 50), *[(20, 20)] * 9, (10, 20)]
    made = cli.model.configure_optimizers()
    group = made["optimizer"].param_groups[0]
    assert (group["lr"], group["momentum"], cli.model.weight_decay, "lr_scheduler" in made) == (0.1, 0.0, 0.0, False)


@pytest.mark.parametrize(("name", "data", "classes"), [("cifar10", CIFAR10, 10), ("cifar100", CIFAR100, 100)])
def test_figures_2_and_3_train_the_resnet_of_depth_32(name, data, classes, tmp_path):
    cli = built("fit", "--config", CONFIGS / f"{name}.yaml", cwd=tmp_path)
    ((_, net),) = cli.model.members
    assert (len(net.layers()), net.residual, net.fc.out_features) == (32, True, classes)
    assert (type(cli.datamodule), cli.datamodule.num_classes) == (data, classes)
    check_recipe_of_fb_resnet_torch(cli)
    assert cli.model.configure_optimizers()["lr_scheduler"]["scheduler"].milestones.keys() == {fig_2_3.DROP, 121}


def test_the_user_s_resnet_on_cifar_100(tmp_path):
    cli = built("fit", "--config", ROOT / "configs" / "full_res32_cifar100.yaml", cwd=tmp_path)
    ((_, net),) = cli.model.members
    assert (len(net.layers()), net.fc.out_features, type(cli.datamodule)) == (32, 100, CIFAR100)
    assert cli.datamodule.mean == CIFAR100.MEAN
    check_recipe_of_fb_resnet_torch(cli)


def lambdas(skipped: float, first: float, noise: float = 0.0):
    """|lambda| that grow by so much an epoch, seeds apart by less."""

    def numbers(setting: Setting, seed: int, epoch: int) -> dict[str, float]:
        slopes = {layer: first if layer == 1 else skipped for layer in range(1, 11)}
        wave = noise * (-1) ** epoch
        return {mean_lambda(n): 1 + epoch * slope * (1 + seed / 10) + wave for n, slope in slopes.items()}

    return numbers


GROWS, LATER, LOWEST, STEADY, EACH, APART, FIRST = range(7)  # the claims of Fig. 1d, in their order


@pytest.mark.parametrize(
    ("numbers", "held"),
    [
        (lambdas(0.01, 0.05), {GROWS, LATER, STEADY, APART, FIRST}),
        (lambdas(-0.01, 0.05), {APART, FIRST}),
        (lambdas(0.01, 0.01), {GROWS, LATER, STEADY, FIRST}),
        (lambdas(0.01, -0.05), {GROWS, LATER, STEADY, APART}),
        (lambdas(0.01, 0.05, noise=0.05), {GROWS, LATER, APART, FIRST}),
        (lambdas(0.0, 0.0), set()),
    ],
)
def test_fig_1d(trained, verdicts, numbers, held):
    trained(NORMALISED, numbers)
    found = [DESCRIBED if number in (LOWEST, EACH) else REPRODUCED if number in held else NOT for number in range(7)]
    assert list(verdicts("fig-1d").values()) == found


def test_a_fall_in_the_first_epochs_hides_growth_from_the_start_only(trained, verdicts):
    def numbers(setting, seed, epoch):
        return lambdas(0.01, 0.05)(
            setting, seed, epoch - 100 if 0 < epoch < training.EARLY else epoch - 150 * (epoch > 0)
        )

    trained(NORMALISED, numbers)
    assert list(verdicts("fig-1d").values())[:3] == [NOT, REPRODUCED, DESCRIBED]


def test_growth_in_some_settings_only_depends_on_a_setting(trained, verdicts):
    def numbers(setting, seed, epoch):
        return lambdas(0.01 if setting.arm == "eq22" else -0.01, 0.05)(setting, seed, epoch)

    trained(NORMALISED, numbers)
    assert list(verdicts("fig-1d").values()) == [
        DEPENDS,
        DEPENDS,
        DESCRIBED,
        DEPENDS,
        DESCRIBED,
        REPRODUCED,
        REPRODUCED,
    ]


@pytest.mark.parametrize("more", [{"finished": False, "epochs": (0, 1, 2)}, {"seeds": (0, 1, 2)}])
def test_unfinished_runs_and_missing_seeds_test_nothing(trained, verdicts, more):
    trained(NORMALISED, lambdas(0.01, 0.05), **more)
    assert set(verdicts("fig-1d").values()) == {Verdict.NOT_TESTED}


@pytest.mark.parametrize(
    ("slope", "noise", "found"),
    [(0.1, 0.0, [REPRODUCED] * 3), (-0.1, 0.0, [NOT] * 3), (0.1, 0.5, [REPRODUCED, REPRODUCED, NOT])],
)
def test_fig_1e(trained, verdicts, slope, noise, found):
    def numbers(_, seed, epoch):
        return {"weight_norm/total": 7 + slope * epoch * (1 + seed / 10) + noise * (-1) ** epoch}

    trained(UNNORMALISED, numbers)
    assert list(verdicts("fig-1e").values()) == found


@pytest.mark.parametrize(("falls", "verdict"), [(10, REPRODUCED), (11, NOT)])
def test_of_100_epochs_10_may_fall_and_11_may_not(trained, verdicts, falls, verdict):
    trained(UNNORMALISED, lambda _, seed, epoch: {"weight_norm/total": 7 + seed / 10 + abs(epoch - falls)})
    assert list(verdicts("fig-1e").values()) == [REPRODUCED, REPRODUCED, verdict]


def test_an_interval_that_contains_zero_is_unresolved(trained, results):
    trained(UNNORMALISED, lambda _, seed, epoch: {"weight_norm/total": 7 + (-1) ** seed * epoch})
    artefact, there = results("fig-1e", KEY)
    outcomes = [reading.outcome for reading in artefact.claims(there)[0].readings]
    assert all(outcome.unresolved and outcome.held is False for outcome in outcomes)


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (3.5, 4.0, [REPRODUCED, REPRODUCED, REPRODUCED]),
        (3.5, 3.0, [REPRODUCED, NOT, REPRODUCED]),
        (3.5, 2.0, [REPRODUCED, NOT, NOT]),
        (4.97, 6.0, [NOT, REPRODUCED, REPRODUCED]),
    ],
)
def test_ensemble(trained, verdicts, start, end, found):
    def numbers(_, seed, epoch):
        here = start + 0.01 * seed if epoch == 0 else 2.5 if epoch < training.EPOCHS else end + 0.02 * seed
        return {f"depth/{name}": here for name in ensemble.MEASURES} | {"depth/longest": 10}

    trained(BOTH, numbers, epochs=(0, training.EARLY, training.EPOCHS))
    shown = verdicts("ensemble")
    groups = 2 * len(ensemble.MEASURES) - 1  # of paths from the input with normalisation only
    assert Counter(shown.values()) == Counter([*found, Verdict.DESCRIBED] * groups)


def drives(second: float, agrees: float, layers: range = range(1, 11)):
    """Second-order drives of the layers named, -1 in all others, and how often what they say comes true."""

    def numbers(_, seed, epoch):
        names = [*(f"layer{number:02d}" for number in range(1, 11)), "scale"]
        moved = {f"layer{number:02d}" for number in layers} | {"scale"}
        found = {f"drive/{name}/second_order": second if name in moved else -1.0 for name in names}
        right = float((epoch + seed) % 10 < 10 * agrees) if epoch else float("nan")
        return found | {f"drive/{name}/{field}": right for name in names for field in ("agrees", "agrees_first")}

    return numbers


def in_training(results, artefact: str) -> dict[str, float]:
    """Of what is said of training: the number under the first setting. All of it is described."""
    found, there = results(artefact, KEY)
    claims = [claim for claim in found.claims(there) if claim.quantity.startswith("training: ")]
    assert {judge(claim)[0] for claim in claims} == {DESCRIBED}
    return {claim.quantity.removeprefix("training: "): claim.ours.mean for claim in claims}


@pytest.mark.parametrize(
    ("numbers", "shares"),
    [
        (drives(0.1, 0.9), [1, 1, 0.9, 0.9]),
        (drives(-0.1, 0.9), [0, 0, 0.9, 0.9]),
        (drives(0.1, 0.3), [1, 1, 0.3, 0.3]),
        (drives(0.1, 0.9, range(2, 11)), [0, 1, 0.9, 0.9]),
    ],
)
def test_theorem_3_in_training(trained, results, numbers, shares):
    """Of the first layer, of those with a skip, and how often the drive and the gradient are right."""
    trained(NORMALISED, numbers)
    assert [*in_training(results, "theorem-3").values()] == pytest.approx(shares)


@pytest.mark.parametrize(("drive", "agrees", "driven"), [(0.1, 0.9, 1.0), (-0.1, 0.4, 0.0)])
def test_theorem_4_in_training(trained, results, drive, agrees, driven):
    trained(UNNORMALISED, drives(drive, agrees))
    assert [*in_training(results, "theorem-4").values()] == pytest.approx([drive, driven, agrees, agrees])


def test_an_agreement_that_could_not_be_told_does_not_count(trained, results):
    """It is NaN at epoch 0, where nothing was predicted yet."""
    trained(UNNORMALISED, drives(0.1, 0.9), epochs=tuple(range(11)))
    artefact, there = results("theorem-4", KEY)
    (agreement,) = [claim for claim in artefact.claims(there) if claim.quantity.endswith("its drive says")]
    assert set(agreement.ours.values) == {0.9} and agreement.ours.count == ENOUGH


def test_eq_22_under_the_conditions_of_its_derivation():
    """Increments of 1 where sigma is a root mean square, the same for all units, and branches have random signs."""
    asked = dict(eq_22.MOMENTS.pieces["rms-signs-equal-200"]) | {"seeds": 10, "samples": 500}
    found = eq_22.moments(Source(Path(), False), **asked)
    assert found["branch"] == pytest.approx(1, abs=0.05)  # dead units have none
    increments = np.diff(found["squares"], axis=1).mean(axis=1)
    assert increments.mean() == pytest.approx(1, abs=5 * increments.std() / 10**0.5)


@pytest.mark.parametrize("kind", ["deviation-equal-200", "deviation-200"])
def test_units_of_equal_deviation_are_so_where_it_is_asked_for(kind, monkeypatch):
    """Of the branches of each block, as the norm gives them on: their standard deviations by unit."""
    spreads, forward = [], MeanStdNorm.forward

    def seen(self, x):
        out = forward(self, x)
        spreads.append(out.std(0, correction=0))
        return out

    monkeypatch.setattr(MeanStdNorm, "forward", seen)
    eq_22.moments(Source(Path(), False), **dict(eq_22.MOMENTS.pieces[kind]) | {"seeds": 1, "samples": 500})
    apart = [float(each[each > 0].max() / each[each > 0].min()) for each in spreads]
    assert (max(apart) == pytest.approx(1)) == (kind == "deviation-equal-200")


def test_half_normal_units_have_1_467_times_their_variance():
    asked = dict(eq_22.MOMENTS.pieces["deviation-200"]) | {"seeds": 2, "samples": 4000}
    first = eq_22.moments(Source(Path(), False), **asked)["squares"][:, 0]
    assert pytest.approx(1.467, abs=5e-4) == eq_22.HALF_NORMAL
    assert first == pytest.approx(eq_22.HALF_NORMAL, rel=0.03)


def moments(increment: float, kinds: tuple[str, ...]):
    """Squares that rise by so much under some kinds, twice as much under the others."""
    known = {(centred, signs, equal): kind for kind, (centred, signs, equal, _) in eq_22.KINDS.items()}

    def numbers(centred, signs, equal, blocks, seeds, **_) -> dict:
        rise = increment * (1 if known[centred, signs, equal] in kinds else 2)
        layers = np.tile(np.arange(blocks, dtype=float), (seeds, 1))
        return {"squares": eq_22.HALF_NORMAL + rise * layers, "branch": np.ones_like(layers), "sigma": 1 + layers}

    return numbers


@pytest.mark.parametrize(
    ("increment", "kinds", "verdict"),
    [
        (1.05, tuple(eq_22.KINDS), REPRODUCED),
        (1.05, (eq_22.TEXT,), REPRODUCED),  # others stand beside it
        (1.05, ("rms-signs-equal",), NOT),  # not what the text says
        (1.2, tuple(eq_22.KINDS), NOT),
    ],
)
def test_eq_22(verdicts, left, increment, kinds, verdict):
    left(KEY, eq_22.MOMENTS, moments(increment, kinds))
    assert list(verdicts("eq-22").values()) == [verdict, REPRODUCED, Verdict.CHECKED, REPRODUCED, DESCRIBED, DESCRIBED]


def test_slopes_are_fitted_between_epochs():
    epochs = np.arange(0, 164)
    curve = pd.Series(np.where(epochs <= 80, 0.5 * epochs, 40 + 3.0 * (epochs - 80)), index=epochs)
    assert fig_2_3.slope(curve, 60, 80) == pytest.approx(0.5) and fig_2_3.slope(curve, 80, 100) == pytest.approx(3)
    assert np.isnan(fig_2_3.slope(curve, 163, 180))
    assert np.isnan(fig_2_3.slope(curve.where(epochs < 90), 80, 100))


def curves(before: float, after: float):
    def numbers(_, seed, epoch):
        grown = before * min(epoch, 80) + after * max(epoch - 80, 0)
        return {fig_2_3.ABSORBED: 20 + grown + seed / 10, fig_2_3.LAMBDA: 20 + grown + seed / 10}

    return numbers


@pytest.mark.parametrize(
    ("before", "after", "second", "third"),
    [
        (0.1, 0.3, [REPRODUCED] * 3, [REPRODUCED, NOT]),
        (0.1, -0.05, [REPRODUCED, REPRODUCED, NOT], [REPRODUCED] * 2),
        (-0.1, -0.2, [NOT] * 3, [NOT, REPRODUCED]),
    ],
)
def test_figs_2_and_3(leave, verdicts, before, after, second, third):
    for run in fig_2_3.RUNS.values():
        leave(run, curves(before, after), epochs=tuple(range(165)), paper=KEY)
    assert list(verdicts("fig-2").values()) == second * 2
    assert list(verdicts("fig-3").values()) == third * 2


@pytest.mark.slow
def test_figs_2_and_3_at_smoke_scale(tmp_path):
    """Of the two data sets one is trained on, and the rows of the other say that nothing was."""
    data = tiny_cifar10(tmp_path / "data", 20, 20)
    done = command("reproduce", f"{KEY}/fig-2", f"{KEY}/fig-3", "--only", "cifar10", "--data-root", data, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for artefact, rows in (("fig-2", 6), ("fig-3", 4)):
        table = pd.read_csv(tmp_path / "results" / KEY / artefact / "smoke" / "table.csv")
        assert len(table) == rows and (table["verdict"] == Verdict.NOT_TESTED).all()
        assert (tmp_path / "results" / KEY / artefact / "smoke" / "figure.png").stat().st_size > 10_000
    table = pd.read_csv(tmp_path / "results" / KEY / "fig-2" / "smoke" / "table.csv")
    for title, count in (("CIFAR-10", SMOKE.seeds), ("CIFAR-100", 0)):
        grown = table[table["quantity"].str.contains(f"{title}:.*end minus start")]
        assert len(grown) and (grown["n"] == count).all() and (grown["ours"].notna() == (count > 0)).all()


@pytest.mark.slow
def test_the_mixture_s_artefacts_at_smoke_scale(tmp_path):
    wanted = [f"{KEY}/{artefact}" for artefact in ("fig-1d", "ensemble", "theorem-3")]
    done = command("reproduce", *wanted, "--only", "separable", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for artefact in ("fig-1d", "ensemble"):
        table = pd.read_csv(tmp_path / "results" / KEY / artefact / "smoke" / "table.csv")
        measured = table[table["convention"].str.contains("separation 1, ") & table["n"].gt(0)]
        assert measured["convention"].nunique() == 6  # arms
        assert (measured["n"] == SMOKE.seeds).all() and measured["ours"].notna().all()
        assert (tmp_path / "results" / KEY / artefact / "smoke" / "figure.svg").exists()
