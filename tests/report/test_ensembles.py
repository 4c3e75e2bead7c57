"""The section on ensembles: its numbers are the run folder's, and every part of it stands alone."""

import itertools
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_app.report.page_data import gather
from lightning_app.report.profiles import _profiles, stages
from lightning_app.report.sections import ensembles as ensembles_section
from lightning_app.runs import Row, RunFolder
from tests.report.conftest import bare_run, of_member, only, rows
from tests.report.test_page import Page, section, value
from tests.silence import SILENT

MEMBERS = ("plain", "residual")
LAYERS = ("layer01", "layer02", "layer03")
EPOCHS = (0, 1, 2, 3, 5, 8)
DEPTHS = ("effective", "coherent", "gradient", "effective_input", "longest", "relative", "bias_share")
FIGURES = {  # family -> anchors of its figures
    "depth": ("ensembles-depth", "ensembles-lengths"),
    "bn_lambda": ("ensembles-lambda", "ensembles-lambda-layers"),
    "weight_norm": ("ensembles-weight-norm", "ensembles-weight-norm-layers"),
    "drive": ("ensembles-forces",),
}


def depth(rng: np.random.Generator) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    lengths, outputs, gradients = np.arange(1, 5), rng.random(4), rng.random(4)
    effective = float(lengths @ outputs / outputs.sum())
    numbers = {"effective": effective, "coherent": 5 * rng.random() - 0.5, "longest": 4.0, "relative": effective / 4}
    numbers |= {"gradient": float(lengths @ gradients / gradients.sum())}
    numbers |= {"effective_input": 1 + rng.random(), "bias_share": rng.random() - 0.5}
    return numbers, {"lengths": lengths, "outputs": outputs, "gradients": gradients}


def lambdas(rng: np.random.Generator, layers: Sequence[str] = LAYERS) -> dict[str, float]:
    fields = {field: rng.random(len(layers)) for field in ("mean_abs", "l2", "scale")}
    each = {f"{layer}/{field}": x for field, drawn in fields.items() for layer, x in zip(layers, drawn, strict=True)}
    totals = {field: drawn.mean() for field, drawn in fields.items()}
    return each | totals | {"negative": 2, "sign_changes": 1, "layers": len(layers)}


def norms(rng: np.random.Generator, kinds: Sequence[str]) -> dict[str, float]:
    found = {f"{layer}/{kind}": 1 + rng.random() for kind in kinds for layer in (*LAYERS, "layer04")}
    return found | {kind: 1 + rng.random() for kind in kinds} | {"total": 10 + rng.random()}


def forces(rng: np.random.Generator, layers: Sequence[str], compared: bool) -> dict[str, float]:
    names = [f"{layer}/{order}_order" for layer in (*layers, "scale") for order in ("first", "second")]
    found = dict(zip(names, rng.normal(size=len(names)), strict=True)) | {
        f"{each}/size": 1.0 for each in (*layers, "scale")
    }
    if layers:
        found |= {"positive": rng.random(), "positive_first": rng.random()}
    if compared:
        found |= {f"{each}/{field}": float(rng.integers(2)) for each in (*layers, "scale") for field in AGREE}
        found |= {field: rng.random() for field in AGREE} if layers else {}
    return found


AGREE = ("agrees", "agrees_first")


