"""Theorem 2: what the loss is like at zero weights, by the length of the shortcuts. Closed forms against autograd."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from lightning_app.papers.artefact import Artefact
from lightning_app.papers.li_et_al.data import WHITENING, whitened
from lightning_app.papers.li_et_al.nets import WIDTH, draw_curve
from lightning_app.papers.parts import Arrays, Computation, Source, Value
from lightning_app.papers.predicates import Predicate, Within, at_least, below, noted, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Basis, Claim, Class, Reading, Sample, Varies
from lightning_app.plots import figures
from lightning_app.statistics.fitting import power

if TYPE_CHECKING:
    from lightning_app.theory.li_et_al.shortcut import ShortcutForm

__all__ = ["THEOREM_2", "Equal"]

EXACT = 1e-10  # what rounding may leave of an identity


@dataclass(frozen=True)
class Equal(Within):
    """To the last bit: counts, and what is computed by the same steps."""

    tolerance: float = 0.0

    def __str__(self) -> str:
        return super().__str__().replace("within 0 of", "equal to", 1)


# Activations of Def. 2 by place; a ReLU has no derivative at 0: "surrogate" is linear with the mean of its two slopes.
FORMS: dict[str, dict[str, str | bool]] = {
    "linear": {},
    "tanh at mid and post": {"mid": "tanh", "post": "tanh"},
    "ReLU at pre": {"pre": "relu"},
    "hidden bias, ReLU at mid with slope 1/2 at 0 (Eq. 3)": {"mid": "surrogate", "bias": True},
}
EQ_3 = list(FORMS)[-1]
UNITS = (1, 2, 3, 4)


def _forms(n: int) -> dict[str, dict[str, str | bool]]:
    """Eq. 3 has two matrices a unit, and what it says of n > 2 holds as well; with n = 1 there is no mid and no hidden bias."""
    return FORMS if n > 1 else {name: form for name, form in FORMS.items() if name != EQ_3}


def _form(units: int, n: int, form: Mapping[str, str | bool]) -> "ShortcutForm":
    from lightning_app.theory.li_et_al.shortcut import IDENTITY, RELU, TANH, ShortcutForm, relu_surrogate

    known = {"identity": IDENTITY, "tanh": TANH, "relu": RELU, "surrogate": relu_surrogate(0.5)}
    places = {place: known[str(form.get(place, "identity"))] for place in ("pre", "mid", "post")}
    return ShortcutForm(units, n, bias=bool(form.get("bias", False)), **places)


# -- against autograd -------------------------------------------------------------------------------------------------------


def at_zero(
    source: Source, n: int, form: Mapping[str, str | bool], units: Sequence[int], width: int, samples: int, limit: int
) -> Arrays:
    """Largest deviations of the closed form from autograd, by the number of units: arrays (units,)."""
    from lightning_app.theory.li_et_al.zero_point_checks import zero_point_deviations

    data = whitened(source, limit)
    x, y = data.x[:samples, :width], data.y[:samples, :width]
    found = [asdict(zero_point_deviations(_form(count, n, form), x, y)) for count in units]
    return {key: np.array([each[key] for each in found]) for key in found[0]} | {"data": np.array(data.name)}


def _piece(n: int, form: str) -> str:
    return f"n{n}-{list(FORMS).index(form)}"


ZERO = Computation(
    "zero-point",
    at_zero,
    {
        _piece(n, name): {"n": n, "form": form, "units": UNITS, "width": 5, "samples": 30, "limit": 500}
        for n in (1, 2, 3, 4)
        for name, form in _forms(n).items()
    },
)


# -- by depth, in closed form -------------------------------------------------------------------------------------------------

DEPTHS = (1, 2, 4, 8)  # units


def by_depth(source: Source, n: int, form: Mapping[str, str | bool], units: Sequence[int], limit: int | None) -> Arrays:
    """Of the Hessian's eigenvalues, computed anew at each depth: condition number and index of those that are not zero, and
    how many are zero. Arrays (units,)."""
    import torch

    from lightning_app.theory.li_et_al.zero_point import zero_point

    data = whitened(source, limit)
    rows = []
    for count in units:
        values = torch.linalg.eigvalsh(zero_point(_form(count, n, form), data.x, data.y).hessian()).numpy()
        sizes = np.abs(values)
        there = sizes > EXACT * sizes.max()
        rows.append((sizes[there].max() / sizes[there].min(), (values[there] < 0).mean(), (~there).sum()))
    return dict(zip(("condition", "index", "zeros"), np.array(rows, dtype=float).T)) | {"data": np.array(data.name)}


BY_DEPTH = Computation(
    "zero-point-by-depth",
    by_depth,
    {
        _piece(n, name): {"n": n, "form": form, "units": DEPTHS, "limit": None}
        for n in (1, 2)
        for name, form in _forms(n).items()
    },
)


def equivalence(source: Source, depth: int, seeds: int, limit: int | None) -> Arrays:
    """Largest difference between an orthogonal plain net's Hessian, in turned variables, and that of 1-shortcuts at zero."""
    import torch

    from lightning_app.networks.shortcut import draw
    from lightning_app.theory.li_et_al.equivalence import orthogonal_equivalence

    data = whitened(source, limit)
    draws = [draw((depth, WIDTH, WIDTH), "orthogonal", 1.0, torch.Generator().manual_seed(s)) for s in range(seeds)]
    deviations = [orthogonal_equivalence(matrices, data.moments) for matrices in draws]
    return {"deviation": np.array(deviations), "data": np.array(data.name)}


