"""Curvature: the spectrum of the Hessian of the risk, plain against residual, as far as a few dozen products tell it."""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lightning_app.plots.drawing import curve, filled, finite, from_zero, group_mean, symmetric_log, with_zero
from lightning_app.report import curvature_density, curvature_layers
from lightning_app.report.blocks import Figure, Panel, Section, csv_text, seeds_csv
from lightning_app.report.curvature_keys import asked_samples, last_epoch, prefixes
from lightning_app.report.curvature_tables import table, tables_of_parts
from lightning_app.report.evidence import Evidence, Net
from lightning_app.report.panels import curves, group_legend, panel

__all__ = ["section"]

TITLE = "Curvature"
WHAT = (
    "Eigenvalues λ of H, the second derivative of the mean loss in all trained parameters: over {samples}, without weight "
    "penalty, BatchNorm with running statistics. H is known by some products H v only (Lanczos), unless the net is so small "
    "that all eigenvalues were computed. Ends and averages of the spectrum come with errors. The share of negative "
    "eigenvalues (λ < 0; the index, over the number of parameters) and the condition number |λ|max / |λ|10 %, with the 10th "
    "percentile of |λ|, lie in an interval: no more follows from so few products, as most eigenvalues are too close to zero "
    "to tell their sign and size. It is widened by two standard errors of the random starts; neither its ends nor its middle "
    "are estimates. Where all eigenvalues were computed both are exact, and |λ| up to 1e-10 of the largest counts as zero."
)
CURVES = ("top1", "bottom1", "trace", "index_low", "index_high", "unresolved", "condition10_low", "condition10_high")
LEADING = "id/leading"
ERRORS = ("top1_residual", "bottom1_residual", "trace_error")
SPREADABLE = ("top1", "bottom1", "trace", LEADING)  # what is a number, and no end of an interval

Pick = Callable[[Net], pd.Series]


def section(evidence: Evidence) -> Section | None:
    """None without a spectrum."""
    found = prefixes(evidence.nets)
    if not found:
        return None
    shown = [_blocks(evidence, prefix, len(found) > 1) for prefix in found]
    return Section("curvature", TITLE, _what(evidence, found), list(chain.from_iterable(shown)))


def _what(evidence: Evidence, found: Sequence[str]) -> str:
    asked = {prefix: " or ".join(map(str, asked_samples(evidence, prefix))) for prefix in found}
    if len(found) == 1:
        return WHAT.format(samples=f"{asked[found[0]]} probe samples".strip())
    each = ", ".join(f"{number or 'some'} for {prefix}" for prefix, number in asked.items())
    return WHAT.format(samples=f"probe samples ({each})")


def _blocks(evidence: Evidence, prefix: str, several: bool) -> list:
    """What is shown of the spectra under one prefix; with its name, if there are ``several``."""
    key = "curvature-" + re.sub(r"\W+", "-", prefix)
    name = f"{prefix}: " if several else ""
    figures = [
        make(evidence, prefix, key, name) for make in (_over_epochs, curvature_density.figure, curvature_layers.figure)
    ]
    blocks = [table(evidence, prefix, prefix if several else ""), *figures, *tables_of_parts(evidence, prefix)]
    return [block for block in blocks if block is not None]


# -- over epochs ----------------------------------------------------------------------------------------------------------


def _over_epochs(evidence: Evidence, prefix: str, key: str, name: str) -> Figure:
    """The ends, trace, index and condition as the nets are trained."""
    drawn = [*CURVES, *([LEADING] if _measured(evidence, f"{prefix}/{LEADING}") else [])]
    panels = [
        _ends_panel(evidence, prefix, key, name),
        _trace_panel(evidence, prefix, key, name),
        _index_panel(evidence, prefix, key, name),
        _condition_panel(evidence, prefix, key, name),
        *([_leading_panel(evidence, prefix, key, name)] if LEADING in drawn else []),
    ]
    data = csv_text(("net", "name", "epoch", "value"), evidence.rows(f"{prefix}/{each}" for each in (*drawn, *ERRORS)))
    more = seeds_csv(evidence.spreads(f"{prefix}/{each}" for each in SPREADABLE if each in drawn))
    caption = name + " ".join(_said(evidence, prefix))
    return Figure(f"{key}-curves", caption, panels, group_legend(evidence), data, more=more)


def _measured(evidence: Evidence, name: str) -> bool:
    return any(name in net.names for net in evidence.nets)


def _said(evidence: Evidence, prefix: str) -> list[str]:
    """The caption's sentences: convention first, then what these runs leave open."""
    says = [
        "Largest eigenvalue above zero, most negative one below, as found by Lanczos, which never finds values beyond the "
        "true ends.",
        "Shaded: the norm of the residual, and of the trace one standard error.",
        "Index and condition number lie between the two lines. Eigenvalues, trace and index are drawn on logarithmic axes "
        "where they span more than a decade, linear ones next to zero; the condition number always.",
    ]
    if any(len(nets) > 1 for nets in evidence.groups.values()):
        says.append(
            "Of several seeds a band is of the seeds, as the legend says, without the errors of each; an interval runs from "
            "the mean lower to the mean upper end, thin lines are the outermost ends of any seed."
        )
    if shares := _by_group(evidence, lambda net: net.at(f"{prefix}/unresolved", last_epoch(net, prefix))):
        says.append(f"Share of eigenvalues whose sign is unresolved at the last epoch: {shares}.")
    if endless := [text for group, nets in evidence.groups.items() if (text := _endless(group, nets, prefix))]:
        says.append(
            f"No finite upper end of the condition number, because the percentile may be 0, and drawn to the top of the axes: "
            f"{', '.join(endless)}."
        )
    return says


