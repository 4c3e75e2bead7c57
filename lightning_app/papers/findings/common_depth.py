"""Is there a depth that all nets approach, whatever they start from? And which law gives the depth that they start from?

A residual net is the sum over its paths, and its effective depth is their mean length, weighted by what they carry to the
outputs (`measures.paths`). Littwin & Wolf (2016) say that it is below half of the longest path at first and grows. In
`reproduce littwin-wolf/ensemble` nets that start shallow become deeper and nets that start deep shallower. Here starts
span more than a decade: all branches, those of the blocks with a skip, are s times their usual size, by their weights
or, with BatchNorm, by its factors lambda, as weights in front of it have no size.

Three laws for the depth before training, without normalisation, p layers, h = x + relu(W x), W ~ N(0, s^2 / n):
the spin glass of Eqs. 15 and 17, weights binom(p - 1, r - 1)^2 beta^2r with beta = s / 2; incoherent paths, weights
binom(p - 1, r - 1) (s^2 / 2)^r; and wide nets (`wide_depth`), in which the means of the branches add up and the rest does not.

Predicted before any run: wide nets is the law, and neither of the other two for all s. By training the starts come
together, to less than half of their spread in the logarithm, to one depth within 1.25, at which they stay: on all three
data sets, with both optimizers, with BatchNorm and without. (That nets from s = 0.5 and 1 approach each other in 12 epochs on
Gaussians, and their depths before training, were known from `ensemble`.)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lightning_app.common.late import F, Tensor, torch
from lightning_app.papers.findings.nets import clip_each, vectors
from lightning_app.papers.parts import Arrays, Artefact, Computation, Source, columns
from lightning_app.papers.predicates import Predicate, Share, above, at_most, below, observed, predicted
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Class, Sample
from lightning_app.plots import figures

BLOCKS, WIDTH, BATCH = 10, 20, 50
STARTS = (0.1, 0.25, 0.5, 1.0, 2**0.5, 2.0)
SHARES = (0, 1 / 64, 1 / 16, 1 / 4, 1 / 2, 1)  # of the epochs, after which nets are measured
HALF, END = -2, -1
DATA = {"digits": 560, "Gaussians": 80, "CIFAR-10": 80}  # -> epochs: 16,000 steps
OPTIMIZERS = ("Adam", "SGD")
NORMS = {"without normalisation": "none", "with BatchNorm": "before_relu"}
DEPTHS = {"effective": "mean path length weighted by E‖f_r‖²", "gradient": "mean path length weighted by ‖g_r‖²"}
MEASURED = (*DEPTHS, "effective_input", "coherent", "loss", "error")


def wide_depth(s: float, p: int = BLOCKS) -> float:
    """Mean path length in layers, weighted by E|f_r|^2, of a net of infinite width before training, without normalisation.

    With a_r what paths of length r carry to a layer of n units, a sample's K_rs = <a_r, a_s> / n and m_r = the mean of a_r
    over units, and h = sum a_r: gates 1[W h > 0] of Gaussian W leave half of every product, and the branch that makes a_r + 1
    of a_r has the mean c_r = s <a_r, h> / (|h| sqrt(2 pi n)). So a block takes m to m + c and K to K + m c' + c m' + s^2 / 2 K,
    c and the last K shifted by one layer.

    >>> round(wide_depth(1e-6), 6), round(wide_depth(1.0), 3)
    (1.0, 4.273)
    """
    together, means = np.zeros((p + 1, p + 1)), np.zeros(p + 1)
    together[1, 1], means[1] = 1 / 2, 1 / math.sqrt(2 * math.pi)  # behind the first block
    for _ in range(p - 1):
        branch, longer = np.zeros(p + 1), np.zeros_like(together)
        branch[1:] = s * together.sum(1)[:-1] / math.sqrt(2 * math.pi * together.sum())
        longer[1:, 1:] = s**2 / 2 * together[:-1, :-1]
        together = together + np.outer(means, branch) + np.outer(branch, means) + longer
        means = means + branch
    carried = np.diag(together)
    return float(np.arange(p + 1) @ carried / carried.sum())


def incoherent_depth(s: float, p: int = BLOCKS) -> float:
    """The same of paths that add up like random vectors.

    >>> incoherent_depth(2.0, p=4)
    3.0
    """
    return 1 + (p - 1) * s**2 / (s**2 + 2)


def spin_glass_depth(s: float, p: int = BLOCKS) -> float:
    from lightning_app.theory.littwin_wolf import spin_glass

    return spin_glass.lengths(p, s / 2).mean


LAWS = {"wide nets": wide_depth, "incoherent paths": incoherent_depth, "spin glass, β = s / 2": spin_glass_depth}


def depths(
    source: Source,
    data: str,
    norm: str,
    optimizer: str,
    starts: Sequence[float],
    epochs: int,
    limit: int | None,
    seeds: int,
) -> Arrays:
    """Path lengths as shares of p, loss and training error, each (seeds, starts, moments).

    Starts share a seed's draws and batches.
    """
    name, x, labels = vectors(source, data, limit)
    nets = [_net(x.shape[1], norm, start, seed) for seed in range(seeds) for start in starts]
    weights, _ = torch.func.stack_module_state(nets)
    made: dict[str, Any] = {
        "Adam": partial(torch.optim.Adam, lr=1e-3),
        "SGD": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    }
    steps = made[optimizer]([*weights.values()])
    orders = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
    at = [round(share * epochs) for share in SHARES]
    moments: list[dict[str, list]] = []
    for epoch in range(epochs + 1):
        if epoch in at:
            moments += [_measured(nets, weights, x, labels)] * at.count(epoch)
        order = torch.stack([torch.randperm(len(x), generator=each) for each in orders])
        for rows in order.repeat_interleave(len(starts), 0).split(BATCH, 1) if epoch < epochs else ():
            _step(weights, steps, x[rows], labels[rows])
    found = columns(moments)
    return {key: found[key].T.reshape(seeds, len(starts), -1) for key in found} | {"data": np.array(name)}


def _net(inputs: int, norm: Any, start: float, seed: int) -> Any:
    from lightning_app.networks import ResidualMLP

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        net = ResidualMLP(inputs, WIDTH, BLOCKS, norm=norm)
        for block in net.block_list()[1:]:
            block.get_parameter("linear.weight" if norm == "none" else "norm.weight").mul_(start)
    return net


def _outputs(weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Of many `ResidualMLP` at once, while training: weights (nets, ...), x (nets, batch, inputs)."""
    h = x
    for number in range(BLOCKS):
        out = h @ weights[f"blocks.{number}.linear.weight"].mT
        if f"blocks.{number}.norm.weight" in weights:
            scale, shift = (weights[f"blocks.{number}.norm.{kind}"].unsqueeze(1) for kind in ("weight", "bias"))
            out = out - out.mean(1, keepdim=True)
            out = out * (out.square().mean(1, keepdim=True) + 1e-5).rsqrt() * scale + shift
        h = out.relu() + h if number else out.relu()
    return h @ weights["readout.weight"].mT + weights["readout.bias"].unsqueeze(1)


