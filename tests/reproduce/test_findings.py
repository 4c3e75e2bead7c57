"""Findings: what they are computed from, on small nets; and what is certain of it."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from lightning_app.measures import effective_depth
from lightning_app.networks import GPT, ResidualMLP
from lightning_app.papers import recipes
from lightning_app.papers.findings import (
    common_depth,
    common_depth_convolutions,
    loss_surface,
    modern,
    necessary_depth,
    normalised,
    notation,
    start_and_centre,
)
from lightning_app.papers.findings.nets import splits
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


def test_surfaces_are_of_the_nets_of_their_seeds_and_without_skips_there_is_one():
    asked = {"run": "depth20~1-2", "depth": 20, "samples": 4, "rays": 1, "limit": 32}
    one, other = (loss_surface.surfaces(SOURCE, seed=seed, **asked) for seed in (1, 2))
    assert "digits, which stand in (4 training images" in str(one["data"])
    assert one["radii"].shape == (10,) and one["plain_written"].shape == (1, 10)
    for arm in ("plain", "residual"):
        assert one[f"{arm}_centre"] != other[f"{arm}_centre"]
        assert np.array_equal(one[f"{arm}_written"], one[f"{arm}_transferred"]) == (arm == "plain")


def test_rises_are_compared_at_the_distance_asked_for():
    arrays = {"radii": np.array([0.05, 0.1, 0.25]), "plain_centre": np.array(1.0), "residual_centre": np.array(2.0)}
    arrays |= {"plain_written": np.array([[1.0, 5.0, 9.0], [1.0, 3.0, 1.0]])}  # rises by 3 and 4; one ray falls
    arrays |= {"residual_written": np.array([[2.0, 3.5, 3.0]]), "residual_transferred": np.array([[2.0, 8.0, 3.0]])}
    assert loss_surface._advantage("written", 0.1)(arrays) == 0.5
    assert loss_surface._advantage("transferred", 0.25)(arrays) == 0.25
    assert loss_surface._part_of_writing(0.1)(arrays) == 0.25
    assert loss_surface._more_monotone(arrays) == -0.5
    rising = arrays | {"residual_written": np.array([[2.0, 6.5, 3.0]])}
    assert loss_surface._growth("written")(*[arrays] * 3, *[rising] * 3) == 3


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


def test_depths_of_nets_with_convolutions_are_those_of_their_seeds_and_starts():
    asked = {"data": "digits", "starts": [0.5, 2.0], "epochs": 1, "limit": 60}
    both = common_depth_convolutions.depths(SOURCE, decay=0.0, first=3, seeds=2, **asked)
    alone = common_depth_convolutions.depths(SOURCE, decay=0.0, first=4, seeds=1, **asked)
    decayed = common_depth_convolutions.depths(SOURCE, decay=0.1, first=4, seeds=1, **asked)
    for name in ("effective", "gradient", "loss", "error"):
        assert both[name].shape == (2, 2, 6) and np.array_equal(both[name][1:], alone[name])
        assert np.array_equal(alone[name][..., 0], decayed[name][..., 0])
    assert (alone["effective"][..., -1] != decayed["effective"][..., -1]).all()
    assert (
        both["effective"][:, 1, 0] > both["effective"][:, 0, 0]
    ).all()  # the larger the branches, the longer the paths
    assert (both["loss"][:, 0, -1] < both["loss"][:, 0, 0]).all()


def test_the_size_of_a_convolution_is_that_of_its_start():
    plain, small = (common_depth_convolutions._net(3, seed=0, start=start) for start in (2**0.5, 0.1))
    for one, other in zip(plain.layers(), small.layers(), strict=True):
        ratio = 0.1 / 2**0.5 if one.weight_name.startswith("blocks") else 1.0
        assert torch.allclose(other.module.weight, ratio * one.module.weight)
    kwi = [block.conv.weight.std() * (block.conv.weight[0].numel() / 2) ** 0.5 for block in plain.block_list()]
    assert torch.stack(kwi).tolist() == pytest.approx([1.0] * 9, rel=0.1)


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
    found = losses(SOURCE, limit=100, **asked)
    assert found["left"][:, 0] == pytest.approx([1.0, 1.0]) and (found["left"][:, 1] < 1).all()
    for rate in asked["exponents"]:  # the best rate is one that alone ends as low
        alone = losses(SOURCE, limit=100, **asked | {"exponents": [rate]})["left"]
        its_best = found["rate"] == rate
        assert alone[its_best] == pytest.approx(found["left"][its_best])
        assert (alone[~its_best] >= found["left"][~its_best] - 1e-9).all()


def test_lesions_are_those_of_the_nets_own_paths_and_blocks():
    """All paths are the whole net, none is its readout's bias; without a block is the net without it."""
    torch.manual_seed(0)
    inputs, labels = necessary_depth.tables(300, steps=1)
    net = ResidualMLP(inputs=30, width=8, blocks=4, classes=5, norm="none", gain=1.5).double().eval()
    torch.nn.init.normal_(net.readout.bias, std=0.1)
    found = necessary_depth.path_lesions(net, inputs.double(), labels)
    assert found["lengths"].tolist() == [1, 2, 3, 4]

    def error(net: torch.nn.Module) -> float:
        with torch.no_grad():
            return float((net(inputs.double()).argmax(1) != labels).double().mean())

    assert found["error"] == found["up_to"][-1] == error(net)
    assert found["beyond"][-1] == float((net.readout.bias.argmax() != labels).double().mean())
    without = [*necessary_depth.without_each_block(net, inputs.double(), labels)]
    shorter = [copy.deepcopy(net) for _ in range(3)]
    for number, other in enumerate(shorter, 1):
        del other.blocks[number]
    assert without == [error(other) for other in shorter] and len({*without, error(net)}) > 1


