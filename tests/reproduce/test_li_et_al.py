"""Li et al.'s claims: verdicts on arrays of our choosing, every artefact through the command, and real numbers."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from lightning_app.cli import main
from lightning_app.papers.li_et_al import (
    dynamics,
    fig_2_3,
    fig_4,
    fig_5_6,
    fig_7_8,
    fig_9,
    theorem_1_lemmas,
    theorem_2,
)
from lightning_app.papers.li_et_al.nets import NETS, ORTHOGONAL, SHORTCUT_2, WIDTH, XAVIER, Net
from lightning_app.papers.parts import PAPER, Computation, Source
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Verdict, judge
from lightning_app.statistics.fitting import exponential, power

REPRODUCED, NOT, REBUILT = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.REBUILT


KEY = "li-et-al"


@pytest.fixture
def left(left):
    return partial(left, KEY)


@pytest.fixture
def verdicts(made):
    return partial(made, paper=KEY)


def empty(*computations: Computation) -> Results:
    """Of which nothing was computed."""
    return Results({}, {}, PAPER, {each.name: {} for each in computations})


def judged(found: dict[str, str]) -> Counter:
    return Counter(verdict for verdict in found.values() if verdict != Verdict.DESCRIBED)


def only(found: dict[str, str], verdict: Verdict) -> list[str]:
    return [quantity for quantity, each in found.items() if each == verdict]


@pytest.mark.parametrize("net", NETS, ids=lambda net: net.name)
def test_a_net_starts_as_its_parameters_say(net):
    weights = Net(**net.parameters).start(12, 3)
    assert weights.shape == (3, 12 // net.n, net.n, 10, 10)
    assert (weights[0] == net.start(12, 1)[0]).all()  # a seed's weights do not hang on how many there are
    assert not (weights[0] == weights[1]).any()
    size = float(weights.square().mean().sqrt()) * 10**0.5  # of Xavier's entries
    assert size == pytest.approx(0.01 if net.shortcut else 1.0, rel=0.1)


def test_laws_are_told_apart():
    x = np.array([2.0, 4, 8, 16])
    assert power(x, 3 * x**-0.5).slope == pytest.approx(-0.5)
    assert exponential(x, 3 * np.exp(0.7 * x)).slope == pytest.approx(0.7)
    assert power(x, np.exp(x)).rms > 0.1 > exponential(x, np.exp(x)).rms
    noisy = power(x, x ** [1.0, 1.1, 0.9, 1.0])
    assert noisy.low < noisy.slope < noisy.high


def small_norms(exponent: float = -0.5, error: float = 1e-14):
    def numbers(per_point: int, points: int, seeds: int, **_) -> dict:
        ones = np.ones(seeds)
        norms = {"norm": 0.6 * per_point**exponent * ones, "bound": per_point**-0.5 * ones}
        return {"layers": 2 * points * per_point * ones, "error": error * ones, "rho": 0.3 * ones, **norms}

    return numbers


@pytest.mark.parametrize(
    ("wrong", "which"),
    [
        ({}, []),
        ({"error": 1e-9}, ["largest distance of an output"]),
        ({"exponent": -0.4}, ["max(‖U‖_F", "exponent of L"]),
    ],
)
def test_theorem_1(left, verdicts, wrong, which):
    left(theorem_1_lemmas.SMALL_NORM, small_norms(**wrong))
    found = verdicts("theorem-1")
    assert len(found) == 3
    assert [q for q in only(found, NOT) if any(q.startswith(w) for w in which)] == only(found, NOT)
    assert len(only(found, NOT)) == len(which)
    assert len(only(found, REBUILT)) == 3 - len(which)


@pytest.mark.parametrize("broken", [None, *theorem_1_lemmas.STATEMENTS])
def test_lemmas_one_by_one(left, verdicts, broken):
    def numbers(**_) -> dict:
        return {key: np.array([1e-9 if key == broken else 0.0]) for key in theorem_1_lemmas.STATEMENTS}

    left(theorem_1_lemmas.GEOMETRIC, numbers)
    left(theorem_1_lemmas.DERIVATIVES, numbers)
    found = verdicts("lemmas")
    assert only(found, NOT) == ([theorem_1_lemmas.STATEMENTS[broken]] if broken else [])
    for key, quantity in theorem_1_lemmas.STATEMENTS.items():
        assert found[quantity] == (NOT if key == broken else REBUILT if key[0] in "12" else REPRODUCED)


def test_theorem_2_of_depths_that_differ(left, verdicts):
    def deviations(units, n: int, **_) -> dict:
        keys = ("gradient", "hessian", "eigenvalues", "lower_orders", "leading")
        return {key: np.full(len(units), 1e-13) for key in keys}

    def by_depth(units, n: int, form, **_) -> dict:
        R = np.array(units, dtype=float)
        zeros = 10 * R if form.get("bias") else 0 * R
        return {"condition": 1.5 + 1e-9 * R if n == 2 else R, "index": np.full(len(R), 0.5), "zeros": zeros}

    left(theorem_2.ZERO, deviations)
    left(theorem_2.BY_DEPTH, by_depth)
    left(theorem_2.EQUIVALENCE, lambda seeds, **_: {"deviation": np.full(seeds, 1e-9)})
    shown = verdicts("theorem-2")
    assert judged(shown) == {REPRODUCED: 7, NOT: 2, REBUILT: 2, Verdict.CHECKED: 1}
    wrong = only(shown, NOT)
    assert [quantity.split(":")[0].split(" of an")[0] for quantity in wrong] == ["n = 2", "Hessian"]


def falling_norms(exponent: float, from_epoch: int = 0):
    def numbers(depth: int, epochs: int, seeds: int, **_) -> dict:
        curve = np.linspace(1, 2, epochs + 1) * np.where(np.arange(epochs + 1) < from_epoch, 1.0, depth**exponent)
        return {"norms": np.tile(curve, (seeds, 1)), "losses": np.ones((seeds, epochs + 1))}

    return numbers


def grids(
    norm_exponent: float = -0.4, gap=lambda net, depth: 1e-3, best: int = 5, usable: Callable = lambda net, depth: 13
):
    """Final losses with the least one at rate ``best``, and everything beyond the ``usable``-th rate diverged."""

    def numbers(net: dict, depth: int, exponents, seeds: int, **_) -> dict:
        rates = 10.0 ** np.array(exponents)
        over = 1 + gap(net["name"], depth) + 0.1 * np.abs(np.arange(len(rates)) - best)
        final = np.where(np.arange(len(rates)) > usable(net["name"], depth), np.inf, 0.3 * over)
        return {
            "rates": rates,
            "losses": np.tile(final, (seeds, 1)),
            "norms": np.tile(depth**norm_exponent * (1 + np.abs(np.arange(len(rates)) - best)), (seeds, 1)),
            "initial": np.full(seeds, 5.0),
            "optimum": np.array(0.3),
        }

    return numbers


@pytest.mark.parametrize(
    ("from_epoch", "at_best", "fig_2", "fig_3"),
    [(100, -0.4, REPRODUCED, REPRODUCED), (101, 0.1, NOT, Verdict.DEPENDS)],  # not at the rate of least loss
)
def test_norms_that_fall_from_the_first_tenth_on_or_too_late_or_rise(left, verdicts, from_epoch, at_best, fig_2, fig_3):
    left(fig_2_3.NORMS, falling_norms(-0.4, from_epoch=from_epoch))
    left(fig_7_8.LINEAR, grids(norm_exponent=at_best))
    assert judged(verdicts("fig-2")) == {fig_2: 5, Verdict.NOT_TESTED: 1}  # the one about CIFAR-10
    assert judged(verdicts("fig-3")) == {fig_3: 2}


def test_the_row_on_cifar_10_says_what_it_needs(left, verdicts):
    left(fig_2_3.NORMS, falling_norms(-0.4))
    (row,) = only(verdicts("fig-2"), Verdict.NOT_TESTED)
    assert "CIFAR-10" in row
    (claim,) = (claim for claim in fig_2_3.fig_2_claims(empty(fig_2_3.NORMS)) if claim.quantity == row)
    assert judge(claim)[1] == "needs trained CIFAR-10 nets; not run"


def starts(**laws: Callable[[int], float]):
    """Hessians of 10th percentile 1 and a largest eigenvalue by a law of depth."""
    known = {"Xavier": lambda L: np.exp(L), "orthogonal": lambda L: 2.6 * L, "2-shortcut": lambda L: 1.5}
    known |= {"1-shortcut": known["orthogonal"]} | {key.replace("_", "-"): law for key, law in laws.items()}

    def numbers(net: dict, depth: int, seeds: int, **_) -> dict:
        ones = np.ones(seeds)
        largest = known[net["name"]](depth) * (1 + 0.001 * np.sin(depth + np.arange(seeds)))
        return {"largest": largest, "percentile10": ones, "smallest": 0.9 * ones, "index": ones, "zeros": 0 * ones}

    return numbers


@pytest.mark.parametrize(
    ("laws", "wrong"),
    [
        ({}, []),
        ({"two": lambda L: 1.5 + 0.01 * L}, ["largest / smallest condition number"]),
        ({"Xavier": lambda L: 1e3 * L**3.0}, []),  # the paper states no law
        ({"orthogonal": lambda L: np.exp(L / 4)}, ["condition number, orthogonal against 1-shortcut"]),
        (
            {"Xavier": lambda L: 2.0 * L if L < 32 else 20.0},
            ["least growth of cond10", "growth of cond10 from depth 2 to 32"],
        ),
    ],
)
def test_fig_4_by_its_laws(left, verdicts, laws, wrong):
    left(fig_4.INITIAL, starts(**{("2_shortcut" if key == "two" else key): law for key, law in laws.items()}))
    found = verdicts("fig-4")
    assert [any(q.startswith(start) for q in only(found, NOT)) for start in wrong] == [True] * len(wrong)
    assert len(only(found, NOT)) == len(wrong)
    assert len(only(found, REPRODUCED)) == 5 - len(wrong)
    assert len(only(found, Verdict.DESCRIBED)) == 14


def test_fig_4_where_only_the_smallest_eigenvalues_differ(left, verdicts):
    def numbers(net: dict, **more) -> dict:
        return starts()(net, **more) | (
            {"smallest": np.full(more["seeds"], 0.1)} if net["name"] == "orthogonal" else {}
        )

    left(fig_4.INITIAL, numbers)
    quantity = "condition number, orthogonal against 1-shortcut at zero, at the depth where they differ most"
    assert only(verdicts("fig-4"), Verdict.ARTEFACT) == [quantity]


def descents(cond10: dict[str, float], index: dict[str, float], peak: int = 40, fall: int = 40, growing: float = 1.0):
    """Losses that halve every 30 epochs, cond10 and index by net; the 2-shortcut net's index falls at an epoch."""

    def numbers(net: dict, epochs: int, seeds: int, **_) -> dict:
        t = np.arange(epochs + 1)
        gap = 4 * 0.5 ** (t / 30)
        course = np.where(t < fall, 0.5, index[net["name"]]) if net["name"] == SHORTCUT_2.name else np.full(len(t), 0.5)
        ratio = cond10[net["name"]] * (gap**growing if net["name"] != SHORTCUT_2.name else np.ones(len(t)))
        columns = {"losses": 0.3 + gap, "largest": ratio, "percentile10": np.ones(len(t)), "index": course}
        columns["gradient_norms"] = np.exp(-(((t - peak) / 20) ** 2))
        return {key: np.tile(column, (seeds, 1)) for key, column in columns.items()} | {"optimum": np.array(0.3)}

    return numbers


