"""Is there a depth that all nets with convolutions approach, whatever they start from?

`common_depth` asked it of perceptrons: all starts come closer, none meet, and with weight decay they nearly do. Here it
is asked of the simplified nets of Yu & Tomasi, h = relu(x + conv(x)) without normalisation, three groups of three blocks:
as many layers to a path as there. The weights of the blocks are N(0, s^2 / S) with the fan-in S; s = sqrt(2) is KWI, and
at this width s = 0.12 to 0.06 is HMWI. Biases, the first convolution (KWI) and the readout start as in that paper.

Predicted before any run, from the perceptrons' answer: starts come closer, shallow ones deeper and s = 2 shallower, and come
to rest. They don't meet: the deepest net stays more than 1.25 times as deep as the shallowest, and they keep their order.
With weight decay, a force that is left when the loss is zero, they are closer in every seed, within 1.5. Tried before was
how long a step takes; no depth was looked at.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from lightning_app.common.late import F, Tensor, nn, torch
from lightning_app.papers.findings.common_depth import BATCH, DEPTHS, END, HALF, SHARES, spread
from lightning_app.papers.findings.nets import vectors
from lightning_app.papers.parts import Arrays, Artefact, Computation, Source, columns
from lightning_app.papers.predicates import Predicate, above, at_least, at_most, below, observed, predicted
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Sample
from lightning_app.plots import figures

DEPTH, WIDTH, SIZE, SEEDS = 11, 8, 8, 3
LAYERS = DEPTH - 1  # of the longest path: the readout is not counted
STARTS = (0.1, 0.5, 2**0.5, 2.0)
DATA = {"digits": (140, None), "CIFAR-10": (200, 1_000)}  # -> epochs, images: 4,060 and 4,000 steps
DECAYS = {"without weight decay": 0.0, "with weight decay": 1e-3}


def depths(
    source: Source, data: str, decay: float, first: int, starts: list[float], epochs: int, limit: int | None, seeds: int
) -> Arrays:
    """Path lengths as shares of the longest, loss and training error, each (seeds, starts, moments), from the first seed on.

    Starts share a seed's draws and batches.
    """
    name, x, labels = vectors(source, data, limit)
    images = x.unflatten(1, (-1, SIZE, SIZE))
    rows = [
        columns(_trained(images, labels, decay, seed, start, epochs) for start in starts)
        for seed in range(first, first + seeds)
    ]
    return columns(rows) | {"data": np.array(name)}


def _trained(images: Tensor, labels: Tensor, decay: float, seed: int, start: float, epochs: int) -> dict[str, Any]:
    net = _net(images.shape[1], seed, start)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=decay)
    order = torch.Generator().manual_seed(seed)
    at = [round(share * epochs) for share in SHARES]
    moments: list[dict[str, float]] = []
    for epoch in range(epochs + 1):
        if epoch in at:
            moments += [_measured(net, images, labels)] * at.count(epoch)
        for rows in torch.randperm(len(images), generator=order).split(BATCH) if epoch < epochs else ():
            optimizer.zero_grad()
            F.cross_entropy(net(images[rows]), labels[rows]).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
    return columns(moments)


def _net(channels: int, seed: int, start: float) -> Any:
    from lightning_app.networks import SimplifiedNet

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        net = SimplifiedNet(DEPTH, width=WIDTH, in_channels=channels, init="kwi")
        for block in net.block_list():
            block.get_parameter("conv.weight").mul_(start / 2**0.5)
    return net


def _measured(net: Any, images: Tensor, labels: Tensor, samples: int = 32, of_gradient: int = 8) -> dict[str, float]:
    from lightning_app.measures import effective_depth

    net.eval()
    with torch.no_grad():
        outputs = net(images)
    found = effective_depth(net, [(images[:samples], labels[:samples])], gradient_samples=of_gradient)
    net.train()
    lengths = {name: getattr(found, name) / found.longest for name in (*DEPTHS, "effective_input", "coherent")}
    error = (outputs.argmax(1) != labels).double().mean()
    return lengths | {"loss": float(F.cross_entropy(outputs, labels)), "error": float(error)}


def pieces_of(data: str, words: str) -> list[str]:
    return [f"{data}-{words.split()[0]}-decay-{seed}".lower() for seed in range(SEEDS)]


FROM_STARTS = Computation(
    "depths-of-convolutions",
    depths,
    {
        piece: {
            **{"data": data, "decay": decay, "first": seed, "starts": STARTS},
            **{"epochs": epochs, "limit": limit, "seeds": 1},
        }
        for data, (epochs, limit) in DATA.items()
        for words, decay in DECAYS.items()
        for seed, piece in enumerate(pieces_of(data, words))
    },
    precision="float32",
)


def _ratio(depth: np.ndarray) -> np.ndarray:
    """Deepest over shallowest at the end, of depths (seeds, starts, moments), by seed."""
    ends = depth[:, :, END]
    return ends.max(1) / ends.min(1)


def _order(depth: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation over starts of the depths before training and at the end, by seed.

    >>> _order(np.array([[[1.0, 2.0], [2.0, 3.0], [3.0, 2.5]]])).tolist()
    [0.5]
    """
    return np.array([stats.spearmanr(each[:, 0], each[:, END]).statistic for each in depth]).round(12)


def _late(depth: np.ndarray) -> np.ndarray:
    return np.abs(np.log(depth[:, :, END] / depth[:, :, HALF])).mean(1)


