"""The section over seeds: its numbers are those of `statistics`, its pairs the right ones, and it says what it left out."""

import csv
import io
import itertools
import math
from dataclasses import astuple

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.figure import Figure

from lightning_app.compare.findings import errors_at_equal_risk
from lightning_app.compare.sides import sides_of
from lightning_app.plots.drawing import spread_of
from lightning_app.plots.style import styles
from lightning_app.report import write_report
from lightning_app.report.blocks import Section
from lightning_app.report.page_data import PageData, gather
from lightning_app.report.pairs import pairs
from lightning_app.report.sections import seeds
from lightning_app.runs import Row, RunFolder
from lightning_app.statistics.paired import paired, spread
from tests.report.conftest import on_validation_data
from tests.silence import SILENT

EPOCHS = 12
GAP = 0.02  # in the error of plain nets at any risk


def risk(residual: bool, seed: int, epoch: int) -> float:
    return 2.3 * math.exp(-(0.3 if residual else 0.2) * (1 + 0.05 * seed) * epoch)


def error(residual: bool, seed: int, epoch: int) -> float:
    return 0.1 + 0.3 * risk(residual, seed, epoch) + (0 if residual else GAP)


def member_rows(member: str, residual: bool, seed: int, epochs: int = EPOCHS) -> list[Row]:
    rows = []
    for epoch in range(epochs + 1):
        size = risk(residual, seed, epoch)
        numbers = {"train/risk": size, "train/error": size / 3, "test/risk": size + 0.1}
        numbers["test/error"] = error(residual, seed, epoch)
        rows += [Row(member, epoch, epoch, name, value) for name, value in numbers.items()]
    return rows


@pytest.fixture
def bank(tmp_path):
    """bank("name", plain seeds, residual seeds): a run with both arms."""

    def bank(name: str, plain=range(6), residual=range(6), epochs: int = EPOCHS) -> RunFolder:
        run = RunFolder(tmp_path / "runs" / name)
        for arm, chosen in (("plain", plain), ("residual", residual)):
            for seed in chosen:
                run.append(member_rows(f"{arm}-seed{seed:02d}", arm == "residual", seed, epochs))
        return run

    return bank


def section(*runs: RunFolder) -> Section:
    found = seeds.section(gather(runs))
    assert found is not None
    return found


def table(found: Section, title: str) -> dict[tuple[str, str], list[str]]:
    """Exact cells by (arm or pair, quantity)."""
    (block,) = (block for block in found.blocks if block.kind == "table" and block.title.startswith(title))
    return {(row[0].text, row[1].text): [cell.exact or cell.text for cell in row[2:]] for row in block.rows}


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def figure(found: Section, key: str):
    return next(block for block in found.blocks if block.kind == "figure" and block.key == key)


def test_nothing_to_say_of_one_seed(finished, bank):
    assert seeds.section(gather([finished])) is None
    assert seeds.section(gather([bank("one", [3], [3])])) is None


def test_spreads_are_those_of_the_last_epoch(bank):
    found = table(section(bank("bank")), "Spread")
    expected = spread(error(False, seed, EPOCHS) for seed in range(6))
    numbers = map(repr, (expected.mean, expected.sd, expected.min, expected.max))
    assert found["plain", "test error E"] == [str(EPOCHS), *numbers, "6"]
    assert len(found) == 8


def test_equal_numbers_have_no_spread(bank):
    """The mean of three times 0.8 is rounded, and the table had a standard deviation of 1.4e-16."""
    run = bank("equal", range(3), range(3))
    nets = [f"{arm}-seed{seed:02d}" for arm in ("plain", "residual") for seed in range(3)]
    value = 2.0 - 0.3 * 4
    assert spread([value] * 3).sd > 0
    run.append(Row(net, EPOCHS + 1, EPOCHS + 1, "test/error", value) for net in nets)
    assert table(section(run), "Spread")["plain", "test error E"][2] == "0.0"


