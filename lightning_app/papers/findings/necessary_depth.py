"""What does effective depth mean? Nets that learned tasks of known necessary depth, and what is left without long paths.

The task is to follow k pointers. A table holds for each of 5 places the next one, f, and the answer is f(f(... f(start))), k
times. A ReLU layer of 25 units makes one step: for each pair of places, are we here and does the table lead there? So k layers
of 64 units are enough. Two steps in one layer by the same means need 125 units, and a list of all tables 3,125. Residual
perceptrons of one size that have learned 1 to 4 steps differ in the depth of what they compute, and a measure of depth should
differ with it. No lower bound is proven for these nets. For transformers on k-hop induction there is one that is conditional
(Sanford, Hsu & Telgarsky 2024): floor(log2 k) + 2 layers are enough, and fewer need a width that grows with the length.

Two lesions say how deep a trained net computes. Of the outputs as a sum over path lengths (`measures.paths`) the terms longer
than r are left out: the *lesion depth* is the least r from which on the error is at most 0.05 above the whole net's. And
each block with a skip is left out by itself: *blocks needed* are those without which the error rises by more than 0.05. The
second sees everything that a block does. The first sees what paths carry, with the ReLUs' gates of the whole net.

Predicted before any run, if effective depth is what its name says: it rises with the number of steps, with the lesion depth
and with the blocks needed, in rank correlation over the four tasks of a seed. What speaks against it: a net may decide by its
gates, which are no paths, and carry the answer along short ones. Tried before were nets of this kind, with 5 and 6 places,
for whether they learn the task (four steps among 6 places were not learned in time); no depth was looked at.

The same is asked of transformers on k-hop induction (`datamodules.KHop`), registered after the perceptrons' answer, that
effective depth falls, and before any depth of a transformer was looked at. Rows and tests are the same, and say what would
overturn that answer: a rise. Expected are the perceptrons' signs. Attention is resolved by its pattern, so that paths go
through values (two layers a branch), and what queries and keys decide is in the gates. Tried was one net on four hops, for
whether it learns them.
"""

from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from lightning_app.common.late import F, Tensor, nn, torch
from lightning_app.common.numbers import plural
from lightning_app.papers.findings.nets import train
from lightning_app.papers.parts import Arrays, Artefact, Computation, Source, columns
from lightning_app.papers.predicates import IntervalAbove, at_most, observed, predicted, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Basis, Claim
from lightning_app.plots import figures

if TYPE_CHECKING:
    Learned = tuple[nn.Module, Tensor, Tensor]  # and test samples with labels

STEPS, SEEDS = (1, 2, 3, 4), 13
PLACES, BLOCKS, WIDTH = 5, 8, 64
LETTERS, TOKENS, HOP_BLOCKS, HOP_SEEDS = 4, 12, 4, 7
WITHIN = 0.05  # of the whole net's error: what a lesion may do without counting
MEASURES = {
    "effective": "effective depth of the outputs",
    "effective_input": "effective depth of the paths from the input",
    "coherent": "coherent depth of the outputs",
    "gradient": "effective depth of the gradient",
}
CRITERIA = {"steps": "steps", "lesion": "lesion depth", "needed": "blocks needed"}


def depths(source: Source, first: int, seeds: int, epochs: int, limit: int | None, samples: int) -> Arrays:
    """Of nets of each seed from the first on, (seeds, steps): test error, depths and lesions.

    ``without`` is the error without each block, (seeds, steps, blocks). Also with another axis, (seeds, steps, lengths):
    ``up_to`` and ``beyond`` are the test errors with paths of at most, and of more than, each of the ``lengths``.
    """
    return _of_seeds(_follower, first, seeds, epochs, limit, samples)


def hop_depths(source: Source, first: int, seeds: int, epochs: int, limit: int | None, samples: int) -> Arrays:
    """The same of transformers on k-hop induction; a block is an attention or a perceptron."""
    return _of_seeds(_hopper, first, seeds, epochs, limit, samples)