def measure(
    path: Path,
    members: Sequence[str] = MEMBERS,
    epochs: Sequence[int] = EPOCHS,
    families: Sequence[str] = tuple(FIGURES),
    normalised: bool = True,
    layers: Sequence[str] = LAYERS,
) -> RunFolder:
    """A run with these families; effective depth of residual nets only, lambda if the nets are normalised."""
    run, rng = RunFolder(path), np.random.default_rng(7)
    for epoch in epochs:
        arrays = {}
        for member in members:
            numbers, by_length = depth(rng)
            found = {"train/risk": rng.random()}
            if "depth" in families and "plain" not in member:
                found |= {f"depth/{key}": x for key, x in numbers.items()}
                arrays |= of_member(member, {f"depth/{key}": x for key, x in by_length.items()})
            if "bn_lambda" in families and normalised:
                found |= {f"bn_lambda/{key}": x for key, x in lambdas(rng, layers).items()}
            if "weight_norm" in families:
                kinds = ("own", "absorbed") if normalised else ("own",)
                found |= {f"weight_norm/{key}": x for key, x in norms(rng, kinds).items()}
            if "drive" in families:
                pushed = forces(rng, layers if normalised else (), epoch > epochs[0])
                found |= {f"drive/{key}": x for key, x in pushed.items()}
            run.append(rows(member, epoch, found))
        if arrays:
            run.save_arrays(epoch, "depth", arrays)
    return run


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> RunFolder:
    return measure(tmp_path_factory.mktemp("ensembles") / "pair")


@pytest.fixture(scope="module")
def shown(measured) -> str:
    return ensembles(measured)


def ensembles(*runs: RunFolder) -> str:
    """The section's HTML; the others' panels would take seconds."""
    return section(only(ensembles_section, *runs), "ensembles")


def data(text: str, figure: str, number: int = 0) -> list[dict[str, str]]:
    """Rows of a figure's data, by column."""
    lines = Page(re.search(rf'<figure id="{figure}">.*?</figure>', text, re.DOTALL)[0]).pre[number].splitlines()
    head = lines[0].split(",")
    return [dict(zip(head, line.split(","), strict=True)) for line in lines[1:]]


def table(text: str, title: str) -> list[list[tuple[str, str]]]:
    """Its rows, the head first."""
    return Page(re.search(rf"<h3>{title}</h3>.*?</table>", text, re.DOTALL)[0]).rows


def legend(text: str, figure: str) -> list[str]:
    found = re.search(rf'<figure id="{figure}">(.*?)<div class="panels"', text, re.DOTALL)[1]
    return re.findall(r"<span>(.*?)</span>", found)


def panels(text: str, figure: str) -> list[str]:
    found = re.search(rf'<figure id="{figure}">(.*?)</figure>', text, re.DOTALL)[1]
    return re.findall(r'aria-label="(.*?)"', found)


def test_the_table_has_both_ends_of_the_log(measured, shown):
    _, *found = table(shown, "Effective depth")
    assert [(row[0][0], row[1][0]) for row in found] == [("residual", "0"), ("residual", "8")]
    for row, epoch in zip(found, (0, 8), strict=True):
        logged = [value(measured, "residual", f"depth/{name}", epoch) for name in DEPTHS]
        assert [title for _, title in row[2:]] == [repr(x) for x in logged]
    assert "Nothing was logged of plain: in a net without branches" in shown


def test_without_a_depth_no_reason_is_given_for_a_net_of_another_run_or_kind(tmp_path):
    """A run may not have measured depth, or may have, of a net of one length: its log is the same."""
    others = [bare_run(tmp_path / name, members) for name, members in (("pln", ["plain"]), ("res", ["residual"]))]
    text = ensembles(measure(tmp_path / "pair", families=["depth"]), *others)
    assert "Nothing was logged of pair/plain: in a net without branches" in text
    assert "Nothing was logged of pln, res." in text


def test_the_curves_are_depths_over_the_longest_path(measured, shown):
    found = data(shown, "ensembles-depth")
    assert len(found) == 3 * len(EPOCHS)
    for row in found:
        logged = value(measured, "residual", f"depth/{row['depth']}", int(row["epoch"]))
        assert float(row["layers"]) == logged
        assert float(row["share"]) == logged / 4
    assert panels(shown, "ensembles-depth") == ["d_eff / p", "d_coh / p", "d_grad / p"]