def _depth_at(start: int, moment: int, depth: np.ndarray) -> np.ndarray:
    return depth[:, start, moment]


Row = tuple[str, Predicate, Callable[[np.ndarray], np.ndarray]]
AT_END = "deepest over shallowest at the end"
ROWS: dict[str, list[Row]] = {  # words of DECAYS -> what is predicted
    "without weight decay": [
        (
            "spread over starts at the end over that before training",
            below(1, each=True),
            lambda d: spread(d, END) / spread(d, 0),
        ),
        (AT_END, above(1.25, each=True), _ratio),
        ("rank correlation over starts, before training and at the end", at_least(0.8, each=True), _order),
        ("change in the second half, |ln|, mean over starts", at_most(0.1, each=True), _late),
        ("end over start, s = 0.1", above(1, each=True), lambda d: d[:, 0, END] / d[:, 0, 0]),
        ("end over start, s = 2", below(1, each=True), lambda d: d[:, -1, END] / d[:, -1, 0]),
    ],
    "with weight decay": [(AT_END, at_most(1.5, each=True), _ratio)],
}


def common_depth_convolutions_claims(results: Results) -> list[Claim]:
    """No sentence of a paper; see the module's docstring for where the predictions come from."""

    def of(words: str, name: str, value: Callable[[np.ndarray], np.ndarray]) -> dict[str, Sample]:
        return {
            data: results.each(FROM_STARTS, lambda arrays: value(arrays[name]), *pieces_of(data, words))
            for data in DATA
        }

    def closer(name: str) -> dict[str, Sample]:
        """By weight decay, seed by seed."""

        def by_seed(*pieces: Arrays) -> np.ndarray:
            without, decayed = np.concatenate([_ratio(arrays[name]) for arrays in pieces]).reshape(2, -1)
            return decayed / without

        both = {data: [piece for words in DECAYS for piece in pieces_of(data, words)] for data in DATA}
        return {data: results.of(FROM_STARTS, by_seed, *pieces) for data, pieces in both.items()}

    def depth_at(moment: int, words: str) -> dict[str, Sample]:
        found = [of(words, "effective", partial(_depth_at, number, moment)) for number in range(len(STARTS))]
        return {
            f"{data}, s = {start:.3g}": each[data] for start, each in zip(STARTS, found, strict=True) for data in DATA
        }

    claims = []
    for name, measure in DEPTHS.items():
        claims += [
            predicted(f"{measure}, {words}: {quantity}", test, of(words, name, value))
            for words, rows in ROWS.items()
            for quantity, test, value in rows
        ]
        claims.append(
            predicted(f"{measure}: {AT_END}, with weight decay over without", below(1, each=True), closer(name))
        )
    depth = "mean path length weighted by E‖f_r‖² / p"
    claims.append(observed(f"{depth} before training", depth_at(0, "without weight decay")))
    for words in DECAYS:
        claims.append(observed(f"{depth} at the end, {words}", depth_at(END, words)))
        error = of(words, "error", lambda errors: errors[:, :, END].max(1))
        claims.append(observed(f"training error at the end, largest over starts, {words}", error))
    return claims


def draw_common_depth_convolutions(results: Results) -> Figure:
    """Depth by share of the training, a line each start, thin each seed; a column each data set."""
    figure, grid = figures.canvas(len(DECAYS), len(DATA))
    there = results.computed(FROM_STARTS)
    for row, words in zip(grid, DECAYS):
        for axes, data in zip(row, DATA):
            found = [there[piece]["effective"] for piece in pieces_of(data, words) if piece in there]
            depth = np.concatenate(found) if found else np.empty((0, len(STARTS), len(SHARES)))
            for number, (start, shade) in enumerate(zip(STARTS, ("plain-0", "plain-1", "residual-1", "residual-0"))):
                colour = figures.COLOURS[shade][0]
                axes.plot(depth[:, number].T, color=colour, lw=0.3)
                if len(depth):
                    axes.plot(depth[:, number].mean(0), color=colour, label=f"s = {start:.3g}")
            axes.set(title=f"{data}, {words}", ylim=(0, 0.8))
            axes.set_xticks(range(len(SHARES)), ["0", "1/64", "1/16", "1/4", "1/2", "1"])
        row[0].set_ylabel("mean path length / p")
    for axes in grid[-1]:
        axes.set_xlabel("share of the training")
    figures.legend(grid[-1, -1], beside=True)
    return figure


COMMON_DEPTH_CONVOLUTIONS = Artefact(
    "common-depth-convolutions",
    "nets with convolutions from branches of all sizes: the depth that training brings them to, with weight decay and without",
    common_depth_convolutions_claims,
    f"SimplifiedNet of {DEPTH} layers, residual, {WIDTH}, {2 * WIDTH} and {4 * WIDTH} channels, no normalisation. s: size of the "
    "blocks' weights, N(0, s²/S) with the fan-in S. Adam with rate 0.001, batches of 50, gradients of norm at most 1, about "
    f"4,000 steps; weight decay of {DECAYS['with weight decay']:g}, added to the gradient, or none. The embedded digits (8 x 8), "
    "1,000 pictures of CIFAR-10 (averaged to 8 x 8, three channels). Paths on 32 training samples, gradients on 8. "
    f"Outputs are centred over the classes. p = {LAYERS}: the readout is not counted. {SEEDS} seeds, thin in the figure.",
    draw_common_depth_convolutions,
    computations=(FROM_STARTS,),
)
