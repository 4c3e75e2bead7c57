"""The golden values as they were when they were written down, and that no measure goes without a witness."""

import json

import pytest

from tests.golden.stored import FILE, KEYS

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


def test_values_are_as_they_were(measured):
    """Another number here is a change of meaning, or of a library. Where it is meant, rewrite the file:

    python -m tests.golden.stored
    """
    stored = json.loads(FILE.read_text())
    assert stored["values"].keys() == set(KEYS)
    drifted = {
        key: (value, measured[key])
        for key, value in stored["values"].items()
        if measured[key] != pytest.approx(value, rel=1e-6)
    }
    assert not drifted, f"stored with {stored['versions']}"


def test_no_measure_without_a_witness(measured):
    assert {key.split("/")[0] for key in measured} == set().union(*WITNESSED.values(), {"cost"})
    for name in WITNESSED:
        assert FILE.with_name(f"test_golden_{name}.py").exists()
