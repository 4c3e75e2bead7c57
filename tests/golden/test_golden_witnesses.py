"""No measure of the golden net goes without a witness."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # the run that all golden tests read takes a minute or two

WITNESSED = {  # file -> the families that it is about
    "weights": {
        "weight_mass",
        "weight_mass_transferred",
        "bn_lambda",
        "weight_norm",
        "cushion",
        "probe",
        "train",
        "test",
    },
    "interlayer": {"interlayer", "interlayer_batch1"},
    "noise": {"noise", "noise_transferred", "noise_absolute"},
    "depth": {"depth"},
    "forces": {"drive"},
    "hessian": {"hessian"},
    "signal": {"signal"},
}


def test_no_measure_without_a_witness(measured):
    assert {key.split("/")[0] for key in measured} == set().union(*WITNESSED.values(), {"cost"})
    for name in WITNESSED:
        assert Path(__file__).with_name(f"test_golden_{name}.py").exists()