def _step(weights: Mapping[str, Tensor], optimizer: Any, x: Tensor, labels: Tensor) -> None:
    """One step of every net, on gradients of norm 1 at most, net by net."""
    optimizer.zero_grad()
    loss = F.cross_entropy(_outputs(weights, x).flatten(0, 1), labels.flatten(), reduction="sum")
    (loss / labels.shape[1]).backward()
    clip_each(weights.values())
    optimizer.step()


def _measured(nets: Sequence[Any], weights: Mapping[str, Tensor], x: Tensor, labels: Tensor) -> dict[str, list]:
    rows = []
    for number, net in enumerate(nets):
        net.load_state_dict({name: weight[number].detach() for name, weight in weights.items()}, strict=False)
        rows.append(_of_net(net, x, labels))
    return {name: [row[name] for row in rows] for name in MEASURED}


def _of_net(net: Any, x: Tensor, labels: Tensor, samples: int = 32, of_gradient: int = 8) -> dict[str, float]:
    """In evaluation mode, with the statistics of all samples."""
    from lightning_app.measures import effective_depth

    with torch.no_grad():
        for block in net.block_list():
            if block.norm is not None:
                block.norm.reset_running_stats()
                block.norm.momentum = None  # the average of all batches, of which there is one
        net.train()(x)
        outputs = net.eval()(x)
    found = effective_depth(net, [(x[:samples], labels[:samples])], gradient_samples=of_gradient)
    lengths = {name: getattr(found, name) / found.longest for name in MEASURED if hasattr(found, name)}
    error = (outputs.argmax(1) != labels).double().mean()
    return lengths | {"loss": float(F.cross_entropy(outputs, labels)), "error": float(error)}


