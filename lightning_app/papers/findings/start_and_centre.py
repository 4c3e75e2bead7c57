"""What part of a skip is initialisation, and what part is the centre of weight decay?

By T (Yu & Tomasi 2019, section 3) a residual net is a plain net, trained by the same updates, that differs from a usual plain
one in three ways: where its weights start (at the identity rho instead of 0), how large the draws around that are (HMWI
instead of KWI) and where weight decay pulls them (to rho instead of 0). All eight combinations can be trained as plain nets,
and then nothing is left for the skip to do.

Predicted before any run, of what each choice takes off the test error, from how far decay moves weights, 1 - exp(-d) of the
way with d = decay times the sum of learning rates over 1 - momentum. At 1e-4 (d = 0.03 here, 0.07 in 30 epochs of CIFAR-10):
start and centre together gain, all of it by the start, and the centre's part is below a tenth. At 1e-3 (d = 0.3) the centre has
a part above 0. At 1e-2 (d = 3) starts are nearly forgotten, and more than a third of the gain is the centre's. Small draws need
the identity, as signals die in 18 layers without it; large ones need it less, so that place and size of the start interact.
And a skip that is written as one has 0.005 of error at most beside the plain net that starts and decays alike: rounding.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lightning_app.common.late import F, torch
from lightning_app.papers.findings.nets import clip_each, splits
from lightning_app.papers.parts import Arrays, Artefact, Computation, Run, Source
from lightning_app.papers.predicates import IntervalAbove, Predicate, Within, above, noted, predicted
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Basis, Claim, Sample
from lightning_app.plots import figures
from lightning_app.statistics.paired import bootstrap_interval

LAYERS, WIDTH, BATCH = 18, 32, 64  # layers between the first and the readout
RATE, MOMENTUM, DROPS = 0.02, 0.9, (0.6, 0.8)
DATA = {"MNIST": "mnist", "CIFAR-10": "cifar"}
DECAYS = (1e-4, 1e-3, 1e-2)
PLACE, SIZE, CENTRE = FACTORS = ("place of the start", "size of the start", "centre")
CELLS = [*product((0, 1), repeat=3)]  # of the factors: 0 as plain nets have it, 1 as residual nets do
ARMS = (  # of the run on CIFAR-10, by cell
    *("plain_kwi_zero", "plain_kwi_identity", "plain_hmwi_zero", "plain_hmwi_identity"),
    *("twin_kwi_zero", "residual_kwi", "twin_hmwi_zero", "residual_hmwi"),
)


def ends(source: Source, data: str, decay: float, epochs: int, limit: int | None, seeds: int) -> Arrays:
    """After training, of each seed: ``risk`` of training samples and ``error`` of others, (seeds, 2, 2, 2), by `FACTORS`.

    ``written_risk`` and ``written_error``, (seeds,): of the last cell with its skips written as skips. The nets of a seed
    share draws and batches.
    """
    name, (x, labels), (others, answers) = splits(source, data, limit)
    starts = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
    weights = _start(starts, x.shape[1], len(answers.unique()))
    identity = torch.eye(WIDTH)
    skips = torch.tensor([0.0] * len(CELLS) + [1.0]).repeat(seeds).view(-1, 1, 1, 1) * identity
    centres = torch.tensor([float(centre) for _, _, centre in CELLS] + [0.0]).repeat(seeds).view(-1, 1, 1, 1) * identity
    towards = {"hidden": centres}
    optimizer = torch.optim.SGD(weights.values(), lr=RATE, momentum=MOMENTUM)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [round(share * epochs) for share in DROPS])
    each = len(CELLS) + 1
    for _ in range(epochs):
        order = torch.stack([torch.randperm(len(x), generator=one) for one in starts]).repeat_interleave(each, 0)
        for rows in order.split(BATCH, 1):
            optimizer.zero_grad()
            logits = _outputs(weights, skips, x[rows])
            (F.cross_entropy(logits.flatten(0, 1), labels[rows].flatten(), reduction="sum") / rows.shape[1]).backward()
            clip_each(weights.values())
            for key, weight in weights.items():
                weight.grad.add_(weight.detach() - towards.get(key, 0.0), alpha=decay)
            optimizer.step()
        schedule.step()
    found: dict[str, np.ndarray] = {}
    with torch.no_grad():
        for words, samples, targets in (("risk", x, labels), ("error", others, answers)):
            parts = []
            for some, right in zip(samples.split(1000), targets.split(1000)):
                logits = _outputs(weights, skips, some.expand(len(skips), -1, -1))
                risks = F.cross_entropy(logits.transpose(1, 2), right.expand(len(skips), -1), reduction="none")
                parts.append(risks if words == "risk" else (logits.argmax(2) != right).float())
            by_cell = torch.cat(parts, 1).double().mean(1).view(seeds, each).numpy()
            found |= {words: by_cell[:, :-1].reshape(seeds, 2, 2, 2), f"written_{words}": by_cell[:, -1]}
    return found | {"data": np.array(name)}


def _start(generators: list, inputs: int, classes: int) -> "dict[str, Any]":
    """Weights of all cells and of the net with its skips, (nets, ...), seed by seed."""
    from lightning_app.networks.cifar import standard_deviation

    rows: dict[str, list] = {"first": [], "hidden": [], "readout": [], "bias": []}
    sizes = [standard_deviation(torch.empty(WIDTH, WIDTH), scheme) for scheme in ("kwi", "hmwi")]
    for generator in generators:
        first = torch.randn(inputs, WIDTH, generator=generator)
        first *= standard_deviation(first.T, "kwi")
        draws = torch.randn(LAYERS, WIDTH, WIDTH, generator=generator)
        readout = (2 * torch.rand(WIDTH, classes, generator=generator) - 1) * WIDTH**-0.5  # as PyTorch makes it
        for place, size in [(place, size) for place, size, _ in CELLS] + [(0, 1)]:
            rows["hidden"].append(sizes[size] * draws + place * torch.eye(WIDTH))
        for key, value in {"first": first, "readout": readout, "bias": torch.zeros(1, classes)}.items():
            rows[key] += [value] * (len(CELLS) + 1)
    return {key: torch.stack(values).requires_grad_() for key, values in rows.items()}


def _outputs(weights: "Mapping[str, Any]", skips: Any, x: Any) -> Any:
    """Logits (nets, batch, classes) of x (nets, batch, inputs): relu(h (W + skip)), layer by layer."""
    h = (x @ weights["first"]).relu()
    for matrices in (weights["hidden"] + skips).unbind(1):
        h = (h @ matrices).relu()
    return h @ weights["readout"] + weights["bias"]


def piece_of(data: str, decay: float) -> str:
    return f"{DATA[data]}-{decay:.0e}"


ASKED = {"epochs": 30, "limit": 5_000, "seeds": 13}
PIECES = {piece_of(data, decay): {"data": data, "decay": decay, **ASKED} for decay in DECAYS for data in DATA}
ENDS = Computation("ends-by-start-and-centre", ends, PIECES, precision="float32")
FACTORIAL = Run("factorial20", seeds=3)


def effect(errors: np.ndarray, *factors: str) -> np.ndarray:
    """What the residual choice of a factor takes off the error, mean over the others, (...,) of errors (..., 2, 2, 2).

    Of several factors their interaction: half of how much more the one gains with the residual choice of the other.

    >>> errors = np.array([[[5.0, 5.0], [5.0, 5.0]], [[3.0, 1.0], [3.0, 1.0]]])
    >>> float(effect(errors, PLACE)), float(effect(errors, CENTRE)), float(effect(errors, PLACE, CENTRE))
    (3.0, 1.0, 1.0)
    """
    signs = [np.array((-1, 1) if factor in factors else (1, 1)) for factor in FACTORS]
    return -(errors * np.einsum("i,j,k", *signs)).sum((-3, -2, -1)) / 4


def of_both(errors: np.ndarray) -> np.ndarray:
    """The four nets that start as plain or as residual nets do, in place and size: (..., start, centre)."""
    return np.stack([errors[..., 0, 0, :], errors[..., 1, 1, :]], axis=-2)


def gains(errors: np.ndarray) -> dict[str, np.ndarray]:
    """What start and centre take off the error, (...,) each: the whole is the sum of both parts."""
    four = of_both(errors)
    centre = four[..., 0] - four[..., 1]  # by start
    return {
        "start and centre": four[..., 0, 0] - four[..., 1, 1],
        "start": (four[..., 0, :] - four[..., 1, :]).mean(-1),
        "centre": centre.mean(-1),
        "start x centre": (centre[..., 1] - centre[..., 0]) / 2,
    }


Of = Callable[[Callable[[np.ndarray], np.ndarray]], Mapping[str, Sample]]  # a number of the errors -> readings


def _claims(decay: float, of: Of, sure: Predicate) -> list[Claim]:
    """Of one strength of decay; ``sure`` tests that something is above 0."""

    def gain(name: str) -> Mapping[str, Sample]:
        return of(lambda errors: gains(errors)[name])

    def of_effect(*factors: str) -> Mapping[str, Sample]:
        return of(lambda errors: effect(errors, *factors))

    def above_zero(words: str, readings: Mapping[str, Sample]) -> Claim:
        return predicted(f"decay {decay:g}: {words}", sure, readings, ratio=True)

    def beyond(share: float, sign: int) -> Mapping[str, Sample]:
        return of(lambda errors: sign * (gains(errors)["centre"] - share * gains(errors)["start and centre"]))

    def described(words: str, readings: Mapping[str, Sample]) -> Claim:
        rows = (noted(name, ours, _interval(ours)) for name, ours in readings.items())
        return Claim(f"decay {decay:g}: {words}", "", "none: of no prediction", tuple(rows), basis=Basis.OURS)

    part = {
        1e-4: above_zero("a tenth of that, less the centre's part", beyond(0.1, -1)),
        1e-3: above_zero("gain by the centre, with both starts", gain("centre")),
        1e-2: above_zero("the centre's part, less a third of the whole", beyond(1 / 3, 1)),
    }[decay]
    interactions = [(PLACE, CENTRE), (SIZE, CENTRE), FACTORS]
    return [
        above_zero("gain by the residual start and centre, in test error", gain("start and centre")),
        *([above_zero("gain by the start, with both centres", gain("start"))] if decay < 1e-2 else []),
        part,
        above_zero(f"interaction {PLACE} x {SIZE}", of_effect(PLACE, SIZE)),
        *(described(f"gain: {name}", gain(name)) for name in ("start", "centre", "start x centre")),
        *(described(f"gain by the {name}, mean over all else", of_effect(name)) for name in FACTORS),
        *(described(f"interaction {' x '.join(names)}", of_effect(*names)) for names in interactions),
    ]


def _interval(sample: Sample) -> str:
    return str(bootstrap_interval(sample.values)) if sample.count else sample.missing


def start_and_centre_claims(results: Results) -> list[Claim]:
    """No sentence of a paper; see the module's docstring for where the predictions come from."""

    def of_arrays(decay: float, number: Callable[[Arrays], np.ndarray]) -> dict[str, Sample]:
        return {data: results.of(ENDS, number, piece_of(data, decay)) for data in DATA}

    def of_errors(decay: float, number: Callable[[np.ndarray], np.ndarray]) -> dict[str, Sample]:
        return of_arrays(decay, lambda arrays: number(arrays["error"]))

    claims = []
    for decay in DECAYS:
        claims += _claims(decay, partial(of_errors, decay), IntervalAbove())
        words = f"decay {decay:g}: skips written as skips, less added to the weights, in test error"
        test = Within(0.0, 0.005, "of the mean over seeds")
        written = of_arrays(decay, lambda arrays: arrays["written_error"] - arrays["error"][:, 1, 1, 1])
        claims.append(predicted(words, test, written))
    return claims