def at_gaps(
    cond10: Callable[[str, int, float], float],
    index: dict[str, float],
    reached: Callable[[str, int], int],
    zeros: Mapping[str, float] = MappingProxyType({}),
):
    """Spectra at gaps, by net, depth and gap; so many seeds reach them. Zeros: shares of eigenvalues of no sign."""

    def numbers(net: dict, depth: int, gaps: list, seeds: int, **_) -> dict:
        there = np.where(np.arange(seeds) < reached(net["name"], depth), 1.0, np.nan)[:, None]
        apart = 1 + 0.01 * np.sin(depth + np.arange(seeds))[:, None]
        return {
            "largest": np.array([cond10(net["name"], depth, gap) for gap in gaps]) * apart * there,
            "percentile10": np.ones(len(gaps)) * there,
            "index": index.get(net["name"], 0.5) * apart * there * np.ones(len(gaps)),
            "zeros": zeros.get(net["name"], 0.0) * depth * WIDTH**2 * there * np.ones(len(gaps)),
        }

    return numbers


OF_THE_PAPER = {"Xavier": 1e4, "orthogonal": 1.5, "2-shortcut": 1.0}


@pytest.fixture
def compared(left):
    """Leave spectra at gaps, and courses, behind."""

    def compared(cond10=lambda net, depth, gap: OF_THE_PAPER[net] * gap ** (0.1 * (net != "2-shortcut")), reached=None):
        left(fig_5_6.SPECTRA, descents(OF_THE_PAPER, {"2-shortcut": 0.4}))
        left(fig_5_6.AT_GAPS, at_gaps(cond10, {"2-shortcut": 0.4}, reached or (lambda net, depth: 10)))

    return compared