def test_tests_are_those_of_statistics(bank):
    found = table(section(bank("bank")), "Plain minus residual")
    expected = paired(*([error(kind, seed, EPOCHS) for seed in range(6)] for kind in (False, True)))
    numbers = (expected.mean, expected.low, expected.high, expected.t_p, expected.wilcoxon_p)
    assert found["plain − residual", "test error E"] == [str(EPOCHS), *map(repr, numbers), "6"]


def test_of_few_pairs_no_p_is_shown(bank):
    found = table(section(bank("few", range(5), range(5))), "Plain minus residual")["plain − residual", "test error E"]
    assert found[-3:] == ["–", "–", "5"] and "–" not in found[:-3]


def test_a_pair_without_a_number_is_none_of_the_pairs_of_a_test(bank):
    run = bank("bank")
    run.append([Row("plain-seed02", EPOCHS, EPOCHS, "test/error", math.nan)])
    found = table(section(run), "Plain minus residual")
    assert found["plain − residual", "test error E"][-3:] == ["–", "–", "5"]
    assert found["plain − residual", "training risk L"][-1] == "6"


def test_both_arms_of_a_pair_are_spread_at_one_epoch(bank):
    """The residual nets are at epoch 4."""
    run = bank("bank", residual=[])
    for seed in range(6):
        run.append(member_rows(f"residual-seed{seed:02d}", True, seed, 4))
    found = table(section(run), "Spread")
    then = spread(error(False, seed, 4) for seed in range(6))
    assert found["plain", "test error E"][:2] == ["4", repr(then.mean)]
    assert found["residual", "test error E"][0] == "4"


def test_quantities_have_a_unit_where_the_loss_is_known(bank):
    run = bank("bank")
    (run.path / "config.yaml").write_text("model: {loss: cross_entropy}")
    found = table(section(run), "Spread")
    assert [quantity for arm, quantity in found if arm == "plain"] == [
        "training risk L (nats)",
        "training error",
        "test risk (nats)",
        "test error E",
    ]


def test_the_difference_over_epochs_and_its_band(bank):
    found = rows(figure(section(bank("bank")), "seeds-difference").csv)
    assert len(found) == 2 * (EPOCHS + 1)
    row = next(row for row in found if (row["name"], row["epoch"]) == ("train/risk", "5"))
    expected = paired(*([risk(kind, seed, 5) for seed in range(6)] for kind in (False, True)))
    assert [float(row[key]) for key in ("mean", "low", "high")] == pytest.approx(
        [expected.mean, expected.low, expected.high]
    )


def test_error_at_equal_risk_finds_the_gap_that_was_made(bank):
    """Errors are linear in risk, so interpolation is exact; nets differ in pace, and only plain ones by the gap."""
    block = figure(section(bank("bank")), "seeds-error-at-risk")
    found = rows(block.more["difference"])
    assert [float(row[key]) for row in found for key in ("mean", "low", "high")] == pytest.approx([GAP] * 180)
    each = rows(block.csv)
    assert len(each) == 12 * 60
    made = [0.1 + 0.3 * float(row["risk"]) + GAP * row["net"].startswith("plain") for row in each]
    assert [float(row["error"]) for row in each] == pytest.approx(made)


def test_error_at_equal_risk_is_that_of_compare_also_where_errors_are_rarer_than_risks(tmp_path):
    run = RunFolder(tmp_path / "rare")
    for arm, seed in itertools.product(("plain", "residual"), range(6)):
        every = member_rows(f"{arm}-seed{seed:02d}", arm == "residual", seed)
        run.append(row for row in every if row.name != "test/error" or row.epoch in (3, 6, 9, 12))
    level, *sides = errors_at_equal_risk(sides_of(f"{run.path}:plain", f"{run.path}:residual"), "test/error")
    each = rows(figure(section(run), "seeds-error-at-risk").csv)
    assert [float(row["error"]) for row in each if float(row["risk"]) == level] == [*sides[0], *sides[1]]
    assert np.isfinite([float(row["error"]) for row in each]).all()


def test_few_pairs_are_warned_of(bank):
    captions = " ".join(block.caption for block in section(bank("few", range(5), range(5))).blocks)
    assert captions.count("fewer than 6 pairs") == captions.count("expanded percentile") == 1
    assert captions.count("95 % bootstrap interval") == 3  # the two figures point to the table
    assert "fewer than 6 pairs" not in " ".join(block.caption for block in section(bank("enough")).blocks)
    assert "pointwise" in captions


