"""Littwin & Wolf's claims that need no training: real numbers, numbers made wrong one at a time, and the command."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lightning_app.papers.littwin_wolf import fig_1abc, fig_1f_theorem_5, lemmas, theorems_3_4
from lightning_app.papers.parts import PAPER, Artefact, Computation, Source
from lightning_app.papers.records import rows_of
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Verdict
from lightning_app.reproduce.computing import ComputationJob
from lightning_app.reproduce.job import JobOptions

NOT = Verdict.NOT_REPRODUCED
CHECKED = {  # how many rows of an artefact are identities, executed proofs or additions of ours
    **{"fig-1a": 2, "fig-1b": 2, "fig-1c": 2, "fig-1f": 5},
    **{"theorem-1": 1, "theorem-2": 2, "theorem-3": 3, "theorem-4": 1, "theorem-5": 4},
    **{"lemma-2": 1, "lemma-3": 3, "lemma-4": 3},
}
DEPENDING = {  # claims that hold under a stricter condition than the paper's
    "lemma-1": ["number of paths of a configuration"],
    "lemma-2": ["least E[ξ²] over its lower bound", "largest E[ξ²] over its upper bound"],
}
FALSE = {  # as the paper has them
    "lemma-3": [*lemmas.LOSSES.values(), "sign of C2 of both losses, label beyond all outputs"]
}
THEOREM_3 = replace(theorems_3_4.THEOREM_3, claims=theorems_3_4.identities_3, runs=())  # without those of trained nets
THEOREM_4 = replace(theorems_3_4.THEOREM_4, claims=theorems_3_4.identities_4, runs=())
ARTEFACTS = [
    *(fig_1abc.FIG_1A, fig_1abc.FIG_1B, fig_1abc.FIG_1C, fig_1f_theorem_5.FIG_1F),
    *(fig_1abc.THEOREM_1, fig_1abc.THEOREM_2, THEOREM_3, THEOREM_4, fig_1f_theorem_5.THEOREM_5),
    *(lemmas.LEMMA_1, lemmas.LEMMA_2, lemmas.LEMMA_3, fig_1abc.LEMMA_4),
]
Change = Callable[[str, dict[str, np.ndarray]], dict[str, np.ndarray]]  # of a piece's arrays


@cache
def computed(computation: str, piece: str) -> dict[str, np.ndarray]:
    """A piece's arrays, of few seeds and small spectra."""
    every = {each.name: each for artefact in ARTEFACTS for each in artefact.computations}
    asked = dict(every[computation].pieces[piece])
    caps = {"seeds": 20 if computation == fig_1f_theorem_5.SPIN_GLASS.name else 7, "spectra": 2000, "mixtures": 100}
    asked |= {key: min(asked[key], cap) for key, cap in caps.items() if key in asked}
    return dict(every[computation].compute(Source(Path("nowhere"), stand_in=False), **asked))


@pytest.fixture
def verdicts(tmp_path) -> Callable[..., dict[str, str]]:
    """Verdicts by quantity of an artefact whose numbers were changed."""

    def verdicts(artefact: Artefact, change: Change = lambda piece, arrays: {}) -> dict[str, str]:
        there = {}
        for computation in artefact.computations:
            _leave(computation, change, tmp_path)
            there[computation.name] = ComputationJob("littwin-wolf", computation, PAPER).found(tmp_path).pieces
        rows = rows_of(artefact.claims(Results({}, {}, PAPER, there)), artefact.about, "paper")
        return {row["quantity"]: row["verdict"] for row in rows}

    return verdicts


def _leave(computation: Computation, change: Change, root: Path) -> None:
    stems = iter(computation.pieces)

    def changed(source: Source, **_) -> dict[str, np.ndarray]:
        piece = next(stems)
        arrays = computed(computation.name, piece)
        return {**arrays, **change(piece, arrays)}

    ComputationJob("littwin-wolf", replace(computation, compute=changed), PAPER).complete(
        root, JobOptions(root / "nowhere")
    )


