"""The section on the loss around the weights: its numbers are the run folder's, and one surface is shown once."""

import csv
import io

import numpy as np
import pytest
from matplotlib.figure import Figure

from lightning_app.plots.drawing import contours
from lightning_app.plots.style import Style
from lightning_app.report.page_data import gather
from lightning_app.report.sections import surface
from lightning_app.runs import RunFolder
from tests.report.conftest import bare_run, of_member, rows

RADII = np.array([0.1, 0.5, 1.0])


def measure(
    run: RunFolder,
    rises: dict[str, tuple[float, float]],
    rays: int = 4,
    epochs: tuple[int, ...] = (0, 6),
    radii: np.ndarray = RADII,
):
    """The run with surfaces: the loss rises like r, by these factors in the two readings; twice as fast at the end."""
    for epoch in epochs:
        arrays = {}
        for member, factors in rises.items():
            for family, factor in zip(surface.READINGS, factors):
                rise = (1 + (epoch == max(epochs))) * factor * radii
                numbers = {f"rise_{r:g}": value for r, value in zip(radii, rise)} | {"centre": 0.5, "monotone": 1.0}
                run.append(rows(member, epoch, {f"{family}/{key}": number for key, number in numbers.items()}))
                plane = {f"{family}/radii": radii, f"{family}/risk": np.tile(0.5 + rise, (rays, 1))}
                arrays |= of_member(member, plane)
        run.save_arrays(epoch, surface.FAMILY, arrays)
    return run


def shown(run: RunFolder) -> tuple[list[str], list[dict], list[dict]]:
    """Titles of all panels, data of the rises, data of the planes."""
    figures = surface.section(gather([run])).blocks
    data = [list(csv.DictReader(io.StringIO(figure.csv))) for figure in figures]
    return [panel.title for figure in figures for panel in figure.panels], *(data + [[]])[:2]


def test_the_last_epoch_is_shown_with_both_readings_of_nets_with_skips(tmp_path):
    run = measure(bare_run(tmp_path / "quick"), {"plain": (3.0, 3.0), "residual": (1.0, 2.0)})
    titles, rises, planes = shown(run)
    assert titles == [
        *("Rise of the loss, as written", "Rise of the loss, identity counted"),
        *("plain, as written", "residual, as written", "residual, identity counted"),
    ]
    values = {(row["net"], row["reading"], float(row["r"])): float(row["value"]) for row in rises}
    assert values["residual", "as written", 0.5] == 1 and values["residual", "identity counted", 0.5] == 2
    assert values["plain", "as written", 1.0] == values["plain", "identity counted", 1.0] == 6
    assert len(planes) == 3 * 4 * 4
    found = {float(row["rise"]) for row in planes if row["net"] == "plain" and float(row["r"]) in (0, 0.5)}
    assert found == {0, 3}


def test_without_skips_there_is_one_reading(tmp_path):
    titles, rises, _ = shown(measure(bare_run(tmp_path / "quick"), {"plain": (3.0, 3.0), "residual": (1.0, 1.0)}))
    assert len(titles) == 3 and {row["reading"] for row in rises} == {"as written"}


@pytest.mark.parametrize("rays", [1, 2])
def test_a_line_is_no_plane(tmp_path, rays):
    titles, _, planes = shown(measure(bare_run(tmp_path / "quick"), {"plain": (3.0, 3.0)}, rays))
    assert titles == ["Rise of the loss, as written"] and not planes


def test_a_loss_that_is_not_finite_leaves_a_gap_and_the_rest_is_drawn(tmp_path):
    run = measure(bare_run(tmp_path / "quick"), {"plain": (np.inf, np.inf), "residual": (1.0, 2.0)})
    titles, rises, _ = shown(run)
    assert len(titles) == 5 and {row["value"] for row in rises if row["net"] == "plain"} == {"inf"}


def test_distances_of_before_a_resume_are_not_shown_as_nan(tmp_path):
    run = measure(bare_run(tmp_path / "quick"), {"plain": (3.0, 3.0)}, epochs=(0, 3))
    _, rises, _ = shown(measure(run, {"plain": (3.0, 3.0)}, epochs=(6,), radii=np.array([0.2, 0.5])))
    assert [row["r"] for row in rises] == ["0.2", "0.5"]


def test_it_is_said_when_nets_were_measured_last_after_different_epochs(tmp_path):
    run = measure(bare_run(tmp_path / "quick"), {"plain": (3.0, 3.0), "residual": (1.0, 2.0)}, epochs=(3,))
    same = surface.section(gather([run])).blocks[0].caption
    assert "after the last measured epoch. At r" in same
    differing = surface.section(gather([measure(run, {"plain": (3.0, 3.0)}, epochs=(6,))])).blocks[0].caption
    assert "after the last measured epoch of each net (3 and 6). At r" in differing


def test_without_a_surface_there_is_no_section(tmp_path):
    assert surface.section(gather([bare_run(tmp_path / "quick")])) is None


def test_where_no_level_is_reached_the_axes_are_as_wide():
    axes = Figure().subplots()
    contours(axes, np.array([0.0, 2.0]), np.full((3, 2), 0.7), [0.5, 1.0], Style("black", "-", ""))
    assert not axes.collections and axes.get_xlim() == pytest.approx((-2.04, 2.04))


def test_lines_of_equal_value_are_closed_and_lie_where_the_value_is():
    axes = Figure().subplots()
    contours(axes, np.array([0.0, 1.0, 2.0]), np.tile([0.0, 1.0, 4.0], (64, 1)), [1.0, 2.5], Style("black", "-", ""))
    (lines,) = axes.collections
    for path, radius in zip(lines.get_paths(), (1.0, 1.5), strict=True):  # linear between 1 and 4
        sizes = np.hypot(*path.vertices.T)
        assert sizes == pytest.approx(radius, abs=5e-3) and path.vertices[0] == pytest.approx(path.vertices[-1])