def test_lesions_of_a_transformer_are_those_of_its_paths_and_branches(monkeypatch):
    torch.manual_seed(0)
    net = GPT(vocabulary=4, context=12, width=8, depth=1, heads=2).double().eval()
    tokens, labels = torch.randint(4, (100, 12)), torch.randint(4, (100,))

    def error() -> float:
        with torch.no_grad():
            return float((net(tokens).argmax(1) != labels).double().mean())

    found, without = necessary_depth.path_lesions(net, tokens, labels), []
    assert found["error"] == found["up_to"][-1] == error()
    for last in (net.blocks[0][0].map.out, net.blocks[0][1].map[2]):
        kept = copy.deepcopy(last.state_dict())
        last.weight.data.zero_()
        last.bias.data.zero_()
        without.append(error())
        last.load_state_dict(kept)
    assert [*necessary_depth.without_each_block(net, tokens, labels)] == without and len({*without, error()}) > 1
    monkeypatch.setattr(necessary_depth, "STEPS", (1,))
    depths = necessary_depth.hop_depths(SOURCE, first=3, seeds=1, epochs=1, limit=64, samples=8)
    assert depths["without"].shape == (1, 1, 8) and np.isfinite(depths["gradient"]).all()


def test_tables_lead_where_one_walks():
    torch.manual_seed(0)
    inputs, ends = necessary_depth.tables(50, steps=3)
    for row, end in zip(inputs, ends.tolist()):
        leads, place = row[:25].view(5, 5).argmax(1).tolist(), int(row[25:].argmax())
        assert leads[leads[leads[place]]] == end and row.sum() == 6


def test_lesion_depths_and_their_rank_correlation():
    lengths = np.broadcast_to(np.arange(1, 6), (2, 4, 5))
    up_to = np.array([[0.7, 0.0, 0.6, 0.0, 0.0]] + [[0.7] * (k - 1) + [0.04] * (6 - k) for k in (1, 3, 5)])
    arrays = {"error": np.zeros((2, 4)), "lengths": lengths, "up_to": np.stack([up_to, up_to[[0, 1, 1, 1]]])}
    arrays |= {"without": np.tile([0.5, 0.05, 0.06], (2, 4, 1)), "steps": np.tile([1, 2, 3, 4], (2, 1))}
    arrays["effective"] = np.array([[4.0, 1.0, 3.0, 5.0], [1.0, 2.0, 3.0, 4.0]])
    assert necessary_depth.lesion_depth(arrays).tolist() == [[4, 1, 3, 5], [4, 1, 1, 1]]
    assert (necessary_depth.blocks_needed(arrays) == 2).all()
    by_seed = necessary_depth.rank_correlation("effective", "steps", arrays)
    assert by_seed == pytest.approx([stats.spearmanr([4, 1, 3, 5], [1, 2, 3, 4]).statistic, 1])
    assert necessary_depth.rank_correlation("lesion", "effective", arrays)[0] == pytest.approx(1)
    assert (necessary_depth.rank_correlation("needed", "steps", arrays) == 0).all()