def test_fig_5_and_6_as_the_paper_says(compared, verdicts):
    compared()
    assert judged(verdicts("fig-5")) == {REPRODUCED: 11}
    assert judged(verdicts("fig-6")) == {REPRODUCED: 8}


def test_fig_5_of_an_advantage_that_grows_as_the_loss_falls(compared, verdicts):
    compared(lambda net, depth, gap: {"Xavier": 1e4, "orthogonal": 0.5, "2-shortcut": gap}[net])
    wrong = only(verdicts("fig-5"), NOT)
    assert [q for q in wrong if q.startswith("that difference")] == [
        f"that difference at gap 1 minus the one at gap 0.1, {net}" for net in ("Xavier", "orthogonal")
    ]
    assert "log10 cond10 at gap 1, orthogonal minus 2-shortcut" in wrong  # 0.5
    assert "log10 cond10 at gap 0.4, orthogonal minus 2-shortcut" not in wrong  # 0.5 / 0.4 > 1
    assert "log10 cond10 where the loss is small (gap 0.1), orthogonal minus 2-shortcut" in wrong  # 5


@pytest.fixture
def readings(results):
    """Fig. 5's claim at a gap of 1, and by setting whether it is judged and of how many seeds."""

    def readings(other: str):
        quantity, (_, there) = f"log10 cond10 at gap 1, {other} minus 2-shortcut", results("fig-5", KEY)
        (claim,) = (claim for claim in fig_5_6.fig_5_claims(there) if claim.quantity == quantity)
        return judge(claim)[0], {each.convention: (each.outcome.judged, each.ours.count) for each in claim.readings}

    return readings