def on_cifar_claims(results: Results) -> list[Claim]:
    """The same of convolutional nets, where 1e-4 is the paper's decay."""
    cells = [results.final(FACTORIAL.name, arm, "test/error") for arm in ARMS]

    def of(number: Callable) -> dict[str, Sample]:
        return {"": cells[0].map(lambda *errors: number(np.reshape(errors, (2, 2, 2))), *cells[1:])}

    return _claims(1e-4, of, above(0, each=True))


def draw_start_and_centre(results: Results) -> Figure:
    """Test errors of the eight combinations by decay, a panel each data set; means over seeds."""
    figure, (row,) = figures.canvas(1, len(DATA), sharey=False)
    for axes, data in zip(row, DATA):
        found = {decay: results.computed(ENDS).get(piece_of(data, decay)) for decay in DECAYS}
        draw_cells(axes, {decay: arrays["error"].mean(0) for decay, arrays in found.items() if arrays is not None})
        axes.set(title=data, ylabel="test error")
    figures.legend(row[-1], beside=True)
    return figure


def drawn_start(place: int, size: int) -> tuple[str, str]:
    """Colour and name of a start."""
    looks = {(0, 0): ("plain-0", "KWI at 0"), (1, 1): ("residual-0", "HMWI at the identity")}
    looks |= {(0, 1): ("other-0", "HMWI at 0"), (1, 0): ("residual-1", "KWI at the identity")}
    shade, words = looks[place, size]
    return figures.COLOURS[shade][0], words


