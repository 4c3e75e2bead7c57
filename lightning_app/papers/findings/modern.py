"""The cushions of ViT's and ConvNeXt's branches: are they eps, too?

As in `normalised`, but of torchvision's own blocks. ViT's branches begin with a LayerNorm, attention(norm(x)) and
MLP(norm(x)), so that they see no scale whatever their weights. ConvNeXt's branch begins with a convolution, whose bias
is zero before training only.

Predicted before any run: without the skip mu of ViT's branches is proportional to eps before and after training, and
ConvNeXt's before training; training gives ConvNeXt's convolution a bias, which then decides mu instead of eps. With
skips mu depends on eps not at all. The response to noise that is really injected sees no eps anywhere.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lightning_app.common.late import Tensor, nn, torch
from lightning_app.papers.findings.nets import digits, train
from lightning_app.papers.findings.normalised import LEVELS, TIMES, of_block, slope
from lightning_app.papers.parts import Arrays, Artefact, Computation, seed_by_seed
from lightning_app.papers.predicates import Within, above, at_most, predicted
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Class, Sample
from lightning_app.plots import figures

BRANCHES = {"ViT, attention": "vit", "ViT, MLP": "vit", "ConvNeXt": "convnext"}  # -> piece
VIT = tuple(BRANCHES)[:2]
USUAL = 1  # index of the eps that these nets have


def _net(kind: str) -> "nn.Module":
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt
    from torchvision.models.vision_transformer import VisionTransformer

    if kind == "convnext":
        return ConvNeXt([CNBlockConfig(96, None, 3)], num_classes=10)
    return VisionTransformer(32, 4, num_layers=3, num_heads=3, hidden_dim=192, mlp_dim=768, num_classes=10)


def _branches(net: Any, kind: str) -> "dict[str, tuple[nn.Module, Callable[[Tensor], Tensor]]]":
    """Of the last block, by name: the module that gets the branch's input, and the branch."""
    if kind == "convnext":
        block = net.features[-1][-1].block
        return {"ConvNeXt": (block, block)}
    last = net.encoder.layers[-1]

    def attention(x: Tensor) -> Tensor:
        x = last.ln_1(x)
        return last.self_attention(x, x, x, need_weights=False)[0]

    return {
        "ViT, attention": (last.ln_1, attention),
        "ViT, MLP": (last.ln_2, lambda x: last.mlp(last.ln_2(x))),
    }


@seed_by_seed
def cushions(kind: str, epochs: int, samples: int, limit: int | None) -> dict[str, list[list[float]]]:
    """Of the branches of a small net's last block on the embedded digits, 32 x 32, medians over samples.

    Arrays "branch, with or without skip, cushion or response", (seeds, 2, levels of eps): before and after training.
    """
    net = _net(kind)
    images, labels = digits(limit)
    times = []
    for passes in (0, epochs):
        train(net, images, labels, passes, rate=0.01)
        times.append(_of_net(copy.deepcopy(net).double(), kind, images[:samples].double()))
    return {name: [time[name] for time in times] for name in times[0]}


def _of_net(net: "nn.Module", kind: str, images: Tensor) -> dict[str, list[float]]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    branches = _branches(net, kind)
    inputs: dict[str, Any] = {}
    hooks = [at.register_forward_pre_hook(partial(_keep, inputs, name)) for name, (at, _) in branches.items()]
    found: dict[str, list[float]] = {}
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):  # the others have no forward derivative
        net(images)
        for hook in hooks:
            hook.remove()
        for name, (_, branch) in branches.items():
            for words, block in (("without skip", branch), ("with skip", partial(_added, branch))):
                measured = [_at_eps(net, level, block, inputs[name]) for level in LEVELS]
                for key, values in zip(("cushion", "response"), zip(*measured)):
                    found[f"{name}, {words}, {key}"] = [*values]
    return found


def _keep(inputs: dict[str, Any], name: str, _: "nn.Module", args: tuple[Any, ...]) -> None:
    inputs[name] = args[0]


