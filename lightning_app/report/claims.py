"""Claims first: what these nets say of the papers' claims -- paper, ours, verdict -- by the tests that ``reproduce`` uses.

A net counts for a claim as far as its configuration says that it is the net of the paper: other data, sizes or rates,
fewer epochs or seeds leave the claim "not tested", with the reason and our number beside it. A new claim is one function
here and one line in `TESTED`.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from lightning_app.checks import IntervalAbove, Test, below, noted, tested
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
    gaps,
    id_share,
    interlayer_gap,
    interlayer_mean,
    loss_over_penalty,
    quotient,
)
from lightning_app.common.numbers import brief, number
from lightning_app.report import reproduced
from lightning_app.report.blocks import Cell, Section, Table, cell, mean_cell
from lightning_app.report.evidence import Evidence
from lightning_app.report.profiles import layers_with
from lightning_app.report.subjects import Arm, Duo, Recipe, arms_of, duos_of, mean_of
from lightning_app.statistics.paired import ENOUGH
from lightning_app.verdicts import Claim, Class, Reading, Sample, Varies, Verdict, counted, in_words, judge, with_power

__all__ = ["TESTED", "Tested", "section"]

TITLE = "What the papers claim"
WHAT = (
    "Counts are by what a claim is about: formulas, nets at initialisation, trained nets. Reproduced: the test holds "
    "under every defensible reading; not reproduced: under none. Artefact of a convention: under some ways to measure "
    "it only; depends on a setting that the paper does not give: with some settings only. Holds as rebuilt: of a "
    "statement whose formula the text at hand lost. Checked: an identity, or an addition that no paper states. "
    "Described: a number without a test. Not tested: these nets are not those of the paper, or not long or often "
    "enough trained, and our number is for orientation only. An interval that contains 0 leaves the sign unresolved; "
    "it does not say that there is no difference. Paper: what it prints, in small type our test of it, and what the "
    "test would let pass where that is much. Ours: mean ± sample standard deviation over seeds (their number). Tests "
    "are those of `reproduce`."
)
NOTHING = (
    "None of the papers’ claims is about these nets. They are about plain and residual nets of ours (SimplifiedNet, CifarResNet, "
    "ResidualMLP) side by side; the measures below are shown all the same."
)
HEAD = ["claim", "reading", "paper", "ours", "verdict", "why", "see"]

ALIKE = (Verdict.REPRODUCED, Verdict.REBUILT, Verdict.CHECKED, Verdict.NOT_REPRODUCED)  # of all readings
Found = tuple[str, Claim]  # which nets, and what is claimed of them

SIMPLE, FULL, MLP = "SimplifiedNet", "CifarResNet", "ResidualMLP"
ALL_IMAGES = {"data.class_path": "CIFAR10", "data.init_args.train_limit": None, "data.init_args.test_limit": None}
TRAINED = ALL_IMAGES | {
    "data.init_args.batch_size": 128,
    "model.weight_decay": 1e-4,
    "model.optimizer.class_path": "SGD",  # of any momentum, which the paper does not say
    "model.scheduler.class_path": "MultiStepLR",
}
USUAL = {
    "data.init_args.val_size": 0,
    "data.init_args.augment": True,
    "model.loss": "cross_entropy",
    "model.decays": "all",
    "model.decay_towards": "zero",
    "net.init_args.width": 16,
}
SLOW = {(PLAIN, 44): 1e-3}  # "does not decrease with larger learning rates"


def simplified(arm: str, depth: int | None, depths: Sequence[int] = DEPTHS) -> Recipe:
    """Yu & Tomasi's recipe (SM A) for one net; three seeds, so that there is a spread."""
    return Recipe(SIMPLE, 200, 3, TRAINED | _rates(SLOW.get((arm, depth), 0.01), 120, 160), tuple(depths), USUAL)


def _rates(first: float, *drops: int) -> dict[str, float]:
    """The learning rate, and the epochs after which it falls."""
    dropped = {f"model.scheduler.init_args.milestones.{place}": epoch for place, epoch in enumerate(drops)}
    return {"model.optimizer.init_args.lr": first} | dropped


# -- Yu & Tomasi ----------------------------------------------------------------------------------------------------------


def table_1(evidence: Evidence) -> Iterator[Found]:
    """Each number that is printed."""
    for arm in arms_of(evidence, SIMPLE):
        for (symbol, name), paper in zip(NUMBERS.items(), TABLE_1.get((arm.kind, arm.depth), ()), strict=False):
            ours = arm.final(name, simplified(arm.kind, arm.depth))
            yield arm.label, as_printed(symbol, arm.kind, arm.depth, paper, ours)