def draw_cells(axes: figures.Axes, errors: Mapping[float, np.ndarray]) -> None:
    """A line each cell: colour and dash by start, filled markers for decay to the identity."""
    for place, size, centre in CELLS:
        colour, words = drawn_start(place, size)
        values = [each[place, size, centre] for each in errors.values()]
        label = f"{words}, decay to {'the identity' if centre else '0'}"
        form, fill = ("-o", colour) if centre else (":o", "white")
        axes.plot([*errors], values, form, mfc=fill, color=colour, label=label)
    axes.set(xscale="log", xlabel="weight decay")


def draw_on_cifar(results: Results) -> Figure:
    """Test errors by start, at the one decay of the run: a point each seed."""
    figure, ((axes,),) = figures.canvas()
    names = {}
    for (place, size, centre), arm in zip(CELLS, ARMS):
        colour, words = drawn_start(place, size)
        names[row := 2 * place + size] = words
        errors = results.final(FACTORIAL.name, arm, "test/error").values
        fill, label = (colour, "decay to the identity") if centre else ("white", "decay to 0")
        at = [row + (0.15 if centre else -0.15)] * len(errors)
        axes.plot(errors, at, "o", mfc=fill, color=colour, label=label if row == 0 else None)
    axes.set(xlabel="test error", yticks=[*names], yticklabels=[*names.values()], ylim=(3.5, -0.5))
    figures.legend(axes)
    return figure


