"""Claims first: what these nets say of the papers' claims -- paper, ours, verdict -- by the tests that ``reproduce`` uses.

A net counts for a claim as far as its configuration says that it is the net of the paper: other data, sizes or rates,
fewer epochs or seeds leave the claim "not tested", with the reason and our number beside it. A new claim is one function
here and one line in `TESTED`.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from lightning_app.checks import excludes_zero, if_measured
from lightning_app.claims import (
    CUSHIONS,
    DEPTHS,
    NUMBERS,
    PLAIN,
    RESIDUAL,
    TABLE_1,
    as_printed,
    cushion_exceptions,
    cushion_of_layer_10,
    degradation,
    gap,
    id_share,
    interlayer_gap,
    interlayer_mean,
    loss_over_penalty,
    quotient,
)
from lightning_app.report import reproduced
from lightning_app.report.blocks import Cell, Section, Table, cell, mean_cell, number
from lightning_app.report.ensembles_layers import layers_with
from lightning_app.report.evidence import Evidence
from lightning_app.report.subjects import Arm, Duo, Recipe, arms_of, duos_of, mean_of
from lightning_app.statistics import ENOUGH
from lightning_app.verdicts import Claim, Outcome, Reading, Sample, Verdict, described, holds, judge, one

__all__ = ["TESTED", "Tested", "section"]

TITLE = "What the papers claim"
WHAT = (
    "Reproduced: the test, small beside the paper’s number, holds under every defensible reading; artefact of a convention: "
    "under some; not reproduced: under none. Not tested: these nets are not those of the paper, or not long or often enough "
    "trained, and our number is for orientation only. Ours: mean ± sample standard deviation over seeds (their number). The "
    "tests were fixed before any run."
)
NOTHING = (
    "None of the papers’ claims is about these nets. They are about plain and residual nets of ours (SimplifiedNet, CifarResNet, "
    "ResidualMLP) side by side; the measures below are shown all the same."
)
HEAD = ["claim", "reading", "paper", "ours", "verdict", "why", "see"]

SIMPLE, FULL, MLP = "SimplifiedNet", "CifarResNet", "ResidualMLP"
ALL_IMAGES = {"data.class_path": "CIFAR10", "data.init_args.train_limit": None, "data.init_args.test_limit": None}
TRAINED = ALL_IMAGES | {"data.init_args.batch_size": 128, "model.weight_decay": 1e-4}
SLOW = {(PLAIN, 44): 1e-3}  # "does not decrease with larger learning rates"


def simplified(arm: str, depth: int | None, depths: Sequence[int] = DEPTHS) -> Recipe:
    """Yu & Tomasi's recipe (SM A) for one net; three seeds, so that there is a spread."""
    rate = {"model.optimizer.init_args.lr": SLOW.get((arm, depth), 0.01)}
    return Recipe(SIMPLE, 200, 3, TRAINED | rate, tuple(depths))


# -- Yu & Tomasi ----------------------------------------------------------------------------------------------------------


def table_1(evidence: Evidence) -> Iterator[Claim]:
    """Each number that is printed."""
    for arm in arms_of(evidence, SIMPLE):
        for (symbol, name), paper in zip(NUMBERS.items(), TABLE_1.get((arm.kind, arm.depth), ()), strict=False):
            ours = arm.final(name, simplified(arm.kind, arm.depth))
            yield as_printed(symbol, arm.kind, arm.depth, paper, ours)


def gaps(evidence: Evidence) -> Iterator[Claim]:
    """Residual nets end with the smaller loss and error, at each depth."""
    for duo in duos_of(evidence, SIMPLE):
        for symbol in ("L", "E"):
            plain, residual = (arm.final(NUMBERS[symbol], simplified(arm.kind, arm.depth)) for arm in duo.arms)
            differences = plain.map(lambda p, r: p - r, residual)
            yield gap(symbol, duo.plain.depth, differences, Sample((0.0,)), "0")