def smaller(evidence: Evidence) -> Iterator[Found]:
    """Residual nets end with the smaller loss and error at each depth, and by more the deeper."""
    duos = sorted(duos_of(evidence, SIMPLE), key=lambda duo: duo.plain.depth)
    chain = {duo.plain.depth: duo for duo in reversed(duos) if duo.plain.depth in DEPTHS}
    for symbol in ("L", "E"):
        apart = {depth: _apart(chain[depth], symbol) for depth in sorted(chain)}
        yield from zip((_named(chain[depth]) for depth in apart), gaps(symbol, apart), strict=True)
        for duo in (duo for duo in duos if duo not in chain.values()):
            yield _named(duo), *gaps(symbol, {duo.plain.depth: _apart(duo, symbol)})


def _apart(duo: Duo, symbol: str) -> Sample:
    plain, residual = (arm.final(NUMBERS[symbol], simplified(arm.kind, arm.depth)) for arm in duo.arms)
    return plain.map(lambda p, r: p - r, residual)


def _named(duo: Duo) -> str:
    return f"{duo.plain.label} and {duo.residual.label}"


def deeper(evidence: Evidence) -> Iterator[Found]:
    """Degradation: from depth 20 to depth 44 the loss of plain nets grows most."""
    risks = {
        (arm.kind, arm.depth): arm.final("train/risk", simplified(arm.kind, arm.depth))
        for arm in reversed(arms_of(evidence, SIMPLE))  # of several the first counts
    }
    if all((kind, depth) in risks for kind in (PLAIN, RESIDUAL) for depth in (20, 44)):
        for claim in degradation(*(risks[kind, 44].map(quotient, risks[kind, 20]) for kind in (PLAIN, RESIDUAL))):
            yield "", claim


def penalties(evidence: Evidence) -> Iterator[Found]:
    """The loss is over 80 times the penalty."""
    for arm in arms_of(evidence, SIMPLE):
        recipe = simplified(arm.kind, arm.depth, [20])
        costs = {name: arm.final(name, recipe) for name in ("train/cost", "train/cost_paper")}
        yield arm.label, loss_over_penalty(arm.kind, arm.depth, arm.final("train/risk", recipe), costs)


def id_shares(evidence: Evidence) -> Iterator[Found]:
    """Large weights are those of ID entries (Table 3)."""
    for arm in arms_of(evidence, SIMPLE):
        name = f"weight_mass{'_transferred' * (arm.kind == RESIDUAL)}/id_over_large"
        yield arm.label, id_share(arm.kind, arm.final(name, simplified(arm.kind, arm.depth, [32])))


def cushions(evidence: Evidence) -> Iterator[Found]:
    """Layer cushions of residual nets lie to the right (Fig. 3)."""
    for duo in duos_of(evidence, SIMPLE):
        layers = [f"layer{number:02d}" for number in range(1, duo.plain.depth)]
        medians = {ending: [_medians(duo, layer, ending) for layer in layers] for ending in CUSHIONS.values()}
        if "layer10" in layers:
            at_10 = {words: medians[ending][layers.index("layer10")] for words, ending in CUSHIONS.items()}
            ratios = {words: residual.map(quotient, plain) for words, (plain, residual) in at_10.items()}
            yield _named(duo), cushion_of_layer_10(duo.plain.depth, ratios)
        counts = {words: _exceptions(medians[ending]) for words, ending in CUSHIONS.items()}
        yield _named(duo), cushion_exceptions(duo.plain.depth, counts)


def _medians(duo: Duo, layer: str, ending: str) -> tuple[Sample, Sample]:
    return duo.final(f"cushion/{layer}/median{ending}", simplified(PLAIN, duo.plain.depth, (20, 32)))


def _exceptions(medians: Sequence[tuple[Sample, Sample]]) -> Sample:
    """Of each seed, how many layers have no larger median in the residual net; a NaN is one."""
    larger = [plain.map(lambda p, r: not r > p, residual) for plain, residual in medians]
    return larger[0].map(lambda *layers: sum(layers), *larger[1:])


MODES = {"BN on one sample": "interlayer_batch1", "BN in evaluation mode": "interlayer"}
SIZES = {"n = H W": "mean_hw", "n = C H W": "mean"}
BLOCK = "block05"