@SILENT
@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_diverged_net_takes_its_pair_along_and_no_other(bank, lost):
    run = bank("bank")
    run.append(Row("plain-seed02", epoch, epoch, "train/risk", lost) for epoch in range(4, EPOCHS + 1))
    found = section(run)
    assert "plain − residual: seed 2 left out, because a net diverged." in found.notices
    assert table(found, "Plain minus residual")["plain − residual", "test error E"][-1] == "5"
    assert table(found, "Spread")["plain", "training risk L"][-1] == "5"
    assert table(found, "Spread")["residual", "training risk L"][-1] == "6"


def test_seeds_without_a_partner_and_nets_behind_are_said(bank):
    run = bank("bank", range(6), range(1, 8))
    run.append(member_rows("plain-seed09", False, 9, 3))
    found = section(run)
    assert "plain − residual: seeds 0, 6, 7, 9 in only one of the two, so in no pair." in found.notices
    assert f"plain: not all seeds are at epoch {EPOCHS}: plain-seed09 at 3." in found.notices
    then = spread(error(False, seed, 3) for seed in (*range(6), 9))
    assert table(found, "Spread")["plain", "test error E"][:3] == ["3", repr(then.mean), repr(then.sd)]
    assert table(found, "Plain minus residual")["plain − residual", "test error E"][0] == str(EPOCHS)


def test_one_shared_seed_is_no_statistics(bank):
    found = section(bank("bank", range(3), range(2, 5)))
    assert any("fewer than two seeds in both" in said for said in found.notices)
    assert not [block for block in found.blocks if block.kind == "figure"]


def test_a_seed_of_two_runs_is_said_and_counted_once(bank):
    runs = [bank("fig2-seed0-5"), bank("fig2-seed5-7", range(5, 8), range(5, 8))]
    found = section(*runs)
    assert sum("is one more run of seed 5 of" in said for said in found.notices) == 2
    assert table(found, "Spread")["plain", "test error E"][-1] == "8"


def test_a_repeated_seed_is_said_also_where_it_is_the_only_one(bank):
    runs = [bank("net", [3], []), bank("net~2", [3], [], epochs=4)]
    for run in runs:
        (run.path / "config.yaml").write_text("model: {lr: 0.1, seeds: 3-3}")
    found = section(*runs)
    assert [said.split(" is one more")[0] for said in found.notices] == ["net~2"] and not found.blocks


def test_seeds_that_were_trained_otherwise_are_said(bank):
    runs = []
    for first, rate in ((0, 0.1), (2, 0.2)):
        runs.append(bank(f"net-seed{first}-{first + 1}", [first, first + 1], []))
        options = {"model": {"lr": rate, "seeds": f"{first}-{first + 1}"}, "trainer": {"max_epochs": 3 + first}}
        (runs[-1].path / "config.yaml").write_text(yaml.safe_dump(options))
    found = section(*runs)
    assert any("trained with different options: model.lr." in said for said in found.notices)


def test_no_risk_in_common(bank):
    run = bank("bank")
    run.append(Row(f"residual-seed0{seed}", 0, 0, "train/risk", 1e-6) for seed in range(6))
    found = section(run)
    assert seeds.NO_RISK.format("test error E", "plain − residual") in found.notices


def test_validation_data_stand_in_for_test_data(bank):
    run = bank("bank")
    tested = section(run)
    validated = section(on_validation_data(run))
    for title in ("Spread", "Plain minus"):
        before, after = table(tested, title), table(validated, title)
        assert {(who, what.replace("validation", "test")): cells for (who, what), cells in after.items()} == before
        assert ("validation error E" in {what for _, what in after}) and len(after) > 3
    before, after = (figure(each, "seeds-error-at-risk") for each in (tested, validated))
    assert after.data == before.data and after.caption == before.caption.replace("test error", "validation error")
    assert [panel.key for panel in figure(validated, "seeds-difference").panels] == [
        "seeds-val-error",
        "seeds-train-risk",
    ]


