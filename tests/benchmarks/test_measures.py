"""The benchmarks of measures at a tiny size: what they compare, never how long it takes."""

import functools

import pytest
import torch
import torch.nn.functional as F

from benchmarks import ensembles, hessian, interlayer, linear_hessian, measures
from benchmarks.timing import Ratio
from lightning_app.measures import path_gradients
from lightning_app.networks import CifarResNet, SimplifiedNet, span_of

TINY = ("--images", "8", "--rounds", "1")


@pytest.mark.slow  # compiles two nets
def test_measures_compares_cushions_with_an_evaluation_of_both_nets(found):
    findings = found(measures, *TINY, "--depth", "5", "--batch", "4")
    assert [(line.what.split(":")[0], line.goal) for line in findings.lines] == [("plain-5", 1.1), ("residual-5", 1.1)]


def test_an_evaluation_is_risk_and_errors():
    net, images = SimplifiedNet(5, width=4), torch.randn(6, 3, 32, 32)
    predicted = net(images).argmax(1)
    labels = torch.where(torch.arange(6) < 4, predicted, (predicted + 1) % 10)
    risk, wrong = measures.evaluate(net, images, labels)
    assert wrong == 2
    torch.testing.assert_close(risk, F.cross_entropy(net(images), labels) * 6)


def test_linear_hessian_is_exact_and_in_units_of_both_references(found):
    findings = found(linear_hessian, "--units", "2", "--width", "3", "--samples", "10", "--rounds", "1")
    cheaper, share, difference = findings.lines
    values = findings.values["closed form"].values
    kept = values["closed form, memory kept"][0]
    assert cheaper.ratio.median == pytest.approx(values["torch.func.hessian"][0] / kept)
    assert share.ratio.median == pytest.approx(kept / values["eigvalsh"][0])
    assert difference.met


def test_ensembles_resolves_in_units_of_a_gradient(found, monkeypatch):
    monkeypatch.setattr(ensembles, "NETS", {"small": lambda: SimplifiedNet(5, width=4)})
    findings = found(ensembles, "--images", "1", "--rounds", "1")
    values = findings.values["small"].values
    by_what = {line.what: line.ratio.median for line in findings.lines}
    assert by_what["small: driving force"] == pytest.approx(values["driving force"][0] / values["gradient"][0])
    assert len(findings.lines) == 4


def test_the_slow_way_to_the_gradients_of_all_lengths_finds_the_same_ones():
    net, images, labels = SimplifiedNet(8, width=4).eval(), torch.randn(2, 3, 32, 32), torch.tensor([1, 2])
    quick = path_gradients(net, images, labels).gradients.square().sum(1)
    slow = torch.stack(ensembles.through_lengths(net, images, labels))
    torch.testing.assert_close(slow, quick, rtol=1e-3, atol=1e-6)


def test_hessian_is_in_units_of_gradients_and_of_curvlinops(found, monkeypatch):
    monkeypatch.setattr(hessian, "TRUTH", 12)
    monkeypatch.setattr(hessian, "ASKED", {"40": {"steps": 10}})
    findings = found(hessian, "--images", "4", "--rounds", "1", "--depth", "5")
    goals = {line.against: line.goal for line in findings.lines if line.what.startswith("plain-5: H v")}
    assert goals == {"a gradient of the same images": 2.2, "curvlinops' product": 0.7}
    light = next(line for line in findings.lines if line.what == f"plain-5: {hessian.LIGHT}")
    values = findings.values["plain"].values
    assert light.ratio.median == pytest.approx(values[hessian.LIGHT][0] / values["gradient"][0] * 4 / 50_000)


def test_eigenvalues_against_the_truth():
    class Found:
        top = torch.tensor([4.0, 3.999, 2.0])
        unconverged, trace, trace_error, frobenius, frobenius_error, index_low, index_high = 0, 1, 0, 1, 0, 0.0, 0.0

    said = hessian._against(torch.tensor([4.0, 2.0, 1.0]), Found)
    assert said[hessian.TWICE] == 1
    assert said[hessian.ERRORS] == [0.0, 1.0, 1.0]


def test_interlayer_norms_agree_and_cushions_are_a_share_of_an_epoch(found, monkeypatch):
    monkeypatch.setattr(interlayer, "CifarResNet", functools.partial(CifarResNet, width=2))
    words = ("--images", "10", "--rounds", "1", "--steps", "1", "--chunks", "2048", "--no-compile")
    findings = found(interlayer, *words)
    by_what = {line.what: line for line in findings.lines}
    assert by_what["residual-20: exact ||J||_F, relative difference"].met
    assert by_what["plain-20: exact ||J||_F, relative difference"].met
    assert by_what["plain-20: all interlayer cushions"].goal == 0.03
    assert not any("compiled" in line.against for line in findings.lines)


def test_norm_by_rows_of_a_linear_map():
    """The reference, on a map whose Jacobian is known: 3 x has ||J||_F = 3 sqrt(n)."""
    x = torch.randn(1, 2, 4, 4)
    assert interlayer.rows_norm(lambda x: 3 * x, x, chunk=5) == pytest.approx(3 * 32**0.5)


def test_what_goes_into_block_5():
    net, images = CifarResNet(20).eval(), torch.randn(1, 3, 32, 32)
    x = interlayer.block_input(net, images)
    assert x.shape == (1, 32, 16, 16)
    assert span_of(net, "block05")(x).shape == x.shape


def test_a_ratio_of_rounds():
    assert Ratio.of(3.0, 1.0, 2.0) == Ratio(2.0, 1.0, 3.0)