EQUIVALENCE = Computation(
    "orthogonal-is-1-shortcut",
    equivalence,
    {f"depth{depth:02d}": {"depth": depth, "seeds": 5, "limit": None} for depth in (2, 4, 8, 16)},
)


# -- claims -----------------------------------------------------------------------------------------------------------------


def theorem_2_claims(results: Results) -> list[Claim]:
    """The text kept Theorem 2's words; its formulas, Eqs. 8 to 10, are lost and rebuilt."""
    return [
        *(
            _vanishes(
                results,
                n,
                f"n = {n}: derivatives of orders 1 to {n - 1} at zero",
                "(n-1)th-order stationary point",
                LOWER,
            )
            for n in (2, 3, 4)
        ),
        *(
            _vanishes(results, n, f"n = {n}: Hessian at zero", "the Hessian is a zero matrix", ("hessian",))
            for n in (3, 4)
        ),
        _vanishes(
            results,
            2,
            "n = 2: Hessian against Eq. 8, its eigenvalues against ±|c| s(M)",
            "multiple copies of …",
            EIGEN,
            Basis.REBUILT,
        ),
        _invariant(results),
        _strict_saddle(results),
        _zeros_of_the_bias(results),
        _vanishes(
            results,
            1,
            "n = 1: Hessian against the block Toeplitz matrix of Eq. 10",
            "follows block Toeplitz structure",
            EIGEN,
            Basis.REBUILT,
        ),
        _explodes(results),
        _equivalent(results),
    ]


EIGEN, LOWER = ("gradient", "hessian", "eigenvalues"), ("lower_orders",)


def _vanishes(
    results: Results, n: int, quantity: str, paper: str, keys: Sequence[str], basis: Basis = Basis.PAPER
) -> Claim:
    def largest(arrays: Arrays) -> np.ndarray:
        return np.max([arrays[key] for key in keys], axis=0)

    ours = {form: results.of_pieces(ZERO.name, [_piece(n, form)], largest) for form in _forms(n)}
    units = ", ".join(map(str, UNITS))
    test = below(EXACT, each=True, note=f"deviation from autograd with {units} units", of="net")
    return _of_forms(f"{quantity}, deviation", paper, test, ours, basis=basis)


def _of_forms(
    quantity: str, paper: str, test: Predicate, ours: Mapping[str, Sample], *beside: Reading, **more: Any
) -> Claim:
    """ "Suppose all the activation functions satisfy Assumption 3": readings are activations that do."""
    return tested(quantity, paper, test, ours, *beside, varies=Varies.SETTING, **more)


def _by_depth(results: Results, n: int, form: str, value: Value) -> Sample:
    return results.of_pieces(BY_DEPTH.name, [_piece(n, form)], value)