def depths(evidence: Evidence) -> Iterator[Claim]:
    """Degradation: from depth 20 to depth 44 the loss of plain nets grows most."""
    risks = {
        (arm.kind, arm.depth): arm.final("train/risk", simplified(arm.kind, arm.depth))
        for arm in arms_of(evidence, SIMPLE)
    }
    if all((kind, depth) in risks for kind in (PLAIN, RESIDUAL) for depth in (20, 44)):
        yield from degradation(*(risks[kind, 44].map(quotient, risks[kind, 20]) for kind in (PLAIN, RESIDUAL)))


def penalties(evidence: Evidence) -> Iterator[Claim]:
    """The loss is over 80 times the penalty."""
    for arm in arms_of(evidence, SIMPLE):
        if arm.has("train/cost_paper"):
            recipe = simplified(arm.kind, arm.depth, [20])
            costs = {name: arm.final(name, recipe) for name in ("train/cost", "train/cost_paper")}
            yield loss_over_penalty(arm.kind, arm.depth, arm.final("train/risk", recipe), costs)


def id_shares(evidence: Evidence) -> Iterator[Claim]:
    """Large weights are those of ID entries (Table 3)."""
    for arm in arms_of(evidence, SIMPLE):
        name = f"weight_mass{'_transferred' * (arm.kind == RESIDUAL)}/id_over_large"
        if arm.kind and arm.has(name):
            yield id_share(arm.kind, arm.final(name, simplified(arm.kind, arm.depth, [32])))


def cushions(evidence: Evidence) -> Iterator[Claim]:
    """Layer cushions of residual nets lie to the right (Fig. 3)."""
    for duo in duos_of(evidence, SIMPLE):
        layers = [f"layer{number:02d}" for number in range(1, duo.plain.depth)]
        if not all(duo.has(f"cushion/{layer}/median") for layer in layers):
            continue
        medians = {ending: [_medians(duo, layer, ending) for layer in layers] for ending in CUSHIONS.values()}
        if "layer10" in layers:
            at_10 = {words: medians[ending][layers.index("layer10")] for words, ending in CUSHIONS.items()}
            yield cushion_of_layer_10(duo.plain.depth, {words: r.map(quotient, p) for words, (p, r) in at_10.items()})
        yield cushion_exceptions(
            duo.plain.depth, {words: _exceptions(medians[ending]) for words, ending in CUSHIONS.items()}
        )


def _medians(duo: Duo, layer: str, ending: str) -> tuple[Sample, Sample]:
    return duo.final(f"cushion/{layer}/median{ending}", simplified(PLAIN, duo.plain.depth, (20, 32)))


def _exceptions(medians: Sequence[tuple[Sample, Sample]]) -> Sample:
    """Of each seed, how many layers have no larger median in the residual net; a NaN is one."""
    larger = [plain.map(lambda p, r: not r > p, residual) for plain, residual in medians]
    return larger[0].map(lambda *layers: sum(layers), *larger[1:])


MODES = {"BN on one sample": "interlayer_batch1", "BN in evaluation mode": "interlayer"}
SIZES = {"n = H W": "mean_hw", "n = C H W": "mean"}
BLOCK = "block05"


def interlayer(evidence: Evidence) -> Iterator[Claim]:
    """Interlayer cushions of full nets (section 5), as far as both modes of BatchNorm were measured."""
    recipe = Recipe(FULL, 164, 3, TRAINED | {"model.optimizer.init_args.lr": 0.1}, (20,))
    names = {
        f"{mode}, {size}": f"{family}/{BLOCK}/{field}"
        for mode, family in MODES.items()
        for size, field in SIZES.items()
    }
    for arm in arms_of(evidence, FULL):
        if arm.kind and all(map(arm.has, names.values())):
            yield interlayer_mean(arm.kind, {words: arm.final(name, recipe) for words, name in names.items()})
    for duo in duos_of(evidence, FULL):
        if all(map(duo.has, names.values())):
            both = {mode: duo.final(f"{family}/{BLOCK}/mean_hw", recipe) for mode, family in MODES.items()}
            yield interlayer_gap({mode: r.map(quotient, p) for mode, (p, r) in both.items()})


# -- Littwin & Wolf ---------------------------------------------------------------------------------------------------------

