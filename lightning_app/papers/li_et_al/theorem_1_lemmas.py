"""Theorem 1, a net of vanishing norm that is exact on its data, and Lemmas 1 to 4, all executed."""

from dataclasses import asdict
from typing import Any

import numpy as np

from lightning_app.common.late import Tensor, torch
from lightning_app.papers.li_et_al.data import WHITENING, Whitened, on_whitened
from lightning_app.papers.li_et_al.nets import SHORTCUT_2, draw_curve
from lightning_app.papers.li_et_al.theorem_2 import Equal
from lightning_app.papers.parts import Arrays, Artefact, Computation, columns
from lightning_app.papers.predicates import Within, at_most, below, noted, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Basis, Claim, Class
from lightning_app.plots import figures
from lightning_app.statistics.fitting import power

EXACT = 1e-10

POINTS = 12
PER_POINT = (1, 4, 16, 64, 256)  # units a point, k; L = 2 m k


@on_whitened
def small_norm(data: Whitened, per_point: int, points: int, noise: float, seeds: int) -> Arrays:
    """The construction for each seed's points: arrays (seeds,)."""
    from lightning_app.theory.li_et_al.small_norm import small_norm_net

    nets = [small_norm_net(*_unit_points(data, points, noise, seed), per_point) for seed in range(seeds)]
    fields = ("layers", "norm", "bound", "error", "rho")
    return {field: np.array([getattr(net, field) for net in nets]) for field in fields}


def _unit_points(data: Whitened, points: int, noise: float, seed: int) -> tuple[Tensor, Tensor]:
    """Some whitened images, divided by their lengths, and their labels with a little noise, each (points, d)."""
    from lightning_app.theory.li_et_al.small_norm import perturbed_labels

    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(data.x), generator=generator)[:points]
    x, labels = data.x[rows], data.y[rows].argmax(1)
    return x / x.norm(dim=1, keepdim=True), perturbed_labels(labels, data.y.shape[1], noise, generator)


SMALL_NORM = Computation(
    "small-norm",
    small_norm,
    {f"k{k:03d}": {"per_point": k, "points": POINTS, "noise": 0.1, "seeds": 5, "limit": 1000} for k in PER_POINT},
)


def theorem_1_claims(results: Results) -> list[Claim]:
    """ "There exists a solution whose weight functions have vanishing norm." Eqs. 6 and 7 are lost: rebuilt from the proof."""
    error = results.of(SMALL_NORM, lambda *arrays: np.max([each["error"] for each in arrays], axis=0))
    excess = results.of(SMALL_NORM, lambda *arrays: np.max([each["norm"] / each["bound"] for each in arrays], axis=0))
    rho = noted("ρ, least distance of the points", results.of(SMALL_NORM, lambda *arrays: arrays[0]["rho"]), "")
    exact = f"largest distance of an output from its label, L = {2 * POINTS} to {2 * POINTS * PER_POINT[-1]}"
    bounded = "max(‖U‖_F, ‖V‖_F) / (2π/ρ √(2m/L)), at the L where it is largest"
    bound = at_most(1, each=True, note="the bound of Eq. 6, rebuilt")
    near = Within(-0.5, 0.02, "O(1/√L) of Eq. 7, rebuilt")

    def exponents(*pieces: Arrays) -> list[float]:
        layers, norms = (np.stack([arrays[key] for arrays in pieces], axis=1) for key in ("layers", "norm"))
        return [power(depths, by_depth).slope for depths, by_depth in zip(layers, norms)]

    exponent, falling = results.of(SMALL_NORM, exponents), "exponent of L in the largest norm"
    return [
        tested(exact, "a global minimum", below(EXACT, each=True), error, basis=Basis.REBUILT),
        tested(bounded, "", bound, excess, rho, basis=Basis.REBUILT),
        tested(falling, "vanishing norm", near, exponent, basis=Basis.REBUILT),
    ]


def draw_theorem_1(results: Results) -> figures.Figure:
    """The largest norm by depth, and its bound, both axes logarithmic."""
    figure, ((axes,),) = figures.canvas()
    if there := [*results.computed(SMALL_NORM).values()]:
        layers, norms, bounds = (np.stack([each[key] for each in there], axis=1) for key in ("layers", "norm", "bound"))
        draw_curve(axes, SHORTCUT_2.name, layers[0], norms, label="constructed net")
        axes.plot(layers[0], bounds.max(axis=0), color=figures.INK, linestyle="--", label="bound (2π/ρ) √(2m/L)")
    axes.set(title="max(‖U‖_F, ‖V‖_F) of an exact net", xlabel="layers L", xscale="log", yscale="log")
    figures.legend(axes)
    return figure


@on_whitened
def geometric_lemmas(data: Whitened, points: int, steps: int, noise: float, seeds: int) -> Arrays:
    """Lemmas 1 and 2 on each seed's points: arrays (seeds,) by "lemma/what"."""
    from lightning_app.theory.li_et_al.lemmas import lemma_1, lemma_2

    rows = []
    for seed in range(seeds):
        x, y = _unit_points(data, points, noise, seed)
        middle = (x[0] + y[0]) / (x[0] + y[0]).norm()  # of the great arc, an obstacle in its way
        obstacles = torch.cat([x[1:], y[1:], middle[None]])
        rho = float(torch.pdist(torch.cat([x[:1], y[:1], obstacles])).min())
        rows.append(_by_lemma({1: lemma_1(x, 0, y[0]), 2: lemma_2(x[0], y[0], obstacles, rho, steps)}))
    return columns(rows)