def test_without_test_errors_there_is_what_there_is(tmp_path):
    run = RunFolder(tmp_path / "bare")
    for arm in ("plain", "residual"):
        for seed in range(2):
            run.append([Row(f"{arm}-seed0{seed}", 0, 0, "train/risk", 2.3 + seed + (arm == "plain"))])
    found = section(run)
    assert [block.kind for block in found.blocks] == ["table", "figure", "table"]
    assert [panel.key for panel in found.blocks[1].panels] == ["seeds-train-risk"]


def test_the_section_stands_on_the_page_and_the_second_csv_has_the_spread_of_each_epoch(bank):
    text = write_report([bank("bank")]).read_text()
    assert 'href="#seeds"' in text
    keys = ("seeds-test-error", "seeds-train-risk", "seeds-error-0", "seeds-at-risk")
    assert all(f'id="{key}"' in text for key in keys)
    assert "epoch,group,name,mean,sd,min,max,count" in text
    numbers = next(line for line in text.splitlines() if line.startswith("7,plain,test/error,")).split(",")[3:]
    its = spread(error(False, seed, 7) for seed in range(6))
    assert [*map(float, numbers)] == pytest.approx([its.mean, its.sd, its.min, its.max, 6])


def test_the_spread_of_an_epoch_is_of_its_finite_numbers(bank):
    run = bank("bank", range(3), [])
    run.append([Row("plain-seed01", 2, 2, "train/risk", math.inf)])
    found = {epoch: numbers for epoch, _, _, *numbers in gather([run]).spreads(["train/risk"])}
    assert found[2] == pytest.approx(astuple(spread([risk(False, 0, 2), math.inf, risk(False, 2, 2)])))


def evidence_of(tmp_path, names: dict[str, tuple[str, ...]]) -> PageData:
    """Runs and their members, with two epochs each."""
    found = []
    for name, members in names.items():
        run = RunFolder(tmp_path / "runs" / name)
        for member in members:
            run.append(member_rows(member, False, 0, 1))
        found.append(run)
    return gather(found)


def bank_of(*arms: str) -> tuple[str, ...]:
    return tuple(f"{arm}-seed0{seed}" for arm in arms for seed in (0, 1))


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        ({"bank": bank_of("plain", "residual")}, ["plain − residual"]),
        ({"pln20": bank_of("net"), "res20": bank_of("net")}, ["pln20/net − res20/net"]),
        ({f"{kind}20-seed{i}": ("net",) for kind in ("pln", "res") for i in (0, 1)}, ["pln20 − res20"]),
        (
            {"depth20": bank_of("plain", "residual"), "depth32": bank_of("residual", "plain")},
            ["depth20/plain − residual", "depth32/plain − residual"],
        ),
        (
            {"plain44": bank_of("plain"), "residual44": bank_of("residual"), "depth20": bank_of("plain", "residual")},
            ["plain44/plain − residual44/residual", "depth20/plain − residual"],
        ),
        (
            {"bank": bank_of("PlnNet20", "ResNet20", "PlnNet32", "ResNet32")},
            ["PlnNet20 − ResNet20", "PlnNet32 − ResNet32"],
        ),
    ],
)
def test_who_is_paired(tmp_path, names, labels):
    found, said = pairs(evidence_of(tmp_path, names))
    assert [pair.label for pair in found] == labels
    assert not said
    for pair in found:
        assert [net.seed for net in pair.plain] == [net.seed for net in pair.residual] == list(pair.seeds) == [0, 1]
        assert {net.kind for net in pair.plain} | {net.kind for net in pair.residual} == {"plain", "residual"}


def test_other_depths_are_no_counterparts(tmp_path):
    found, said = pairs(evidence_of(tmp_path, {"pln20": bank_of("net"), "res32": bank_of("net")}))
    assert not found
    assert said == ["pln20/net: no residual counterpart.", "res32/net: no plain counterpart."]


def test_nets_of_no_kind_are_left_alone(tmp_path):
    assert pairs(evidence_of(tmp_path, {"bank": bank_of("net", "shortcut2")})) == ([], [])


