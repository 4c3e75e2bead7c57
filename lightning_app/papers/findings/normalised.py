"""Cushions of blocks that end in a normalisation: what is left of them is the normalisation's eps.

A block that does not see the scale of its input, f(t x) = f(x), has J x = 0 (Euler), so that its interlayer cushion
mu = sqrt(n) ||J x|| / (||J||_F ||x||) is zero: "infinitely sensitive to noise", whatever its weights. A convolution
without bias and a normalisation of each sample by itself is such a block, but for the eps in the root: LayerNorm,
GroupNorm, InstanceNorm and RMSNorm in training and evaluation alike, BatchNorm on a batch of one (where it is
InstanceNorm), in which Yu & Tomasi (2019) see 2.7e-7 for plain blocks. With a skip J x = x + (what is zero).

Predicted before any run: without skips mu is proportional to eps; where two normalisations without shifts follow each
other, as in blocks of two convolutions before training, and with RMSNorm after it, each takes a factor eps. With
skips mu depends on eps not at all. BatchNorm with running statistics has nothing of it. The response to noise that is
really injected, relative to the noise, sees no eps either.
"""

import copy
import math
from collections.abc import Callable
from functools import partial
from operator import add
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lightning_app.common.late import F, Tensor, nn, torch
from lightning_app.papers.findings.nets import digits, train
from lightning_app.papers.parts import Artefact, Computation, seed_by_seed
from lightning_app.papers.predicates import Within, above, at_most, predicted
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Class, Sample
from lightning_app.plots import figures

CHANNELS, SIZE, BLOCKS, GROUPS = 16, 8, 3, 4
NORMS = ("LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm", "BatchNorm of one", "BatchNorm")
SCALE_FREE = NORMS[:-1]
LEVELS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
USUAL = 2  # index of the eps that nets have
NOISE, DRAWS, PROBES = 0.01, 8, 64
TIMES = ("before training", "after training")


def _norm(kind: str) -> "nn.Module":
    shape = [CHANNELS, SIZE, SIZE]
    return {
        "LayerNorm": lambda: nn.LayerNorm(shape),
        "GroupNorm": lambda: nn.GroupNorm(GROUPS, CHANNELS),
        "InstanceNorm": lambda: nn.InstanceNorm2d(CHANNELS, affine=True),
        "RMSNorm": lambda: nn.RMSNorm(shape, eps=1e-5),
    }.get(kind, lambda: nn.BatchNorm2d(CHANNELS))()


