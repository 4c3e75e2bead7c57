"""The figures of docs/findings.md, from the evidence in results/findings: `python docs/findings_figures.py [NAME ...]`."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lightning_app.common.safe_io import read_npz
from lightning_app.papers.findings import common_depth, modern, necessary_depth, normalised, notation, shortcut_length
from lightning_app.papers.parts import Arrays, Computation
from lightning_app.plots import figures
from lightning_app.plots.style import UNDATED

ROOT = Path(__file__).resolve().parents[1]
PIECES, HERE = ROOT / "results/findings/pieces", ROOT / "docs/findings"
SHADES = ("plain-0", "plain-1", "other-0", "other-1", "residual-1", "residual-0")


def pieces(of: Computation) -> Mapping[str, Arrays]:
    files = {piece: PIECES / of.name / f"{piece}.npz" for piece in of.pieces}
    return {piece: read_npz(file) for piece, file in files.items() if file.exists()}


def colour(number: int) -> str:
    return figures.COLOURS[SHADES[number]][0]


def same_function(way: str) -> figures.Figure:
    """The change of every measure, largest over nets and seeds after training."""
    figure, ((axes,),) = figures.canvas()
    figure.set_size_inches(6.5, 4.6)
    there = pieces(notation.CHANGES)
    of = [piece for piece, (_, of_piece) in notation.PAIRS.items() if of_piece == way]
    for row, words in enumerate(notation.MEASURES):
        of_depth = "depth" in words  # of a plain net it is the number of layers
        values = np.concatenate([there[piece][words][:, -1] for piece in of if not (of_depth and "plain" in piece)])
        values = np.clip(values[np.isfinite(values)], notation.FLOOR, None)
        changed = len(values) and values.max() > notation.SAME
        axes.plot(values, np.full(len(values), row), ".", color=figures.colour("plain" if changed else "residual"))
    axes.set(xscale="log", xlim=(notation.FLOOR / 2, 2), xlabel="relative change")
    axes.set_yticks(range(len(notation.MEASURES)), [*notation.MEASURES], fontsize=7)
    axes.invert_yaxis()
    return figure


def draw_twins() -> figures.Figure:
    return same_function(notation.T)


def draw_absorbed() -> figures.Figure:
    return same_function(notation.FOLDED)


def draw_cushions() -> figures.Figure:
    """mu against eps of blocks of one convolution, after training; with skip dashed."""
    figure, ((axes,),) = figures.canvas()
    there = pieces(normalised.CUSHIONS)
    for number, kind in enumerate(normalised.NORMS):
        for skip, dash in ((False, "-"), (True, "--")):
            values = np.median(there[normalised.piece_of(kind, 1, skip)]["cushion"][:, 1], axis=0)
            axes.plot(normalised.LEVELS, values, dash, color=colour(number), label=None if skip else kind)
    axes.set(xscale="log", yscale="log", xlabel="eps of the normalisation", ylabel="cushion of the block")
    figures.legend(axes, beside=True)
    return figure


def draw_modern() -> figures.Figure:
    """mu against eps of the branches of ViT and ConvNeXt, before and after training; with skip dashed."""
    figure, (grid,) = figures.canvas(1, 2, sharey=True)
    there = pieces(modern.MODERN_CUSHIONS)
    for time, axes in enumerate(grid):
        for number, (name, piece) in enumerate(modern.BRANCHES.items()):
            for words, dash in (("without skip", "-"), ("with skip", "--")):
                values = np.median(there[piece][f"{name}, {words}, cushion"][:, time], axis=0)
                axes.plot(modern.LEVELS, values, dash, color=colour(2 * number), label=name if dash == "-" else None)
        axes.set(xscale="log", yscale="log", xlabel="eps of the LayerNorm", title=normalised.TIMES[time])
    grid[0].set_ylabel("cushion of the branch")
    figures.legend(grid[-1], beside=True)
    return figure


def draw_starts() -> figures.Figure:
    """Loss left against the start, a line each shortcut length, at the largest depth."""
    figure, ((axes,),) = figures.canvas()
    depth, there = shortcut_length.DEPTHS[-1], pieces(shortcut_length.PHASES)
    for number, n in enumerate(shortcut_length.LENGTHS):
        arrays = there[shortcut_length.piece_of(n, depth)]
        left = np.median(arrays["remaining"][:, :, -1], axis=0)
        left = np.where(np.isfinite(left), np.clip(left, 1e-8, None), np.nan)
        axes.plot(arrays["starts"], left, color=colour((0, 1, 4, 5)[number]), label=f"around {n}")
    axes.axhline(shortcut_length.TRAINED, color=figures.INK, linewidth=0.8)
    axes.set(xscale="log", yscale="log", ylim=(5e-9, 1e2), xlabel="start, times Xavier", ylabel="loss left")
    axes.set_title(f"shortcuts in linear nets, depth {depth}")
    figures.legend(axes, beside=True)
    return figure


def draw_largest_start() -> figures.Figure:
    """The largest start that trains against the number of units, with the predicted slopes dotted."""
    figure, ((axes,),) = figures.canvas()
    there = pieces(shortcut_length.PHASES)
    for number, n in enumerate(shortcut_length.LENGTHS):
        units = np.array(shortcut_length.DEPTHS) / n
        edges = [shortcut_length.edge(there[shortcut_length.piece_of(n, d)], 1) for d in shortcut_length.DEPTHS]
        sizes = np.exp(np.log(edges).mean(1))
        shade = colour((0, 1, 4, 5)[number])
        axes.plot(units, sizes, "o-", color=shade, label=f"around {n}")
        axes.plot(units, sizes[0] * (units / units[0]) ** (-1 / (2 * n)), ":", color=shade)
    axes.set(xscale="log", yscale="log", xlabel="units", ylabel="largest start that trains")
    figures.legend(axes, beside=True)
    return figure


def draw_laws() -> figures.Figure:
    """Mean path length before training, and three laws for it."""
    figure, ((axes,),) = figures.canvas()
    sizes = np.geomspace(min(common_depth.STARTS), max(common_depth.STARTS), 60)
    for number, (words, law) in zip((5, 0, 2), common_depth.LAWS.items()):
        axes.plot(sizes, [law(size) / common_depth.BLOCKS for size in sizes], color=colour(number), label=words)
    there = pieces(common_depth.FROM_STARTS)
    for data, marker in zip(common_depth.DATA, "osd"):
        depth = there[common_depth.piece_of(data, "without normalisation", "Adam")]["effective"][:, :, 0].mean(0)
        axes.plot(common_depth.STARTS, depth, marker, color=figures.INK, label=data, markersize=4)
    axes.set(xscale="log", xlabel="size of the branches", ylabel="mean path length / longest")
    figures.legend(axes, beside=True)
    return figure


def approach(words: str) -> figures.Figure:
    """Mean path length by share of the training with Adam, a line each start."""
    figure, (row,) = figures.canvas(1, len(common_depth.DATA), sharey=True)
    there = pieces(common_depth.FROM_STARTS)
    for axes, data in zip(row, common_depth.DATA):
        if arrays := there.get(common_depth.piece_of(data, words, "Adam")):
            for number, start in enumerate(common_depth.STARTS):
                axes.plot(arrays["effective"][:, number].mean(0), color=colour(number), label=f"start {start:.3g}")
        axes.set(title=f"{data}, {words}", xlabel="share of the training", ylim=(0, 0.75))
        axes.set_xticks(range(len(common_depth.SHARES)), ["0", "1/64", "1/16", "1/4", "1/2", "1"])
    row[0].set_ylabel("mean path length / longest")
    figures.legend(row[-1], beside=True)
    return figure


def draw_approach() -> figures.Figure:
    return approach("without normalisation")


def draw_approach_batchnorm() -> figures.Figure:
    return approach("with BatchNorm")


def draw_necessary_depth() -> figures.Figure:
    """Effective depth and what two lesions say, against the steps that the task takes; means and ranges over seeds."""
    figure, ((axes,),) = figures.canvas()
    there = [*pieces(necessary_depth.LESIONS).values()]
    shown = {"effective": "effective depth", "lesion": "paths needed up to", "needed": "blocks needed"}
    for number, (name, words) in zip((5, 0, 2), shown.items()):
        values = np.concatenate([necessary_depth.NUMBERS[name](arrays) for arrays in there])
        axes.plot(necessary_depth.STEPS, values.mean(0), "o-", color=colour(number), label=words)
        axes.fill_between(necessary_depth.STEPS, values.min(0), values.max(0), color=colour(number), alpha=0.15)
    axes.set(xticks=necessary_depth.STEPS, ylim=(0, 5.5), xlabel="steps of the task", ylabel="layers or blocks")
    figures.legend(axes, beside=True)
    return figure


DRAWN = {
    name.removeprefix("draw_").replace("_", "-"): drawn
    for name, drawn in [*globals().items()]
    if re.match("draw_", name)
}

if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for name in sys.argv[1:] or DRAWN:
        with figures.styled():
            DRAWN[name]().savefig(HERE / f"{name}.png", dpi=84, metadata=UNDATED["png"])
