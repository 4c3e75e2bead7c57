"""The section on signals: a profile for each quantity and net, with the closed form where there is one."""

from lightning_app.report.page import sections_of
from lightning_app.report.page_data import gather
from lightning_app.report.sections import signals
from lightning_app.runs import Row, RunFolder
from tests.report.conftest import only


def made(path) -> RunFolder:
    folder = RunFolder(path)
    for place, step in ((0, 0), (0.002557545, 1), (1, 391)):
        for net in ("plain", "residual"):
            numbers = {f"layer{layer:02d}/activation": 2.0**-layer for layer in range(1, 6)}
            numbers |= {f"layer{layer:02d}/dead": 0.1 * layer for layer in range(1, 5)}
            if net == "residual":
                numbers |= {f"layer{layer:02d}/branch_cosine": -0.1 for layer in range(2, 5)}
            if net == "plain" and not place:
                numbers |= {f"layer{layer:02d}/activation_expected": 1.5**-layer for layer in range(1, 6)}
            folder.append(Row(net, place, step, f"signal/{key}", value) for key, value in numbers.items())
    return folder


def test_profiles_of_what_was_measured_and_the_closed_form_beside_them(tmp_path):
    run = made(tmp_path / "run")
    (figure,) = signals.section(gather([run])).blocks
    titles = [panel.title for panel in figure.panels]
    assert [title.partition(":")[0] for title in titles] == ["Forwards"] * 2 + ["Branch and stream"] + [
        "Dead units"
    ] * 2
    plain, residual = figure.panels[:2]
    assert plain.svg.count("stroke-dasharray") > residual.svg.count("stroke-dasharray")
    page = only(signals, run)
    assert [page.count(f'id="{key}"') for key in ("signals", "signals-figure", "signals-0")] == [1] * 3
    assert "epoch 0.002558" in page and "closed form" in page
    assert "own-measures" not in {section.key for section in sections_of(gather([run]))}  # drawn once


def test_no_section_without_signals(finished):
    assert signals.section(gather([finished])) is None
