"""Theorem 2: what the loss is like at zero weights, by the length of the shortcuts. Closed forms against autograd."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lightning_app.common.late import torch
from lightning_app.papers.li_et_al.data import WHITENING, Whitened, on_whitened
from lightning_app.papers.li_et_al.nets import WIDTH, draw_curve
from lightning_app.papers.parts import Arrays, Artefact, Computation, Value, columns
from lightning_app.papers.predicates import Within, at_least, below, noted, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Basis, Claim, Class, Sample, Varies
from lightning_app.plots import figures
from lightning_app.statistics.fitting import power

if TYPE_CHECKING:
    from lightning_app.theory.li_et_al.shortcut import ShortcutForm

EXACT = 1e-10  # what rounding may leave of an identity


@dataclass(frozen=True)
class Equal(Within):
    """To the last bit: counts, and what is computed by the same steps."""

    tolerance: float = 0.0

    def __str__(self) -> str:
        return super().__str__().replace("within 0 of", "equal to", 1)


# Activations of Def. 2 by place; a ReLU has no derivative at 0: "surrogate" is linear with the mean of its two slopes.
Form = Mapping[str, str | bool]
FORMS: dict[str, Form] = {
    "linear": {},
    "tanh at mid and post": {"mid": "tanh", "post": "tanh"},
    "ReLU at pre": {"pre": "relu"},
    "hidden bias, ReLU at mid with slope 1/2 at 0 (Eq. 3)": {"mid": "surrogate", "bias": True},
}
EQ_3 = list(FORMS)[-1]
UNITS = (1, 2, 3, 4)


def _forms(n: int) -> dict[str, Form]:
    """Eq. 3 has two matrices a unit, and what it says of n > 2 holds as well; with n = 1 there is no mid and no hidden bias."""
    return FORMS if n > 1 else {name: form for name, form in FORMS.items() if name != EQ_3}


def _piece(n: int, form: str) -> str:
    return f"n{n}-{list(FORMS).index(form)}"


def _form(units: int, n: int, form: Form) -> "ShortcutForm":
    from lightning_app.theory.li_et_al.shortcut import IDENTITY, RELU, TANH, ShortcutForm, relu_surrogate

    known = {"identity": IDENTITY, "tanh": TANH, "relu": RELU, "surrogate": relu_surrogate(0.5)}
    places = {place: known[str(form.get(place, "identity"))] for place in ("pre", "mid", "post")}
    return ShortcutForm(units, n, bias=bool(form.get("bias", False)), **places)


@on_whitened
def at_zero(data: Whitened, n: int, form: Form, units: Sequence[int], width: int, samples: int) -> Arrays:
    """Largest deviations of the closed form from autograd, by the number of units: arrays (units,)."""
    from lightning_app.theory.li_et_al.zero_point import zero_point_deviations

    x, y = data.x[:samples, :width], data.y[:samples, :width]
    return columns(zero_point_deviations(_form(count, n, form), x, y) for count in units)


ZERO_PIECES = {
    _piece(n, name): {"n": n, "form": form, "units": UNITS, "width": 5, "samples": 30, "limit": 500}
    for n in (1, 2, 3, 4)
    for name, form in _forms(n).items()
}
ZERO = Computation("zero-point", at_zero, ZERO_PIECES)

DEPTHS = (1, 2, 4, 8)  # units


@on_whitened
def by_depth(data: Whitened, n: int, form: Form, units: Sequence[int]) -> Arrays:
    """Of the Hessian's eigenvalues, computed anew at each depth: condition number and index of those that are not zero, and
    how many are zero. Arrays (units,)."""
    from lightning_app.theory.li_et_al.zero_point import zero_point

    rows = []
    for count in units:
        values = torch.linalg.eigvalsh(zero_point(_form(count, n, form), data.x, data.y).hessian()).numpy()
        sizes = np.abs(values)
        there = sizes > EXACT * sizes.max()
        rows.append((sizes[there].max() / sizes[there].min(), (values[there] < 0).mean(), (~there).sum()))
    return dict(zip(("condition", "index", "zeros"), np.array(rows, dtype=float).T))


BY_DEPTH_PIECES = {
    _piece(n, name): {"n": n, "form": form, "units": DEPTHS, "limit": None}
    for n in (1, 2)
    for name, form in _forms(n).items()
}
BY_DEPTH = Computation("zero-point-by-depth", by_depth, BY_DEPTH_PIECES)


@on_whitened
def equivalence(data: Whitened, depth: int, seeds: int) -> Arrays:
    """Largest difference between an orthogonal plain net's Hessian, in turned variables, and that of 1-shortcuts at zero."""
    from lightning_app.networks.shortcut import draw
    from lightning_app.theory.li_et_al.zero_point import orthogonal_equivalence

    draws = [draw((depth, WIDTH, WIDTH), "orthogonal", 1.0, torch.Generator().manual_seed(s)) for s in range(seeds)]
    return {"deviation": np.array([orthogonal_equivalence(matrices, data.moments) for matrices in draws])}


