"""The usual script trains, the libraries agree, and a library that is not there is left out in words."""

import importlib.util

import pytest
import torch

from benchmarks import peers
from benchmarks.frame import Findings
from lightning_app.datamodules import CIFAR10
from lightning_app.networks import SimplifiedNet


@pytest.fixture
def batches():
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(4, 3, 32, 32, generator=generator), torch.arange(4))]


@pytest.fixture
def net():
    torch.manual_seed(0)
    return SimplifiedNet(5, width=4).eval()


def test_an_epoch_of_ours_is_compared_with_the_fastest_script(found, monkeypatch):
    monkeypatch.setattr(peers, "WORKERS", (0,))
    findings = found(peers, "--only", "epoch", "--images", "64", "--rounds", "1", "--depth", "5", "--no-compile")
    values = findings.values["training epoch"].values
    assert [*values] == ["usual script, 0 workers", peers.EAGER]
    (line,) = findings.lines
    assert line.ratio.median == pytest.approx(values[peers.EAGER][0] / values["usual script, 0 workers"][0])


def test_the_usual_script_sees_every_training_image_and_evaluates_every_test_image(root, monkeypatch):
    seen = []
    forward = SimplifiedNet.forward

    def counted(self, x):
        seen.append((self.training, len(x)))
        return forward(self, x)

    monkeypatch.setattr(SimplifiedNet, "forward", counted)
    data = CIFAR10(root=str(root), train_limit=200, test_limit=20)
    peers.usual_script(5, data, "cpu", bf16=False, workers=0, evaluate=True)()
    assert seen == [(True, 128), (True, 72), (False, 20)]


def test_all_libraries_find_the_same_product_and_eigenvalues(net, batches):
    libraries = peers.libraries_for(net, batches, Findings("tiny"))
    vector = torch.randn(sum(w.numel() for w in net.parameters()))
    assert all(line.met for line in peers.agreement(libraries, vector))
    ours, theirs = libraries[peers.US].top(), libraries[peers.CURVLINOPS].top()
    torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-3, atol=0)


def test_disagreement_misses_the_goal(net, batches):
    libraries = peers.libraries_for(net, batches, Findings("tiny"))
    wrong = peers.Library(lambda v: 2 * v, lambda: libraries[peers.US].top() * 1.01, lambda: None)
    vector = torch.randn(sum(w.numel() for w in net.parameters()))
    lines = peers.agreement({peers.US: libraries[peers.US], "wrong": wrong}, vector)
    assert [line.met for line in lines] == [False, False]
    assert lines[1].ratio.median == pytest.approx(0.01 / 1.01, rel=1e-3)


def test_without_hessian_eigenthings_a_line_says_how_to_get_it(net, batches, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = Findings("tiny")
    assert [*peers.libraries_for(net, batches, found)] == [peers.US, peers.CURVLINOPS]
    assert "pip install" in found.more["left out"] and found.more["left out"] in capsys.readouterr().out


def test_eigenthings_agrees_where_it_is_installed(net, batches):
    pytest.importorskip("hessian_eigenthings")
    top = peers.with_eigenthings(net, batches).top()
    torch.testing.assert_close(top[0].double(), peers.ours(net, batches).top()[0].double(), rtol=1e-3, atol=0)


@pytest.mark.slow
def test_curvature_times_every_library_at_every_task(found, monkeypatch):
    monkeypatch.setattr(peers, "STEPS", 6)
    monkeypatch.setattr(peers, "DENSITY_STEPS", 6)
    findings = found(peers, "--only", "curvature", "--hessian-images", "2", "--rounds", "1", "--depth", "5")
    assert [*findings.values] == [
        "Hessian: product",
        "Hessian: top 5 eigenvalues",
        "Hessian: density (ours: and the ends)",
        "Hessian: top 5 eigenvalues and density",
    ]
    goals = {line.what: line.goal for line in findings.lines if line.against == peers.CURVLINOPS}
    assert goals["Hessian: product, ours"] == 0.7
    assert goals["Hessian: density (ours: and the ends), ours"] == 0.4
