"""Is the loss around a residual net flatter because of what the net computes, or because of how it is written?

Li, Xu et al. (2018) show that skips make the loss around trained nets flatter, along random directions whose filters have the
norms of the net's filters. The filters of a residual net lack the identity, those of T(r), the plain net that computes the
same, have it. So the same function has two surfaces, and a plain net is to be compared with both.

Measured on the nets of Yu & Tomasi's Table 1 after 200 epochs of CIFAR-10. Predicted before any surface of a trained net was
measured (of untrained ones one was looked at, to see that the code runs), from how the nets respond to noise in one layer,
0.77 times as much with skips as without, and 0.90 times if the identity counts: with weights as written the loss of a residual
net rises less than a plain net's in every seed, and still if the identity counts; but it then rises by a tenth more at least.
As pictures of Li et al. become worse with depth, the advantage is larger at depth 32 than at 20 in both readings. On the way out
the loss falls on no more rays of residual nets than of plain ones.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lightning_app.common.late import nn, torch
from lightning_app.common.provenance import CHECKOUT
from lightning_app.papers.parts import Arrays, Artefact, Computation, Source
from lightning_app.papers.predicates import at_least, below, observed, predicted
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Sample
from lightning_app.plots import drawing, figures
from lightning_app.plots.style import Style

RUNS = CHECKOUT / "results" / "yu-tomasi" / "runs"
ARMS = ("plain", "residual")
READINGS = {"written": "as written", "transferred": "identity counted"}
NEAR, FAR = 0.1, 0.25  # distances: where noise in one layer was measured, and beyond it
WITH = {20: ("depth20~0-0", "depth20~1-2", "depth20~1-2"), 32: ("depth32~0-0", "depth32~1-1", "depth32~2-2")}  # by seed


def surfaces(source: Source, run: str, depth: int, seed: int, samples: int, rays: int, limit: int | None) -> Arrays:
    """The loss around a plain and a residual net of one seed, on the same training images.

    ``radii`` (R,); of each arm, <arm>: ``<arm>_centre`` () and ``<arm>_written``, ``<arm>_transferred`` (rays, R).

    Raises:
        UserError: if there are no weights in results/, or no CIFAR-10 below the source's root.
    """
    from lightning_app.measures import loss_surface

    name, batches = _images(source, samples, limit)
    found: dict[str, np.ndarray] = {"data": np.array(name)}
    for arm, net in _trained(run, depth, seed).items():
        for reading, surface in loss_surface(net, batches, rays=rays).items():
            found[f"{arm}_{reading}"] = surface.risk.numpy()
            found |= {f"{arm}_centre": np.array(surface.centre), "radii": surface.radii.numpy()}
    return found


def _trained(run: str, depth: int, seed: int) -> dict[str, "nn.Module"]:
    """The nets of a seed by arm, with the weights of this run."""
    from lightning_app.networks import SimplifiedNet
    from lightning_app.runs.checkpoints import read_safetensors

    weights, _ = read_safetensors(RUNS / run / "checkpoints" / "weights.safetensors")
    found: dict[str, nn.Module] = {}
    for arm in ARMS:
        names = [f"nets.{arm}-seed{seed:02d}.", f"nets.{arm}."]  # of a run of several seeds, or of one
        prefix = next(each for each in names if any(key.startswith(each) for key in weights))
        found[arm] = SimplifiedNet(depth, residual=arm == "residual").eval()
        found[arm].load_state_dict(
            {key.removeprefix(prefix): w for key, w in weights.items() if key.startswith(prefix)}
        )
    return found


def _images(source: Source, samples: int, limit: int | None) -> tuple[str, list[tuple["torch.Tensor", "torch.Tensor"]]]:
    """The name of the data; so many of the training images as in `probe_loader`, as many of each class, with their labels."""
    from lightning_app.common.errors import UserError
    from lightning_app.datamodules import CIFAR10, Digits
    from lightning_app.datamodules.trained_on import digest

    words, asked = "CIFAR-10", dict[str, Any](train_limit=limit, probe_size=samples)
    try:
        probe = [*CIFAR10(root=str(source.root), **asked).probe_loader()]
    except UserError:
        if not source.stand_in:
            raise
        words, probe = "digits, which stand in", [*Digits(image_size=32, **asked).probe_loader()]
    images, labels = (torch.cat(each) for each in zip(*probe))
    return f"{words} ({len(labels):,} training images, sha256 {digest(images, labels)})", probe


SURFACES = Computation(
    "surfaces",
    surfaces,
    {
        f"depth{depth}-seed{seed}": {
            **{"run": run, "depth": depth, "seed": seed},
            **{"samples": 256, "rays": 16, "limit": None},
        }
        for depth, runs in WITH.items()
        for seed, run in enumerate(runs)
    },
    precision="float32",
)
DRAWN = (("plain", "written", "-"), ("residual", "written", "-"), ("residual", "transferred", "--"))
PLANE, LINES = "depth32-seed0", (0.1, 0.3, 1, 3, 10, 30)  # of which nets, and at which rises
ADVANTAGE = "rise of the loss, residual / plain"


def loss_surface_claims(results: Results) -> list[Claim]:
    """No sentence of a paper; see the module's docstring for where the predictions come from."""
    claims = []
    for depth in WITH:
        for reading, words in READINGS.items():
            near, far = (_of_seeds(results, depth, _advantage(reading, r)) for r in (NEAR, FAR))
            claims.append(predicted(f"{ADVANTAGE}, {words}, r = {NEAR}, depth {depth}", below(1, each=True), near))
            claims.append(observed(f"{ADVANTAGE}, {words}, r = {FAR}, depth {depth}", far))
        part = "rise of the loss of residual nets, as written / identity counted"
        near, far = (_of_seeds(results, depth, _part_of_writing(r)) for r in (NEAR, FAR))
        claims.append(predicted(f"{part}, r = {NEAR}, depth {depth}", below(0.9, each=True), near))
        claims.append(observed(f"{part}, r = {FAR}, depth {depth}", far))
        monotone = "share of rays on which the loss never falls, residual - plain"
        claims.append(predicted(f"{monotone}, depth {depth}", at_least(0), _of_seeds(results, depth, _more_monotone)))
    for reading, words in READINGS.items():
        growth = results.of(SURFACES, _growth(reading))
        claims.append(predicted(f"{ADVANTAGE}, {words}, r = {NEAR}: depth 32 / depth 20", below(1), growth))
    return claims


