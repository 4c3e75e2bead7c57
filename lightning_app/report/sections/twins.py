"""Equivalent training: risks of T-twins, their difference, and how far the weights have drifted apart (Fig. 6)."""

import itertools
from collections.abc import Mapping
from functools import partial
from typing import TypeVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lightning_app.plots.drawing import curve, finite
from lightning_app.plots.style import INK, Style, styles
from lightning_app.report.blocks import Block, Cell, Figure, Panel, Section, Table, cell, csv_text
from lightning_app.report.figures import curve_panel, group_legend
from lightning_app.report.page_data import PageData, PageNet, loss_of
from lightning_app.report.panels import legend

FAMILY = "twin"
SHOWN = 200  # points of a curve: a long run has a hundred thousand steps
COLUMNS = ["divergence", "divergence_id", "risk_original", "risk_twin", "risk_difference"]
HEAD = ["twin", "divergence", "of ID entries", "|ΔL|", "first sign flip", "values there"]
HEAD += ["exponent a", "rate b", "rate before"]
LAWS = {"power_exponent": "power_steps", "exponential_rate": "exponential_steps"}  # and the number of steps behind each
FITS = (*LAWS, *LAWS.values(), "power_scale", "exponential_scale")  # of a row
FIT = Style(INK, (0, (2, 2)), "")
WHAT = (
    "A twin starts as the same function as its original: it is T(r) of a residual net r, the plain net with the skips "
    "written into its weights, or T⁻¹ of a plain net. Both see the same batches. If both also decay towards the same "
    "function, they stay the same function at every step in exact arithmetic, and all that is shown here is rounding. "
    "Divergence: max |T⁻¹(p) − r| over all parameters of the plain net p and the residual net r, in the units of the "
    "weights."
)
ELSEWHERE = "{}: its penalty has another centre than its original’s, so the two differ by more than rounding."
CAPTION = (
    "By optimizer step. Training risk: mean {loss} of the step’s augmented batch, before the step, for a twin and its "
    "original. In a long run risks are means over neighbouring steps, and |ΔL| the mean of their absolute differences. "
    "Divergence: after the step, on two kinds of axes: a power law is a straight line on the first, an exponential on "
    "the second. Vertical line: the first step whose batch had a ReLU input that was positive in only one of the two "
    "nets. Dashed: the laws fitted before and after that step, up to a divergence of 1e-3. Values of exactly 0 are not "
    "drawn on logarithmic axes."
)
TABLE = (
    "At the last measured epoch. Of ID entries: the divergence over the entries where T adds 1. |ΔL|: difference of the "
    "training risks. First sign flip: the first ReLU input that was positive in only one of the nets; values there: the "
    "two that lay furthest apart in its layer. Exponent a: divergence ~ step^a before the flip; rate b: divergence ~ "
    "exp(b · step) from the flip on; rate before: such a rate before it. rms: residual of the logarithm of the "
    "divergence; 0.1 means 10 %."
)

OTHER_KIND = {"plain": "residual", "residual": "plain"}  # of a twin and its original
DIVERGENCE = "max |T⁻¹(p) − r|"
GAPS = (  # key, title and y axis of a panel; with fitted laws; logarithmic steps
    ("twin-difference", "Difference of the risks", "|ΔL|", False, False),
    ("twin-power", "Divergence, power law", DIVERGENCE, True, True),
    ("twin-exponential", "Divergence, exponential", DIVERGENCE, True, False),
)
Line = TypeVar("Line", pd.Series, pd.DataFrame)
Twins = dict[PageNet, pd.DataFrame]  # what was recorded after every step of the run, by step


def section(page: PageData) -> Section | None:
    """None without twins: most runs have none, and that is not worth a heading."""
    measured = [net for net in page.nets if "twin/divergence" in net.names]
    if not measured:
        return None
    table = Table(TABLE, HEAD, [_row(net) for net in measured])
    twins = {net: steps for net in measured if len(steps := _steps(net))}
    notices = [ELSEWHERE.format(net.label) for net in measured if _decays_elsewhere(net)]
    notices += [] if twins else ["No steps were saved of these twins."]
    blocks: list[Block] = [*([_figure(twins)] if twins else []), table]
    return Section("twins", "Equivalent training", WHAT, blocks, notices, (FAMILY,), short="Twins")


def _decays_elsewhere(net: PageNet) -> bool:
    """Whether the two penalties differ: 0 of a residual net is the identity of its plain one."""
    model = net.run.config.get("model")
    if net.residual is None or not isinstance(model, Mapping):
        return False
    if model.get("weight_decay") == 0 or model.get("decays") == "none":
        return False
    centres = {True: "zero", False: "identity"}
    original = next((other for other in net.run.nets if other.name == net.twin_of), None)
    # Left open, the centre of a twin is the right one, and that of its original is 0.
    own = net.spec.get("decay_towards") or centres[net.residual]
    its = centres[not net.residual] if original is None else original.spec.get("decay_towards") or "zero"
    return (own, its) != (centres[net.residual], centres[not net.residual])