def test_depths_of_a_seed_are_those_of_its_nets(monkeypatch):
    monkeypatch.setattr(necessary_depth, "STEPS", (2,))
    both, second = (
        necessary_depth.depths(SOURCE, first=first, seeds=seeds, epochs=1, limit=256, samples=20)
        for first, seeds in ((3, 2), (4, 1))
    )
    assert both["steps"].tolist() == [[2], [2]] and both["up_to"].shape == (2, 1, 8)
    assert all(np.array_equal(values, both[name][1:]) for name, values in second.items())
    assert all(((both[name] >= 1) & (both[name] <= 8)).all() for name in ("effective", "effective_input", "gradient"))


def test_starts_and_centres_are_those_of_nets_trained_alone():
    """Of the last cell with its skips written: a loop over PyTorch's own layers, clipping and weight decay."""
    asked = {"data": "digits", "decay": 0.3, "limit": 100, "seeds": 2}
    found = start_and_centre.ends(SOURCE, epochs=2, **asked)
    assert found["risk"].shape == found["error"].shape == (2, 2, 2, 2)
    assert found["written_risk"] == pytest.approx(found["risk"][:, 1, 1, 1], rel=1e-4)
    assert len(np.unique(found["risk"][0].round(4))) > 6  # cells are different nets

    _, (x, labels), _ = splits(SOURCE, "digits", 100)
    draws = [torch.Generator().manual_seed(seed) for seed in range(2)]
    weights = start_and_centre._start(draws, x.shape[1], 10)
    one = {
        key: values[17].detach().clone().requires_grad_() for key, values in weights.items()
    }  # of seed 1, skips written
    optimizer = torch.optim.SGD(one.values(), lr=0.02, momentum=0.9)
    for rate in (0.02, 0.002):  # round(0.6 * 2) and round(0.8 * 2) epochs: drops after 1 and 2
        for group in optimizer.param_groups:
            group["lr"] = rate
        for rows in torch.randperm(100, generator=draws[1]).split(64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(_alone(one, x[rows]), labels[rows]).backward()
            torch.nn.utils.clip_grad_norm_(one.values(), 1.0)
            for weight in one.values():
                weight.grad += 0.3 * weight.detach()
            optimizer.step()
    risk = torch.nn.functional.cross_entropy(_alone(one, x), labels)
    assert found["written_risk"][1] == pytest.approx(risk.item(), rel=1e-4)


def _alone(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    h = (x @ weights["first"]).relu()
    for matrix in weights["hidden"]:
        h = (h @ matrix + h).relu()
    return h @ weights["readout"] + weights["bias"]


def test_the_gain_of_a_residual_net_is_that_of_its_start_and_of_its_centre():
    errors = np.random.default_rng(0).random((5, 2, 2, 2))
    gains = start_and_centre.gains(errors)
    assert gains["start and centre"] == pytest.approx(errors[:, 0, 0, 0] - errors[:, 1, 1, 1])
    assert gains["start"] + gains["centre"] == pytest.approx(gains["start and centre"])
    arms = recipes.recipe("findings", "factorial20")["model"]["arms"]
    for (place, size, centre), name in zip(start_and_centre.CELLS, start_and_centre.ARMS, strict=True):
        kind = ("plain", "twin" if not centre else "residual")[place]
        scheme = f"{kind}_{('kwi', 'hmwi')[size]}"
        assert name.startswith(scheme) and name in arms
        assert arms[name].get("decay_towards") in ((None, "zero"), ("identity", None))[centre]
