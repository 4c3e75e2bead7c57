"""What training and measuring cost, in seconds on the machine that ran."""

from functools import partial
from statistics import median

from matplotlib.axes import Axes

from lightning_app.plots.drawing import curve, dots, finite, from_zero
from lightning_app.plots.style import styles_of
from lightning_app.report.blocks import Cell, Figure, Rows, Section, Table, cell, csv_text
from lightning_app.report.page_data import PageData
from lightning_app.report.panels import legend, panel
from lightning_app.runs.reader import Run

EPOCH = "time/epoch"
COST = "cost/"
CAPTION = (
    "Wall-clock seconds for all nets of a run together. An epoch is training and evaluation, without the measures. "
    "Share: of the total time of the run’s epochs; at 100 %, measuring took as long as training and evaluation."
)


def section(page: PageData) -> Section:
    """Seconds of epochs and measures of each run: epochs first, then measures in the order of the log."""
    names = dict.fromkeys(name for run in page.runs for name in run.names())
    times = [*[EPOCH] * (EPOCH in names), *(name for name in names if name.startswith(COST))]
    section = partial(Section, "costs", "What it cost", short="Costs", folded=True)
    if not times:
        return section(notices=["Neither epoch times nor costs of measures were logged."])
    rows = [_row(run, name) for run in page.runs for name in times if len(run.series(name))]
    table = Table(CAPTION, ["run", "what", "times", "median (s)", "total (s)", "share"], rows)
    missing = [] if EPOCH in times else ["Epoch times were not logged."]
    return section(blocks=[table, _figure(page, times)], notices=missing)


def _row(run: Run, name: str) -> list[Cell]:
    seconds, epochs = run.series(name), run.series(EPOCH)
    share = f"{100 * seconds.sum() / epochs.sum():.1f} %" if name != EPOCH and epochs.sum() > 0 else "–"
    numbers = cell(float(seconds.median())), cell(float(seconds.sum()))
    return [Cell(run.label), Cell(_title(name)), Cell(str(len(seconds))), *numbers, Cell(share)]


def _title(name: str) -> str:
    return "epoch" if name == EPOCH else name.removeprefix(COST)


def _figure(page: PageData, names: list[str]) -> Figure:
    looks = styles_of(page.runs)

    def draw_medians(axes: Axes) -> None:
        shift = 0.6 / len(looks)  # runs one below the other: equal costs would hide each other
        for i, (run, look) in enumerate(looks.items()):
            seconds = {place: median(times) for place, name in enumerate(names) if len(times := run.series(name))}
            dots(axes, list(seconds.values()), [place + shift * (i - (len(looks) - 1) / 2) for place in seconds], look)
        axes.set_yticks(range(len(names)), [_title(name) for name in names])
        axes.set_ylim(len(names) - 0.5, -0.5)

    def draw_epochs(axes: Axes) -> None:
        for run, look in looks.items():
            if len(times := run.series(EPOCH)):
                curve(axes, finite(times), look)
        from_zero(axes)

    panels = [panel("cost-medians", "Median cost each time", draw_medians, x="seconds", y="", log_x=True)]
    if EPOCH in names:
        title, its = ("cost-epochs", "Time of each epoch"), Rows({"name": [EPOCH]}, who="run", y="seconds")
        panels += [panel(*title, draw_epochs, x="epoch", y="seconds", rows=its, whole_x=True)]
    rows = [(run.label, name, *each) for name in names for run in page.runs for each in run.series(name).items()]
    data = csv_text(("run", "name", "epoch", "seconds"), rows)
    caption = "Median seconds of one epoch and of one measurement (logarithmic axis), and seconds of every epoch."
    marks = legend((run.label, look) for run, look in looks.items())
    return Figure("costs-figure", caption, panels, marks, data)