def test_distributions_are_the_arrays_at_the_first_middle_and_last_epoch(measured, shown):
    found = pd.DataFrame(data(shown, "ensembles-lengths"))
    assert {*found["epoch"]} == {"0", "2", "8"}
    for (what, epoch), part in found.groupby(["quantity", "epoch"]):
        arrays = measured.arrays(int(epoch), "depth")
        assert part["value"].astype(float).tolist() == arrays[f"residual/depth/{what}"].tolist()
        assert part["length"].astype(int).tolist() == [1, 2, 3, 4]
        shares = part["share"].astype(float)
        assert shares.sum() == pytest.approx(1, rel=1e-12)
        if what == "outputs":
            mean = float(part["length"].astype(int) @ shares)
            assert mean == pytest.approx(value(measured, "residual", "depth/effective", int(epoch)), rel=1e-12)


def test_a_panel_of_distributions_has_one_of_each_net_where_these_were_measured_at_other_epochs(tmp_path):
    """The first epoch of one run is a later one of the other: the page's script took the later numbers for the first ones."""
    runs = [
        measure(tmp_path / name, ["residual"], epochs, ["depth"]) for name, epochs in (("a", EPOCHS), ("b", (2, 8, 12)))
    ]
    text = ensembles(*runs)
    found = pd.DataFrame(data(text, "ensembles-lengths"))
    epochs = {"first": ("0", "2"), "middle": ("2", "8"), "last": ("8", "12")}
    for when, (of_a, of_b) in epochs.items():
        (said,) = re.findall(rf"""id="ensembles-lengths-outputs-{when}-svg"[^>]* data-rows='([^']*)'""", text)
        drawn = found.loc[
            [*np.logical_and.reduce([found[key].isin(its) for key, its in json.loads(said)["where"].items()])]
        ]
        assert drawn.groupby("net")["epoch"].agg(set).to_dict() == {"a": {of_a}, "b": {of_b}}


@pytest.mark.parametrize("figure", ["ensembles-lambda", "ensembles-weight-norm", "ensembles-forces"])
def test_curves_are_the_log(measured, shown, figure):
    found = data(shown, figure)
    assert {row["epoch"] for row in found} == {str(epoch) for epoch in EPOCHS}
    for row in found:
        assert float(row["value"]) == value(measured, row["net"], row["name"], int(row["epoch"]))
    assert {row["net"] for row in found} == {*MEMBERS}


PROFILES = {
    "lambda": (LAYERS, ("bn_lambda/{}/mean_abs", "bn_lambda/{}/l2")),
    "weight-norm": ((*LAYERS, "layer04"), ("weight_norm/{}/own", "weight_norm/{}/absorbed")),
}


@pytest.mark.parametrize("figure", PROFILES)
def test_profiles_have_every_layer_at_five_epochs(measured, shown, figure):
    found = data(shown, f"ensembles-{figure}-layers")
    layers, names = PROFILES[figure]
    drawn = {(row["net"], row["name"], int(row["epoch"])) for row in found}
    keys = [name.format(layer) for name in names for layer in layers]
    expected = {*itertools.product(MEMBERS, keys, (0, 1, 2, 5, 8))}
    assert drawn == expected
    assert len(found) == len(expected)
    for row in found:
        assert float(row["value"]) == value(measured, row["net"], row["name"], int(row["epoch"]))
    assert legend(shown, f"ensembles-{figure}-layers") == [f"epoch {e}" for e in (0, 1, 2, 5, 8)]
    assert len(panels(shown, f"ensembles-{figure}-layers")) == 4


def test_later_epochs_are_darker(shown):
    panel = re.search(r'<div id="ensembles-lambda-layers-0">.*?</div>', shown, re.DOTALL)[0]
    lines = re.findall(r'<path d="[^"]*"[^>]*style="fill: none; stroke: var\(--plain-0[^"]*"', panel)
    opacities = [float(found[1]) if (found := re.search(r"opacity: ([\d.]+)", line)) else 1.0 for line in lines]
    assert opacities == sorted(set(opacities))
    assert len(opacities) == 5


def test_every_norm_has_figures_of_its_own(tmp_path):
    run = measure(tmp_path / "run", families=["weight_norm"])
    run.append([Row("plain", 0, 0, f"weight_norm_rms/{name}", 0.5) for name in ("own", "total", "layer01/own")])
    text = ensembles(run)
    assert 'id="ensembles-weight-norm"' in text
    assert [row["net"] for row in data(text, "ensembles-weight-norm-rms")] == ["plain"] * 2
    assert "root mean square" in text


