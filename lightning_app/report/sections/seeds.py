"""Statistics over seeds: how far seeds of one arm lie apart, and whether plain and residual nets differ beyond that (Fig. 2)."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lightning_app.plots.drawing import curve, filled
from lightning_app.plots.style import INK, Style, styles
from lightning_app.report.blocks import Block, Cell, Entry, Figure, Panel, Section, Table, cell, csv_text
from lightning_app.report.page_data import Net, PageData
from lightning_app.report.pairs import Pair, pairs
from lightning_app.report.panels import legend, panel
from lightning_app.statistics.paired import (
    ENOUGH,
    ErrorAtRisk,
    PairedCurve,
    error_at_risk,
    paired,
    paired_curve,
    spread,
)

__all__ = ["section"]

RISK, ERROR = "train/risk", "test/error"
QUANTITIES = {
    RISK: "training risk L (nats)",
    "train/error": "training error",
    "test/risk": "test risk (nats)",
    ERROR: "test error E",
}
DIFFERENCES = {ERROR: "Test error E", RISK: "Training risk L"}  # over epochs
SPREADS = (
    "At the last epoch at which all seeds of an arm and of its counterpart were measured. sd: sample standard deviation over "
    "seeds (divisor seeds − 1). Seeds: those whose number is finite."
)
FEW = f" With fewer than {ENOUGH} pairs even the whole range of the differences, which no resample leaves, covers less."
INTERVAL = "95 % bootstrap interval of the mean over pairs (expanded percentile; the same 9,999 resamples each time)."
TESTS = (
    "Plain minus residual of the same seed: above zero the residual net is lower. From, to: {interval} p, two-sided: the "
    "paired t test takes differences as normal, Wilcoxon’s signed ranks only as symmetric, but with n pairs its p is never below "
    "2^(1−n). A dash: all differences are equal, and there is no spread to test against. Several quantities are tested, "
    "without correction."
)
OVER_EPOCHS = (
    "Mean of plain minus residual of the same seed: above zero the residual net is lower. Band: {interval} It is pointwise, "
    "not corrected for looking at many epochs: that it leaves zero out at some epoch is no test of the curve."
)
AT_RISK = (
    "Test error E where the training risk L of a net first comes down to each of 60 values that all nets of the pair start "
    "above and reach, linear between epochs; training goes from right to left. Bold: mean over seeds; thin: each seed. Last "
    "panel: the mean of plain minus residual of the same seed at equal risk; above zero the residual net has the smaller error. "
    "Band: {interval} It is pointwise, not corrected for looking at many risks."
)
NO_RISK = "There is no training risk that all nets of {} start above and reach."


def section(page: PageData) -> Section | None:
    """None without two seeds in any group: nothing to say."""
    if all(len(nets) < 2 for nets in page.groups.values()):
        return None
    found, notices = pairs(page)
    at_risk = {pair: errors for pair in found if (errors := _at_risk(pair)) is not None}
    blocks: list[Block] = [_spreads(page, found)]
    if found:
        blocks += [*_over_epochs(found), _tests(found)]
    if reached := {pair: errors for pair, errors in at_risk.items() if len(errors.levels)}:
        blocks.append(_error_against_risk(reached))
    notices += [NO_RISK.format(pair.label) for pair in at_risk if pair not in reached]
    return Section("seeds", "Over seeds", blocks=blocks, notices=[*_repeats(page), *_behind(page), *notices])


def _said(caption: str, found: Iterable[Pair]) -> str:
    """The caption, with what its interval is, and what it is not with few pairs."""
    few = min(len(pair.seeds) for pair in found) < ENOUGH
    return caption.format(interval=INTERVAL + FEW * few)


# -- what to know first ---------------------------------------------------------------------------------------------------


def _repeats(page: PageData) -> list[str]:
    return [
        f"{net.label} is one more run of seed {net.seed} of {net.group}: the one that trained longest is counted, once."
        for net in page.repeats
    ]


def _behind(page: PageData) -> list[str]:
    """Groups whose seeds are not equally far."""
    notices = []
    for group, nets in page.groups.items():
        last = max(net.epoch for net in nets)
        behind = [f"{net.label} at {net.epoch}" for net in nets if net.epoch < last]
        if behind:
            notices.append(f"{group}: not all seeds are at epoch {last}: {', '.join(behind)}.")
    return notices


# -- at the end -----------------------------------------------------------------------------------------------------------


def _table(nets: Iterable[Net], name: str) -> pd.DataFrame:
    """A number by epoch (rows) and net (columns), at the epochs where all were measured."""
    return pd.concat([net.series(name) for net in nets], axis=1, join="inner")


def _spreads(page: PageData, found: Sequence[Pair]) -> Table:
    rows = [
        row
        for group, nets in page.groups.items()
        if len(nets) > 1
        for name in QUANTITIES
        if (row := _spread_row(group, nets, name, _counterparts(nets, found)))
    ]
    head = ["arm", "quantity", "epoch", "mean", "sd", "minimum", "maximum", "seeds"]
    return Table(SPREADS, head, rows, title="Spread over seeds")


def _counterparts(nets: Sequence[Net], found: Sequence[Pair]) -> Sequence[Net]:
    """All nets of the pair that has these, or none."""
    return next((pair.nets for pair in found if set(pair.nets) & set(nets)), ())


def _spread_row(group: str, nets: Sequence[Net], name: str, others: Sequence[Net]) -> list[Cell] | None:
    common = _table(dict.fromkeys([*nets, *others]), name)
    if common.empty:
        return None
    epoch = common.index[-1]
    found = spread(net.series(name)[epoch] for net in nets)
    numbers = map(cell, (found.mean, found.sd, found.min, found.max))
    return [Cell(group), Cell(QUANTITIES[name]), Cell(str(epoch)), *numbers, Cell(str(found.count))]


def _tests(found: Sequence[Pair]) -> Table:
    rows = [row for pair in found for name in QUANTITIES if (row := _test_row(pair, name))]
    head = ["pair", "quantity", "epoch", "difference", "from", "to", "p, t test", "p, Wilcoxon", "pairs"]
    return Table(_said(TESTS, found), head, rows, title="Plain minus residual, at the last common epoch")


def _test_row(pair: Pair, name: str) -> list[Cell] | None:
    common = _table(pair.nets, name)
    if common.empty:
        return None
    values = common.iloc[-1].to_numpy()
    plain, residual = np.split(values, 2)
    result = paired(plain.tolist(), residual.tolist())
    numbers = result.mean, result.low, result.high, result.t_p, result.wilcoxon_p
    cells = (cell(None if np.isnan(value) else value) for value in numbers)
    epoch = str(common.index[-1])
    return [Cell(pair.label), Cell(QUANTITIES[name]), Cell(epoch), *cells, Cell(str(result.count))]


# -- over epochs ----------------------------------------------------------------------------------------------------------


def _over_epochs(found: Sequence[Pair]) -> list[Figure]:
    """The figure of paired differences; none if neither quantity was measured."""
    lines = {(pair, name): line for name in DIFFERENCES for pair in found if len(line := _differences(pair, name))}
    looks = _looks(found)
    panels = [
        _difference_panel(f"seeds-{name.replace('/', '-')}", f"{title}, plain − residual", shown, looks, "epoch")
        for name, title in DIFFERENCES.items()
        if (shown := {pair: line for (pair, of), line in lines.items() if of == name})
    ]
    rows = [
        (epoch, pair.label, name, *ends, len(pair.seeds))
        for (pair, name), line in lines.items()
        for epoch, *ends in line.itertuples()
    ]
    data = csv_text(("epoch", "pair", "name", "mean", "low", "high", "pairs"), rows)
    return (
        [Figure("seeds-difference", _said(OVER_EPOCHS, found), panels, _legend(looks), data, columns=2)]
        if panels
        else []
    )


def _differences(pair: Pair, name: str) -> pd.DataFrame:
    """mean, low, high by epoch."""
    common = _table(pair.nets, name)
    return _frame(paired_curve(*np.split(common.to_numpy().T, 2)), common.index)


def _frame(curve: PairedCurve, index: Iterable[float]) -> pd.DataFrame:
    return pd.DataFrame({"mean": curve.mean, "low": curve.low, "high": curve.high}, index)


def _looks(found: Iterable[Pair]) -> dict[Pair, Style]:
    found = [*found]
    return dict(zip(found, styles(["other"] * len(found)), strict=True))


def _legend(looks: dict[Pair, Style]) -> list[Entry]:
    return legend((f"{pair.label} ({len(pair.seeds)} pairs)", look) for pair, look in looks.items())


def _difference_panel(
    key: str, title: str, lines: dict[Pair, pd.DataFrame], looks: dict[Pair, Style], x: str, log_x: bool = False
) -> Panel:
    def draw(axes: Axes) -> None:
        axes.axhline(0, color=INK, linewidth=0.9)
        for pair, line in lines.items():
            filled(axes, line["low"], line["high"], looks[pair])
            curve(axes, line["mean"], looks[pair])

    return panel(key, title, draw, x=x, y="plain − residual", log_x=log_x, whole_x=not log_x)


# -- error against risk ---------------------------------------------------------------------------------------------------


def _at_risk(pair: Pair) -> ErrorAtRisk | None:
    """None where risk or error was not measured."""
    sides = [[_risk_and_error(net) for net in side] for side in (pair.plain, pair.residual)]
    return error_at_risk(*sides) if all(len(epochs) for side in sides for epochs, _, _ in side) else None


def _risk_and_error(net: Net) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    both = pd.concat([net.series(RISK), net.series(ERROR)], axis=1, join="inner")
    return both.index.to_numpy(), *both.to_numpy().T


def _error_against_risk(reached: dict[Pair, ErrorAtRisk]) -> Figure:
    looks = _looks(reached)
    lines = {pair: _frame(errors.difference, errors.levels) for pair, errors in reached.items()}
    panels = [
        *(
            _error_panel(number, pair, errors, len(reached) > 1)
            for number, (pair, errors) in enumerate(reached.items())
        ),
        _difference_panel("seeds-at-risk", "E at equal risk, plain − residual", lines, looks, QUANTITIES[RISK], True),
    ]
    arms = {side[0].group: side[0].style for pair in reached for side in (pair.plain, pair.residual)}
    rows = [
        (net.label, risk, error)
        for pair, errors in reached.items()
        for net, values in zip(pair.nets, (*errors.plain, *errors.residual), strict=True)
        for risk, error in zip(errors.levels, values, strict=True)
    ]
    differences = [
        (risk, pair.label, *ends, len(pair.seeds)) for pair, line in lines.items() for risk, *ends in line.itertuples()
    ]
    return Figure(
        "seeds-error-at-risk",
        _said(AT_RISK, reached),
        panels,
        legend(arms.items()) + _legend(looks),
        csv_text(("net", "risk", "error"), rows),
        columns=2,
        more={"difference": csv_text(("risk", "pair", "mean", "low", "high", "pairs"), differences)},
    )


def _error_panel(number: int, pair: Pair, errors: ErrorAtRisk, several: bool) -> Panel:
    def draw(axes: Axes) -> None:
        for nets, values in ((pair.plain, errors.plain), (pair.residual, errors.residual)):
            for seed in values:
                axes.plot(errors.levels, seed, color=nets[0].style.colour, linewidth=0.6, alpha=0.4)
            curve(axes, pd.Series(values.mean(axis=0), errors.levels), nets[0].style)

    title = f"Error against risk{f', {pair.label}' if several else ''}"
    return panel(f"seeds-error-{number}", title, draw, x=QUANTITIES[RISK], y=QUANTITIES[ERROR], log_x=True)
