"""Theorems 3 and 4: what drives the scales of a residual net up. As identities of a small model, by finite differences.

The theorems are exact statements about one skip connection, frozen gates and a loss that is linear in the output; what
trained nets do is another question, which runs answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from lightning_app.checks import if_measured
from lightning_app.reproduce.artefact import Artefact
from lightning_app.reproduce.computation import Arrays, Computation, Source
from lightning_app.reproduce.results import Results
from lightning_app.verdicts import Claim, Outcome, Reading, Sample, described, holds, one

__all__ = ["THEOREM_3", "THEOREM_4"]

EXACT = 1e-8  # what differences may leave of an identity

# -- the exact small model --------------------------------------------------------------------------------------------------

BLOCKS: dict[str, dict[str, Any]] = {  # layers p, and those that the identity connection skips, counted from 1
    "p3": {"p": 3, "first": 2, "last": 2},
    "p5-early": {"p": 5, "first": 2, "last": 3},
    "p5-late": {"p": 5, "first": 3, "last": 5},
    "p6-all": {"p": 6, "first": 2, "last": 6},
}
NETS = {
    **BLOCKS,
    "p5-weak": {**BLOCKS["p5-early"], "strength": 0.02},
    "p5-strong": {**BLOCKS["p5-early"], "strength": 50.0},
}
NETS = {name: {"strength": 1.0, **net, "seeds": 20} for name, net in NETS.items()}


def scales(source: Source, p: int, first: int, last: int, strength: float, seeds: int) -> Arrays:
    """Theorem 3 for every layer of each seed's net: arrays (seeds * p,)."""
    from lightning_app.theory import driving_force

    nets = [_net(p, first, last, seed, strength=strength) for seed in range(seeds)]
    return _columns([driving_force.theorem_3(net, layer) for net in nets for layer in range(p)])


def overall_scale(source: Source, p: int, first: int, last: int, seeds: int) -> Arrays:
    """Theorem 4 for each seed's net: arrays (seeds,)."""
    from lightning_app.theory import driving_force

    return _columns([driving_force.theorem_4(_net(p, first, last, seed, normalised=False)) for seed in range(seeds)])


def _net(p: int, first: int, last: int, seed: int, **more):
    import torch

    from lightning_app.theory.driving_force import skip_net

    return skip_net(p, range(first - 1, last), 8, 4, 30, torch.Generator().manual_seed(seed), **more)


def _columns(found: Sequence[Any]) -> Arrays:
    rows = [asdict(each) for each in found]
    return {key: np.array([row[key] for row in rows]) for key in rows[0]}


SCALES = Computation("scale-drive", scales, NETS)
OVERALL = Computation(
    "overall-scale-drive", overall_scale, {name: {**block, "seeds": 20} for name, block in BLOCKS.items()}
)


def _ours(results: Results, computation: Computation, value: Callable[[dict[str, np.ndarray]], np.ndarray]) -> Sample:
    """Numbers of all nets, from the columns of all pieces."""

    def of_all(*pieces: Arrays) -> np.ndarray:
        keys = [key for key in pieces[0] if key != "digest"]
        return value({key: np.concatenate([piece[key] for piece in pieces]) for key in keys})

    return results.of_pieces(computation.name, list(computation.pieces), of_all)


def _exact(results: Results, computation: Computation, quantity: str, paper: str, value) -> Claim:
    ours = _ours(results, computation, value)
    small = if_measured(ours, lambda: holds(max(ours.values) <= EXACT, f"{max(ours.values):.2g}"))
    return one(quantity, paper, f"at most {EXACT:g} in every net", ours, small)


def _always(ours: Sample) -> Outcome:
    return if_measured(ours, lambda: holds(min(ours.values) == 1, f"in {100 * ours.mean:.3g} %"))


# -- Theorem 3 -------------------------------------------------------------------------------------------------------------


def theorem_3_claims(results: Results) -> list[Claim]:
    return identities_3(results)


def identities_3(results: Results) -> list[Claim]:
    return [
        _exact(
            results,
            SCALES,
            "d/dμ ∂L/∂λ_l(w - μg), l not skipped: by differences, from -‖g_m + g_p‖² / λ_l, relative",
            "Eq. 41",
            lambda found: found["identity"][~found["skipped"]],
        ),
        _exact(
            results,
            SCALES,
            "the same, l skipped, from -(‖g_p‖² + g_p·g_m) / λ_l",
            "Eq. 44",
            lambda found: found["identity"][found["skipped"]],
        ),
        _exact(results, SCALES, "-½ ∂‖g‖²/∂λ_l from the same, all layers", "", lambda found: found["energy"]),
        _grows(results),
        _grows_if(results),
        _norms_suffice(results),
    ]