@given(st.integers(1, 30))
def test_a_stage_is_an_epoch_once_and_the_ends_come_first(count):
    found = stages([*range(count)], (0, 0.25, 0.5, 0.75, 1))
    assert len({*found.values()}) == len(found) == min(count, 5)
    assert (found[0], max(found.values())) == (0, count - 1)
    assert [*found] == sorted(found) and [*found.values()] == sorted(found.values())


def test_forces_are_counted_over_layers_and_epochs(tmp_path):
    """By hand: two layers, three epochs; the first has nothing to compare with."""
    run = RunFolder(tmp_path / "run")
    fields = ("second_order", "first_order", *AGREE)
    known = {
        "layer01": ((1, -1, 2), (-1, -1, 0), (1, 0), (0, 1)),
        "layer02": ((3, 1, 0), (1, 1, 1), (math.nan, 1), (0, 0)),
        "scale": ((1, 1, -5), (-1, 1, 1), (1, 0), (math.nan, 1)),
    }
    for name, numbers in known.items():
        run.append([Row("net", epoch, epoch, f"drive/{name}/size", 1.0) for epoch in range(3)])
        for field, values in zip(fields, numbers, strict=True):
            for epoch, x in enumerate(values, start=3 - len(values)):
                run.append([Row("net", epoch, epoch, f"drive/{name}/{field}", float(x))])
    head, row = table(ensembles(run), "Driving force")
    assert len(head) == len(row) == 9
    exact = [float(title) for _, title in row[1:]]
    assert exact == [4 / 6, 3 / 6, 2 / 3, 1 / 4, 2 / 3, 2 / 3, 1 / 2, 1.0]
    counts = ((4, 6), (3, 6), (2, 3), (1, 4), (2, 3), (2, 3), (1, 2), (1, 1))
    assert [text for text, _ in row[1:]] == [f"{count} of {n}" for count, n in counts]


def test_without_normalisation_there_is_no_lambda_nothing_absorbed_and_of_forces_c_only(tmp_path):
    text = ensembles(measure(tmp_path / "run", normalised=False))
    assert "ensembles-lambda" not in text
    assert panels(text, "ensembles-weight-norm") == ["Own norm", "All weights together"]
    assert panels(text, "ensembles-weight-norm-layers") == ["Own norm: plain", "Own norm: residual"]
    for row in table(text, "Driving force")[1:]:
        assert [cell for cell, _ in row[1:5]] == ["–"] * 4
        assert all(title for _, title in row[5:])
    assert 'id="ensembles-forces"' not in text


@SILENT
@pytest.mark.parametrize("epochs", [(0,), (0, 3)])
@pytest.mark.parametrize("family", FIGURES)
def test_a_family_alone(tmp_path, family, epochs):
    text = ensembles(measure(tmp_path / "run", epochs=epochs, families=[family]))
    assert {*re.findall(r'<figure id="(.*?)">', text)} == {*FIGURES[family]}
    assert text.count("<h3>") == (family in ("depth", "drive"))


@SILENT
@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_diverged_net_is_kept(tmp_path, lost):
    run = measure(tmp_path / "run", ["residual-seed00", "residual-seed01"], epochs=(0, 1, 2))
    names = [name for name in run.log()["name"].unique() if name != "depth/longest"]
    run.append(Row("residual-seed01", 2, 2, name, lost) for name in names)
    arrays = run.arrays(2, "depth")
    arrays["residual-seed01/depth/outputs"][:] = lost
    run.save_arrays(2, "depth", arrays)
    text = ensembles(run)
    ends = {(row[0][0], row[1][0]): row for row in table(text, "Effective depth")[1:]}
    assert ends["residual-seed01", "2"][2] == (str(lost), repr(lost))
    assert any(row["value"] == str(lost) for row in data(text, "ensembles-lambda-layers"))