def _block(kind: str, convolutions: int, skip: bool) -> "nn.Module":
    """relu(norm(conv(relu(norm(conv(x))))) + x), or with one convolution, or without the skip."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(
                nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False) for _ in range(convolutions)
            )
            self.norms = nn.ModuleList(_norm(kind) for _ in range(convolutions))

        def forward(self, x: Tensor) -> Tensor:
            out = x
            for number, (conv, norm) in enumerate(zip(self.convs, self.norms)):
                out = norm(conv(F.relu(out) if number else out))
            return F.relu(out + x if skip else out)

    return Block()


@seed_by_seed
def cushions(
    kind: str, convolutions: int, skip: bool, epochs: int, samples: int, limit: int | None
) -> dict[str, list[list[float]]]:
    """Of the last block of a small net on the embedded digits, 8 x 8, medians over samples, (seeds, 2, levels of eps).

    ``cushion``: mu with n = C H W, ||J||_F by probes. ``response``: the output's relative change by Gaussian noise of 1 % of
    the input's norm, over that 1 %. The second axis: before and after training, which uses the usual eps.
    """
    blocks = [_block(kind, convolutions, skip) for _ in range(BLOCKS)]
    stem = [nn.Conv2d(3, CHANNELS, 3, padding=1), nn.ReLU()]
    net = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 10))
    images, labels = digits(limit, SIZE)
    if kind == "BatchNorm":
        net(images)  # so that its running statistics are not those of no data, before training
    found: dict[str, list[list[float]]] = {"cushion": [], "response": []}
    for passes in (0, epochs):
        train(net, images, labels, passes, rate=0.05)
        few = images[:samples].double()
        measured = [_of_block(copy.deepcopy(net).double(), kind, level, few) for level in LEVELS]
        for name, values in zip(found, zip(*measured)):
            found[name].append([*values])
    return found


def _of_block(net: Any, kind: str, eps: float, images: Tensor) -> tuple[float, float]:
    for block in net[2 : 2 + BLOCKS]:
        if kind == "BatchNorm of one":
            block.norms = nn.ModuleList(map(_alone, block.norms))
        for norm in block.norms:
            norm.eps = eps
    *before, block = net[: 2 + BLOCKS]
    with torch.no_grad():
        return of_block(block, nn.Sequential(*before)(images))


def of_block(block: Callable[[Tensor], Tensor], x: Tensor) -> tuple[float, float]:
    """Cushion mu and response of a block at inputs (samples, ...), medians."""
    from lightning_app.measures.noise_stability.jacobian import frobenius_by_probes, push

    with torch.no_grad():
        out, tangent = torch.func.jvp(block, (x,), (x,))[:2]
        generator = torch.Generator().manual_seed(0)  # the same probes and noise for every eps
        jacobian = frobenius_by_probes(lambda v: push(block, x, v)[1], x, PROBES, generator).norm
        size = x.flatten(1).norm(dim=1)
        mu = math.sqrt(x[0].numel()) * tangent.flatten(1).norm(dim=1) / (jacobian * size)
        noise = torch.randn((DRAWS, *x.shape), dtype=x.dtype, generator=generator)
        noise *= NOISE * (size / noise.flatten(2).norm(dim=2)).view(DRAWS, -1, *[1] * (x.ndim - 1))
        moved = torch.stack([(block(x + each) - out).flatten(1).norm(dim=1) for each in noise]).mean(0)
        response = moved / out.flatten(1).norm(dim=1) / NOISE
    return float(mu.median()), float(response.median())


def _alone(norm: Any) -> "nn.Module":
    """BatchNorm in training mode on each sample alone: its statistics over that sample's places."""
    alone = nn.InstanceNorm2d(CHANNELS, affine=True, dtype=norm.weight.dtype)
    alone.load_state_dict({"weight": norm.weight, "bias": norm.bias})
    return alone


def piece_of(kind: str, convolutions: int, skip: bool) -> str:
    return f"{kind.lower().replace(' ', '-')}-{convolutions}-{'skip' if skip else 'plain'}"


ASKED = {"epochs": 3, "samples": 16, "limit": None, "seeds": 3}
PIECES = {
    piece_of(kind, convolutions, skip): {"kind": kind, "convolutions": convolutions, "skip": skip, **ASKED}
    for kind in NORMS
    for convolutions in (1, 2)
    for skip in (False, True)
}
CUSHIONS = Computation("cushions-by-eps", cushions, PIECES)


def slope(rows: np.ndarray) -> np.ndarray:
    """d ln y / d ln eps of each row, (..., levels) -> (...).

    >>> slope(np.array([LEVELS, [1.0] * 5])).round(12).tolist()
    [1.0, 0.0]
    """
    return np.polyfit(np.log(LEVELS), np.log(np.atleast_2d(rows)).T, 1)[0]


def _factors(kind: str, convolutions: int, time: int) -> int:
    """How many normalisations take a factor eps: all that follow each other without a shift, which training gives to most."""
    return convolutions if time == 0 or kind == "RMSNorm" else 1