READ = (
    "Gain: what is taken off the test error. Whole: of the plain net (KWI at 0, decay to 0) against the residual one (HMWI at "
    "the identity, decay to it); it is the sum of the start's and the centre's part, each a mean over the other. Interaction: "
    "half of how much more the one gains with the residual choice of the other. Gradients are clipped to norm 1 before decay "
    "is added, as KWI at the identity would overflow. The first layer starts with KWI and decays to 0 everywhere. "
)
START_AND_CENTRE_SMALL = Artefact(
    "start-and-centre-small",
    "a skip as a start and a centre of weight decay: all eight combinations, in small fully connected nets",
    start_and_centre_claims,
    f"{READ}{LAYERS} layers of {WIDTH} x {WIDTH} without biases between a first layer and a readout, ReLU behind each. 5,000 "
    "images of MNIST averaged to 14 x 14, or of CIFAR-10 to 8 x 8, and all test images; 30 epochs of batches of 64, SGD with "
    "momentum 0.9 and rate 0.02, a tenth of it from the 19th and a hundredth from the 25th epoch on; 13 seeds. Intervals: "
    "95 %, bootstrap over seeds, not corrected for the number of rows.",
    draw_start_and_centre,
    computations=(ENDS,),
)
START_AND_CENTRE = Artefact(
    "start-and-centre",
    "a skip as a start and a centre of weight decay: all eight combinations, convolutional nets of depth 20 on CIFAR-10",
    on_cifar_claims,
    f"{READ}30 epochs, the rate drops after 18 and 24. About 17 hours on one core.",
    draw_on_cifar,
    runs=(FACTORIAL,),
)