def test_an_order_that_changes_with_depth_depends_on_a_setting(compared, readings):
    compared(lambda net, depth, gap: (0.5 if depth < 12 else 1.5) if net == "orthogonal" else OF_THE_PAPER[net])
    assert readings("orthogonal")[0] is Verdict.DEPENDS


@pytest.mark.parametrize(("depths", "verdict"), [((32,), REPRODUCED), (fig_5_6.DEPTHS, Verdict.DESCRIBED)])
def test_a_setting_in_which_a_net_hardly_ever_comes_down_is_described(compared, readings, depths, verdict):
    compared(reached=lambda net, depth: 5 if net == "Xavier" and depth in depths else 10)
    found, judges = readings("Xavier")
    assert (found, judges["depth 32, rate 0.1"]) == (verdict, (False, 5))
    assert judges["depth 16, rate 0.1"] == ((False, 5) if 16 in depths else (True, 10))


def test_a_setting_of_six_seeds_can_speak_against_it(compared, readings):
    compared(
        lambda net, depth, gap: 0.5 if (net, depth) == ("Xavier", 32) else OF_THE_PAPER[net],
        reached=lambda net, depth: 6 if (net, depth) == ("Xavier", 32) else 10,
    )
    found, judges = readings("Xavier")
    assert (found, judges["depth 32, rate 0.1"]) == (Verdict.DEPENDS, (True, 6))