def _grows(results: Results) -> Claim:
    """Eq. 24, at points with ∂L/∂λ_l = 0."""
    ours = _ours(results, SCALES, lambda found: found["growth"][~found["skipped"]] > 0)
    return one("∂L/∂λ_l = 0, l not skipped: |λ_l| grows", "Eq. 24", "in every layer of every net", ours, _always(ours))


def _grows_if(results: Results) -> Claim:
    """Eq. 25, and that it holds under its condition only."""

    def share(positive: bool) -> Sample:
        def value(found: dict[str, np.ndarray]) -> np.ndarray:
            chosen = found["skipped"] & ((found["drive"] > 0) == positive)
            return (found["growth"][chosen] > 0) == positive

        return _ours(results, SCALES, value)

    up, down = share(positive=True), share(positive=False)
    often = _ours(results, SCALES, lambda found: found["drive"][found["skipped"]] > 0)
    return Claim(
        "∂L/∂λ_l = 0, l skipped, ‖g_p‖² + g_p·g_m > 0: |λ_l| grows",
        "Eq. 25",
        "in every layer of every net; and falls where the sum is negative",
        (
            Reading("", up, _always(up)),
            Reading("where it is negative: |λ_l| falls", down, _always(down)),
            Reading("how often the condition holds, random nets", often, described("")),
        ),
    )


def _norms_suffice(results: Results) -> Claim:
    ours = _ours(results, SCALES, lambda found: found["drive"][found["skipped"] & (found["norms"] > 1)] > 0)
    quantity = "where ‖g_p‖ > ‖g_m‖: ‖g_p‖² + g_p·g_m > 0"
    return one(quantity, "implied, Section 4.2", "in every net", ours, _always(ours))


THEOREM_3 = Artefact(
    "theorem-3",
    "the scale of a layer grows, always where no connection skips it, else if the deep paths' gradient is the larger one",
    (),
    theorem_3_claims,
    "Eq. 23 with the loss -mean(label Y); gates and σ those of a forward pass, then frozen. 20 nets for each of six shapes, "
    "8 units a layer, two of them with the block's output made 50 times weaker or stronger. The identities hold at any point; "
    "the signs of steps are those at the nearest point with ∂L/∂λ_l = 0, as the theorem assumes: elsewhere the ordinary gradient "
    "of order μ decides, and the drive is of order μ².",
    computations=(SCALES,),
)

# -- Theorem 4 -------------------------------------------------------------------------------------------------------------


def theorem_4_claims(results: Results) -> list[Claim]:
    return identities_4(results)


def identities_4(results: Results) -> list[Claim]:
    return [
        _exact(
            results,
            OVERALL,
            "C ∂L/∂C, by differences, from m L_m + p L_p, relative",
            "proof of Thm. 4",
            lambda found: found["euler"],
        ),
        _equation_27(results),
        _driven_up(results),
    ]


def _equation_27(results: Results) -> Claim:
    final, printed = (_ours(results, OVERALL, lambda found, key=key: found[key]) for key in ("identity", "printed"))
    small = if_measured(final, lambda: holds(max(final.values) <= EXACT, f"{max(final.values):.2g}"))
    return Claim(
        "d/dμ ∂L/∂C(w - μg) where ∂L/∂C = 0: by differences, from Eq. 27, relative",
        "-(m‖g_m‖² + p‖g_p‖² + (m+p) g_p·g_m) / C",
        f"at most {EXACT:g} in every net",
        (
            Reading("Eq. 27", final, small),
            Reading(
                "Eq. 47, the proof's last line, has m‖g_p‖² for m‖g_m‖²: a slip of the pen",
                printed,
                described(printed.range),
            ),
        ),
    )


def _driven_up(results: Results) -> Claim:
    """By m a² + p b² >= 2 √(mp) a b."""
    ours = _ours(results, OVERALL, lambda found: found["drive"][found["cosine"] > found["bound"]] > 0)
    often = _ours(results, OVERALL, lambda found: found["drive"] > 0)
    cosine = _ours(results, OVERALL, lambda found: found["cosine"])
    return Claim(
        "cos(g_m, g_p) > -2√(mp) / (m + p): the drive is towards a larger C",
        "if either gradient dominates",
        "in every net",
        (
            Reading("", ours, _always(ours)),
            Reading("how often C is driven up, random nets", often, described("")),
            Reading("cos(g_m, g_p), random nets", cosine, described(cosine.range)),
        ),
    )


THEOREM_4 = Artefact(
    "theorem-4",
    "the scale of all weights grows without normalisation too",
    (),
    theorem_4_claims,
    "Eq. 26: λ = σ = 1, C = ‖w‖ / √Λ with Λ the number of weights; the loss and frozen gates of theorem-3, 20 nets for each of "
    "four shapes. Eq. 27 at the nearest point with g·w = 0, where C does not change to first order.",
    computations=(OVERALL,),
)