def _by_group(evidence: Evidence, pick: Callable[[Net], float | None]) -> str:
    """Of each group, from the smallest to the largest over its seeds."""
    found = {group: [x for net in nets if (x := pick(net)) is not None] for group, nets in evidence.groups.items()}
    ranges = {
        group: sorted({f"{x:.4g}" for x in (min(values), max(values))}) for group, values in found.items() if values
    }
    return ", ".join(f"{group} {' to '.join(ends)}" for group, ends in ranges.items())


def _endless(group: str, nets: Sequence[Net], prefix: str) -> str:
    highs = pd.concat([net.series(f"{prefix}/condition10_high") for net in nets])
    endless = int(np.isposinf(highs.to_numpy(float)).sum())
    return f"{group} ({endless} of {len(highs)} spectra)" if endless else ""


def _ends_panel(evidence: Evidence, prefix: str, key: str, name: str) -> Panel:
    def draw(axes: Axes) -> None:
        for end in ("top1", "bottom1"):
            _with_error(axes, evidence, f"{prefix}/{end}", f"{prefix}/{end}_residual")
        with_zero(axes)
        _wide(axes, evidence, [f"{prefix}/{end}" for end in ("top1", "bottom1")])

    return panel(f"{key}-ends", f"{name}Largest and smallest λ", draw, x="epoch", y="eigenvalue λ", whole_x=True)


def _trace_panel(evidence: Evidence, prefix: str, key: str, name: str) -> Panel:
    def draw(axes: Axes) -> None:
        _with_error(axes, evidence, f"{prefix}/trace", f"{prefix}/trace_error")
        _wide(axes, evidence, [f"{prefix}/trace"])

    return panel(f"{key}-trace", f"{name}Trace", draw, x="epoch", y="trace of H", whole_x=True)


def _with_error(axes: Axes, evidence: Evidence, value: str, error: str) -> None:
    """Curves, and around those of single nets what each value may be off."""
    curves(axes, evidence.groups.values(), _series(value))
    for nets in evidence.groups.values():
        if len(nets) == 1:
            line, off = (finite(nets[0].series(each)) for each in (value, error))
            filled(axes, line - off, line + off, nets[0].style)


def _series(name: str) -> Pick:
    return lambda net: net.series(name)


def _wide(axes: Axes, evidence: Evidence, names: Iterable[str]) -> None:
    symmetric_log(axes.yaxis, chain.from_iterable(net.series(name) for name in names for net in evidence.nets))


def _index_panel(evidence: Evidence, prefix: str, key: str, name: str) -> Panel:
    def draw(axes: Axes) -> None:
        _intervals(axes, evidence, f"{prefix}/index", 1.0)
        _wide(axes, evidence, [f"{prefix}/index_{end}" for end in ("low", "high")])
        if axes.get_yscale() == "linear":
            from_zero(axes)

    title = f"{name}Share of negative λ: interval"
    return panel(f"{key}-index", title, draw, x="epoch", y="share of eigenvalues", whole_x=True)


def _condition_panel(evidence: Evidence, prefix: str, key: str, name: str) -> Panel:
    low, high = (_all(evidence, f"{prefix}/condition10_{end}") for end in ("low", "high"))
    top = 10 * max(chain(low, high), default=1.0)

    def draw(axes: Axes) -> None:
        _intervals(axes, evidence, f"{prefix}/condition10", top)
        axes.set_ylim(min(low, default=1.0) / 2, top)

    title = f"{name}|λ|max / |λ|10 %: interval"
    return panel(f"{key}-condition", title, draw, x="epoch", y="condition number", log_y=True, whole_x=True)


def _all(evidence: Evidence, name: str) -> list[float]:
    """All finite values, positive as the axis needs them."""
    return [x for net in evidence.nets for x in net.series(name) if np.isfinite(x) and x > 0]


def _intervals(axes: Axes, evidence: Evidence, name: str, top: float) -> None:
    """The area from <name>_low to <name>_high; to ``top`` where the upper end is infinite."""
    for nets in evidence.groups.values():
        lows, highs = ([line for net in nets if len(line := net.series(f"{name}_{end}"))] for end in ("low", "high"))
        if not lows or not highs:
            continue
        style, low, high = nets[0].style, group_mean(lows), group_mean(highs)
        filled(axes, finite(low), high.clip(upper=top), style)
        for ends, outermost in ((lows, "min"), (highs, "max")):
            seeds = pd.concat(ends, axis=1, join="inner")
            curve(axes, finite(group_mean(ends)), style)
            if len(ends) > 1:
                line = finite(seeds.agg(outermost, axis=1))
                axes.plot(line.index, line, color=style.colour, linewidth=0.7, alpha=0.6)


def _leading_panel(evidence: Evidence, prefix: str, key: str, name: str) -> Panel:
    def draw(axes: Axes) -> None:
        curves(axes, evidence.groups.values(), _series(f"{prefix}/{LEADING}"))
        from_zero(axes)

    title = f"{name}Leading eigenvector on ID entries"
    return panel(f"{key}-id", title, draw, x="epoch", y="share of its square", whole_x=True)