def _of_seeds(results: Results, depth: int, number: Callable[[Arrays], float]) -> Sample:
    return results.each(SURFACES, number, *(f"depth{depth}-seed{seed}" for seed in range(len(WITH[depth]))))


def _rise(arrays: Arrays, arm: str, reading: str, r: float) -> float:
    at = int(np.argmin(np.abs(arrays["radii"] - r)))
    return float(arrays[f"{arm}_{reading}"][:, at].mean() - arrays[f"{arm}_centre"])


def _advantage(reading: str, r: float) -> Callable[[Arrays], float]:
    return lambda arrays: _rise(arrays, "residual", reading, r) / _rise(arrays, "plain", "written", r)


def _part_of_writing(r: float) -> Callable[[Arrays], float]:
    return lambda arrays: _rise(arrays, "residual", "written", r) / _rise(arrays, "residual", "transferred", r)


def _more_monotone(arrays: Arrays) -> float:
    residual, plain = (_never_falling(arrays[f"{arm}_written"], arrays[f"{arm}_centre"]) for arm in ARMS[::-1])
    return residual - plain


def _never_falling(risk: np.ndarray, centre: np.ndarray) -> float:
    """Share of the rays."""
    outwards = np.column_stack([np.full(len(risk), centre), risk])
    return float((np.diff(outwards) >= 0).all(axis=1).mean())


def _growth(reading: str) -> Callable[..., float]:
    """Of the means over seeds; pieces are in the order of depths."""

    def ratio(*pieces: Arrays) -> float:
        means = np.reshape([_advantage(reading, NEAR)(each) for each in pieces], (len(WITH), -1)).mean(axis=1)
        return float(means[1] / means[0])

    return ratio


def draw_loss_surface(results: Results) -> Figure:
    """Above, how the mean loss rises with the distance, each seed a line; below, the plane around the nets of one seed."""
    figure, axes = figures.canvas(2, 3)
    computed = results.computed(SURFACES)
    for ax, depth in zip(axes[0], WITH):
        for name, arrays in computed.items():
            if name.startswith(f"depth{depth}-"):
                for arm, reading, line in DRAWN:
                    rise = (arrays[f"{arm}_{reading}"] - arrays[f"{arm}_centre"]).mean(axis=0)
                    ax.plot(arrays["radii"], rise, line, color=figures.colour(arm), linewidth=1)
        ax.set(
            xscale="log", yscale="log", xlabel="distance r, in norms of a filter", title=f"depth {depth}, three seeds"
        )
    axes[0, 0].set_ylabel("rise of the mean loss, nats")
    axes[0, 2].set_axis_off()
    for arm, reading, line in DRAWN:
        figures.key(axes[0, 2], _words(arm, reading), linestyle=line, color=figures.colour(arm))
    figures.legend(axes[0, 2])
    if one := computed.get(PLANE):
        for ax, (arm, reading, _) in zip(axes[1], DRAWN):
            rise = one[f"{arm}_{reading}"] - one[f"{arm}_centre"]
            from_centre = np.column_stack([np.zeros(len(rise)), rise])
            look = Style(figures.colour(arm), "-", "")
            drawing.contours(ax, np.array([0, *one["radii"]]), from_centre, LINES, look)
            ax.set(title=_words(arm, reading), xlabel="r cos a", ylabel="r sin a")
    return figure


def _words(arm: str, reading: str) -> str:
    return arm if arm == "plain" else f"{arm}, {READINGS[reading]}"


LOSS_SURFACE = Artefact(
    "loss-surface",
    "the loss around plain and residual nets: how much of the flatness that skips bring is how weights are written",
    loss_surface_claims,
    "Nets of Yu & Tomasi's Table 1 (without BatchNorm), depths 20 and 32, three seeds each, after 200 epochs of CIFAR-10: the "
    "weights in results/yu-tomasi/runs. The mean loss on 256 training images, without augmentation, at W + r (cos a D + "
    "sin a E), with Gaussian D and E whose filters have the norms of the net's filters (Li, Xu et al. 2018), on 16 angles a; all "
    "nets get the same random numbers. As written: the norm of the filter of W; identity counted: of T(W), which gives the "
    "surface of the plain net that computes the same. Rise: the mean over angles, less the loss at W. "
    "In the figure, below: lines of equal rise around the nets of depth 32, seed 0.",
    draw_loss_surface,
    computations=(SURFACES,),
)
