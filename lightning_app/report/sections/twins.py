"""Equivalent training: risks of T-twins, their difference, and how far the weights have drifted apart (Fig. 6)."""

import itertools
from typing import TypeVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lightning_app.plots.drawing import curve, finite
from lightning_app.plots.style import INK, Style, styles
from lightning_app.report.blocks import Cell, Figure, Panel, Section, Table, cell, csv_text
from lightning_app.report.figures import curves, group_legend
from lightning_app.report.page_data import Net, PageData
from lightning_app.report.panels import legend, panel

__all__ = ["section"]

FAMILY = "twin"
SHOWN = 200  # points of a curve: a long run has a hundred thousand steps
COLUMNS = ["divergence", "divergence_id", "risk_original", "risk_twin", "risk_difference"]
LAWS = {"power_exponent": "power_steps", "exponential_rate": "exponential_steps"}  # and the number of steps behind each
FITS = (*LAWS, *LAWS.values(), "power_scale", "exponential_scale")  # of a row
FIT = Style(INK, (0, (2, 2)), "")
WHAT = (
    "A twin starts as T(r) of a residual net r (or T⁻¹ of a plain one), sees the same batches and decays towards the same "
    "function. In exact arithmetic the two stay one net at every step, so all that is shown here is rounding. Divergence: "
    "max |T⁻¹(p) − r| over all parameters, in the units of the weights."
)
CAPTION = (
    "By optimizer step. Training risk: mean cross-entropy of the step’s augmented batch in nats, before the step, of a "
    "twin and of the net it is the twin of; means over neighbouring steps in a long run, of the difference the mean magnitude. "
    "Divergence after the step, on logarithmic axes twice: a power law is straight on the first, an exponential on the "
    "second. Vertical line: the first step whose batch had a ReLU input that was positive in one of the two nets only. "
    "Dashed: the laws fitted before and after it, up to a divergence of 1e-3. What is exactly 0 has no place on a "
    "logarithmic axis."
)
TABLE = (
    "Last measured epoch. |ΔL|: difference of the training risks. First sign flip: the first ReLU input that was positive in "
    "one net only, with the two values that lay furthest apart in its layer. Exponent a: divergence ~ step^a until then; "
    "rate b: divergence ~ exp(b · step) from then on; rate before: the same until then. rms: residual of the logarithm of the "
    "divergence, 0.1 is 10 %."
)

Line = TypeVar("Line", pd.Series, pd.DataFrame)
Twins = dict[Net, pd.DataFrame]  # what was recorded after every step of the run, by step


def section(page: PageData) -> Section | None:
    """None without twins: most runs have none, and that is not worth a heading."""
    measured = [net for net in page.nets if "twin/divergence" in net.names]
    if not measured:
        return None
    table = Table(TABLE, HEAD, [_row(net) for net in measured])
    twins = {net: steps for net in measured if len(steps := _steps(net))}
    missing = [] if twins else ["No steps were saved of these twins."]
    return Section(
        "twins", "Equivalent training", WHAT, [_figure(twins), table] if twins else [table], missing, (FAMILY,)
    )


def _steps(net: Net) -> pd.DataFrame:
    parts = (net.arrays(FAMILY, epoch) for epoch in net.run.array_epochs(FAMILY))
    prefix = "twin/steps/"
    frames = [
        pd.DataFrame({k.removeprefix(prefix): v for k, v in part.items() if k.startswith(prefix)}) for part in parts
    ]
    frames = [frame for frame in frames if len(frame)]
    return pd.concat(frames).set_index("number") if frames else pd.DataFrame()


# -- the numbers ----------------------------------------------------------------------------------------------------------

HEAD = [
    "twin",
    "divergence",
    "of ID entries",
    "|ΔL|",
    "first sign flip",
    "values there",
    "exponent a",
    "rate b",
    "rate before",
]


def _row(net: Net) -> list[Cell]:
    apart = [_number(net, name) for name in ("divergence", "divergence_id", "risk_difference")]
    return [
        Cell(net.label),
        *apart,
        *_flip(net),
        *(_law(net, *law) for law in LAWS.items()),
        _number(net, "growth/rate_before"),
    ]


def _number(net: Net, name: str, note: str = "") -> Cell:
    last = net.final(f"twin/{name}")
    return cell(last.value if last else None, note)


def _law(net: Net, parameter: str, count: str) -> Cell:
    error = _text(net, f"growth/{parameter.split('_')[0]}_error")
    fitted = _number(net, f"growth/{parameter}", f"{_text(net, f'growth/{count}')} steps, rms {error}")
    return Cell("–", note="too few steps") if fitted.text == "nan" else fitted