def normalised_claims(results: Results) -> list[Claim]:
    """No sentence of a paper; see the module's docstring for where the predictions come from."""

    def of(
        value: Callable[..., Any], time: int, convolutions: int, *skips: bool, kinds: tuple[str, ...] = SCALE_FREE
    ) -> dict[str, Sample]:
        return {
            kind: results.of(
                CUSHIONS,
                lambda *all_: value(
                    *({name: arrays[name][:, time] for name in ("cushion", "response")} for arrays in all_)
                ),
                *(piece_of(kind, convolutions, skip) for skip in skips),
            )
            for kind in kinds
        }

    def over(name: str) -> Callable[..., Any]:
        return lambda one, other: one[name][:, USUAL] / other[name][:, USUAL]

    def exponent(name: str) -> Callable[..., Any]:
        return lambda arrays: slope(arrays[name])

    claims = []
    for convolutions, words in ((1, "one convolution"), (2, "two convolutions")):
        for time, (when, about) in enumerate(zip(TIMES, (Class.INITIALISATION, Class.TRAINED))):
            where, at = f"blocks of {words}, {when}", (time, convolutions)
            found = of(exponent("cushion"), *at, False)
            off = {kind: found[kind].map(partial(add, -_factors(kind, convolutions, time))) for kind in found}
            running = of(over("cushion"), *at, True, False, kinds=NORMS[-1:])
            near, gap = at_most(10, each=True, note="no such gap"), "mu with skip over mu without"
            rows = {
                "exponent of mu in eps without skip, less the number of its factors": (Within(0, 0.1, each=True), off),
                "exponent of mu in eps with skip": (Within(0, 0.01, each=True), of(exponent("cushion"), *at, True)),
                f"{gap}, eps 1e-5": (above(1000, each=True), of(over("cushion"), *at, True, False)),
                f"{gap}, BatchNorm with running statistics": (near, running),
                "exponent of the response to noise in eps without skip": (
                    *(Within(0, 0.02, each=True), of(exponent("response"), *at, False)),
                ),
                "response to noise without skip over response with it": (near, of(over("response"), *at, False, True)),
            }
            claims += [
                predicted(f"{quantity}, {where}", test, samples, about=about)
                for quantity, (test, samples) in rows.items()
            ]
    return claims


def draw_normalised(results: Results) -> Figure:
    """mu against eps, blocks of one and two convolutions before and after training; with skip dashed."""
    figure, grid = figures.canvas(2, 2, sharex=True, sharey=True)
    colours = ("plain-0", "plain-1", "residual-0", "residual-1", "other-0", "other-1")
    for row, convolutions in zip(grid, (1, 2)):
        for time, axes in enumerate(row):
            for kind, shade in zip(NORMS, colours):
                for skip in (False, True):
                    arrays = results.computed(CUSHIONS).get(piece_of(kind, convolutions, skip))
                    if arrays is None:
                        continue
                    axes.plot(
                        *(LEVELS, np.median(arrays["cushion"][:, time], axis=0)),
                        color=figures.COLOURS[shade][0],
                        linestyle="--" if skip else "-",
                        label=None if skip else kind,
                    )
            axes.set(
                xscale="log", yscale="log", title=f"{convolutions} convolution{'s' * (convolutions > 1)}, {TIMES[time]}"
            )
    for axes in grid[-1]:
        axes.set(xlabel="eps")
    for axes in grid[:, 0]:
        axes.set(ylabel="mu")
    figures.key(grid[0, -1], "with skip", linestyle="--")
    figures.legend(grid[0, -1], beside=True)
    return figure


NORMALISED = Artefact(
    "normalised-cushions",
    "interlayer cushions of normalised blocks without skips measure the normalisation's eps",
    normalised_claims,
    f"The last of {BLOCKS} blocks of 3 x 3 convolutions without biases, {CHANNELS} channels, on the embedded digits, "
    f"{SIZE} x {SIZE}: relu(norm(conv(...)) [+ x]). Three passes of SGD with learning rate 0.05, momentum 0.9 and eps 1e-5; "
    "then measured in float64 with each eps on 16 images, medians. mu with n = C H W, the Jacobian's norm from "
    f"{PROBES} probes. Response: relative change of the output by Gaussian noise of 1 % of the input's norm, over 1 %. BatchNorm "
    "of one: trained as usual, measured with each sample's own statistics. In the figure with skips dashed, medians over seeds.",
    draw_normalised,
    computations=(CUSHIONS,),
)