@pytest.mark.parametrize(
    ("xavier", "zeros", "verdict"),
    [
        (0.3, {}, NOT),
        (0.3, {"Xavier": 0.05}, NOT),  # 0.35 at most, where the 2-shortcut net has 0.4
        (0.3, {"Xavier": 0.2}, Verdict.DESCRIBED),  # 0.3 to 0.5
        (0.5, {"Xavier": 0.2}, REPRODUCED),
        (0.5, {"2-shortcut": 0.05}, REPRODUCED),
        (0.45, {"2-shortcut": 0.08}, Verdict.DESCRIBED),  # 0.4 to 0.48
        (0.3, {"2-shortcut": 0.2}, NOT),
    ],
)
def test_eigenvalues_without_a_sign_decide_no_index(left, verdicts, xavier, zeros, verdict):
    left(fig_5_6.SPECTRA, descents(OF_THE_PAPER, {"2-shortcut": 0.4}))
    spectra = {"2-shortcut": 0.4, "Xavier": xavier}
    left(fig_5_6.AT_GAPS, at_gaps(lambda net, *_: OF_THE_PAPER[net], spectra, lambda *_: 10, zeros))
    found = verdicts("fig-6")
    assert {found[f"index at gap {gap:g}, Xavier minus 2-shortcut"] for gap in fig_5_6.GAPS} == {verdict}
    if "2-shortcut" not in zeros:
        assert {found[f"index at gap {gap:g}, orthogonal minus 2-shortcut"] for gap in fig_5_6.GAPS} == {REPRODUCED}


@pytest.mark.parametrize(("peak", "fall"), [(40, 142), (40, 139), (300, 60)])
def test_fig_6_describes_when_the_index_falls(left, verdicts, peak, fall):
    """A tenth of training is so much that nearly everything is within it: there is no test."""
    left(fig_5_6.SPECTRA, descents(OF_THE_PAPER, {"2-shortcut": 0.4}, peak, fall))
    assert [quantity[:10] for quantity in only(verdicts("fig-6"), Verdict.DESCRIBED)] == ["from the g", "share of t"]


def test_spectra_at_gaps_are_those_of_the_descent_that_keeps_every_epoch():
    """Between two epochs the net lies on their segment; below the gap from the start, or never there, it is NaN."""
    digits = Source(Path("nowhere"), stand_in=True)
    asked = {"net": SHORTCUT_2.parameters, "depth": 4, "rate": 0.1, "epochs": 60, "seeds": 2, "limit": None}
    course = fig_5_6.spectra(digits, **asked)
    gaps = course["losses"] - course["optimum"]
    exact = float(gaps[0, 20])  # of the first seed, the gap of an epoch
    found = fig_5_6.at_gaps(digits, **asked, gaps=[100.0, exact, exact * 0.999, 1e-9])
    assert np.isnan(found["largest"][:, [0, 3]]).all()
    assert found["largest"][0, 1] == pytest.approx(course["largest"][0, 20], rel=1e-9)
    ends = course["largest"][0, 20:22]
    assert min(ends) <= found["largest"][0, 2] <= max(ends)


def near_for(*near: str):
    return lambda net, depth: 1e-4 if net in near else 0.02 * depth / 2


def more_for_two(net: str, depth: int) -> int:
    return 13 if net == "2-shortcut" else 9


def test_fig_7_as_the_paper_says(left, verdicts):
    left(fig_7_8.LINEAR, grids(gap=near_for("2-shortcut"), usable=more_for_two))
    assert judged(verdicts("fig-7")) == {REPRODUCED: 6}


