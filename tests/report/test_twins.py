"""The section on twins: its numbers are the run's, long runs stay small, and without twins there is none."""

import math
import re

import numpy as np
import pandas as pd
import pytest

from lightning_app.report import write_report
from lightning_app.report.blocks import Cell, Section
from lightning_app.report.page_data import gather
from lightning_app.report.sections import twins
from lightning_app.runs import Row, RunFolder
from lightning_app.runs.folder import MemberRow
from tests.report.conftest import bare_run, only
from tests.silence import SILENT

STEPS = 40  # an epoch
FLIP = 90
LAWS = {"power_exponent": 0.5, "power_scale": 1e-16, "exponential_rate": 0.05, "exponential_scale": 9.5e-16}
ERRORS = {"power_error": 0.1, "exponential_error": 0.02, "rate_before": 0.003}


def divergence(step: np.ndarray) -> np.ndarray:
    """1e-16 sqrt(s), and from the flip on exponential."""
    slow = LAWS["power_scale"] * np.sqrt(step)
    return np.where(step < FLIP, slow, LAWS["exponential_scale"] * np.exp(LAWS["exponential_rate"] * (step - FLIP)))


def add_twins(run: RunFolder, names: tuple[str, ...] = ("plain",), epochs: int = 3, steps: int = STEPS) -> RunFolder:
    """What the callback logs: rows of every epoch, arrays of its steps."""
    for epoch in range(epochs + 1):
        number = np.arange(steps * (epoch - 1) + 1, steps * epoch + 1)
        flipped = FLIP if epoch * steps >= FLIP else math.nan
        arrays = {}
        for name in names:
            end = float(divergence(np.array(max(1, epoch * steps))))
            rows = {"divergence": end, "divergence_id": end / 2, "divergence_other": end, "risk_difference": end * 3}
            if epoch:
                after = max(0, epoch * steps - FLIP + 1)
                counts = {"power_steps": epoch * steps - after, "exponential_steps": after}
                rows |= {f"growth/{law}": value for law, value in (LAWS | ERRORS | counts).items()}
                rows["first_flip_step"] = flipped
                risk = 2.3 * np.exp(-number / 300)
                apart = 0.1 * divergence(number)
                columns = {"number": number, "divergence": divergence(number), "divergence_id": divergence(number) / 2}
                columns |= {"risk_original": risk, "risk_twin": risk + apart, "risk_difference": apart}
                arrays |= {f"{name}/twin/steps/{key}": values for key, values in columns.items()}
            if not math.isnan(flipped):
                rows |= {"first_flip_layer": 2.0, "first_flip_units": 3.0}
                rows |= {"first_flip_original": -2.498e-13, "first_flip_twin": 2.6903e-10}
            run.append(Row(name, epoch, epoch * steps, f"twin/{key}", float(value)) for key, value in rows.items())
        if arrays:
            run.save_arrays(epoch, "twin", arrays)
    return run


@pytest.fixture
def run(tmp_path) -> RunFolder:
    return bare_run(tmp_path / "quick")


def section(run: RunFolder) -> Section:
    found = twins.section(gather([run]))
    assert found is not None
    return found