EQUIVALENCE = Computation(
    "orthogonal-is-1-shortcut",
    equivalence,
    {f"depth{depth:02d}": {"depth": depth, "seeds": 5, "limit": None} for depth in (2, 4, 8, 16)},
)

EIGEN = ("gradient", "hessian", "eigenvalues")


def theorem_2_claims(results: Results) -> list[Claim]:
    """ "Suppose all the activation functions satisfy Assumption 3": readings are activations that do.

    The text kept Theorem 2's words; its formulas, Eqs. 8 to 10, are lost and rebuilt.
    """
    eq_8 = "n = 2: Hessian against Eq. 8, its eigenvalues against ±|c| s(M)"
    eq_10 = "n = 1: Hessian against the block Toeplitz matrix of Eq. 10"
    orders, stationary = "n = {}: derivatives of orders 1 to {} at zero", "(n-1)th-order stationary point"
    zero = "the Hessian is a zero matrix"
    return [
        *(_vanishes(results, n, orders.format(n, n - 1), stationary, ["lower_orders"]) for n in (2, 3, 4)),
        *(_vanishes(results, n, f"n = {n}: Hessian at zero", zero, ["hessian"]) for n in (3, 4)),
        _vanishes(results, 2, eq_8, "multiple copies of …"),
        *_of_two(results),
        _vanishes(results, 1, eq_10, "follows block Toeplitz structure"),
        *_of_one(results),
    ]


def _vanishes(results: Results, n: int, quantity: str, paper: str, keys: Sequence[str] = EIGEN) -> Claim:
    """Of all that Theorem 2 says of n = 1 and 2, whose Eqs. 8 and 10 are rebuilt; else of what the keys name."""

    def largest(arrays: Arrays) -> np.ndarray:
        return np.max([arrays[key] for key in keys], axis=0)

    ours = {form: results.of(ZERO, largest, _piece(n, form)) for form in _forms(n)}
    units = ", ".join(map(str, UNITS))
    test = below(EXACT, each=True, note=f"deviation from autograd with {units} units", of="net")
    basis = Basis.REBUILT if keys is EIGEN else Basis.PAPER
    return tested(f"{quantity}, deviation", paper, test, ours, basis=basis, varies=Varies.SETTING)


def _by_form(results: Results, n: int, value: Value) -> dict[str, Sample]:
    return {form: results.of(BY_DEPTH, value, _piece(n, form)) for form in _forms(n)}