def _added(branch: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return x + branch(x)


def _at_eps(net: "nn.Module", eps: float, block: Callable[[Tensor], Tensor], x: Tensor) -> tuple[float, float]:
    for module in net.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = eps
    return of_block(block, x)


MODERN_CUSHIONS = Computation(
    "modern-cushions",
    cushions,
    {kind: {"kind": kind, "epochs": 3, "samples": 8, "limit": 512, "seeds": 3} for kind in ("vit", "convnext")},
)


def modern_claims(results: Results) -> list[Claim]:
    """No sentence of a paper; see the module's docstring for where the predictions come from."""

    def of(value: Callable[..., Any], key: str, time: int, *branches: str) -> dict[str, Sample]:
        return {
            name: results.of(MODERN_CUSHIONS, partial(_of_arrays, value, name, key, time), BRANCHES[name])
            for name in branches
        }

    claims = []
    for time, (when, about) in enumerate(zip(TIMES, (Class.INITIALISATION, Class.TRAINED))):
        free = VIT if time else tuple(BRANCHES)  # of the scale
        rows = {
            "exponent of mu in eps without skip": (Within(1, 0.1, each=True), of(_exponent, "cushion", time, *free)),
            "mu with skip over mu without, eps 1e-6": (above(1000, each=True), of(_gap, "cushion", time, *free)),
            "exponent of mu in eps with skip": (Within(0, 0.01, each=True), of(_of_skip, "cushion", time, *BRANCHES)),
            "exponent of the response to noise in eps without skip": (
                *(Within(0, 0.02, each=True), of(_exponent, "response", time, *BRANCHES)),
            ),
        }
        if time:
            biased = of(_exponent, "cushion", time, "ConvNeXt")
            rows["exponent of mu in eps without skip, behind a bias"] = at_most(0.5, each=True), biased
        claims += [
            predicted(f"{quantity}, {when}", test, samples, about=about) for quantity, (test, samples) in rows.items()
        ]
    return claims


def _of_arrays(value: Callable[..., Any], name: str, key: str, time: int, arrays: Arrays) -> np.ndarray:
    return value(*(arrays[f"{name}, {words}, {key}"][:, time] for words in ("without skip", "with skip")))


def _exponent(without: np.ndarray, _: np.ndarray) -> np.ndarray:
    return slope(without)


def _of_skip(_: np.ndarray, with_skip: np.ndarray) -> np.ndarray:
    return slope(with_skip)


def _gap(without: np.ndarray, with_skip: np.ndarray) -> np.ndarray:
    return with_skip[:, USUAL] / without[:, USUAL]


def draw_modern(results: Results) -> Figure:
    """mu and the response against eps, before and after training; with skip dashed."""
    figure, grid = figures.canvas(2, 2, sharex=True, sharey="row")
    for row, key in zip(grid, ("cushion", "response")):
        for time, axes in enumerate(row):
            for (name, piece), shade in zip(BRANCHES.items(), ("plain-0", "plain-1", "residual-0")):
                arrays = results.computed(MODERN_CUSHIONS).get(piece)
                for words, dash in (("without skip", "-"), ("with skip", "--")):
                    if arrays is not None:
                        values = np.median(arrays[f"{name}, {words}, {key}"][:, time], axis=0)
                        label = name if dash == "-" else None
                        axes.plot(LEVELS, values, dash, color=figures.COLOURS[shade][0], label=label)
            axes.set(xscale="log", yscale="log", title=f"{'mu' if key == 'cushion' else key}, {TIMES[time]}")
    for axes in grid[1]:
        axes.set_xlabel("eps")
    figures.key(grid[0, 1], "with skip", linestyle="--")
    figures.legend(grid[0, 1], beside=True)
    return figure


MODERN = Artefact(
    "modern-blocks",
    "interlayer cushions of the branches of ViT and ConvNeXt measure the normalisation's eps",
    modern_claims,
    "The last of three blocks of torchvision's VisionTransformer (patches of 4, 192 wide, three heads) and ConvNeXt (one stage, "
    "96 wide), from their own random weights, on the embedded digits, 32 x 32. Without skip: the branch f alone; with: x + f(x), "
    "ConvNeXt's without its layer scale. Trained: three passes over 512 images with SGD, learning rate 0.01, momentum 0.9, eps "
    "1e-6; then measured in float64 with each eps on 8 images, medians. mu with n numbers of the input, the Jacobian's norm from "
    "64 probes. Response: relative change of the output by Gaussian noise of 1 % of the input's norm, over 1 %. In the figure "
    "with skips dashed, medians over three seeds.",
    draw_modern,
    computations=(MODERN_CUSHIONS,),
)