def _flip(net: Net) -> list[Cell]:
    """Where the first flip was, and what its units got."""
    if _flip_step(net) is None:
        return [Cell("none yet"), Cell("–")]
    step, layer, units, original, twin = (
        _text(net, f"first_flip_{name}") for name in ("step", "layer", "units", "original", "twin")
    )
    return [
        Cell(f"step {step}, layer {layer}", note=f"{units} {'unit' if units == '1' else 'units'}"),
        Cell(f"original {original}\ntwin {twin}"),
    ]


def _text(net: Net, name: str) -> str:
    return _number(net, name).text


def _flip_step(net: Net) -> float | None:
    last = net.final("twin/first_flip_step")
    return None if last is None or np.isnan(last.value) else last.value


# -- the figure -----------------------------------------------------------------------------------------------------------


def _figure(twins: Twins) -> Figure:
    panels = [_risks(twins), _difference(twins), _divergence(twins, True), _divergence(twins, False)]
    shown = _among(twins)
    looks = legend((f"original of {net.label}", _original(net)) for net in shown.firsts())
    looks += group_legend(shown) + legend([("fitted law", FIT)])
    rows = [(net.label, *row) for net, steps in twins.items() for row in _picked(steps[COLUMNS]).itertuples()]
    data = csv_text(("twin", "step", *COLUMNS), rows)
    return Figure("twin-steps", CAPTION, panels, looks, data, columns=2)


def _among(twins: Twins) -> PageData:
    """The twins alone, so that seeds of one arm come together as everywhere on the page."""
    return PageData([], list(twins))


def _original(net: Net) -> Style:
    """A residual net's look for the original of a plain twin, and the other way round."""
    return styles([{"plain": "residual", "residual": "plain"}.get(net.kind, "other")])[0]


def _risks(twins: Twins) -> Panel:
    def draw(axes: Axes) -> None:
        for net in _among(twins).firsts():
            curve(axes, finite(_means(twins[net]["risk_original"])), _original(net))
        curves(axes, _among(twins).groups.values(), lambda net: _means(twins[net]["risk_twin"]))

    return panel("twin-risks", "Training risk L", draw, x="step", y="risk (nats)", log_y=True)


def _difference(twins: Twins) -> Panel:
    def draw(axes: Axes) -> None:
        curves(axes, _among(twins).groups.values(), lambda net: _means(twins[net]["risk_difference"].abs()))
        _mark_flips(axes, twins)

    return panel("twin-difference", "Difference of the risks", draw, x="step", y="|ΔL| (nats)", log_y=True)


def _divergence(twins: Twins, log_x: bool) -> Panel:
    def draw(axes: Axes) -> None:
        curves(axes, _among(twins).groups.values(), lambda net: _picked(twins[net]["divergence"], log_x))
        _mark_flips(axes, twins)
        for net in _among(twins).firsts():
            for law in _laws(net, twins[net].index.to_numpy(dtype=float)):
                axes.plot(law.index, law, color=FIT.colour, linestyle=FIT.dash, linewidth=1.1)

    key, title = ("twin-power", "Divergence, power law") if log_x else ("twin-exponential", "Divergence, exponential")
    return panel(key, title, draw, x="step", y="max |T⁻¹(p) − r|", log_x=log_x, log_y=True)


def _mark_flips(axes: Axes, twins: Twins) -> None:
    for net in twins:
        if step := _flip_step(net):
            axes.axvline(step, color=net.style.colour, linewidth=0.9, linestyle=(0, (1, 2)))


def _laws(net: Net, steps: np.ndarray) -> list[pd.Series]:
    """The fitted laws at the steps they were fitted to; none where there were too few."""
    fit = {name: last.value for name in FITS if (last := net.final(f"twin/growth/{name}"))}
    if len(fit) < len(FITS):
        return []
    flip = _flip_step(net) or np.inf
    before = steps[steps < flip][: int(fit["power_steps"])]
    after = steps[steps >= flip][: int(fit["exponential_steps"])]
    power = fit["power_scale"] * before ** fit["power_exponent"]
    growing = fit["exponential_scale"] * np.exp(fit["exponential_rate"] * (after - flip))
    laws = [_picked(pd.Series(law, at), True) for law, at in ((power, before), (growing, after)) if len(law)]
    return [law for law in laws if np.isfinite(law).all()]


def _means(line: pd.Series) -> pd.Series:
    """Means of at most `SHOWN` stretches of neighbouring steps, at the last step of each."""
    if len(line) <= SHOWN:
        return line
    ends = np.linspace(0, len(line), SHOWN + 1).astype(int)
    values = [line.iloc[start:end].mean() for start, end in itertools.pairwise(ends)]
    return pd.Series(values, line.index[ends[1:] - 1])


def _picked(line: Line, log: bool = False) -> Line:
    """At most `SHOWN` of its points, first and last among them, evenly spaced in the number or in its logarithm."""
    if len(line) <= SHOWN:
        return line
    spaced = np.geomspace(1, len(line), SHOWN) - 1 if log else np.linspace(0, len(line) - 1, SHOWN)
    return line.iloc[np.unique(spaced.round().astype(int))]