def piece_of(data: str, norm: str, optimizer: str) -> str:
    return f"{data}-{norm.split()[-1]}-{optimizer}".lower().replace("normalisation", "plain")


ASKED = {"starts": STARTS, "limit": 10_000, "seeds": 4}
PIECES = {
    piece_of(data, words, optimizer): {"data": data, "norm": norm, "optimizer": optimizer, "epochs": epochs, **ASKED}
    for words, norm in NORMS.items()
    for data, epochs in DATA.items()
    for optimizer in OPTIMIZERS
}
FROM_STARTS = Computation("depths-from-starts", depths, PIECES, precision="float32")


def spread(depth: np.ndarray, moment: int) -> np.ndarray:
    """Standard deviation over starts of the logarithm of depths (seeds, starts, moments), of each seed.

    >>> spread(np.exp([[[1.0], [3.0]]]), 0).tolist()
    [1.0]
    """
    return np.log(depth[:, :, moment]).std(axis=1)


def common_depth_claims(results: Results) -> list[Claim]:
    """No sentence of a paper but for Eqs. 15 and 17; see the module's docstring for where the predictions come from."""

    def over_law(law: Any, number: int) -> Sample:
        pieces = [piece_of(data, "without normalisation", "Adam") for data in DATA]
        measured = results.each(FROM_STARTS, lambda arrays: arrays["effective"][:, number, 0], *pieces)
        return measured.map(lambda depth: depth * BLOCKS / law(STARTS[number]))

    def of(name: str, value: Callable[[np.ndarray], np.ndarray], words: str) -> dict[str, Sample]:
        pieces = {f"{data}, {each}": piece_of(data, words, each) for data in DATA for each in OPTIMIZERS}
        return {key: results.of(FROM_STARTS, lambda a: value(a[name]), piece) for key, piece in pieces.items()}

    def late_change(depth: np.ndarray) -> np.ndarray:
        return np.abs(np.log(depth[:, :, END] / depth[:, :, HALF])).mean(1)

    claims = []
    for words, law in LAWS.items():
        quantity = f"mean path length before training over that of {words}, without normalisation"
        ours = {f"s = {start:.3g}": over_law(law, number) for number, start in enumerate(STARTS)}
        claims.append(predicted(quantity, Share(1.0, 0.1), ours, about=Class.INITIALISATION))
    shrunk, near, still = (at_most(limit, each=True) for limit in (0.5, 1.25, 0.1))
    rows: list[tuple[str, Predicate, Callable[[np.ndarray], np.ndarray]]] = [
        ("spread over starts at the end over that before training", shrunk, lambda d: spread(d, END) / spread(d, 0)),
        ("deepest over shallowest at the end", near, lambda d: d[:, :, END].max(1) / d[:, :, END].min(1)),
        ("change in the second half, |ln|, mean over starts", still, late_change),
        ("end over start, s = 0.1", above(1, each=True), lambda d: d[:, 0, END] / d[:, 0, 0]),
        ("end over start, s = 2", below(1, each=True), lambda d: d[:, -1, END] / d[:, -1, 0]),
    ]
    for words in NORMS:
        claims += [
            predicted(f"{measure}, {words}: {quantity}", test, of(name, value, words))
            for name, measure in DEPTHS.items()
            for quantity, test, value in rows
        ]
        depth = of("effective", lambda d: d[:, :, END].mean(1), words)
        error = of("error", lambda e: e[:, :, END].max(1), words)
        at_end = f"mean path length weighted by E‖f_r‖² / p at the end, mean over starts, {words}"
        claims += [observed(at_end, depth), observed(f"training error at the end, largest over starts, {words}", error)]
    return claims