def only(found: dict[str, str], *verdicts: Verdict) -> list[str]:
    return [quantity for quantity, verdict in found.items() if verdict in verdicts]


def failing(artefact: Artefact, found: dict[str, str]) -> list[str]:
    """But for what is known not to hold."""
    known = FALSE.get(artefact.key, ())
    return [each for each in only(found, NOT, Verdict.ARTEFACT, Verdict.NOT_TESTED) if each not in known]


@pytest.mark.slow
@pytest.mark.parametrize("artefact", ARTEFACTS, ids=lambda artefact: artefact.key)
def test_real_numbers_reproduce_it(artefact, verdicts):
    found = verdicts(artefact)
    assert failing(artefact, found) == []
    assert only(found, NOT) == FALSE.get(artefact.key, [])
    assert len(only(found, Verdict.CHECKED)) == CHECKED.get(artefact.key, 0)
    expected, depending = DEPENDING.get(artefact.key, []), only(found, Verdict.DEPENDS)
    assert len(depending) == len(expected)
    assert all(map(str.startswith, depending, expected))


@pytest.mark.slow
@pytest.mark.parametrize("artefact", ARTEFACTS, ids=lambda artefact: artefact.key)
def test_the_words_of_claims_are_those_before_any_number(artefact):
    """What is asked, of what and under which readings: a registration has it before anything is computed."""

    def words(pieces: Callable[[Computation], dict]) -> list:
        there = {c.name: pieces(c) for c in artefact.computations}
        claims = artefact.claims(Results({}, {}, PAPER, there))
        return [(c.quantity, c.paper, c.test, c.power, [each.convention for each in c.readings]) for c in claims]

    assert words(lambda _: {}) == words(lambda c: {piece: computed(c.name, piece) for piece in c.pieces})


