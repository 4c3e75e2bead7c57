"""Claims: what these nets say of the papers' claims -- paper, ours, verdict -- by the tests that ``reproduce`` uses.

A net counts for a claim as far as its configuration says that it is the net of the paper: other data, sizes or rates,
fewer epochs or seeds leave the claim "not tested", with the reason and our number beside it. A new claim is one function
here and one line in `TESTED`.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from lightning_app.common.numbers import brief, number, plural
from lightning_app.papers.li_et_al.fig_5_6 import index_of_trained_nets
from lightning_app.papers.littwin_wolf.any_nets import depths, growth_of_lambda, growth_of_norm
from lightning_app.papers.nets import AnyNets, Found
from lightning_app.papers.verdicts import Claim, Reading, Sample, Verdict, counted, in_words, judge, with_power
from lightning_app.papers.yu_tomasi.fig_3_interlayer_noise import cushions, interlayer
from lightning_app.papers.yu_tomasi.table_1 import deeper, penalties, printed, smaller
from lightning_app.papers.yu_tomasi.table_3_fig_7 import id_shares
from lightning_app.report import reproduced
from lightning_app.report.blocks import Cell, Section, Table, mean_cell
from lightning_app.report.page_data import PageData
from lightning_app.report.pairs import counterparts

TITLE = "What the papers claim"
WHAT = (
    "Counts are by what a claim is about: formulas, nets at initialisation, trained nets. Reproduced: the test holds "
    "under every defensible reading; not reproduced: under none. Artefact of a convention: under some ways to measure "
    "it only; depends on a setting: with some of those that it leaves open only. Holds as rebuilt: of a "
    "statement whose formula the text at hand lost. Checked: an identity, or an addition that no paper states. "
    "Described: a number without a test. Not tested: these nets are not those of the paper, or not long or often "
    "enough trained, and our number is for orientation only. An interval that contains 0 leaves the sign unresolved; "
    "it does not say that there is no difference. Paper: what it prints, in small type our test of it, and what the "
    "test would let pass where that is much. Ours: mean ± sample standard deviation over seeds (their number). Tests "
    "are those of the command reproduce."
)
OTHERS = "{} about other nets, or nets trained longer or more often. Open for what is missing, and for our numbers."
UNTESTED = (
    "Ours is for orientation only. Described: a number without a test. The command reproduce trains the papers' nets."
)
NOTHING = (
    "None of the papers’ claims is about these nets. They are about plain and residual nets of ours (SimplifiedNet, CifarResNet, "
    "ResidualMLP) side by side; the measures below are shown all the same."
)
HEAD = ["claim", "reading", "paper", "ours", "verdict", "why", "see"]

OPEN = (Verdict.NOT_TESTED, Verdict.DESCRIBED)  # no verdict on what the paper says
ALIKE = (Verdict.REPRODUCED, Verdict.REBUILT, Verdict.CHECKED, Verdict.NOT_REPRODUCED)  # of all readings


@dataclass(frozen=True)
class Tested:
    """A claim, or several of one kind, of as many of the page's nets as it is about."""

    paper: str
    artefact: str
    see: str  # key of the section with the evidence
    find: Callable[[AnyNets], Iterable[Found]]


YU, LITTWIN, LI = "Yu & Tomasi (2019)", "Littwin & Wolf (2016)", "Li et al. (2016)"
TESTED = (
    *(Tested(YU, "Table 1", "headline", find) for find in (smaller, deeper, printed, penalties)),
    Tested(YU, "Table 3", "weights", id_shares),
    Tested(YU, "Fig. 3", "cushions", cushions),
    Tested(YU, "section 5", "configs", interlayer),
    Tested(LITTWIN, "Fig. 1d", "ensembles", growth_of_lambda),
    Tested(LITTWIN, "Fig. 1e", "ensembles", growth_of_norm),
    Tested(LITTWIN, "ensemble", "ensembles", depths),
    Tested(LI, "Fig. 6", "curvature", index_of_trained_nets),
)


def section(page: PageData) -> Section:
    found = _found(page)
    tables = []
    settled = [(asked, claim) for asked, claim in found if judge(claim)[0] not in OPEN]
    for paper in (YU, LITTWIN, LI):
        own = [(asked, claim) for asked, claim in settled if asked.paper == paper]
        tables += [Table("", HEAD, _rows(own), title=paper, wide=True)] * bool(own)
    tables += reproduced.tables(page.verdicts)
    shown = any(not table.folded for table in tables)
    if others := [each for each in found if each not in settled]:
        tables.append(
            Table(UNTESTED, HEAD, _rows(others), wide=True, folded=OTHERS.format(plural(len(others), "claim")))
        )
    if not tables:
        return Section("claims", TITLE, notices=[NOTHING], short="Claims")
    classes = [(claim.about, judge(claim)[0]) for _, claim in found]
    counts = in_words(counted((about, verdict) for about, verdict in classes if about)) if found else ""
    lead = f"{counts}. {WHAT}" if counts else WHAT
    return Section("claims", TITLE, lead * shown, tables, short="Claims")


def _found(page: PageData) -> list[tuple[Tested, Claim]]:
    """Every claim of which something was measured; of several of one wording each says which nets it is about."""
    sides = [(plain, residual) for plain, residual in counterparts(page) if len(plain) == len(residual) == 1]
    nets = AnyNets(page.groups, [(plain, residual) for (plain,), (residual,) in sides])
    found = [(asked, who, claim) for asked in TESTED for who, claim in asked.find(nets)]
    measured = [each for each in found if any(reading.ours.count for reading in each[2].readings)]
    times = Counter(claim.quantity for _, _, claim in measured)
    return [
        (asked, replace(claim, quantity=f"{claim.quantity} ({who})") if who and times[claim.quantity] > 1 else claim)
        for asked, who, claim in measured
    ]


def _rows(claims: Iterable[tuple[Tested, Claim]]) -> list[list[Cell]]:
    return [_row(asked, claim, reading) for asked, claim in claims for reading in claim.readings]


def _row(asked: Tested, claim: Claim, reading: Reading) -> list[Cell]:
    """Of one reading; the claim, the paper's number and the verdict stand with the first."""
    if reading is not claim.readings[0]:
        texts = ("″", reading.convention, "", "", _why(reading), "")
        claimed, convention, paper, verdict, why, see = map(Cell, texts)
    else:
        judged, words = judge(claim)
        if len(claim.readings) > 1 and judged in ALIKE:
            words = _why(reading)  # each reading has a row to say its own
        claimed, convention, verdict, why = map(Cell, (claim.quantity, reading.convention, str(judged), words))
        paper = Cell(brief(claim.paper), note=with_power(claim.test, claim.power))
        see = Cell(asked.artefact, note=asked.paper, link=asked.see)
    return [claimed, convention, paper, _ours(reading.ours), verdict, why, see]


def _why(reading: Reading) -> str:
    """Of one of several readings: whether it held."""
    if reading.ours.missing or not reading.outcome.judged:
        return ""
    return f"held: {reading.outcome.finding}".rstrip(": ") if reading.outcome.held else reading.outcome.why


def _ours(ours: Sample) -> Cell:
    if ours.count > 1 and math.isnan(ours.sd):
        return Cell(number(ours.mean), repr(ours.mean), f"({ours.count})")
    return mean_cell(ours.values or [None], f"({ours.count})")