def draw_common_depth(results: Results) -> Figure:
    """Depth by share of the training, a line each start, a column each data set; below the laws before training."""
    figure, grid = figures.canvas(len(NORMS) + 1, len(DATA))
    there = results.computed(FROM_STARTS)
    shades = ("plain-0", "plain-1", "other-0", "other-1", "residual-1", "residual-0")
    for row, words in zip(grid, NORMS):
        for axes, data in zip(row, DATA):
            for optimizer, dash in zip(OPTIMIZERS, ("-", ":")):
                arrays = there.get(piece_of(data, words, optimizer))
                for number, (start, shade) in enumerate(zip(STARTS, shades)):
                    if arrays is not None:
                        depth = arrays["effective"][:, number].mean(0)
                        label = f"s = {start:.3g}" if dash == "-" else None
                        axes.plot(depth, dash, color=figures.COLOURS[shade][0], label=label)
            axes.set(title=f"{data}, {words}", ylim=(0, 0.8))
            axes.set_xticks(range(len(SHARES)), ["0", "1/64", "1/16", "1/4", "1/2", "1"])
        row[0].set_ylabel("mean path length / p")
    for axes in grid[1]:
        axes.set_xlabel("share of the training")
    figures.legend(grid[1, -1], beside=True)
    _draw_laws(grid[-1, 0], results)
    for axes in grid[-1, 1:]:
        axes.set_axis_off()
    return figure


def _draw_laws(axes: figures.Axes, results: Results) -> None:
    sizes = np.geomspace(min(STARTS), max(STARTS), 10)
    for (words, law), shade in zip(LAWS.items(), ("residual-0", "plain-0", "other-0")):
        axes.plot(sizes, [law(size) / BLOCKS for size in sizes], color=figures.COLOURS[shade][0], label=words)
    for data, marker in zip(DATA, "osd"):
        if arrays := results.computed(FROM_STARTS).get(piece_of(data, "without normalisation", "Adam")):
            axes.plot(STARTS, arrays["effective"][:, :, 0].mean(0), marker, color=figures.INK, label=data)
    axes.set(xscale="log", ylim=(0, 0.8), title="before training, without normalisation", xlabel="s")
    figures.legend(axes)


COMMON_DEPTH = Artefact(
    "common-depth",
    "residual nets from branches of all sizes: the depth they start at, and the depth that training brings them to",
    common_depth_claims,
    f"Residual MLPs of {BLOCKS} blocks, {WIDTH} wide. s: size of the branches of all blocks with a skip, times the usual one: "
    "of weights N(0, s²/n), or with BatchNorm before the ReLU of its factors, which start at s. Batches of 50, 16,000 steps, "
    "no weight decay: Adam with rate 0.001, or SGD with rate 0.01 and momentum 0.9, both on gradients of norm at most 1. The "
    "embedded digits (8 x 8), 10,000 pictures of CIFAR-10 (averaged to 8 x 8, three channels), 10,000 samples of ten "
    "Gaussians in 50 dimensions at separation 1. Paths on 32 training samples, gradients on 8; BatchNorm has the statistics of "
    f"all of them. Outputs are centred over the classes. p = {BLOCKS}: the readout is not counted. Four seeds. "
    "In the figure means over seeds; dotted: SGD.",
    draw_common_depth,
    computations=(FROM_STARTS,),
)