@on_whitened
def derivative_lemmas(data: Whitened, n: int, units: int, mid: str, width: int, samples: int) -> Arrays:
    """Lemmas 3 and 4 for one net: numbers by "lemma/what"."""
    from lightning_app.theory.li_et_al.lemmas import lemma_3, lemma_4
    from lightning_app.theory.li_et_al.shortcut import IDENTITY, TANH, ShortcutForm

    form = ShortcutForm(units, n, mid={"identity": IDENTITY, "tanh": TANH}[mid])
    x, y = data.x[:samples, :width], data.y[:samples, :width]
    found = _by_lemma({3: lemma_3(form, x, y), 4: lemma_4(form, x, y)})
    return {key: np.array(value) for key, value in found.items()}


def _by_lemma(found: dict[int, Any]) -> dict[str, Any]:
    return {f"{lemma}/{key}": value for lemma, each in found.items() for key, value in asdict(each).items()}


SPHERES = {"points": {"points": POINTS, "steps": 64, "noise": 0.1, "seeds": 20, "limit": 1000}}
GEOMETRIC = Computation("lemmas-1-2", geometric_lemmas, SPHERES)
DERIVATIVES_PIECES = {
    f"n{n}-{mid}": {"n": n, "units": 3, "mid": mid, "width": 4, "samples": 30, "limit": 500}
    for n in (1, 2, 3)
    for mid in ("identity", "tanh")
}
DERIVATIVES = Computation("lemmas-3-4", derivative_lemmas, DERIVATIVES_PIECES)

STATEMENTS = {  # what must be 0, or at most 0
    "1/target": "Lemma 1: distance of the moved column from its target",
    "1/others": "Lemma 1: largest change of another column",
    "1/norms": "Lemma 1: ‖U‖_F, ‖V‖_F against √(2‖z - x‖) / q, relative",
    "1/bias": "Lemma 1: ‖b‖ / ‖U‖_F - 1",
    "2/length": "Lemma 2: length of the path around an obstacle, less π²/2",
    "2/step": "Lemma 2: longest of its k steps, less π²/(2k)",
    "2/gap": "Lemma 2: ρ/2 less its least distance from another point",
    "3/outputs": "Lemma 3: change of an output where every unit has a matrix that is 0",
    "3/derivatives": "Lemma 3: derivatives by parameters that miss a matrix in every unit",
    "4/losses": "Lemma 4: losses of two units at any two places, others 0",
    "4/hessians": "Lemma 4: Hessians of two units at any two places, at zero",
}
SAID = {  # by the text, as far as it kept them; Eqs. 13 and 14, of the norms in Lemma 1, are lost
    "1/target": "changes one column of its input",
    "1/others": "one column",
    "2/length": "the length of the path is smaller than …",
    "2/step": "each step shorter than …",
    "2/gap": "preserving a minimum distance",
    "3/outputs": "all the transformation paths are zero",
    "3/derivatives": "partial derivatives of the loss function are zero",
    "4/losses": "reordering will not affect the overall transformation",
    "4/hessians": "reordering will not affect the overall transformation",
}
BIT_FOR_BIT = ("1/others", "4/losses")


def lemmas_claims(results: Results) -> list[Claim]:
    """As the statements say. Of Lemmas 1 and 2 formulas and constants are lost, and rebuilt; 3 and 4 can be read."""
    claims = []
    for key, quantity in STATEMENTS.items():
        rebuilt = key[0] in "12"
        ours = results.each(GEOMETRIC if rebuilt else DERIVATIVES, key)
        kinds: dict[str, Any] = {} if rebuilt else {"note": "n = 1, 2, 3, linear and tanh", "of": "net"}
        test = Equal(0.0, each=True, **kinds) if key in BIT_FOR_BIT else at_most(EXACT, each=True, **kinds)
        basis = Basis.REBUILT if rebuilt else Basis.PAPER
        claims.append(tested(quantity, SAID.get(key, ""), test, ours, basis=basis))
    return claims


RECONSTRUCTED = "The text lost the formulas: statement and constants are rebuilt from the proofs. "
SPHERE = (
    f"{POINTS} whitened images of length 1 and their labels, one-hot plus noise of standard deviation 0.1 and divided by their "
    "length, so that no two are equal (Assumption 2). Units x + V relu(U x + b). "
)

THEOREM_1 = Artefact(
    "theorem-1",
    "a deep net that is exact on its data with weights of norm O(1/√L)",
    theorem_1_claims,
    RECONSTRUCTED + SPHERE + "L counts U and V of every unit, R = m k units. " + WHITENING,
    draw_theorem_1,
    computations=(SMALL_NORM,),
    about=Class.FORMULA,
)
LEMMAS = Artefact(
    "lemmas",
    "Lemmas 1 to 4, executed",
    lemmas_claims,
    "The text lost the formulas of Lemmas 1 and 2: statements and constants are rebuilt from the proofs. "
    + SPHERE
    + "Lemma 2 with one more obstacle in the middle of the arc. Lemmas 3 and 4: three units, every choice "
    "of a missing matrix, every pair of places; autograd. " + WHITENING,
    computations=(GEOMETRIC, DERIVATIVES),
    about=Class.FORMULA,
)