MIXTURE = {"data.class_path": "GaussianMixture", "model.optimizer.init_args.momentum": 0.0, "model.weight_decay": 0.0}
GROWS = "95 % bootstrap interval over seeds above 0"
DEPTH_MEASURES = {"d_eff": "effective", "d_coh": "coherent", "d_grad": "gradient"}


def mixture() -> Recipe:
    """The nets of Figs. 1d and 1e; as many seeds as an interval needs."""
    return Recipe(MLP, 12, ENOUGH, MIXTURE)


def lambdas(evidence: Evidence) -> Iterator[Claim]:
    """The scales of normalisation layers grow (Fig. 1d). Of any net with such layers: only those of the figure are judged."""
    for arm in _all_arms(evidence):
        layers = sorted(layers_with(arm.nets[0], "bn_lambda", "mean_abs"))
        names = [f"bn_lambda/{layer}/mean_abs" for layer in layers[1:]]  # the first layer has no skip around it
        if names and all(map(arm.has, names)):
            words = f"mean |λ| of all layers but the first, end minus start, {arm.label}"
            yield _grows(words, _grown(arm, names))


def norms(evidence: Evidence) -> Iterator[Claim]:
    """Without normalisation the norm of the weights grows (Fig. 1e)."""
    for arm in _all_arms(evidence):
        if arm.has("weight_norm/total") and not arm.has("bn_lambda/l2"):
            yield _grows(f"‖w‖ without normalisation, end minus start, {arm.label}", _grown(arm, ["weight_norm/total"]))


def ensembles(evidence: Evidence) -> Iterator[Claim]:
    """Paths are short at initialisation, and become longer (sections 1 and 4)."""
    for arm in _all_arms(evidence):
        if arm.has("depth/effective"):
            starts = {words: _share(arm.initial, field) for words, field in DEPTH_MEASURES.items()}
            ends = {words: _share(arm.final, field) for words, field in DEPTH_MEASURES.items()}
            at_start = tuple(Reading(words, ours, _below_half(ours)) for words, ours in starts.items())
            deeper = {words: ends[words].map(lambda end, first: end - first, starts[words]) for words in starts}
            later = tuple(Reading(words, ours, excludes_zero(ours)) for words, ours in deeper.items())
            yield Claim(f"depth / p at initialisation, {arm.label}", "< 0.5", "below 0.5 in every seed", at_start)
            yield Claim(f"depth / p, end minus start, {arm.label}", "> 0", GROWS, later)


def _all_arms(evidence: Evidence) -> list[Arm]:
    return [Arm(label, tuple(nets)) for label, nets in evidence.groups.items()]


def _grown(arm: Arm, names: Sequence[str]) -> Sample:
    ends, starts = ([moment(name, mixture()) for name in names] for moment in (arm.final, arm.initial))
    return mean_of(ends).map(lambda end, start: end - start, mean_of(starts))


def _grows(quantity: str, ours: Sample) -> Claim:
    return one(quantity, "> 0", GROWS, ours, excludes_zero(ours))


def _share(moment: Callable[[str, Recipe], Sample], field: str) -> Sample:
    depth, longest = (moment(f"depth/{name}", mixture()) for name in (field, "longest"))
    return depth.map(quotient, longest)


def _below_half(ours: Sample) -> Outcome:
    return if_measured(ours, lambda: holds(max(ours.values) < 0.5, f"up to {max(ours.values):.3g}"))


# -- Li et al. --------------------------------------------------------------------------------------------------------------


INTERVAL = {"low": "lower ends of the intervals", "high": "upper ends of the intervals"}


def index(evidence: Evidence) -> Iterator[Claim]:
    """The Hessian's index: the paper's Fig. 6 is of linear nets with shortcuts of depth two, so these are shown only."""
    why = "Li et al. compute the whole spectrum of linear nets with shortcuts of depth 2, not of these"
    for duo in (duo for net in (SIMPLE, FULL, MLP) for duo in duos_of(evidence, net)):
        if duo.has("hessian/index_low"):
            readings = [_index(duo, end, why) for end in INTERVAL]
            quantity = f"share of negative eigenvalues, plain − residual, {duo.plain.label}"
            yield Claim(quantity, "> 0", "none here", tuple(readings))