def interlayer(evidence: Evidence) -> Iterator[Found]:
    """Interlayer cushions of full nets (section 5)."""
    recipe = Recipe(FULL, 164, 3, TRAINED | _rates(0.1, 80, 121), (20,), USUAL)
    names = {
        f"{mode}, {size}": f"{family}/{BLOCK}/{field}"
        for mode, family in MODES.items()
        for size, field in SIZES.items()
    }
    for arm in arms_of(evidence, FULL):
        yield (
            arm.label,
            interlayer_mean(arm.kind, {words: arm.final(name, recipe) for words, name in names.items()}),
        )
    for duo in duos_of(evidence, FULL):
        both = {mode: duo.final(f"{family}/{BLOCK}/mean_hw", recipe) for mode, family in MODES.items()}
        ratios = {mode: residual.map(quotient, plain) for mode, (plain, residual) in both.items()}
        yield _named(duo), interlayer_gap(ratios)


# -- Littwin & Wolf ---------------------------------------------------------------------------------------------------------

MIXTURE = {"data.class_path": "GaussianMixture", "model.optimizer.init_args.momentum": 0.0, "model.weight_decay": 0.0}
DEPTH_MEASURES = {"d_eff": "effective", "d_coh": "coherent", "d_grad": "gradient"}


def mixture() -> Recipe:
    """The nets of Figs. 1d and 1e; as many seeds as an interval needs."""
    return Recipe(MLP, 12, ENOUGH, MIXTURE, longer=True)


def lambdas(evidence: Evidence) -> Iterator[Found]:
    """The scales of normalisation layers grow (Fig. 1d)."""
    arms = [arm for arm in _all_arms(evidence) if len(layers_with(arm.nets[0], "bn_lambda", "mean_abs")) > 1]
    yield from _grows("mean |λ| of all layers but the first", "steady increase", arms, _lambda_growth)


def _lambda_growth(arm: Arm) -> Sample:
    """Without the first layer, which has no skip around it."""
    layers = sorted(layers_with(arm.nets[0], "bn_lambda", "mean_abs"))[1:]
    return _grown(arm, [f"bn_lambda/{layer}/mean_abs" for layer in layers])


def norms(evidence: Evidence) -> Iterator[Found]:
    """Without normalisation the norm of the weights grows (Fig. 1e)."""
    arms = [arm for arm in _all_arms(evidence) if arm.has("weight_norm/total") and not _normalised(arm)]
    total = partial(_grown, names=["weight_norm/total"])
    yield from _grows("‖w‖ without normalisation", "steady increase", arms, total)


def ensembles(evidence: Evidence) -> Iterator[Found]:
    """Paths are short at initialisation, and become longer (sections 1 and 4)."""
    known = [arm for arm in _all_arms(evidence) if _normalised(arm) or arm.has("weight_norm/total")]  # BnLambda looked
    measured = [arm for arm in known if arm.has("depth/effective")]
    for name, field in DEPTH_MEASURES.items():
        for words, normalised in (("with", True), ("without", False)):
            arms = [arm for arm in measured if _normalised(arm) == normalised]
            quantity = f"{name} / p {words} normalisation"
            start = partial(_share, field=field, moment=Arm.initial)
            early = partial(_by_arm, about=Class.INITIALISATION)
            yield from early(f"{quantity}: at initialisation", "lower than half", below(0.5, each=True), arms, start)
            yield from _grows(quantity, "increases", arms, partial(_deeper, field=field))


def _all_arms(evidence: Evidence) -> list[Arm]:
    return [Arm(label, tuple(nets)) for label, nets in evidence.groups.items()]


def _normalised(arm: Arm) -> bool:
    return arm.has("bn_lambda/l2")


def _by_arm(
    quantity: str,
    paper: str,
    test: Test,
    arms: Sequence[Arm],
    ours: Callable[[Arm], Sample],
    about: Class = Class.TRAINED,
) -> Iterator[Found]:
    """One claim that the paper's nets are read together for, as it does not say which of them it trained; one of others."""
    for lacking in (False, True):
        samples = {arm.label: ours(arm) for arm in arms if bool(arm.lacks(mixture())) == lacking}
        if samples:
            yield "", tested(quantity, paper, test, samples, about=about, varies=Varies.SETTING)


def _grows(quantity: str, paper: str, arms: Sequence[Arm], ours: Callable[[Arm], Sample]) -> Iterator[Found]:
    yield from _by_arm(f"{quantity}: end minus start", paper, IntervalAbove(), arms, ours)


def _grown(arm: Arm, names: Sequence[str]) -> Sample:
    ends, starts = ([moment(name, mixture()) for name in names] for moment in (arm.final, arm.initial))
    return mean_of(ends).map(lambda end, start: end - start, mean_of(starts))


def _share(arm: Arm, field: str, moment: Callable[[Arm, str, Recipe], Sample]) -> Sample:
    depth, longest = (moment(arm, f"depth/{name}", mixture()) for name in (field, "longest"))
    return depth.map(quotient, longest)