def _of_seeds(learned: "Callable[..., Learned]", first: int, seeds: int, *asked: int | None) -> Arrays:
    rows = []
    for seed in range(first, first + seeds):
        with torch.random.fork_rng(devices=[]):
            rows.append(columns(_measured(steps, *learned(steps, seed, *asked)) for steps in STEPS))
    return columns(rows)


def _follower(steps: int, seed: int, epochs: int, limit: int | None, samples: int) -> "Learned":
    """A perceptron that learned to follow so many pointers, with test samples and labels."""
    from lightning_app.networks import ResidualMLP

    torch.manual_seed(seed)
    net = ResidualMLP(PLACES * (PLACES + 1), WIDTH, BLOCKS, classes=PLACES, norm="none", gain=0.5)
    seen, answers = tables(100_000 if limit is None else limit, steps)
    others, labels = tables(samples, steps)
    train(net, seen, answers, epochs, rate=0.002, batch=128, adam=True)
    return net, others.double(), labels


def _hopper(steps: int, seed: int, epochs: int, limit: int | None, samples: int) -> "Learned":
    """A transformer that learned so many hops."""
    from lightning_app.datamodules import KHop
    from lightning_app.networks import GPT

    torch.manual_seed(seed)
    net = GPT(vocabulary=LETTERS, context=TOKENS, width=32, depth=HOP_BLOCKS)
    count = 20_000 if limit is None else limit
    data = KHop(hops=steps, letters=LETTERS, length=TOKENS, samples=count, test_samples=samples, seed=seed).load()
    seen, others = (torch.as_tensor(tokens).long() for tokens in (data.train_images, data.test_images))
    train(net, seen, data.train_labels, epochs, rate=0.003, batch=64, adam=True)
    return net, others, data.test_labels


def _measured(steps: int, net: "nn.Module", inputs: Tensor, labels: Tensor) -> dict[str, object]:
    from lightning_app.measures import effective_depth

    net = net.double()
    found = effective_depth(net, [(inputs[:256], labels[:256])], gradient_samples=64)
    return {
        "steps": steps,
        **{name: getattr(found, name) for name in MEASURES},
        **path_lesions(net, inputs, labels),
        "without": np.array([*without_each_block(net, inputs, labels)]),
    }


def tables(count: int, steps: int) -> tuple[Tensor, Tensor]:
    """Random tables and starts, as units (count, 5 * 5 + 5), and where so many steps lead, (count,), from the random state."""
    leads, start = torch.randint(PLACES, (count, PLACES)), torch.randint(PLACES, (count,))
    place = start
    for _ in range(steps):
        place = leads.gather(1, place.unsqueeze(1)).squeeze(1)
    return torch.cat([F.one_hot(leads, PLACES).flatten(1), F.one_hot(start, PLACES)], dim=1).float(), place


def path_lesions(net: "nn.Module", inputs: Tensor, labels: Tensor) -> dict[str, np.ndarray]:
    """Error of the whole net, (), and with paths of at most and of more than each length, (R,)."""
    from lightning_app.measures.paths.lengths import path_outputs

    found = [path_outputs(net, some) for some in inputs.split(125)]
    outputs = torch.cat([each.outputs for each in found], dim=1)  # (R, B, C)
    constant = torch.cat([each.constant for each in found])
    whole, partial_sums = outputs.sum(0) + constant, outputs.cumsum(0) + constant

    def error(logits: Tensor) -> np.ndarray:
        return (logits.argmax(-1) != labels).double().mean(-1).numpy()

    return {
        "lengths": found[0].lengths.numpy(),
        "error": error(whole),
        "up_to": error(partial_sums),
        "beyond": error(whole - partial_sums + constant),
    }


def without_each_block(net: Any, inputs: Tensor, labels: Tensor) -> Iterator[float]:
    """The error of the net in which one of the blocks with a skip adds nothing, block by block."""
    for block in net.block_list():
        if getattr(block, "residual", True):
            with block.register_forward_hook(lambda module, inputs, output: inputs[0]), torch.no_grad():
                yield float((net(inputs).argmax(1) != labels).double().mean())


