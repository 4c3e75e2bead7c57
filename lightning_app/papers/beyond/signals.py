"""Signals by layer in plain, residual and full nets of depths 20 to 110, at initialisation and after some steps.

Predicted before any run. Without normalisation a mean square follows `lightning_app.measures.signal.expected`: flat up to what
zero padding takes where the gain is right (KWI), exponential in the depth where it is not. A residual net in the paper's
initialisation (HMWI) has branches that are small against the stream, and is flat; with KWI each block adds E z^2 = 2 E x^2
before its ReLU, so that the stream grows by a factor between 2 and 3 a block. With BatchNorm and ReLU plain nets have gradients
whose mean square grows by pi / (pi - 1) a layer backwards (Yang et al. 2019, in the limit of wide nets and large batches), while
a block of a residual net adds to a stream that has grown already. Gradients of neighbouring inputs lose their correlation in
plain nets, and much less so in residual ones (Balduzzi et al. 2017).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from lightning_app.common.late import F, Tensor, nn, torch
from lightning_app.papers.parts import Arrays, Artefact, Computation, seed_by_seed
from lightning_app.papers.predicates import Within, above, at_least, at_most, predicted, shown
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Basis, Claim, Class, Sample
from lightning_app.plots import figures

KINDS = {  # name -> words, colour
    "plain": ("plain, KWI", "plain-0"),
    "plain-small": ("plain, KWI / √2", "plain-1"),
    "residual": ("residual, HMWI", "residual-0"),
    "residual-kwi": ("residual, KWI", "residual-2"),
    "full-plain": ("full plain, BatchNorm", "other-0"),
    "full-residual": ("full residual, BatchNorm", "other-1"),
}
DEPTHS = (20, 56, 110)
SEEDS, BATCH, STEPS, POINTS = 3, 32, 16, 32
FIELDS = ("activation", "gradient")
UNTRAINED = ("residual-kwi",)  # its logits are far from any label: nothing but overflow is to be expected of steps
CLOSED = ("plain", "plain-small")
BN_GROWTH = math.log(math.pi / (math.pi - 1))


@seed_by_seed
def profiles(kind: str, depth: int, batch: int, steps: int, points: int) -> dict[str, Any]:
    """Of nets on the embedded digits, by seed: what `signal_claims` compares.

    ``activation``, ``gradient``: (seeds, 2, layers), in the first step and in the last, after so many with the paper's optimizer.
    ``..._expected``: (seeds, layers), their closed forms at initialisation, NaN where there is none. ``neighbours``: (seeds,),
    mean cosine of gradients of the first logit in neighbouring inputs, on a line between two images.
    """
    from lightning_app.measures.signal import SignalWatch, expected, profile
    from lightning_app.networks import CifarResNet, SimplifiedNet, layers_of

    residual, full = "residual" in kind, "full" in kind
    init: Literal["kwi"] | None = None if kind == "residual" else "kwi"
    net = CifarResNet(depth, residual) if full else SimplifiedNet(depth, residual, init=init)
    if kind == "plain-small":
        for layer in layers_of(net)[1:-1]:
            layer.weight.data /= math.sqrt(2)
    images, labels = _digits(batch * (steps + 1))
    optimizer, found = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9), []
    neighbours = _neighbours(net, images[:2], points)
    lines: dict[str, float] = {}
    for step in range(steps + 1):
        watch = SignalWatch(net) if step in (0, steps) else None
        rows = slice(step * batch, (step + 1) * batch)
        optimizer.zero_grad()
        F.cross_entropy(net(images[rows]), labels[rows]).backward()
        optimizer.step()
        if watch:
            found.append(profile(watch.stop()))
            lines = lines or expected(net, found[0], images.shape[1:])

    def by_layer(numbers: Mapping[str, float], key: str) -> list[float]:
        return [numbers.get(f"{layer.name}/{key}", math.nan) for layer in layers_of(net)]

    measured = {field: [by_layer(at, field) for at in (found[0], found[-1])] for field in FIELDS}
    closed = {f"{field}_expected": by_layer(lines, f"{field}_expected") for field in FIELDS}
    return {**measured, **closed, "neighbours": neighbours}


def _digits(count: int) -> tuple[Tensor, Tensor]:
    """So many training images, normalised, (count, 3, 32, 32), drawn from the present random state; with labels."""
    from lightning_app.datamodules import Digits

    splits = Digits().load()
    chosen = torch.randperm(len(splits.train_labels))[:count]
    images = splits.train_images[chosen].permute(0, 3, 1, 2).float() / 255
    return (images - images.mean()) / images.std(), splits.train_labels[chosen]


def _neighbours(net: "nn.Module", ends: Tensor, points: int) -> float:
    """Mean cosine of the gradients of the first logit in neighbouring inputs, of so many on the line between two images."""
    line = torch.linspace(0, 1, points)[:, None, None, None]
    inputs = ((1 - line) * ends[0] + line * ends[1]).requires_grad_()
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    (gradients,) = torch.autograd.grad(net(inputs)[:, 0].sum(), inputs)
    for name, buffer in net.named_buffers():
        buffer.copy_(buffers[name])
    flat = gradients.flatten(1).double()
    flat = flat / flat.norm(dim=1, keepdim=True)  # before products of what may be very small
    return float(F.cosine_similarity(flat[1:], flat[:-1]).mean())


ASKED = {"batch": BATCH, "points": POINTS, "seeds": SEEDS}
PIECES = {
    f"{kind}-{depth}": {"kind": kind, "depth": depth, "steps": 0 if kind in UNTRAINED else STEPS, **ASKED}
    for depth in DEPTHS
    for kind in KINDS
}
PROFILES = Computation("signal-profiles", profiles, PIECES, precision="float32")


def groups(depth: int) -> list[slice]:
    """The layers of each group of blocks, which have maps of one size, but the first of each, which changes it.

    >>> groups(8)
    [slice(2, 3, None), slice(4, 5, None), slice(6, 7, None)]
    """
    size = (depth - 2) // 3
    return [slice(1 + number * size + 1, 1 + (number + 1) * size) for number in range(3)]


def growth(rows: np.ndarray, depth: int) -> np.ndarray:
    """Of root mean squares by layer, (seeds, layers): how the log of the mean square grows a layer, (seeds,).

    The slope of a line fitted to each group, and the mean over the groups.
    """
    found = []
    for group in groups(depth):
        layers = np.arange(group.start, group.stop)
        found.append([np.polyfit(layers, 2 * np.log(row[group]), 1)[0] for row in rows])
    return np.mean(found, axis=0)


def _off(arrays: Arrays, depth: int, field: str, layer: int) -> np.ndarray:
    """Log of the mean square over its closed form, per layer passed, (seeds,)."""
    return 2 * np.log(arrays[field][:, 0, layer] / arrays[f"{field}_expected"][:, layer]) / (depth - 2)


def _largest_ratio(arrays: Arrays, depth: int, at: int) -> np.ndarray:
    """Of gradients of the layers of one group, largest over smallest root mean square; the largest of the groups, (seeds,)."""
    rows = arrays["gradient"][:, at]
    return np.max([rows[:, group].max(axis=1) / rows[:, group].min(axis=1) for group in groups(depth)], axis=0)


def signal_claims(results: Results) -> list[Claim]:
    """No sentence of a paper: see the module's docstring for where each prediction comes from. Readings are nets."""

    def of(value: Callable[..., np.ndarray], *kinds: str, depths: Sequence[int] = DEPTHS) -> dict[str, Sample]:
        return {
            f"{KINDS[kind][0]}, depth {depth}": results.of(PROFILES, partial(value, depth=depth), f"{kind}-{depth}")
            for kind in kinds
            for depth in depths
        }

    def apart(one: str, other: str) -> dict[str, Sample]:
        cosines = ([results.of(PROFILES, "neighbours", f"{kind}-{depth}") for depth in DEPTHS] for kind in (one, other))
        return {f"depth {depth}": a - b for depth, a, b in zip(DEPTHS, *cosines)}

    def rate(field: str, at: int = 0, sign: int = 1) -> Callable[..., np.ndarray]:
        return lambda arrays, depth: sign * growth(arrays[field][:, at], depth)

    def change(arrays: Arrays, depth: int) -> np.ndarray:
        return growth(arrays["activation"][:, 1], depth) - growth(arrays["activation"][:, 0], depth)

    deep, trained, later = DEPTHS[1:], Class.TRAINED, f"after {STEPS} steps"
    forwards, backwards = (partial(_off, field=f, layer=at) for f, at in (("activation", -2), ("gradient", 0)))
    before, after = (partial(_largest_ratio, at=at) for at in (0, 1))
    near = Within(0.0, 0.05, "of the log, where a gain off by 10 % makes 0.19")
    halves = at_most(-0.5, each=True, note="exponential: half of the mean square is lost in each layer, ln 2 = 0.69")
    bn = Within(BN_GROWTH, 0.12, "ln π/(π - 1)")
    factors = Within((math.log(2) + math.log(3)) / 2, 0.3, "a factor between 2 and 3")
    up, back = "growth of ln E z² a layer", "growth of ln E (dL/dz)² a layer backwards"
    ratio = "gradients within a group of residual blocks, largest over smallest"
    cosine = "cosine of gradients in neighbouring inputs"
    off = "over its closed form, a layer"
    backward_rate, small = rate("gradient", 0, -1), at_most(0.1, each=True)
    uncured = at_least(0.2, note="training has not cured it")
    still_growing = of(rate("gradient", 1, -1), "full-plain", depths=deep)
    changed = of(change, "plain-small", depths=deep)
    cosines = of(lambda arrays, depth: arrays["neighbours"], *KINDS)
    return [
        predicted(f"ln of E z² {off}, at the last convolution", near, of(forwards, *CLOSED, "residual")),
        predicted(f"ln of E (dL/dz)² {off}, at the first convolution", near, of(backwards, *CLOSED)),
        predicted(f"{up}, right gain", Within(0.0, 0.2), of(rate("activation"), "plain")),
        predicted(f"{up}, gain too small by √2", halves, of(rate("activation"), "plain-small")),
        predicted(f"{back}, gain too small by √2", halves, of(backward_rate, "plain-small")),
        predicted(ratio, at_most(2, each=True, note="flat"), of(before, "residual")),
        predicted(f"{up}, residual nets with KWI", factors, of(rate("activation"), "residual-kwi")),
        predicted(f"{back}, plain nets with BatchNorm", bn, of(backward_rate, "full-plain", depths=deep)),
        predicted(f"{back}, residual nets with BatchNorm", small, of(backward_rate, "full-residual", depths=deep)),
        predicted(f"{cosine}, residual minus plain", above(0, each=True), apart("residual", "plain")),
        predicted(f"{cosine}, the same with BatchNorm", above(0, each=True), apart("full-residual", "full-plain")),
        shown(cosine, "", "it depends on how near they are", cosines, basis=Basis.OURS),
        predicted(f"{ratio}, {later}", at_most(3, each=True, note="still flat"), of(after, "residual"), about=trained),
        predicted(f"{back}, plain nets with BatchNorm, {later}", uncured, still_growing, about=trained),
        predicted(f"{up}, gain too small by √2: change in {STEPS} steps", Within(0.0, 0.05), changed, about=trained),
    ]