def _steps(net: PageNet) -> pd.DataFrame:
    prefix, frames = "twin/steps/", []
    for epoch in net.run.array_epochs(FAMILY):
        saved = {key: values for key, values in net.arrays(FAMILY, epoch).items() if key.startswith(prefix)}
        frames.append(pd.DataFrame({key.removeprefix(prefix): values for key, values in saved.items()}))
    frames = [frame for frame in frames if len(frame)]
    return pd.concat(frames).set_index("number") if frames else pd.DataFrame()


def _row(net: PageNet) -> list[Cell]:
    """Where the first flip was, and what its units got, between distances and laws."""
    apart = [_number(net, name) for name in ("divergence", "divergence_id", "risk_difference")]
    flip = [Cell("none yet"), Cell("–")]
    if _flip_step(net) is not None:
        names = ("step", "layer", "units", "original", "twin")
        step, layer, units, original, twin = (_number(net, f"first_flip_{name}").text for name in names)
        place = Cell(f"step {step}, layer {layer}", note=f"{units} {'unit' if units == '1' else 'units'}")
        flip = [place, Cell(f"original {original}\ntwin {twin}")]
    laws = [_law(net, *law) for law in LAWS.items()]
    return [Cell(net.label), *apart, *flip, *laws, _number(net, "growth/rate_before")]


def _number(net: PageNet, name: str, note: str = "") -> Cell:
    last = net.final(f"twin/{name}")
    return cell(last.value if last else None, note)


def _law(net: PageNet, parameter: str, count: str) -> Cell:
    steps, error = (_number(net, f"growth/{each}").text for each in (count, f"{parameter.split('_')[0]}_error"))
    fitted = _number(net, f"growth/{parameter}", f"{steps} steps, rms {error}")
    return Cell("–", note="too few steps") if fitted.text == "nan" else fitted


def _flip_step(net: PageNet) -> float | None:
    last = net.final("twin/first_flip_step")
    return None if last is None or np.isnan(last.value) else last.value


def _figure(twins: Twins) -> Figure:
    shown = PageData([], list(twins))  # alone, so that seeds of one arm come together as everywhere on the page
    originals = {net: styles([OTHER_KIND.get(net.kind, "other")])[0] for net in shown.firsts()}
    panels = [_risks(shown, twins, originals), *(_gap_panel(shown, twins, *how) for how in GAPS)]
    looks = legend((f"original of {net.label}", look) for net, look in originals.items())
    looks += group_legend(shown) + legend([("fitted law", FIT)])
    rows = [(net.label, *row) for net, steps in twins.items() for row in _picked(steps[COLUMNS]).itertuples()]
    data = csv_text(("twin", "step", *COLUMNS), rows)
    loss = loss_of(twins)
    caption = CAPTION.format(loss=loss.measured(loss.name))
    return Figure("twin-steps", caption, panels, looks, data, columns=2)


def _risks(shown: PageData, twins: Twins, originals: dict[PageNet, Style]) -> Panel:
    def draw_originals(axes: Axes) -> None:
        for net, look in originals.items():
            curve(axes, finite(_means(twins[net]["risk_original"])), look)

    y = loss_of(twins).measured("risk")
    draw = partial(curve_panel, x="step", y=y, before=draw_originals, log_y=True, whole_x=False)
    return draw(shown, "twin-risks", "Training risk L", lambda net: _means(twins[net]["risk_twin"]))


def _gap_panel(shown: PageData, twins: Twins, key: str, title: str, y: str, fitted: bool, log_x: bool) -> Panel:
    """How far twin and original are apart, in risk or in weights, with the laws ``fitted`` to these."""

    def gap(net: PageNet) -> pd.Series:
        steps = twins[net]
        return _picked(steps["divergence"], log_x) if fitted else _means(steps["risk_difference"].abs())

    def mark(axes: Axes) -> None:
        for net in twins:
            if step := _flip_step(net):
                axes.axvline(step, color=net.style.colour, linewidth=0.9, linestyle=(0, (1, 2)))
        for net in shown.firsts() if fitted else ():
            for law in _laws(net, twins[net].index.to_numpy(dtype=float)):
                axes.plot(law.index, law, color=FIT.colour, linestyle=FIT.dash, linewidth=1.1)

    y = y if fitted else loss_of(twins).measured(y)
    look = partial(curve_panel, x="step", y=y, after=mark, log_x=log_x, log_y=True, whole_x=False)
    return look(shown, key, title, gap)


def _laws(net: PageNet, steps: np.ndarray) -> list[pd.Series]:
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