def _by_seed(name: str, compute: Callable[..., Arrays], seeds: int, epochs: int) -> Computation:
    """Pieces of one seed each."""
    asked = {"seeds": 1, "epochs": epochs, "limit": None, "samples": 2000}
    pieces = {f"seed-{seed:02d}": {"first": seed, **asked} for seed in range(seeds)}
    return Computation(name, compute, pieces, precision="float32, measured in float64")


LESIONS = _by_seed("lesions", depths, SEEDS, epochs=8)
HOP_LESIONS = _by_seed("hop-lesions", hop_depths, HOP_SEEDS, epochs=10)


def lesion_depth(arrays: Arrays) -> np.ndarray:
    """The least length from which on leaving out all longer paths raises the error by at most `WITHIN`, (seeds, steps).

    >>> errors, lengths = np.array([[[0.7, 0.01, 0.3, 0.04, 0.0]]]), np.array([[[1, 2, 3, 4, 5]]])
    >>> lesion_depth({"error": np.array([[0.0]]), "up_to": errors, "lengths": lengths})
    array([[4]])
    """
    worse = arrays["up_to"] > arrays["error"][..., None] + WITHIN
    kept = np.flip(np.logical_or.accumulate(np.flip(worse, -1), axis=-1), -1).sum(-1)  # lengths that are not enough
    return np.take_along_axis(arrays["lengths"], kept[..., None], axis=-1)[..., 0]


def blocks_needed(arrays: Arrays) -> np.ndarray:
    """How many blocks cannot be left out, one at a time, without raising the error by more than `WITHIN`, (seeds, steps)."""
    return (arrays["without"] > arrays["error"][..., None] + WITHIN).sum(-1)


NUMBERS: dict[str, Callable[[Arrays], np.ndarray]] = {
    **{name: itemgetter(name) for name in ("error", "steps", *MEASURES)},
    "lesion": lesion_depth,
    "needed": blocks_needed,
}


def rank_correlation(one: str, other: str, *pieces: Arrays) -> np.ndarray:
    """Spearman's, over the tasks of each seed; 0 where one of both numbers is the same for all tasks."""

    def ranks(number: str) -> np.ndarray:
        ranked = stats.rankdata(np.concatenate([NUMBERS[number](arrays) for arrays in pieces]), axis=1)
        return ranked - ranked.mean(axis=1, keepdims=True)

    a, b = ranks(one), ranks(other)
    size = np.sqrt((a * a).sum(1) * (b * b).sum(1))
    return np.divide((a * b).sum(1), size, out=np.zeros_like(size), where=size > 0)


def necessary_depth_claims(of: Computation, results: Results) -> list[Claim]:
    """No sentence of a paper; see the module's docstring for where the predictions come from."""

    def at_task(number: str, task: int, *pieces: Arrays) -> np.ndarray:
        return np.concatenate([NUMBERS[number](arrays)[:, task] for arrays in pieces])

    def of_tasks(number: str) -> dict:
        return {plural(k, "step"): results.of(of, partial(at_task, number, task)) for task, k in enumerate(STEPS)}

    def correlated(one: str, words: str, criterion: str) -> Claim:
        quantity = f"rank correlation of {words} and {CRITERIA[criterion]}, over the tasks of a seed"
        ours = results.of(of, partial(rank_correlation, one, criterion))
        return tested(quantity, "", IntervalAbove(), ours, basis=Basis.OURS)

    return [
        predicted("test error", at_most(WITHIN, each=True), of_tasks("error")),
        *(correlated(name, words, criterion) for name, words in MEASURES.items() for criterion in CRITERIA),
        *(correlated(name, CRITERIA[name], "steps") for name in ("lesion", "needed")),
        *(
            observed(words, of_tasks(name))
            for name, words in {**MEASURES, "lesion": "lesion depth", "needed": "blocks needed"}.items()
        ),
    ]