def draw_signals(results: Results) -> figures.Figure:
    """Forward and backward profiles by layer, seed by seed, a row a depth; closed forms dashed."""
    times = [("activation", 0, "RMS of z, initialisation"), ("gradient", 0, "RMS of dL/dz, initialisation")]
    times += [("gradient", 1, f"RMS of dL/dz, after {STEPS} steps")]
    figure, grid = figures.canvas(len(DEPTHS), len(times))
    for depth, row in zip(DEPTHS, grid):
        for axes, (field, at, title) in zip(row, times):
            for kind, (words, shade) in KINDS.items():
                arrays = results.computed(PROFILES).get(f"{kind}-{depth}")
                if not arrays:
                    continue
                layers, colour = np.arange(1, arrays[field].shape[-1]), figures.COLOURS[shade][0]
                figures.key(axes, words, color=colour)  # the legend is of all, trained or not
                if at and kind in UNTRAINED:
                    continue
                for profile in arrays[field][:, at, :-1]:
                    axes.plot(layers, profile, color=colour, linewidth=0.9)
                if not at:
                    for line in arrays[f"{field}_expected"][:1, :-1]:
                        axes.plot(layers, line, color=figures.INK, linestyle="--", linewidth=0.8)
            axes.set(title=f"depth {depth}: {title}", xlabel="layer", yscale="log")
    figures.key(grid[0, -1], "closed form", linestyle="--", linewidth=0.8)
    figures.legend(grid[0, -1], beside=True)
    return figure


SIGNALS = Artefact(
    "signals",
    "signals are flat or exponential in the depth as theory says: plain, residual and full nets of depths 20 to 110",
    signal_claims,
    f"`SimplifiedNet` and `CifarResNet` on the embedded digits, enlarged to 32 x 32, {BATCH} a step, {SEEDS} seeds; SGD with "
    "learning rate 0.01 and momentum 0.9. z is what a convolution puts out, L each sample's loss, E the mean over samples, units "
    "and places. A growth is of a line fitted to ln E in each group of blocks but its first layer, and the mean of the three. "
    f"Neighbours: gradients of the first logit in {POINTS} inputs on the line between two images. Dashed: closed forms.",
    draw_signals,
    computations=(PROFILES,),
    about=Class.INITIALISATION,
)