def drawn(*values: list[float]):
    axes = Figure().add_subplot()
    spread_of(axes, [pd.Series(line, range(len(line)), dtype=float) for line in values], styles(["plain"])[0])
    return axes


def test_the_band_is_one_deviation_within_the_extremes():
    axes = drawn([1.0, 1.0], [2.0, 1.0], [6.0, 10.0])
    (band,) = axes.collections
    vertices = {tuple(point) for point in band.get_paths()[0].vertices.round(6)}
    mean, sd = np.mean([1, 2, 6]), np.std([1, 2, 6], ddof=1)
    assert {(0, round(mean - sd, 6)), (0, round(mean + sd, 6))} - vertices == {(0, round(mean - sd, 6))}  # cut at 1
    assert (0, 1.0) in vertices
    assert (1, 1.0) in vertices
    low, high = (line.get_ydata().tolist() for line in axes.lines[:2])
    assert (low, high) == ([1, 1], [6, 10])


def test_two_seeds_have_no_band_and_seeds_that_go_on_alone_are_drawn_alone():
    assert not drawn([1.0, 2.0], [2.0, 3.0]).collections
    axes = drawn([1.0, 2.0, 3.0], [2.0, 3.0], [3.0, 4.0, math.nan, 6.0])
    assert [line.get_xdata().tolist() for line in axes.lines] == [[0, 1], [0, 1], [1, 2], [1], [1, 2, 3]]


def test_different_nets_as_seeds_of_one_arm_are_said(bank):
    runs = []
    for first, depth in ((0, 8), (2, 20)):
        runs.append(bank(f"net-seed{first}-{first + 1}", [first, first + 1], []))
        net = {"class_path": "SimplifiedNet", "init_args": {"depth": depth, "residual": False}}
        options = {"model": {"net": net, "seeds": f"{first}-{first + 1}"}}
        (runs[-1].path / "config.yaml").write_text(yaml.safe_dump(options))
    assert any("trained with different options: net.init_args.depth." in said for said in section(*runs).notices)


def arms_of(tmp_path, changed: dict[str, dict] | None = None) -> list[RunFolder]:
    """Four seeds of a plain and a residual net, a run each, with configurations; some with another net or other data."""
    runs = []
    for residual in (False, True):
        for seed in range(4):
            runs.append(RunFolder(tmp_path / f"{'res' if residual else 'pln'}20-seed{seed}"))
            runs[-1].append(member_rows("net", residual, seed, 1))
            net = {"class_path": "SimplifiedNet", "init_args": {"depth": 20, "residual": residual}}
            own = {"model": {"net": net, "seeds": [seed]}, "data": {"class_path": "CIFAR10"}}
            own |= (changed or {}).get(runs[-1].path.name, {})
            (runs[-1].path / "config.yaml").write_text(yaml.safe_dump(own))
    return runs


def test_a_seed_of_other_data_or_another_net_is_in_no_pair(tmp_path):
    """It was, as the first seeds of both arms agree."""
    deeper = {"class_path": "SimplifiedNet", "init_args": {"depth": 32, "residual": True}}
    changed = {
        "res20-seed2": {"data": {"class_path": "MNIST"}},
        "res20-seed3": {"model": {"net": deeper, "seeds": [3]}},
    }
    ((pair,), said) = pairs(gather(arms_of(tmp_path, changed)))
    assert pair.seeds == (0, 1) and len(pair.plain) == len(pair.residual) == 2
    assert (
        "pln20 − res20: seeds 2, 3 left out, because net, data or loss of the two differ in more than the skips."
        in said
    )


def test_a_first_seed_without_a_configuration_does_not_hide_those_of_others(tmp_path):
    """Then an arm "res20" had no plain counterpart called "base"."""
    runs = arms_of(tmp_path)
    for run in runs[:4]:
        run.path.rename(run.path.with_name(run.path.name.replace("pln20", "base")))
    (tmp_path / "base-seed0" / "config.yaml").unlink()
    page = gather([RunFolder(path) for path in sorted(tmp_path.iterdir())])
    ((pair,), said) = pairs(page)
    assert (pair.label, pair.seeds) == ("base − res20", (0, 1, 2, 3)) and not said