MEAN = "residual: mean ± sd of 3"


def test_seeds_have_a_mean(tmp_path):
    seeds = [f"{arm}-seed{seed:02d}" for arm in ("plain", "residual") for seed in range(3)]
    run = measure(tmp_path / "bank", seeds, epochs=(0, 1, 2))
    text = ensembles(run)
    (row,) = (row for row in table(text, "Effective depth") if (row[0][0], row[1][0]) == (MEAN, "2"))
    values = [value(run, f"residual-seed{seed:02d}", "depth/effective", 2) for seed in range(3)]
    mean, sd = map(float, row[2][1].split(" ± "))
    assert (mean, sd) == pytest.approx((np.mean(values), np.std(values, ddof=1)), rel=1e-12)
    assert row[6][0] == "4 ± 0.0"
    spreads = {(each["epoch"], each["name"]): each for each in data(text, "ensembles-depth", 1)}
    assert float(spreads["2", "depth/effective"]["mean"]) == pytest.approx(np.mean(values), rel=1e-12)
    assert "Of several seeds the mean is shown." in text
    forces_of_seeds = [row for row in table(text, "Driving force")[1:] if row[0][0].startswith("plain")]
    shares = [float(row[1][1]) for row in forces_of_seeds[:3]]
    assert float(forces_of_seeds[3][1][1].split(" ± ")[0]) == pytest.approx(np.mean(shares), rel=1e-12)


def test_the_profile_of_seeds_is_their_mean(tmp_path):
    """Two seeds at 1 and 3 are drawn as one at 2 is."""
    drawn = []
    for name, values in {"two": (1.0, 3.0), "one": (2.0,)}.items():
        run = RunFolder(tmp_path / name)
        for seed, x in enumerate(values):
            keys = {"bn_lambda/layers": 2, "bn_lambda/layer01/l2": x, "bn_lambda/layer02/l2": 4 * x}
            run.append(rows(f"net-seed{seed:02d}", 0, keys))
        text = ensembles(run)
        panel = re.search(r'<div id="ensembles-lambda-layers-0">.*?</div>', text, re.DOTALL)[0]
        drawn.append(re.sub(" data-rows='[^']*'", "", panel))
    assert drawn[0] == drawn[1].replace("net-seed00", "net")


def test_a_seed_without_the_measure_is_none_of_a_profiles_mean(tmp_path):
    run = RunFolder(tmp_path / "run")
    for seed, x in enumerate((1.0, 3.0)):
        run.append(rows(f"net-seed{seed:02d}", 0, {"own/layer01/a": x, "own/layer02/a": 4 * x}))
    run.append(rows("net-seed02", 0, {"train/risk": 1.0}))
    (found,) = _profiles(gather([run]), "own", "a")
    assert found.mean.loc[0].tolist() == [2.0, 8.0]


def test_seeds_that_are_not_equally_far_have_no_mean(tmp_path):
    run = measure(tmp_path / "bank", ["residual-seed00", "residual-seed01"], epochs=(0, 1))
    run.append([Row("residual-seed01", 2, 2, f"depth/{name}", 1.0) for name in DEPTHS])
    text = ensembles(run)
    assert not any("mean" in row[0][0] for row in table(text, "Effective depth"))
    assert legend(text, "ensembles-lambda-layers") == ["epoch 0", "epoch 1"]


def test_runs_with_other_epochs_share_a_legend(tmp_path):
    runs = [
        measure(tmp_path / "runs" / "pln", ["net"], epochs=(0, 4), families=["bn_lambda"]),
        measure(tmp_path / "runs" / "res", ["net"], epochs=(0, 2, 9), families=["bn_lambda", "depth"]),
    ]
    text = ensembles(*runs)
    assert legend(text, "ensembles-lambda-layers") == ["epoch 0", "epoch 2", "epoch 4 and 9"]
    assert [row[0][0] for row in table(text, "Effective depth")[1:]] == ["res", "res"]
    assert legend(text, "ensembles-depth") == ["res"]