def draw_necessary_depth(of: Computation, results: Results) -> Figure:
    """Errors without long paths, by task; and effective depth, lesion depth and branches needed by the number of hops."""
    figure, (axes,) = figures.canvas(1, 3)
    pieces = [*results.computed(of).values()]
    shades = ("plain-0", "plain-1", "residual-1", "residual-0")
    for task, (k, shade) in enumerate(zip(STEPS, shades)):
        for arrays in pieces:
            first = arrays is pieces[0]
            lengths, errors = arrays["lengths"][0, task], arrays["up_to"][0, task]
            axes[0].plot(
                lengths, errors, color=figures.COLOURS[shade][0], lw=0.8, label=plural(k, "step") if first else None
            )
    axes[0].set(xlabel="longest path that is kept, in layers", ylabel="test error", ylim=(0, None))
    lines = {
        "effective_input": "effective, from the input",
        "effective": "effective",
        "lesion": "lesion",
        "needed": "blocks needed",
    }
    for (name, words), shade in zip(lines.items(), ("residual-0", "residual-1", "plain-0", "other-0")):
        if pieces:
            values = np.concatenate([NUMBERS[name](arrays) for arrays in pieces])
            axes[1].plot(STEPS, values.mean(0), "o-", color=figures.COLOURS[shade][0], label=words)
            axes[1].plot(STEPS, values.T, color=figures.COLOURS[shade][0], lw=0.3)
    axes[1].set(xlabel="steps", ylabel="layers or blocks", xticks=STEPS)
    for task, (k, shade) in enumerate(zip(STEPS, shades)):
        both = [(lesion_depth(arrays)[0, task], arrays["effective_input"][0, task]) for arrays in pieces]
        axes[2].plot(*zip(*both) if both else ([], []), "o", color=figures.COLOURS[shade][0], label=plural(k, "step"))
    axes[2].set(xlabel="lesion depth", ylabel="effective depth, from the input")
    figures.legend(*axes[:2])
    figures.legend(axes[2], beside=True)
    return figure


NECESSARY_DEPTH = Artefact(
    "necessary-depth",
    "nets that learned to follow 1 to 4 pointers: does effective depth follow the depth of the task, and what lesions show?",
    partial(necessary_depth_claims, LESIONS),
    f"Residual MLPs of {BLOCKS} blocks, {WIDTH} wide, without normalisation, gain 0.5; random tables of {PLACES} places, 100,000 "
    "for training in 8 epochs of batches of 128 by Adam with rate 0.002. Others are drawn for testing, nearly all of which were "
    "seen in training, as there are 15,625. The nets of a seed start from the same weights. Measured in float64: depths on 256 "
    "test samples, gradients on 64, errors on 2,000. For depths outputs are centred over the classes. "
    "Lesion depth: the least r such that the error without paths longer than r, "
    f"and without those longer than any larger number, is at most {WITHIN:g} above the whole net's; the readout is not counted. "
    "Spearman's rank correlation over the four tasks of a seed, 0 where one number is the same for all; the interval is of its "
    f"mean over {SEEDS} seeds, by bootstrap, not corrected for the number of rows.",
    partial(draw_necessary_depth, LESIONS),
    computations=(LESIONS,),
)

NECESSARY_DEPTH_ATTENTION = Artefact(
    "necessary-depth-attention",
    "transformers that learned 1 to 4 hops: does effective depth follow the depth of the task, and what lesions show?",
    partial(necessary_depth_claims, HOP_LESIONS),
    f"GPT of 4 blocks, 32 wide, 4 heads, LayerNorm in front; k-hop induction on {TOKENS} tokens of {LETTERS} letters, 20,000 "
    "sequences in 10 epochs of batches of 64 by Adam with rate 0.003, 2,000 others for testing. Steps are hops; blocks that can "
    f"be left out are 8 branches. As `necessary-depth` in all else, with {HOP_SEEDS} seeds. Its rows ask for a rise too; after "
    "the perceptrons a fall was expected, so that *checked* is here what overturned an expectation.",
    partial(draw_necessary_depth, HOP_LESIONS),
    computations=(HOP_LESIONS,),
)