def _index(duo: Duo, end: str, why: str) -> Reading:
    plain, residual = duo.final(f"hessian/index_{end}", Recipe(duo.plain.net, 0, 1))
    ours = plain.map(lambda p, r: p - r, residual)
    return Reading(INTERVAL[end], ours, described(why))


# -- all of them ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tested:
    """A claim, or several of one kind, of as many of the page's nets as it is about."""

    paper: str
    artefact: str
    see: str  # key of the section with the evidence
    find: Callable[[Evidence], Iterable[Claim]]


YU, LITTWIN, LI = "Yu & Tomasi (2019)", "Littwin & Wolf (2016)", "Li et al. (2016)"
TESTED = (
    Tested(YU, "Table 1", "headline", gaps),
    Tested(YU, "Table 1", "headline", depths),
    Tested(YU, "Table 1", "headline", table_1),
    Tested(YU, "Table 1", "headline", penalties),
    Tested(YU, "Table 3", "weights", id_shares),
    Tested(YU, "Fig. 3", "cushions", cushions),
    Tested(YU, "section 5", "configs", interlayer),
    Tested(LITTWIN, "Fig. 1d", "ensembles", lambdas),
    Tested(LITTWIN, "Fig. 1e", "ensembles", norms),
    Tested(LITTWIN, "ensemble", "ensembles", ensembles),
    Tested(LI, "Fig. 6", "curvature", index),
)


def section(evidence: Evidence) -> Section:
    found = [(tested, claim) for tested in TESTED for claim in tested.find(evidence)]
    tables = [_table(paper, [pair for pair in found if pair[0].paper == paper]) for paper in (YU, LITTWIN, LI)]
    tables = [table for table in tables if table.rows] + reproduced.tables(evidence.made)
    if not tables:
        return Section("claims", TITLE, notices=[NOTHING])
    counts = _counts([judge(claim)[0] for _, claim in found])
    return Section("claims", TITLE, f"{counts} {WHAT}".strip(), tables)


def _counts(verdicts: Sequence[Verdict]) -> str:
    """ "3 reproduced, 1 not tested.", in the order of `Verdict`."""
    found = Counter(verdicts)
    words = ", ".join(f"{found[verdict]} {verdict}" for verdict in Verdict if found[verdict])
    return f"{words}." if words else ""


def _table(paper: str, found: Sequence[tuple[Tested, Claim]]) -> Table:
    rows = [
        _row(tested, claim, reading, first=not place)
        for tested, claim in found
        for place, reading in enumerate(claim.readings)
    ]
    return Table("", HEAD, rows, title=paper, wide=True)


def _row(tested: Tested, claim: Claim, reading: Reading, first: bool) -> list[Cell]:
    """Of one reading; the claim, the paper's number and the verdict stand with the first."""
    if not first:
        return [
            Cell("″"),
            Cell(reading.convention),
            Cell(""),
            _ours(reading.ours),
            Cell(""),
            Cell(_why(reading)),
            Cell(""),
        ]
    verdict, why = judge(claim)
    if len(claim.readings) > 1 and verdict in (Verdict.REPRODUCED, Verdict.NOT_REPRODUCED):
        why = _why(reading)  # each reading has a row to say its own
    return [
        Cell(claim.quantity),
        Cell(reading.convention),
        Cell(_printed(claim.paper), note=claim.test),
        _ours(reading.ours),
        Cell(str(verdict)),
        Cell(why),
        Cell(tested.artefact, link=tested.see),
    ]


def _why(reading: Reading) -> str:
    """Of one of several readings: whether it held."""
    if reading.ours.missing or not reading.outcome.judged:
        return ""
    return f"held: {reading.outcome.finding}".rstrip(": ") if reading.outcome.held else reading.outcome.why


def _printed(paper: float | str) -> str:
    return paper if isinstance(paper, str) else f"{paper:.4g}"


def _ours(ours: Sample) -> Cell:
    if not ours.count:
        return cell(None)
    if ours.count == 1 or math.isnan(ours.sd):
        return Cell(number(ours.mean), repr(ours.mean), f"({ours.count})")
    shown = mean_cell(ours.values)
    return Cell(shown.text, shown.exact, f"({ours.count})")
