"""The bank: seeds, arms, twins, and that a member is the same net alone as among others."""

import random

import numpy as np
import pytest
import torch

from lightning_app.common.errors import UserError
from lightning_app.common.seeds import parse_seeds
from lightning_app.modules.members import Arm, build_members
from lightning_app.networks import SimplifiedNet
from tests.helpers import arm, classifier, fit, same_weights


def test_seeds_count_list_and_ranges():
    assert parse_seeds(13) == tuple(range(13))
    assert parse_seeds([4, 2]) == (4, 2)
    assert parse_seeds("7-9,1") == (7, 8, 9, 1)


@pytest.mark.parametrize("seeds", [0, [], [1, 1], [-1], "a", "3-1", "7-3,1", "1,,2", "", "0-10000"])
def test_wrong_seeds_are_errors(seeds):
    with pytest.raises(UserError, match="seeds"):
        parse_seeds(seeds)


@pytest.mark.parametrize("count", [0, -3])
def test_no_seeds_at_all_is_said_with_how_to_write_seed_0(count):
    with pytest.raises(UserError, match=f"how many seeds, at least 1, got {count}. For seed 0 alone write '0-0'"):
        parse_seeds(count)


def test_arms_times_seeds_with_names_that_sort():
    members = build_members({"plain": arm(False), "residual": arm(True)}, (0, 11))
    assert [m.name for m in members] == ["plain-seed00", "plain-seed11", "residual-seed00", "residual-seed11"]
    assert not same_weights(members[0].net, members[1].net)


def test_building_a_bank_draws_nothing_from_the_global_random_state():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    build_members({"plain": arm(False), "twin": Arm(twin_of="plain")}, (0, 1))
    assert torch.equal(before, torch.get_rng_state())


def test_weights_that_numpy_or_python_draw_are_of_the_seed_too():
    def drawing() -> torch.nn.Module:
        net = torch.nn.Linear(2, 1)
        net.weight.data = torch.tensor([[np.random.randn(), random.random()]])
        return net

    random.seed(1), np.random.seed(1)
    states = random.getstate(), np.random.get_state()[1].tolist()
    zero, one = (member.net for member in build_members({"a": Arm(net=drawing)}, (0, 2**63 - 1)))
    assert states == (random.getstate(), np.random.get_state()[1].tolist())
    np.random.rand(), random.random()
    (again,) = build_members({"b": Arm(net=drawing)}, (0,))
    assert same_weights(zero, again.net) and not same_weights(zero, one)


def test_twin_computes_the_same_function_and_decays_towards_rho():
    twin, original = build_members({"twin": Arm(twin_of="residual"), "residual": arm(True)}, (3,))
    assert (twin.centre, original.centre) == ("identity", "zero")
    x = torch.randn(2, 3, 32, 32)
    assert torch.allclose(twin.net(x), original.net(x), atol=1e-6)
    assert twin.net.residual is False


@pytest.mark.parametrize(
    "arms",
    [
        {"a": Arm()},
        {"a": Arm(net=lambda: SimplifiedNet(5), twin_of="b")},
        {"a": Arm(twin_of="nobody")},
        {"a": Arm(twin_of="b"), "b": Arm(twin_of="a")},
        {"a.b": arm(True)},
        {18: arm(True)},  # as YAML reads 18, and on
        {True: arm(True)},
        {"train": arm(True)},
        {"a": Arm(net=lambda: torch.nn.Conv2d(1, 1, 1)), "b": Arm(twin_of="a")},
    ],
)
def test_wrong_arms_are_errors(arms):
    with pytest.raises(UserError):
        build_members(arms, (0,))


def test_the_centre_of_a_single_net_is_not_ignored_where_arms_have_their_own():
    with pytest.raises(UserError, match=r"got identity beside model.arms.* set .*model.arms.plain.decay_towards"):
        classifier(decay_towards="identity")


def test_what_is_no_net_and_nets_that_are_one_are_refused():
    with pytest.raises(UserError, match=r"net of arm 'a' must be a torch.nn.Module, got a NoneType"):
        build_members({"a": Arm(net=lambda: None)}, (0,))
    body = torch.nn.Linear(2, 2)
    half = Arm(net=lambda: torch.nn.Sequential(body, torch.nn.Linear(2, 2)))
    for arms, seeds in (({"a": half}, (0, 1)), ({"a": half, "b": half}, (0,))):
        with pytest.raises(UserError, match=r"members 'a.*' and '.*' share the weight '0\.weight'"):
            build_members(arms, seeds)
    body.requires_grad_(False)  # no step changes it
    assert len(build_members({"a": half}, (0, 1))) == 2


def test_dropout_too_is_drawn_from_the_members_own_stream():
    def dropped() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(), torch.nn.Linear(3 * 32 * 32, 10))

    bank = fit(classifier({"a": arm(True), "b": Arm(net=dropped)}))
    alone = fit(classifier({"b": Arm(net=dropped)}))
    assert same_weights(bank.members[1].net, alone.members[0].net)


def test_dropout_is_drawn_anew_in_each_step_and_for_each_seed():
    class Dropped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.readout, self.masks = torch.nn.Linear(3 * 32 * 32, 10), []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.masks.append(torch.nn.functional.dropout(torch.ones(64)))
            return self.readout(x.flatten(1))

    bank = fit(classifier({"a": Arm(net=Dropped), "b": Arm(net=Dropped)}, seeds=2))
    a, other_a, b, _ = (torch.stack(member.net.masks) for member in bank.members)
    steps = len(a)
    assert steps > 2 and len(torch.cat([a, other_a]).unique(dim=0)) == 2 * steps
    assert torch.equal(a, b), "arms of one seed draw the same"


def test_arms_of_one_seed_see_identical_batches_by_default():
    twice = {"one": arm(True), "other": arm(True)}
    shared = fit(classifier(twice))
    assert same_weights(*(member.net for member in shared.members))
    apart = fit(classifier(twice, share_batches=False))
    assert not same_weights(*(member.net for member in apart.members))


def test_twins_share_batches_even_when_arms_do_not():
    module = classifier({"a": arm(True), "r": arm(True), "p": Arm(twin_of="r")}, share_batches=False)
    a, r, p = (module.stream_of(member) for member in module.members)
    assert r == p != a