def off(key: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    """One array changed in every piece that has it."""
    return lambda piece, arrays: {key: change(arrays[key])} if key in arrays else {}


IDENTITIES = [f"{quantity}, label beyond" for quantity in lemmas.LOSSES.values()]
SIGNS = ("not skipped", "skipped, ‖g_p‖² + g_p·g_m >", "skipped, ‖g_p‖² + g_p·g_m <")
BOUNDS = ["distance from the bound: lower", "distance from the bound: upper"]
WRONG: list[tuple[Artefact, Change, list[str]]] = [
    (fig_1abc.FIG_1B, off("weights", lambda w: 1.001 * w), ["Σ ε_r²", "ε_r against binomials"]),
    (fig_1abc.FIG_1B, off("weights", lambda w: np.roll(w, 3)), ["ε_r against", "argmax", "share of Σ"]),
    (fig_1abc.FIG_1C, off("weights", lambda w: np.full(100, 0.1)), ["ε_r against", "argmax", "share of Σ"]),
    (fig_1abc.THEOREM_1, off("argmax", lambda a: a + 2), ["largest |argmax", "|argmax / p", "depths where"]),
    (fig_1abc.THEOREM_1, off("of_weights", lambda a: a + 2), ["depths where"]),
    (fig_1abc.THEOREM_2, off("mass", lambda a: 0.9 * a), ["Σ ε_r² over the band"]),
    (fig_1abc.THEOREM_2, off("log_outside", lambda a: a / 2), ["slope of"]),
    (fig_1abc.THEOREM_2, off("log_outside", lambda a: a[::-1]), ["largest change", "slope of"]),
    (fig_1abc.THEOREM_2, off("spread", lambda a: a**1.2), ["width of the band"]),
    (fig_1abc.LEMMA_4, off("argmax", lambda a: np.minimum(a, len(a) - 1)), ["k = 1..p", "the same by"]),
    (fig_1abc.LEMMA_4, off("high", lambda a: 0.99 * a), ["gaps"]),
    (fig_1abc.LEMMA_4, off("low", lambda a: a + 1e-3), ["gaps", "what they leave"]),
    (fig_1f_theorem_5.FIG_1F, off("theta", lambda a: a[::-1]), ["least step of θ"]),
    (fig_1f_theorem_5.FIG_1F, off("complete", lambda a: np.zeros_like(a)), ["share of Hamiltonians"]),
    (fig_1f_theorem_5.FIG_1F, off("expected", lambda a: np.ones_like(a)), ["Kac-Rice means", "counted against"]),
    (
        fig_1f_theorem_5.FIG_1F,
        lambda piece, arrays: {"counts": np.arange(100).reshape(20, 5)} if "counts" in arrays else {},
        ["counted on sampled", "least ratio", "counted against"],
    ),
    (
        fig_1f_theorem_5.THEOREM_5,
        off("largest", lambda a: a + 0.2),
        ["θ of a random mixture", "Kac-Rice mean of a random"],
    ),
    (fig_1f_theorem_5.THEOREM_5, off("steps", lambda a: -a), ["from pure p"]),
    (
        fig_1f_theorem_5.THEOREM_5,
        lambda piece, arrays: {"counts": arrays["counts"] // 9} if piece == fig_1f_theorem_5.PURE else {},
        [
            "counted, Λ = 5, same couplings: pure 4-spin minus a mixture with equal",
            "counted, Λ = 5, same couplings: pure 4-spin minus a mixture with β = 1",
        ],
    ),
    (lemmas.LEMMA_1, off("1/paths", lambda a: a + 1e-9), ["sum over all paths"]),
    (lemmas.LEMMA_1, off("1/reindexed", lambda a: a + 1e-9), ["sum over all configurations"]),
    (lemmas.LEMMA_1, off("1/uneven", lambda a: a + 1e-9), ["number of paths"]),
    (lemmas.LEMMA_2, off("2/smallest", lambda a: 0.9 * a), ["least E[ξ²] over its lower", *BOUNDS]),
    (lemmas.LEMMA_2, off("2/largest", lambda a: 1.1 * a), ["largest E[ξ²]", *BOUNDS]),
    (lemmas.LEMMA_2, off("2/sampled", lambda a: a + 5), ["mean of ξ²"]),
    (lemmas.LEMMA_3, off("3/absolute", lambda a: a + 1e-9), [IDENTITIES[0]]),
    (lemmas.LEMMA_3, off("3/hinge", lambda a: a + 1e-9), [IDENTITIES[1]]),
    (lemmas.LEMMA_3, off("3/expectation", lambda a: a + 1e-9), ["E_A[Y] as a sum"]),
    (THEOREM_3, off("identity", lambda a: a + 1e-7), ["d/dμ ∂L/∂λ_l", "the same, l skipped"]),
    (THEOREM_3, off("energy", lambda a: a + 1e-7), ["-½ ∂‖g‖²"]),
    (THEOREM_3, off("growth", lambda a: -a), [f"share with ∂L/∂λ_l = 0, l {which}" for which in SIGNS]),
    (THEOREM_3, off("norms", lambda a: np.full_like(a, 2.0)), ["share with ‖g_p‖ > ‖g_m‖"]),
    (THEOREM_4, off("euler", lambda a: a + 1e-7), ["C ∂L/∂C"]),
    (THEOREM_4, off("identity", lambda a: a + 1e-7), ["d/dμ ∂L/∂C"]),
    (THEOREM_4, off("drive", lambda a: -a), ["share with cos(g_m, g_p) >"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("artefact", "change", "wrong"), WRONG, ids=[f"{w[0].key}-{i}" for i, w in enumerate(WRONG)])
def test_wrong_numbers_are_not_reproduced(artefact, change, wrong, verdicts):
    found = verdicts(artefact, change)
    starts = [[start for start in wrong if quantity.startswith(start)] for quantity in failing(artefact, found)]
    assert starts == [[start] for start in wrong], failing(artefact, found)
    assert all(found[quantity] in (NOT, Verdict.ARTEFACT) for quantity in failing(artefact, found))


def test_exact_weights_by_hand():
    """p = 3, beta = 1/2: (1/2, 2/4, 1/8) / Z, Z^2 = 33/64."""
    np.testing.assert_allclose(fig_1abc._exact_weights(3, 0.5), np.array([4, 4, 1]) / 33**0.5, rtol=1e-15)