def test_fig_7_where_nothing_drifts_off_and_rates_are_equal(left, verdicts):
    left(fig_7_8.LINEAR, grids(gap=lambda net, depth: 1e-4))
    found = verdicts("fig-7")
    assert only(found, REPRODUCED) == ["gap to the optimum / optimum at the depth where it is largest, 2-shortcut"]
    assert judged(found) == {REPRODUCED: 1, NOT: 5}
    # how far off the others are, of which the paper says nothing, and ratios of 1- and 4-shortcut nets
    assert len(only(found, Verdict.DESCRIBED)) == 5 + 2


@pytest.mark.parametrize(("where", "rates"), [(64, NOT), (2, REPRODUCED)])
def test_fig_7_is_about_rates_in_deep_networks(left, verdicts, where, rates):
    """Lower rates at one depth: they decide at the deepest only."""

    def usable(net: str, depth: int) -> int:
        return 4 if (net, depth) == ("2-shortcut", where) else more_for_two(net, depth)

    left(fig_7_8.LINEAR, grids(usable=usable))
    assert [verdict for quantity, verdict in verdicts("fig-7").items() if "usable" in quantity] == [rates] * 3


def test_fig_8(left, verdicts):
    left(fig_7_8.RELU, grids(gap=near_for("2-shortcut"), usable=more_for_two))
    assert judged(verdicts("fig-8")) == {REPRODUCED: 4}
    left(replace(fig_7_8.RELU, version=0), grids())  # other files of the same names
    assert judged(verdicts("fig-8")) == {Verdict.NOT_TESTED: 7}


@pytest.mark.parametrize(("where", "order"), [(4, REPRODUCED), (8, NOT)])
def test_fig_8_compares_nets_from_depth_8_on_like_fig_7(left, verdicts, where, order):
    def gap(net, depth):
        return 0.5 if net == "2-shortcut" and depth == where else near_for("2-shortcut")(net, depth)

    left(fig_7_8.RELU, grids(gap=gap))
    assert [verdict for quantity, verdict in verdicts("fig-8").items() if "ratio" in quantity] == [order] * 2


def test_the_best_rate_is_that_of_the_mean_over_seeds_and_no_seed_may_diverge():
    arrays = {
        "rates": np.array([0.1, 0.3, 1.0]),
        "losses": np.array([[0.5, 0.4, 0.3], [0.5, 0.45, np.inf]]),
        "initial": np.array([5.0, 0.48]),
    }
    assert fig_7_8.best_of(arrays).tolist() == [0.4, 0.45]
    assert fig_7_8.largest_usable(arrays) == 0.3
    assert np.isnan(fig_7_8.largest_usable(arrays | {"initial": np.array([5.0, 0.1])}))


