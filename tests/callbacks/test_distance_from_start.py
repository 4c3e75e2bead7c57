"""Distances of nets from their own start and from the other arm's."""

import pytest

from callbacks import DistanceFromStart
from lightning_app.modules import Arm
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import RunLogger
from tests.helpers import arm, classifier, fit

BANK = {"plain": arm(False), "residual": arm(True), "twin": Arm(twin_of="residual")}


def travelled(path) -> dict[tuple[str, int, str], float]:
    log = RunFolder(path).log().query("name.str.startswith('travel')")
    return {(row.member, row.epoch, row.name): row.value for row in log.itertuples()}


def test_distances_from_the_own_start_and_the_others(tmp_path):
    fit(classifier(BANK), epochs=1, callbacks=[DistanceFromStart()], logger=[RunLogger(tmp_path)])
    found = travelled(tmp_path)
    assert found["plain", 0, "travel/distance"] == 0 < found["plain", 1, "travel/distance"]
    apart = found["plain", 0, "travel/from_start_of/residual"]
    assert apart == found["residual", 0, "travel/from_start_of/plain"]
    assert apart > 4  # the square root of 28 - 2 ID entries and more
    assert found["twin", 0, "travel/from_start_of/residual"] < 1e-5
    assert found["twin", 1, "travel/distance"] == pytest.approx(found["residual", 1, "travel/distance"], rel=1e-3)
