"""Statistics over seeds: how far seeds of one arm lie apart, and whether plain and residual nets differ beyond that (Fig. 2)."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lightning_app.common.numbers import unrounded
from lightning_app.compare.findings import risk_and_error
from lightning_app.plots.drawing import curve, filled
from lightning_app.plots.style import INK, Style, styles_of
from lightning_app.report.blocks import Block, Cell, Entry, Figure, Panel, Rows, Section, Table, cell, csv_text
from lightning_app.report.figures import joined
from lightning_app.report.page_data import PageData, PageNet, loss_of
from lightning_app.report.pairs import Pair, net_of, pairs, training_of
from lightning_app.report.panels import legend, panel
from lightning_app.runs.configuration import LIMITS
from lightning_app.statistics import paired

RISK = "train/risk"
QUANTITIES = {
    RISK: "training risk L",
    "train/error": "training error",
    "test/risk": "test risk",
    "test/error": "test error E",
    "val/risk": "validation risk",
    "val/error": "validation error E",
}
SPREADS = (
    "At the last epoch at which all seeds of an arm and of its counterpart were measured. sd: sample standard deviation "
    "over seeds (divisor: seeds − 1). Seeds: how many have a finite number."
)
FEW = (
    f" With fewer than {paired.ENOUGH} pairs it covers the true mean less often: no resample leaves the range of the "
    "differences, and even that whole range is too short."
)
TESTS = (
    "Plain minus residual of the same seed: above zero, the residual net has the smaller value. Interval: 95 % bootstrap "
    "interval of the mean over pairs (expanded percentile; the same 9,999 resamples each time).{few} p values are "
    "two-sided. The paired t test assumes normal differences, Wilcoxon’s signed-rank test only symmetric ones; with n "
    "pairs, Wilcoxon’s p is never below 2^(1−n). A dash: too few pairs for p, or all differences are equal, so that there "
    "is no spread to test against. Several quantities are tested, without correction."
)
OVER_EPOCHS = (
    "Mean of plain minus residual of the same seed: above zero, the residual net has the smaller value. Band: 95 % "
    "bootstrap interval, as in the table below. It is pointwise: among many epochs, it may exclude zero at some by "
    "chance."
)
AT_RISK = (
    "The {error} of each net where its training risk L first falls to a given value (linear between epochs), at 60 values "
    "that all nets of the pair start above and reach; training goes from right to left. Bold: mean over seeds; thin: each "
    "seed. Last panel: mean of plain minus residual of the same seed at equal risk; above zero, the residual net has the "
    "smaller error. Band: 95 % bootstrap interval, as in the table above. It is pointwise: among many risks, it may "
    "exclude zero at some by chance."
)
REPEAT = "{} is one more run of seed {} of {}: only the run that trained longest is counted."
SHOWN = 4  # options that differ
NO_RISK = "No {} at equal training risk for {}: these nets reach no common training risk."


def section(page: PageData) -> Section | None:
    """None without two seeds in any group, unless a run is left out that repeats a seed: nothing to say."""
    if all(len(nets) < 2 for nets in page.groups.values()):
        return Section("seeds", "Over seeds", notices=_to_know_first(page)) if page.repeats else None
    found, notices = pairs(page)
    error = page.held_out.error
    names = RISK, "train/error", page.held_out.risk, error
    at_risk = {pair: errors for pair in found if (errors := _at_risk(pair, error)) is not None}
    blocks: list[Block] = [_spreads(page, found, names)]
    if found:
        blocks += [*_over_epochs(found, (error, RISK)), _tests(found, names)]
    if reached := {pair: errors for pair, errors in at_risk.items() if len(errors.levels)}:
        blocks.append(_error_against_risk(reached, error))
    notices += [NO_RISK.format(QUANTITIES[error], pair.label) for pair in at_risk if pair not in reached]
    return Section("seeds", "Over seeds", blocks=blocks, notices=[*_to_know_first(page), *notices])


def _to_know_first(page: PageData) -> list[str]:
    """Runs that repeat a seed, and groups whose seeds are not equally far or not trained alike."""
    notices = [REPEAT.format(net.label, net.seed, net.group) for net in page.repeats]
    for group, nets in page.groups.items():
        options = [{**training_of(net), **net_of(net)} for net in nets if net.run.config]
        known = set.intersection(*map(set, options)) - set(LIMITS) if options else set()
        if differ := sorted(key for key in known if len({each[key] for each in options}) > 1):
            some = f"{', '.join(differ[:SHOWN])}{', …' * (len(differ) > SHOWN)}"
            notices.append(f"{group}: this mean is over seeds trained with different options: {some}.")
        last = max(net.epoch for net in nets)
        if behind := [f"{net.label} at {net.epoch}" for net in nets if net.epoch < last]:
            notices.append(f"{group}: not all seeds are at epoch {last}: {', '.join(behind)}.")
    return notices


def _titled(name: str, nets: Iterable[PageNet]) -> str:
    """The quantity, with its unit where that is known of these nets."""
    return loss_of(nets).measured(QUANTITIES[name]) if name.endswith("/risk") else QUANTITIES[name]


def _table(nets: Iterable[PageNet], name: str) -> pd.DataFrame:
    """A number by epoch (rows) and net (columns), at the epochs where all were measured."""
    return pd.concat([net.series(name) for net in nets], axis=1, join="inner")


def _spreads(page: PageData, found: Sequence[Pair], names: Sequence[str]) -> Table:
    rows = []
    for group, nets in page.groups.items():
        others = next((pair.nets for pair in found if set(pair.nets) & set(nets)), ())
        for name in names if len(nets) > 1 else ():
            common = _table(dict.fromkeys([*nets, *others]), name)
            if not common.empty:
                its = paired.spread(net.series(name)[common.index[-1]] for net in nets)
                numbers = map(cell, (its.mean, unrounded(its.mean, its.sd), its.min, its.max))
                texts = (Cell(text) for text in (group, _titled(name, nets), joined(common.index[-1:])))
                rows.append([*texts, *numbers, Cell(str(its.count))])
    head = ["arm", "quantity", "epoch", "mean", "sd", "minimum", "maximum", "seeds"]
    return Table(SPREADS, head, rows, title="Spread over seeds")


def _tests(found: Sequence[Pair], names: Sequence[str]) -> Table:
    rows = []
    for pair, name in itertools.product(found, names):
        common = _table(pair.nets, name)
        if not common.empty:
            result = paired.paired(*(side.tolist() for side in np.split(common.iloc[-1].to_numpy(), 2)))
            tests = [result.t_p, result.wilcoxon_p] if result.count >= paired.ENOUGH else [np.nan] * 2
            numbers = (result.mean, result.low, result.high, *tests)
            cells = (cell(None if np.isnan(value) else value) for value in numbers)
            texts = (Cell(text) for text in (pair.label, _titled(name, pair.nets), joined(common.index[-1:])))
            rows.append([*texts, *cells, Cell(str(result.count))])
    head = ["pair", "quantity", "epoch", "difference", "interval from", "to", "p, t test", "p, Wilcoxon", "pairs"]
    few = min(len(pair.seeds) for pair in found) < paired.ENOUGH
    return Table(TESTS.format(few=FEW * few), head, rows, title="Plain minus residual, at the last common epoch")


def _over_epochs(found: Sequence[Pair], names: Sequence[str]) -> list[Figure]:
    """The figure of paired differences; none if neither quantity was measured."""
    looks, panels, rows = styles_of(found), [], []
    for name in names:
        lines = {
            pair: pd.DataFrame(vars(paired.paired_curve(*np.split(common.to_numpy().T, 2))), common.index)
            for pair in found
            if len(common := _table(pair.nets, name))
        }
        if lines:
            title = f"{QUANTITIES[name][0].upper()}{QUANTITIES[name][1:]}, plain − residual"
            key = f"seeds-{name.replace('/', '-')}"
            its = Rows({"name": [name]}, who="pair", y="mean", low="low", high="high")
            panels.append(_difference_panel(key, title, lines, looks, "epoch", its))
            rows += [(epoch, *rest[:1], name, *rest[1:]) for epoch, *rest in _difference_rows(lines)]
    data = csv_text(("epoch", "pair", "name", "mean", "low", "high", "pairs"), rows)
    return [Figure("seeds-difference", OVER_EPOCHS, panels, _legend(looks), data, columns=2)] if panels else []


def _difference_rows(lines: Mapping[Pair, pd.DataFrame]) -> list[tuple]:
    """(epoch or risk, pair, mean, low, high, number of pairs)"""
    return [(x, pair.label, *ends, len(pair.seeds)) for pair, line in lines.items() for x, *ends in line.itertuples()]


def _legend(looks: dict[Pair, Style]) -> list[Entry]:
    return legend((f"{pair.label} ({len(pair.seeds)} pairs)", look) for pair, look in looks.items())


def _difference_panel(
    key: str, title: str, lines: Mapping[Pair, pd.DataFrame], looks: dict[Pair, Style], x: str, rows: Rows | None = None
) -> Panel:
    def draw(axes: Axes) -> None:
        axes.axhline(0, color=INK, linewidth=0.9)
        for pair, line in lines.items():
            filled(axes, line["low"], line["high"], looks[pair])
            curve(axes, line["mean"], looks[pair])

    epochs = x == "epoch"
    return panel(key, title, draw, x=x, y="plain − residual", rows=rows, log_x=not epochs, whole_x=epochs)


def _at_risk(pair: Pair, error: str) -> paired.ErrorAtRisk | None:
    """None where risk or error was not measured."""
    if not all({RISK, error} <= {*net.names} for net in pair.nets):
        return None
    return paired.error_at_risk(
        *([risk_and_error(net, RISK, error) for net in side] for side in (pair.plain, pair.residual))
    )


def _error_against_risk(reached: dict[Pair, paired.ErrorAtRisk], error: str) -> Figure:
    looks, x = styles_of(reached), _titled(RISK, [net for pair in reached for net in pair.nets])
    lines = {pair: pd.DataFrame(vars(errors.difference), errors.levels) for pair, errors in reached.items()}
    panels = []
    for number, (pair, errors) in enumerate(reached.items()):
        title = f"Error against risk{f', {pair.label}' if len(reached) > 1 else ''}"
        draw = partial(_draw_errors, pair=pair, errors=errors)
        panels.append(panel(f"seeds-error-{number}", title, draw, x=x, y=QUANTITIES[error], log_x=True))
    panels.append(_difference_panel("seeds-at-risk", "E at equal risk, plain − residual", lines, looks, x))
    arms = {side[0].group: side[0].style for pair in reached for side in (pair.plain, pair.residual)}
    rows = [
        (net.label, risk, error)
        for pair, errors in reached.items()
        for net, values in zip(pair.nets, (*errors.plain, *errors.residual), strict=True)
        for risk, error in zip(errors.levels, values, strict=True)
    ]
    data, marks = csv_text(("net", "risk", "error"), rows), legend(arms.items()) + _legend(looks)
    more = {"difference": csv_text(("risk", "pair", "mean", "low", "high", "pairs"), _difference_rows(lines))}
    return Figure(
        "seeds-error-at-risk",
        AT_RISK.format(error=QUANTITIES[error]),
        panels,
        marks,
        data,
        columns=2,
        more=more,
    )


def _draw_errors(axes: Axes, pair: Pair, errors: paired.ErrorAtRisk) -> None:
    for (net, *_), values in ((pair.plain, errors.plain), (pair.residual, errors.residual)):
        for seed in values:
            axes.plot(errors.levels, seed, color=net.style.colour, linewidth=0.6, alpha=0.4, gid=net.style.arm)
        curve(axes, pd.Series(values.mean(axis=0), errors.levels), net.style)