def test_missing_mnist_is_an_error_message_that_says_how_to_get_it(tmp_path, capsys):
    words = ["li-et-al/fig-2", "--scale", "paper", "--data-root", str(tmp_path / "data")]
    assert main(["reproduce", *words, "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert f"expected MNIST below {tmp_path / 'data'}, found neither mnist nor MNIST/raw there" in error
    assert f"WhitenedMNIST as M; M('{tmp_path / 'data'}').prepare_data()" in error


def smoke(artefact: str, tmp_path: Path, capsys, *more: str) -> str:
    words = [f"li-et-al/{artefact}", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), *more]
    assert main(["reproduce", *words, "--data-root", str(tmp_path / "none")]) == 0
    return capsys.readouterr().out


def test_only_and_no_train_reach_computations(tmp_path, capsys):
    only_one = smoke("lemmas", tmp_path, capsys, "--only", "lemmas-3-4")
    assert "lemmas-1-2 0 of 1 pieces; lemmas-3-4 computed on" in only_one
    assert "compute" not in smoke("lemmas", tmp_path, capsys, "--no-train").split("\n")[0]
    assert main(["reproduce", "li-et-al/lemmas", "--only", "lemmas-5"]) == 2
    assert "computations of what is reproduced (lemmas-1-2, lemmas-3-4), got 'lemmas-5'" in capsys.readouterr().err


@pytest.fixture(scope="session")
def mnist(mnist_root) -> Source:
    return Source(mnist_root, stand_in=False)


# Measured beforehand on another 10,000 of MNIST's images, with another program.
CONDITION = {  # (net, depth) -> (cond or None where a seed's luck decides it, cond10)
    ("orthogonal", 2): (4.2, 3.7),
    ("orthogonal", 8): (None, 20),
    ("1-shortcut", 2): (4.1, 3.8),
    ("1-shortcut", 8): (152, 21),
    ("2-shortcut", 2): (1.490, 1.476),
    ("2-shortcut", 8): (1.492, 1.478),
}


@pytest.mark.slow
@pytest.mark.parametrize(("net", "depth"), CONDITION)
def test_condition_numbers_at_the_start_on_real_mnist(mnist, net, depth):
    cond, cond10 = CONDITION[net, depth]
    found = fig_4.initial(mnist, 10_000, net=fig_4.STARTS[net].parameters, depth=depth, seeds=2)
    assert fig_4.cond10(found) == pytest.approx(cond10, rel=0.15)
    if cond is not None:
        assert fig_4.cond(found) == pytest.approx(cond, rel=0.15)


@pytest.mark.slow
def test_xavier_is_ill_conditioned_at_the_start_on_real_mnist(mnist):
    """Heavy tails: right to an order of magnitude."""
    for depth, cond10 in ((2, 39), (8, 5.5e5)):
        found = fig_4.initial(mnist, 10_000, net=XAVIER.parameters, depth=depth, seeds=3)
        assert abs(np.log10(fig_4.cond10(found) / cond10)).max() < 1


@pytest.mark.slow
def test_an_orthogonal_net_has_the_1_shortcut_net_s_condition_number(mnist):
    nets = (fig_4.STARTS[net].parameters for net in ("orthogonal", "1-shortcut"))
    one, other = (fig_4.cond10(fig_4.initial(mnist, 10_000, net=net, depth=12, seeds=1)) for net in nets)
    assert one == pytest.approx(other, rel=0.15)


def errors(gain_of_two: float = -0.01):
    def numbers(depth: int):
        def of(arm: str, seed: int, epoch: int) -> dict[str, float]:
            slope = gain_of_two if arm == "shortcut2" else 0.02
            return {"test/error": 0.1 + slope * (depth - 56) / 54 + 0.0001 * seed, "train/risk": 0.01}

        return of

    return numbers


@pytest.mark.parametrize(("gain", "wrong"), [(-0.01, 0), (0.01, 1)])
def test_fig_9(leave, made, gain, wrong):
    for depth, run in fig_9.RUNS.items():
        leave(run, errors(gain)(depth), paper="li-et-al")
    assert judged(made("fig-9", paper="li-et-al")) == Counter({REPRODUCED: 7 - wrong} | ({NOT: wrong} if wrong else {}))


def test_orthogonal_nets_descend_like_1_shortcut_nets_on_turned_targets():
    found = dynamics.turned(Source(Path("nowhere"), stand_in=True), depth=6, rate=0.05, epochs=50, seeds=2, limit=None)
    assert found["losses"].shape == (2, 51) and (found["losses"][:, -1] < found["losses"][:, 0]).all()
    np.testing.assert_allclose(found["losses"], found["other"], rtol=1e-11)


def test_times_to_a_gap_are_those_of_single_descents():
    digits = Source(Path("nowhere"), stand_in=True)
    asked = {"net": ORTHOGONAL.parameters, "depth": 4, "limit": None, "epochs": 40, "seeds": 2}
    found = dynamics.times(digits, **asked, gap=0.5, exponents=[-3, -1])
    course = fig_5_6.spectra(digits, **asked, rate=0.1)
    gaps = course["losses"] - course["optimum"]
    for seed in range(2):
        after = int(np.argmax(gaps[seed] <= 0.5))
        assert after - 1 <= found["epochs"][seed, 1] <= after
    assert np.isnan(found["epochs"][:, 0]).all()  # too slow
    assert dynamics.fastest(found) == pytest.approx(found["epochs"][:, 1])


def paces(times: dict[str, float], never: str = "", slower: float = 1.0):
    """Epochs to a gap, all rates but the slow one alike; the last seed of one net never comes down. Deep nets are slower at the
    slow rate only."""

    def numbers(net: dict, depth: int, exponents: list, seeds: int, **_) -> dict:
        epochs = np.full((seeds, len(exponents)), times[net["name"]]) * (1 + 0.01 * np.arange(seeds))[:, None]
        if net["name"] == never:
            epochs[-1] = np.nan
        rates = 10.0 ** np.array(exponents)
        if depth == max(dynamics.DEPTHS):
            epochs[:, np.argmin(np.abs(rates - dynamics.SLOW))] *= slower
        return {"rates": rates, "epochs": epochs}

    return numbers


@pytest.mark.parametrize(
    ("times", "never", "similar", "faster"),
    [
        ({"orthogonal": 50, "1-shortcut": 40, "2-shortcut": 30, "Xavier": 300}, "", REPRODUCED, [REPRODUCED] * 3),
        (
            {"orthogonal": 70, "1-shortcut": 40, "2-shortcut": 30, "Xavier": 20},
            "",
            Verdict.DEPENDS,
            [REPRODUCED, NOT, REPRODUCED],
        ),
        (
            {"orthogonal": 50, "1-shortcut": 40, "2-shortcut": 30, "Xavier": 300},
            "Xavier",
            REPRODUCED,
            [REPRODUCED] * 3,  # the seed that never comes down is the last of all
        ),
        (
            {"orthogonal": 50, "1-shortcut": 40, "2-shortcut": 30, "Xavier": 300},
            "2-shortcut",
            REPRODUCED,
            [Verdict.DESCRIBED] * 3,
        ),
    ],
)
def test_dynamics(left, verdicts, times, never, similar, faster):
    left(dynamics.TURNED, lambda **_: {"losses": np.ones((5, 3)), "other": np.ones((5, 3))})
    left(dynamics.TIMES, paces(times, never))
    same, *others, harder = verdicts("dynamics").values()
    assert (same, others[:-3], others[-3:]) == (Verdict.CHECKED, [similar] * len(dynamics.DEPTHS), faster)
    assert harder == (Verdict.NOT_TESTED if never == "2-shortcut" else REPRODUCED)


@pytest.mark.parametrize(("slower", "verdict"), [(1.3, Verdict.DEPENDS), (0.7, REPRODUCED)])
def test_deep_nets_may_be_slower_at_one_rate(left, verdicts, slower, verdict):
    left(dynamics.TURNED, lambda **_: {"losses": np.ones((5, 3)), "other": np.ones((5, 3))})
    left(dynamics.TIMES, paces({"orthogonal": 50, "1-shortcut": 40, "2-shortcut": 30, "Xavier": 300}, slower=slower))
    assert verdicts("dynamics")["epochs to a gap of 0.1, 2-shortcut, depth 64 / depth 8"] == verdict


def test_seeds_that_never_come_down_are_counted_as_late(left, results):
    left(dynamics.TURNED, lambda **_: {"losses": np.ones((5, 3)), "other": np.ones((5, 3))})
    left(dynamics.TIMES, paces({"orthogonal": 50, "1-shortcut": 40, "2-shortcut": 30, "Xavier": 300}, "Xavier"))
    _, there = results("dynamics", KEY)
    (claim,) = (c for c in dynamics.dynamics_claims(there) if c.quantity.endswith("Xavier minus 2-shortcut"))
    first, *_, never = claim.readings
    assert first.ours.count == 10 and first.ours.values[-1] == pytest.approx(np.log10(1000 / (30 * 1.09)))
    assert never.ours.values == (1, 1, 1, 1) and never.outcome.why == "1, 1, 1, 1"
