"""Findings: what they are computed from, on small nets; and what is certain of it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_app.measures import effective_depth
from lightning_app.networks import ResidualMLP
from lightning_app.papers.findings import common_depth, modern, normalised, notation
from lightning_app.papers.findings.shortcut_length import edge, exponent, remaining
from lightning_app.papers.findings.shortcut_length_relu import losses
from lightning_app.papers.parts import Source

SOURCE = Source(Path("none"), stand_in=True)


def test_what_looks_at_outputs_only_is_the_same_for_a_net_and_its_twin():
    asked = {"piece": "twins", "depth": 5, "epochs": 1, "samples": 8, "limit": 64, "seeds": 1}
    found = notation.changes(SOURCE, **asked)
    assert found.keys() == notation.MEASURES.keys()
    assert all(values.shape == (1, 2) and np.isfinite(values).all() for values in found.values())
    assert found["risk"].max() < 1e-12 and found["largest eigenvalue of the Hessian"].max() < 1e-6
    assert found["mass of the weights"].min() > 0.1  # the ID entries: 1 each


@pytest.mark.parametrize("kind", ["RMSNorm", "BatchNorm of one"])
def test_cushions_of_a_small_net_are_those_of_its_seed(kind):
    asked = {"kind": kind, "convolutions": 1, "epochs": 1, "samples": 2, "limit": 32, "seeds": 1}
    plain, again, skip = (normalised.cushions(SOURCE, skip=skip, **asked) for skip in (False, False, True))
    for name, values in plain.items():
        assert values.shape == skip[name].shape == (1, 2, len(normalised.LEVELS))
        assert np.array_equal(values, again[name]) and (values > 0).all()


def test_edges_are_found_from_the_best_start_outwards():
    starts, left = (
        np.array([1e-3, 1e-2, 1e-1, 1, 10]),
        np.array([1e-9, 1, 1e-4, 1, np.inf]),
    )  # the first is another valley
    arrays = {"starts": starts, "remaining": np.array([left[1:], left[1:]])[..., None]} | {"starts": starts[1:]}
    assert edge(arrays, 1) == pytest.approx([10**-0.5] * 2) and edge(arrays, -1) == pytest.approx([10**-1.5] * 2)
    none = {"starts": starts, "remaining": np.full((1, 5, 1), 0.5)}
    assert np.isnan([*edge(none, 1), *edge(none, -1)]).all()


def test_the_exponent_of_starts_that_fall_with_the_root_of_the_units():
    def arrays(units: float) -> dict[str, np.ndarray]:
        starts = np.geomspace(1e-3, 10, 400)
        return {"starts": starts, "remaining": (0.01 * (starts * units**0.5) ** 4)[None, :, None]}

    assert exponent(2, *(arrays(depth / 2) for depth in (12, 24, 48, 96))) == pytest.approx([-0.5], abs=1e-3)


def test_the_identity_has_all_of_the_loss_left_and_descent_loses_some():
    found = remaining(
        source=SOURCE, limit=100, n=2, depth=4, starts=[0.0, 0.1], exponents=[-2.0, -1.0], epochs=4, seeds=2
    )
    assert found["remaining"].shape == (2, 2, 3)
    assert found["remaining"][:, 0] == pytest.approx(1.0)
    assert (found["remaining"][:, 1] < 1).all()


def test_many_nets_at_once_compute_what_each_does_alone():
    for norm in ("none", "before_relu"):
        nets = [common_depth._net(5, norm, start, 0).train() for start in (0.5, 2.0)]
        weights, _ = torch.func.stack_module_state(nets)
        x = torch.randn(2, 16, 5, generator=torch.Generator().manual_seed(0))
        alone = torch.stack([net(each) for net, each in zip(nets, x)])
        assert torch.allclose(common_depth._outputs(weights, x), alone, rtol=1e-4, atol=1e-5)


def test_a_wide_net_before_training_has_the_depth_of_the_law():
    x, blocks = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)), 4
    for start in (0.5, 2.0):
        found = []
        for seed in range(3):
            torch.manual_seed(seed)
            net = ResidualMLP(64, 500, blocks, classes=500, norm="none").eval()
            for block in net.block_list()[1:]:
                block.linear.weight.data.mul_(start)
            found.append(effective_depth(net, [(x, torch.arange(4))], gradient_samples=1).effective)
        assert np.mean(found) == pytest.approx(common_depth.wide_depth(start, blocks), rel=0.02)


def test_depths_of_small_trainings_have_a_row_each_start():
    asked = {"data": "CIFAR-10", "norm": "before_relu", "optimizer": "SGD", "starts": (0.5,)}
    found = common_depth.depths(SOURCE, **asked, epochs=1, limit=64, seeds=2)
    assert "stand in" in str(found.pop("data"))
    assert all(values.shape == (2, 1, 6) and np.isfinite(values).all() for values in found.values())
    assert (found["loss"][:, :, -1] < found["loss"][:, :, 0]).all()


@pytest.mark.parametrize("kind", ["vit", "convnext"])
def test_branches_behind_a_norm_do_not_see_the_scale_but_by_eps_and_a_bias(kind):
    torch.manual_seed(0)
    net = modern._net(kind).eval()
    x = torch.randn(1, 5, 192) if kind == "vit" else torch.randn(1, 96, 8, 8)
    for _, branch in modern._branches(net, kind).values():
        assert torch.allclose(branch(2 * x), branch(x), atol=1e-3 * float(branch(x).detach().abs().max()))
    if kind == "convnext":
        torch.nn.init.normal_(branch[0].bias)
        assert not torch.allclose(branch(2 * x), branch(x), atol=0.1 * float(branch(x).detach().abs().max()))


def test_cushions_of_a_modern_block_have_a_number_each_eps():
    found = modern.cushions(SOURCE, kind="convnext", epochs=1, samples=1, limit=8, seeds=1)
    assert found.keys() == {
        f"ConvNeXt, {s} skip, {key}" for s in ("with", "without") for key in ("cushion", "response")
    }
    assert all(values.shape == (1, 2, len(modern.LEVELS)) and (values > 0).all() for values in found.values())


def test_relu_nets_at_zero_have_the_loss_of_the_identity_and_descend_from_a_start():
    asked = {"n": 2, "depth": 4, "starts": [0.0, 0.3], "exponents": [-2.0, -1.0], "epochs": 5, "seeds": 2}
    left = losses(SOURCE, limit=100, **asked)["left"]
    assert left[:, 0] == pytest.approx([1.0, 1.0]) and (left[:, 1] < 1).all()
