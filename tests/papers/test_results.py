"""What claims read of runs: which seeds and epochs a number is of, and what is said where some are lacking."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pytest

from lightning_app.papers.parts import PAPER, SMOKE, Computation, Scale
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Sample

PLAIN, RESIDUAL, EPOCHS = "plain", "residual", 4
ALL = range(EPOCHS + 1)


@dataclass(frozen=True)
class Plan:
    arms: tuple[str, ...] = (PLAIN, RESIDUAL)
    seeds: tuple[int, ...] = (0, 1)
    epochs: int = EPOCHS


@dataclass(frozen=True)
class Made:
    """A net whose number is 10 seed + epoch at the epochs given, and its square under another name."""

    arm: str
    seed: int
    epochs: range = ALL
    saved: Mapping[float, Mapping[str, np.ndarray]] = field(default_factory=dict)

    @property
    def run(self) -> "Made":
        return self

    @property
    def epoch(self) -> int:
        return self.epochs[-1]

    def series(self, name: str) -> pd.Series:
        at = [epoch for epoch in self.epochs if name != "lost"]
        return pd.Series([float(10 * self.seed + epoch) ** (2 if name == "square" else 1) for epoch in at], at)

    def array_epochs(self, family: str) -> list[float]:
        return [*self.saved]

    def arrays(self, family: str, epoch: float) -> Mapping[str, np.ndarray]:
        return self.saved.get(epoch, {})


def results(*nets: Made, scale: Scale = PAPER) -> Results:
    return Results({"run": Plan()}, {"run": nets}, scale)


BOTH = Made(PLAIN, 0), Made(PLAIN, 1)


def test_numbers_are_of_the_epoch_that_is_asked_for_seed_by_seed():
    found = results(*BOTH, Made(RESIDUAL, 0, range(2, 5)), Made(RESIDUAL, 1, range(2, 5)))
    assert found.final("run", PLAIN, "E") == Sample((4.0, 14.0))
    assert found.initial("run", PLAIN, "E") == Sample((0.0, 10.0))
    assert found.at("run", PLAIN, "E", 3) == Sample((3.0, 13.0))
    assert found.first("run", RESIDUAL, "E") == Sample((2.0, 12.0))
    assert found.at("run", RESIDUAL, "E", 0) == Sample(missing="E was not measured at epoch 0 of run")
    assert found.final("run", PLAIN, "lost") == Sample(missing="lost was not measured in run")


@pytest.mark.parametrize("behind", [0, 3])
def test_a_seed_one_epoch_before_its_end_is_not_final(behind):
    found = results(Made(PLAIN, 0), Made(PLAIN, 1, range(behind + 1)), Made(RESIDUAL, 0, range(behind + 1)))
    assert found.final("run", PLAIN, "E") == Sample((4.0,), "1 of 2 seeds")
    assert found.final("run", RESIDUAL, "E") == Sample((float(behind),), f"epoch {behind} of 4")
    assert found.incomplete("run") == f"epoch {behind} of 4"
    found = results(Made(PLAIN, 0, range(3)), Made(PLAIN, 1, range(2)))
    assert found.final("run", PLAIN, "E") == Sample((1.0, 11.0), "epoch 1 of 4"), "after the last that both have"


def test_too_few_seeds_are_said_whatever_is_asked():
    found = results(Made(PLAIN, 0))
    for read in (found.final, found.first, found.initial):
        assert read("run", PLAIN, "E").missing == "1 of 2 seeds"
    assert found.of_curves("run", PLAIN, max, "E") == Sample((4.0,), "1 of 2 seeds")
    assert results(*BOTH, Made(RESIDUAL, 0)).incomplete("run") == "1 of 2 seeds", "of every arm"
    assert results(*BOTH, Made(RESIDUAL, 0), Made(RESIDUAL, 1)).incomplete("run") == ""
    assert results().incomplete("run") == results().final("run", PLAIN, "E").missing == "no run of run"


def test_at_smoke_scale_every_number_is_marked():
    found = results(*BOTH, Made(RESIDUAL, 0), Made(RESIDUAL, 1), scale=SMOKE)
    for sample in (
        *(read("run", PLAIN, "E") for read in (found.final, found.initial, found.first)),
        *(found.of_curves("run", PLAIN, max, "E"), found.known(1.0), found.absent("lost")),
    ):
        assert sample.missing == "smoke scale"


def test_curves_are_by_seed_and_several_numbers_have_their_mean():
    found = results(*BOTH)
    expected = pd.DataFrame({0: [*map(float, ALL)], 1: [float(10 + epoch) for epoch in ALL]}, ALL)
    pd.testing.assert_frame_equal(found.curves("run", PLAIN, "E"), expected, check_index_type=False)
    mean = (expected + expected**2) / 2
    pd.testing.assert_frame_equal(found.curves("run", PLAIN, "E", "square"), mean, check_index_type=False)


def test_arrays_at_the_end_are_of_the_last_epoch_and_lacking_ones_are_counted():
    def saved(seed: int, *epochs: int) -> Made:
        return Made(PLAIN, seed, ALL, {epoch: {"a": np.array([seed + epoch, 100.0])} for epoch in epochs})

    whole = Made(RESIDUAL, 0), Made(RESIDUAL, 1)
    read = "run", PLAIN, "family", lambda arrays: arrays["a"].min()
    found = results(saved(0, 0, 4), saved(1, 0, 4), *whole)
    assert found.sample_at_end(*read) == Sample((4.0, 5.0))
    assert found.arrays_read == {"run": {("family", 4)}}
    one_lost = results(saved(0, 0, 4), saved(1, 0), *whole)
    assert one_lost.sample_at_end(*read) == Sample((4.0,), "final family arrays of 1 of 2 seeds")
    one_behind = results(saved(0, 0, 4), Made(PLAIN, 1, range(2)), Made(RESIDUAL, 0), Made(RESIDUAL, 1, range(2)))
    assert one_behind.sample_at_end(*read) == Sample((4.0,), "final family arrays of 1 of 2 seeds")
    all_behind = results(*(Made(arm, seed, range(2)) for arm in (PLAIN, RESIDUAL) for seed in (0, 1)))
    assert all_behind.sample_at_end(*read) == Sample((), "epoch 1 of 4")
    all_lost = results(saved(0, 0), saved(1, 0), *whole)
    assert all_lost.sample_at_end(*read) == Sample((), "final family arrays of 0 of 2 seeds")
    first = found.history("run", PLAIN, "family", ["a", "b"])
    assert [array.tolist() for array in first] == [[0.0, 100.0, 4.0, 100.0], []], "of the first seed, epoch by epoch"


def test_arrays_for_figures_are_of_the_seeds_that_are_done_before_and_after():
    def saved(seed: int, *epochs: int) -> Made:
        return Made(PLAIN, seed, ALL, {epoch: {"a": np.array([10 * seed + epoch])} for epoch in epochs})

    def read(*nets: Made) -> list[list[int]]:
        found = results(*nets)
        both = [[int(its["a"][0]) for its in of] for of in found.arrays("run", PLAIN, "family")]
        assert found.arrays_read == {"run": {("family", 0), ("family", 4)}}, "and are kept, whatever there is yet"
        return both

    assert read(saved(0, 0, 4), saved(1, 0, 4)) == [[0, 10], [4, 14]]
    assert read(saved(0, 0, 2), saved(1, 0, 4)) == [[10], [14]], "the first seed is still training"
    assert read(saved(0, 0, 2), saved(1, 0)) == [[0, 10], []]
    assert read(saved(0, 0, 4), saved(1, 4)) == [[0], [4, 14]]


def test_computed_numbers_wait_for_all_their_pieces():
    computation = Computation("depths", lambda: {}, {"two": {}, "four": {}})
    pieces = {"two": {"depth": np.array([2.0, 3.0])}, "four": {"depth": np.array([4.0, 5.0])}}
    whole, part = (Results({}, {}, PAPER, {"depths": there}) for there in (pieces, {"four": pieces["four"]}))
    lost = Sample(missing="two of depths was not computed")
    assert whole.of(computation, lambda two, four: two["depth"] - four["depth"]) == Sample((-2.0, -2.0))
    assert whole.each(computation, "depth") == Sample((2.0, 3.0, 4.0, 5.0))
    assert part.of(computation, "depth", "four") == Sample((4.0, 5.0))
    assert part.each(computation, "depth") == part.of(computation, "depth", "two") == lost