def _deeper(arm: Arm, field: str) -> Sample:
    end, start = (_share(arm, field, moment) for moment in (Arm.final, Arm.initial))
    return end.map(lambda late, early: late - early, start)


# -- Li et al. --------------------------------------------------------------------------------------------------------------


INTERVAL = {"low": "lower ends of the intervals", "high": "upper ends of the intervals"}


def index(evidence: Evidence) -> Iterator[Found]:
    """The Hessian's index: the paper's Fig. 6 is of linear nets with shortcuts of depth two, so these are shown only."""
    why = "Li et al. compute the whole spectrum of linear nets with shortcuts of depth 2, not of these"
    for duo in (duo for net in (SIMPLE, FULL, MLP) for duo in duos_of(evidence, net)):
        if duo.has("hessian/index_low"):
            readings = [_index(duo, end, why) for end in INTERVAL]
            quantity = "share of negative eigenvalues of plain - residual"
            yield _named(duo), Claim(quantity, "", "none here", tuple(readings), about=Class.TRAINED)


def _index(duo: Duo, end: str, why: str) -> Reading:
    plain, residual = duo.final(f"hessian/index_{end}", Recipe(duo.plain.net, 0, 1, longer=True))
    ours = plain.map(lambda p, r: p - r, residual)
    return noted(INTERVAL[end], ours, why)


# -- all of them ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tested:
    """A claim, or several of one kind, of as many of the page's nets as it is about."""

    paper: str
    artefact: str
    see: str  # key of the section with the evidence
    find: Callable[[Evidence], Iterable[Found]]


YU, LITTWIN, LI = "Yu & Tomasi (2019)", "Littwin & Wolf (2016)", "Li et al. (2016)"
TESTED = (
    Tested(YU, "Table 1", "headline", smaller),
    Tested(YU, "Table 1", "headline", deeper),
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
    found = _found(evidence)
    tables = [_table(paper, [pair for pair in found if pair[0].paper == paper]) for paper in (YU, LITTWIN, LI)]
    tables = [table for table in tables if table.rows] + reproduced.tables(evidence.made)
    if not tables:
        return Section("claims", TITLE, notices=[NOTHING])
    counts = in_words(counted((claim.about, judge(claim)[0]) for _, claim in found)) if found else ""
    return Section("claims", TITLE, f"{counts}. {WHAT}" if counts else WHAT, tables)


def _found(evidence: Evidence) -> list[tuple[Tested, Claim]]:
    """Every claim of which something was measured; of several of one wording each says which nets it is about."""
    found = [(asked, who, claim) for asked in TESTED for who, claim in asked.find(evidence)]
    measured = [each for each in found if any(reading.ours.count for reading in each[2].readings)]
    times = Counter(claim.quantity for _, _, claim in measured)
    return [
        (asked, replace(claim, quantity=f"{claim.quantity} ({who})") if who and times[claim.quantity] > 1 else claim)
        for asked, who, claim in measured
    ]


def _table(paper: str, found: Sequence[tuple[Tested, Claim]]) -> Table:
    rows = [
        _row(asked, claim, reading, first=not place)
        for asked, claim in found
        for place, reading in enumerate(claim.readings)
    ]
    return Table("", HEAD, rows, title=paper, wide=True)


def _row(asked: Tested, claim: Claim, reading: Reading, first: bool) -> list[Cell]:
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
    if len(claim.readings) > 1 and verdict in ALIKE:
        why = _why(reading)  # each reading has a row to say its own
    return [
        Cell(claim.quantity),
        Cell(reading.convention),
        Cell(_printed(claim.paper), note=_test(claim)),
        _ours(reading.ours),
        Cell(str(verdict)),
        Cell(why),
        Cell(asked.artefact, link=asked.see),
    ]


def _why(reading: Reading) -> str:
    """Of one of several readings: whether it held."""
    if reading.ours.missing or not reading.outcome.judged:
        return ""
    return f"held: {reading.outcome.finding}".rstrip(": ") if reading.outcome.held else reading.outcome.why


def _test(claim: Claim) -> str:
    return with_power(claim.test, claim.power)


def _printed(paper: float | str) -> str:
    return brief(paper)


def _ours(ours: Sample) -> Cell:
    if not ours.count:
        return cell(None)
    if ours.count == 1 or math.isnan(ours.sd):
        return Cell(number(ours.mean), repr(ours.mean), f"({ours.count})")
    shown = mean_cell(ours.values)
    return Cell(shown.text, shown.exact, f"({ours.count})")
