"""What training and measuring cost, in seconds on the machine that ran."""

from statistics import median

from matplotlib.axes import Axes

from lightning_app.plots.drawing import curve, dots, finite, from_zero
from lightning_app.plots.style import Style, styles
from lightning_app.report.blocks import Cell, Figure, Section, Table, cell, csv_text
from lightning_app.report.page_data import PageData, Run
from lightning_app.report.panels import legend, panel

__all__ = ["section"]

EPOCH = "time/epoch"
COST = "cost/"
CAPTION = (
    "Wall-clock seconds, all nets of a run together. An epoch is training and evaluation, without the measures. Share: of the "
    "run's epochs, so 100 % means that measuring took as long as training."
)


def section(page: PageData) -> Section:
    """Seconds of epochs and measures of each run."""
    families = _families(page)
    if not families:
        return Section("costs", "What it cost", notices=["Neither epoch times nor costs of measures were logged."])
    rows = [_row(run, name) for run in page.runs for name in families if len(run.series(name))]
    table = Table(CAPTION, ["run", "what", "times", "median (s)", "total (s)", "share"], rows)
    missing = [] if EPOCH in families else ["Epoch times were not logged."]
    return Section("costs", "What it cost", blocks=[table, _figure(page, families)], notices=missing)


def _families(page: PageData) -> list[str]:
    """Names of what has a time: epochs first, then measures in the order of the log."""
    names = dict.fromkeys(name for run in page.runs for name in run.names())
    costs = [name for name in names if name.startswith(COST)]
    return [EPOCH, *costs] if EPOCH in names else costs


def _row(run: Run, name: str) -> list[Cell]:
    seconds, epochs = run.series(name), run.series(EPOCH)
    share = f"{100 * seconds.sum() / epochs.sum():.1f} %" if name != EPOCH and epochs.sum() > 0 else "–"
    numbers = cell(float(seconds.median())), cell(float(seconds.sum()))
    return [Cell(run.label), Cell(_title(name)), Cell(str(len(seconds))), *numbers, Cell(share)]


def _title(name: str) -> str:
    return "epoch" if name == EPOCH else name.removeprefix(COST)


def _figure(page: PageData, families: list[str]) -> Figure:
    looks = dict(zip((run.label for run in page.runs), styles(["other"] * len(page.runs)), strict=True))
    rows = [
        (run.label, name, epoch, seconds)
        for name in families
        for run in page.runs
        for epoch, seconds in run.series(name).items()
    ]
    panels = [
        panel(
            "cost-medians",
            "Median cost each time",
            lambda axes: _draw_medians(axes, page, families, looks),
            x="seconds",
            y="",
            log_x=True,
        )
    ]
    if EPOCH in families:
        panels.append(
            panel(
                "cost-epochs",
                "Time of each epoch",
                lambda axes: _draw_epochs(axes, page, looks),
                x="epoch",
                y="seconds",
                whole_x=True,
            )
        )
    data = csv_text(("run", "name", "epoch", "seconds"), rows)
    caption = "Median seconds of one epoch and of one measurement (logarithmic), and seconds of every epoch."
    return Figure("costs-figure", caption, panels, legend(looks.items()), data)


def _draw_medians(axes: Axes, page: PageData, families: list[str], looks: dict[str, Style]) -> None:
    shift = 0.6 / len(page.runs)  # runs one below the other: equal costs would hide each other
    for i, run in enumerate(page.runs):
        seconds = {place: median(times) for place, name in enumerate(families) if len(times := run.series(name))}
        places = [place + shift * (i - (len(page.runs) - 1) / 2) for place in seconds]
        dots(axes, list(seconds.values()), places, looks[run.label])
    axes.set_yticks(range(len(families)), [_title(name) for name in families])
    axes.set_ylim(len(families) - 0.5, -0.5)


def _draw_epochs(axes: Axes, page: PageData, looks: dict[str, Style]) -> None:
    for run in page.runs:
        if len(times := run.series(EPOCH)):
            curve(axes, finite(times), looks[run.label])
    from_zero(axes)