def figure(run: RunFolder) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the data behind the figure."""
    head, *rows = (line.split(",") for line in section(run).blocks[0].csv.splitlines())
    return head, rows


def cells(run: RunFolder) -> list[Cell]:
    """The first row of the table."""
    return section(run).blocks[-1].rows[0]


def test_the_section_stands_on_the_page(run):
    text = write_report([add_twins(run)]).read_text()
    assert 'href="#twins"' in text
    assert len(re.findall(r'<div id="twin-\w+">', text)) == 4
    assert "step 90, layer 2 <small>3 units</small>" in text


def test_the_table_is_the_end_of_the_log(run):
    row = cells(add_twins(run))
    end = float(divergence(np.array(3 * STEPS)))
    assert [cell.exact for cell in row[1:4]] == [repr(end), repr(end / 2), repr(end * 3)]
    assert [cell.text for cell in row[4:6]] == ["step 90, layer 2", "original -2.498e-13\ntwin 2.690e-10"]
    laws = [("0.5", "89 steps, rms 0.1000"), ("0.05", "31 steps, rms 0.02000"), ("0.003", "")]
    assert [(cell.exact, cell.note) for cell in row[6:]] == laws


def test_before_the_first_flip_that_is_said(run):
    add_twins(run, epochs=2)
    run.append([Row("plain", 2, 80, "twin/growth/exponential_rate", math.nan)])
    assert [cell.text for cell in cells(run)[4:]] == ["none yet", "–", "0.5000", "–", "0.003000"]


def test_the_figure_holds_every_step_of_a_short_run(run):
    head, rows = figure(add_twins(run))
    assert head == ["twin", "step", "divergence", "divergence_id", "risk_original", "risk_twin", "risk_difference"]
    assert [int(row[1]) for row in rows] == list(range(1, 3 * STEPS + 1))
    assert [float(row[2]) for row in rows] == divergence(np.arange(1, 3 * STEPS + 1)).tolist()


def test_a_long_run_is_thinned_and_keeps_its_ends(run):
    add_twins(run, steps=1000)
    steps = [int(row[1]) for row in figure(run)[1]]
    assert len(steps) == 200
    assert (steps[0], steps[-1]) == (1, 3000)
    assert sum(len(panel.svg) for panel in section(run).blocks[0].panels) < 100_000


def test_a_mean_of_neighbouring_steps_stands_at_the_last_of_them():
    line = pd.Series(np.arange(3.0 * twins.SHOWN), np.arange(1, 3 * twins.SHOWN + 1))
    expected = line.iloc[1::3].to_numpy()  # the middle one of three
    pd.testing.assert_series_equal(twins._means(line), pd.Series(expected, line.index[2::3]))
    assert twins._means(line.iloc[: twins.SHOWN]).equals(line.iloc[: twins.SHOWN])


def test_four_panels_with_the_flip_and_the_laws(run):
    panels = {panel.key: panel.svg for panel in section(add_twins(run)).blocks[0].panels}
    assert list(panels) == ["twin-risks", "twin-difference", "twin-power", "twin-exponential"]
    dashed = {key: svg.count("stroke-dasharray") for key, svg in panels.items()}
    twin = section(run).blocks[0].legend[1].swatch.count("stroke-dasharray")  # the curve itself, if it has dashes
    assert dashed["twin-difference"] == twin + 1  # the flip
    assert dashed["twin-power"] == dashed["twin-exponential"] == twin + 1 + 2  # the laws


def test_the_laws_that_are_drawn_pass_through_the_steps_that_they_were_fitted_to(run):
    """Here the divergences are the two laws themselves, of the first up to step 50 only."""
    add_twins(run)
    run.append([Row("plain", 3, 3 * STEPS, "twin/growth/power_steps", 50.0)])
    (net,) = (net for net in gather([run]).nets if net.name == "plain")
    laws = twins._laws(net, np.arange(1.0, 3 * STEPS + 1))
    assert [(law.index[0], law.index[-1]) for law in laws] == [(1, 50), (FLIP, 3 * STEPS)]
    for law in laws:
        assert law.to_numpy() == pytest.approx(divergence(law.index.to_numpy()), rel=1e-9, abs=0)


def test_a_mean_difference_of_the_risks_is_of_their_sizes(run):
    """Differences of either sign are drawn as those of one are."""
    add_twins(run, steps=100)  # so many that means are drawn
    same = section(run).blocks[0].panels[1].svg
    for epoch in (1, 2, 3):
        arrays = run.arrays(epoch, "twin")
        arrays["plain/twin/steps/risk_difference"][::2] *= -1
        run.save_arrays(epoch, "twin", arrays)
    assert section(run).blocks[0].panels[1].svg == same


@SILENT
def test_equal_twins_and_lost_numbers_are_drawn_as_gaps(run):
    add_twins(run)
    arrays = run.arrays(1, "twin")
    for key, values in arrays.items():
        if "number" not in key:
            values[:5], values[7], values[8] = 0.0, math.nan, math.inf
    run.save_arrays(1, "twin", arrays)
    run.append([Row("plain", 3, 120, "twin/divergence", math.nan)])
    assert cells(run)[1].text == "nan"
    shown = [row[2] for row in figure(run)[1]]
    assert shown[:5] + shown[7:9] == ["0.0"] * 5 + ["nan", "inf"]


def test_numbers_without_arrays(run):
    for file in add_twins(run).path.rglob("twin.npz"):
        file.unlink()
    assert section(run).notices == ["No steps were saved of these twins."]


def test_seeds_of_twins_come_together(tmp_path):
    members = [f"{arm}-seed{i:02d}" for arm in ("plain", "residual") for i in range(2)]
    run = add_twins(bare_run(tmp_path / "bank", members, 3), ("plain-seed00", "plain-seed01"))
    drawn, table = section(run).blocks
    how = "bold: mean of the seeds, thin: minimum and maximum"
    assert [entry.label for entry in drawn.legend] == ["original of plain-seed00", "plain (2 seeds)", how, "fitted law"]
    assert [row[0].text for row in table.rows] == ["plain-seed00", "plain-seed01"]
    assert {row[0] for row in figure(run)[1]} == {"plain-seed00", "plain-seed01"}


@pytest.mark.parametrize(
    ("arms", "alike"),
    [
        ("residual: {}, plain: {twin_of: residual}", True),
        ("residual: {}, plain: {twin_of: residual, decay_towards: identity}", True),
        ("residual: {}, plain: {twin_of: residual, decay_towards: zero}", False),
        ("plain: {}, residual: {twin_of: plain}", False),
        ("plain: {decay_towards: identity}, residual: {twin_of: plain}", True),
    ],
)
def test_a_twin_that_decays_elsewhere_is_not_said_to_differ_by_rounding(run, arms, alike):
    twin, original = ("plain", "residual") if "residual: {}" in arms else ("residual", "plain")
    add_twins(run, (twin,))
    whose = {twin: original, original: ""}
    run.save_members(MemberRow(name, name, 0, "", name == "residual", whose[name], 20, 1) for name in whose)
    (run.path / "config.yaml").write_text(f"model: {{weight_decay: 0.1, arms: {{{arms}}}}}")
    assert section(run).notices == ([] if alike else [twins.ELSEWHERE.format(twin)])
    for without in ("weight_decay: 0", "decays: none"):
        (run.path / "config.yaml").write_text(f"model: {{{without}, arms: {{{arms}}}}}")
        assert section(run).notices == []


@pytest.mark.parametrize(
    ("loss", "unit"),
    [("cross_entropy", " (nats)"), ("squared_error", ""), (None, "")],
    ids=["nats", "squared", "unknown"],
)
def test_a_risk_has_the_unit_of_its_loss(run, loss, unit):
    if loss:
        (run.path / "config.yaml").write_text(f"model: {{loss: {loss}}}")
    text = only(twins, add_twins(run))
    assert f"risk{unit}<" in text and ("nats" in text) == bool(unit)
    assert {"cross_entropy": "mean cross-entropy (nats) of", "squared_error": "mean squared error"}.get(
        loss, "mean loss"
    ) in text