def _invariant(results: Results) -> Claim:
    """ "The condition numbers of 2-shortcut networks are depth-invariant." """
    ours = {
        form: _by_depth(results, 2, form, lambda arrays: np.ptp(arrays["condition"]) / arrays["condition"].min())
        for form in FORMS
    }
    number = _by_depth(results, 2, "linear", lambda arrays: arrays["condition"][0])
    return _of_forms(
        f"n = 2: largest relative difference of condition numbers between {DEPTHS[0]} and {DEPTHS[-1]} units",
        "depth-invariant",
        below(EXACT, note="the zeros of the bias apart"),
        ours,
        noted("the number itself, linear", number, "s_1(M) / s_d(M)"),
    )


def _strict_saddle(results: Results) -> Claim:
    """ "Except for degenerate cases, it is a strict saddle point." """
    ours = {form: _by_depth(results, 2, form, lambda arrays: arrays["index"]) for form in FORMS}
    return _of_forms(
        "n = 2: share of negative eigenvalues among those that are not zero",
        "strict saddle",
        Equal(0.5, note="a strict saddle has at least one that is negative", each=True, of="net"),
        ours,
    )


def _zeros_of_the_bias(results: Results) -> Claim:
    """One zero eigenvalue a hidden unit: Eq. 3 has d of them in each of its R units."""
    ours = _by_depth(results, 2, EQ_3, lambda arrays: arrays["zeros"] - np.array(DEPTHS) * WIDTH)
    words = "the smallest |λ| is zero then, and the condition number is that of the others"
    test = Equal(0.0, note=words, each=True, of="net")
    return tested("n = 2: zero eigenvalues minus R d, with a hidden bias", "", test, ours, basis=Basis.OURS)


def _explodes(results: Results) -> Claim:
    """ "Its condition number tends to explode as the number of layers increase."

    At least linearly: where M = mu I the condition number is ((1 + |mu|) R - |mu|) / |mu|, R and more times that of R = 1.
    """
    ours = {
        form: _by_depth(results, 1, form, lambda arrays: arrays["condition"][-1] / arrays["condition"][0])
        for form in _forms(1)
    }
    exponent = _by_depth(results, 1, "linear", lambda arrays: power(DEPTHS, arrays["condition"]).slope)
    return _of_forms(
        f"n = 1: growth of the condition number from {DEPTHS[0]} to {DEPTHS[-1]} units",
        "tends to explode",
        at_least(DEPTHS[-1], note="linear growth or faster"),
        ours,
        noted("fitted exponent of R, linear", exponent, "1 is linear growth"),
    )


def _equivalent(results: Results) -> Claim:
    """ "The shortcut [of depth 1], however, is essentially equivalent to no shortcuts." """
    pieces = list(EQUIVALENCE.pieces)
    ours = results.of_pieces(
        EQUIVALENCE.name, pieces, lambda *arrays: np.max([each["deviation"] for each in arrays], axis=0)
    )
    quantity = "Hessian of an orthogonal plain net against that of a 1-shortcut net at zero, deviation"
    test = below(EXACT, each=True, note="orthogonally similar at depths 2 to 16")
    return tested(quantity, "essentially equivalent", test, ours)


def draw_theorem_2(results: Results) -> Figure:
    """Condition number at zero by the number of units: constant for n = 2, growing for n = 1."""
    shown = ("linear", "ReLU at pre")
    figure, (grid,) = figures.canvas(1, len(shown), sharey=True)
    computed = results.computed(BY_DEPTH.name)
    for axes, form in zip(grid, shown):
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
    (),
    theorem_2_claims,
    "The text lost Eqs. 8 to 10: rebuilt from the words of the proof. "
    "Loss 1/(2m) Σ‖x^R - y‖², parameters in the order of Def. 5. M = E[(x - y) pre(x)^T], c = mid'(0)^(n-1) post'(0). Against "
    "autograd on 30 samples of five whitened components and five classes, along random directions for orders above 2; depth "
    "dependence by eigenvalues of the closed form on all data. "
    "A ReLU at mid or post has no derivative at 0, and autograd takes 0, which would make the Hessian vanish: here it is "
    "linear with the mean of its two slopes, 1/2. M depends on sign and order of the principal components. "
    + WHITENING,
    draw_theorem_2,
    (ZERO, BY_DEPTH, EQUIVALENCE),
    about=Class.FORMULA,
)