def _of_two(results: Results) -> list[Claim]:
    """ "The condition numbers of 2-shortcut networks are depth-invariant"; "except for degenerate cases, it is a strict saddle
    point". With Eq. 3's bias there is one zero eigenvalue a hidden unit, d of them in each of its R units."""
    differ = _by_form(results, 2, lambda arrays: np.ptp(arrays["condition"]) / arrays["condition"].min())
    number = results.of(BY_DEPTH, lambda arrays: arrays["condition"][0], _piece(2, "linear"))
    zeros = results.of(BY_DEPTH, lambda arrays: arrays["zeros"] - np.array(DEPTHS) * WIDTH, _piece(2, EQ_3))
    note = "the smallest |λ| is zero then, and the condition number is that of the others"
    none = Equal(0.0, note=note, each=True, of="net")
    index = _by_form(results, 2, lambda arrays: arrays["index"])
    negative = "n = 2: share of negative eigenvalues among those that are not zero"
    half = Equal(0.5, note="a strict saddle has at least one that is negative", each=True, of="net")
    return [
        tested(
            f"n = 2: largest relative difference of condition numbers between {DEPTHS[0]} and {DEPTHS[-1]} units",
            "depth-invariant",
            below(EXACT, note="the zeros of the bias apart"),
            differ,
            noted("the number itself, linear", number, "s_1(M) / s_d(M)"),
            varies=Varies.SETTING,
        ),
        tested(negative, "strict saddle", half, index, varies=Varies.SETTING),
        tested("n = 2: zero eigenvalues minus R d, with a hidden bias", "", none, zeros, basis=Basis.OURS),
    ]


def _of_one(results: Results) -> list[Claim]:
    """ "Its condition number tends to explode as the number of layers increase." At least linearly: where M = mu I it is 1
    for R = 1, and at least ((1 + |mu|) R - |mu|) / |mu| for more, as |mu| is one of the |eigenvalues|. "The shortcut [of
    depth 1], however, is essentially equivalent to no shortcuts": an identity up to a rotation of the targets, and on the targets
    as they are only similar."""
    growth = _by_form(results, 1, lambda arrays: arrays["condition"][-1] / arrays["condition"][0])
    slope = results.of(BY_DEPTH, lambda arrays: power(DEPTHS, arrays["condition"]).slope, _piece(1, "linear"))
    apart = results.of(EQUIVALENCE, lambda *arrays: np.max([each["deviation"] for each in arrays], axis=0))
    similar = below(EXACT, each=True, note="orthogonally similar at depths 2 to 16")
    quantity = (
        "Hessian of an orthogonal plain net against that of a 1-shortcut net at zero on turned targets, deviation"
    )
    return [
        tested(
            f"n = 1: growth of the condition number from {DEPTHS[0]} to {DEPTHS[-1]} units",
            "tends to explode",
            at_least(DEPTHS[-1], note="linear growth or faster"),
            growth,
            noted("fitted exponent of R, linear", slope, "1 is linear growth"),
            varies=Varies.SETTING,
        ),
        tested(quantity, "", similar, apart, basis=Basis.OURS),
    ]


def draw_theorem_2(results: Results) -> figures.Figure:
    """Condition number at zero by the number of units: constant for n = 2, growing for n = 1."""
    forms = ("linear", "ReLU at pre")
    figure, (grid,) = figures.canvas(1, len(forms), sharey=True)
    computed = results.computed(BY_DEPTH)
    for axes, form in zip(grid, forms):
        for n in (1, 2):
            if (arrays := computed.get(_piece(n, form))) is not None:
                draw_curve(axes, f"{n}-shortcut", DEPTHS, arrays["condition"][None])
        axes.set(title=f"condition number at zero, {form}", xlabel="units R", xscale="log", yscale="log")
        axes.set_xticks(DEPTHS, DEPTHS)
        axes.minorticks_off()
    figures.legend(grid[0])
    return figure


THEOREM_2 = Artefact(
    "theorem-2",
    "at zero: stationary of order n - 1; for n = 2 a condition number that no depth changes, for n = 1 one that explodes",
    theorem_2_claims,
    "The text lost Eqs. 8 to 10: rebuilt from the words of the proof. "
    "Loss 1/(2m) Σ‖x^R - y‖², parameters in the order of Def. 5. M = E[(x - y) pre(x)^T], c = mid'(0)^(n-1) post'(0). Against "
    "autograd on 30 samples of five whitened components and five classes, along random directions for orders above 2; depth "
    "dependence by eigenvalues of the closed form on all data. "
    "A ReLU at mid or post has no derivative at 0, and autograd takes 0, which would make the Hessian vanish: here it is "
    "linear with the mean of its two slopes, 1/2. M depends on sign and order of the principal components. "
    + WHITENING,
    draw_theorem_2,
    computations=(ZERO, BY_DEPTH, EQUIVALENCE),
    about=Class.FORMULA,
)
