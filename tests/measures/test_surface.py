"""The loss around the weights: closed forms, laws of the two readings, and what must not move."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lightning_app.common.errors import UserError
from lightning_app.identity import transfer
from lightning_app.measures import loss_surface
from lightning_app.measures.curvature.surface import _directions, _moved
from lightning_app.networks import SimplifiedNet, layers_of

RADII = [0.1, 0.5]


def samples(count: int = 12, classes: int = 10) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, 3, 32, 32, generator=generator, dtype=torch.float64)
    return [(images, torch.arange(count) % classes)]


def simplified(residual: bool) -> SimplifiedNet:
    torch.manual_seed(0)
    return SimplifiedNet(8, residual).double().eval()


def square(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return outputs.square().mean()


def test_a_quadratic_rises_by_r_squared_times_its_value_whatever_the_directions():
    """Mean of W^2 at opposite points of a direction that has the norm of each row of W."""
    net = nn.Linear(5, 3, bias=False).double()
    found = loss_surface(net, [(torch.eye(5).double(), torch.zeros(5))], square, RADII, rays=4)["written"]
    assert found.rise.tolist() == pytest.approx([r**2 * found.centre for r in RADII], rel=1e-12)
    assert found.risk.shape == (4, 2) and found.radii.tolist() == RADII


def test_the_surface_of_a_twin_is_the_transferred_one():
    net = simplified(residual=True)
    of_net, of_twin = (loss_surface(each, samples(), radii=RADII, rays=3) for each in (net, transfer(net)))
    for ours, its in ((of_net["transferred"], of_twin["written"]), (of_twin["transferred"], of_twin["written"])):
        assert ours.centre == pytest.approx(its.centre, rel=1e-12)
        torch.testing.assert_close(ours.risk, its.risk, rtol=1e-9, atol=0)
    assert abs(of_net["written"].rise / of_net["transferred"].rise - 1).min() > 0.1


def test_a_net_without_skips_has_one_surface():
    found = loss_surface(simplified(residual=False), samples(), radii=RADII, rays=3)
    assert found["written"] is found["transferred"]


def test_moving_scale_from_one_layer_to_the_next_changes_nothing():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3072, 6, bias=False), nn.ReLU(), nn.Linear(6, 10, bias=False)).double()
    scaled = copy.deepcopy(net)
    for number, factor in ((1, 7.0), (3, 1 / 7.0)):
        scaled[number].weight.data *= factor
    one, other = (loss_surface(each, samples(), radii=RADII, rays=4)["written"] for each in (net, scaled))
    torch.testing.assert_close(one.risk, other.risk, rtol=1e-10, atol=0)
    assert (one.rise.abs() > 1e-6).all()


@pytest.mark.parametrize("size", ["written", "transferred"])
def test_each_filter_moves_by_its_own_norm(size):
    for net in (
        simplified(residual=True),
        nn.Sequential(nn.ConvTranspose2d(6, 4, 3, groups=2), nn.Conv2d(4, 4, 3, groups=4)),
        nn.Sequential(nn.Embedding(7, 5), nn.MultiheadAttention(6, 2)),
    ):
        layers = layers_of(net)
        for layer, direction in zip(layers, _directions(layers, size, (0, 0)), strict=True):
            own = layer.transferred() if size == "transferred" else layer.weight
            found, expected = (layer.outputs_first(each).flatten(1).norm(dim=1) for each in (direction, own))
            torch.testing.assert_close(found, expected.to(found), rtol=1e-6, atol=0)


def test_of_packed_weights_all_rows_move_and_the_net_stays():
    net = nn.MultiheadAttention(6, 2)
    before, layers = copy.deepcopy(net.state_dict()), layers_of(net)
    plane = [_directions(layers, "written", (0, which)) for which in (0, 1)]
    moved = _moved(layers, plane, (0.5, 0.0))
    assert {*moved} == {"in_proj_weight", "out_proj.weight"}
    assert all((moved[name] != before[name]).all() for name in moved)
    third = torch.cat(plane[0][:3])
    torch.testing.assert_close(moved["in_proj_weight"], before["in_proj_weight"] + 0.5 * third)
    assert all(torch.equal(each, before[name]) for name, each in net.state_dict().items())


def test_a_tied_weight_moves_once():
    shared = nn.Linear(4, 4, bias=False)
    tied, net = nn.Sequential(shared, shared), nn.Sequential(copy.deepcopy(shared))
    batch = [(torch.eye(4), torch.zeros(4))]
    found = loss_surface(tied, batch, square, RADII, rays=2)["written"]
    layers = layers_of(net)
    (direction,) = _directions(layers, "written", (0, 0))
    moved = [shared.weight + sign * r * direction for sign in (1, -1) for r in RADII]
    torch.testing.assert_close(
        found.risk.flatten(), torch.stack([(w @ w).square().mean().double() for w in moved]), rtol=1e-5, atol=0
    )


def test_the_mean_is_over_all_labels_that_count_however_batched():
    net = simplified(residual=True)
    ((images, labels),) = samples()
    labels = labels.clone()
    labels[[1, 5]] = -100
    whole = loss_surface(net, [(images, labels)], radii=RADII, rays=2)["written"]
    split = loss_surface(net, zip(images.split(5), labels.split(5)), radii=RADII, rays=2)["written"]
    counted = labels != -100
    assert whole.centre == pytest.approx(F.cross_entropy(net(images)[counted], labels[counted]).item(), rel=1e-12)
    torch.testing.assert_close(whole.risk, split.risk, rtol=1e-12, atol=0)


def test_rays_on_which_the_loss_falls_are_counted():
    """(w - 1)^2 at w = 2: towards 1 it falls, away from it it rises."""
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 2)
    found = loss_surface(net, [(torch.ones(1, 1), torch.ones(1, 1))], nn.MSELoss(), [0.25, 0.5], rays=2)["written"]
    assert found.monotone == 0.5


def test_a_parametrized_weight_moves_as_the_weight_that_it_is():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)).double()
    computed = copy.deepcopy(net)
    nn.utils.parametrizations.weight_norm(computed[1])
    one, other = (loss_surface(each, samples(), radii=RADII, rays=2)["written"] for each in (net, computed))
    torch.testing.assert_close(one.risk, other.risk, rtol=1e-10, atol=0)


class Doubling(nn.Linear):
    """Works in place on what it is given."""

    def forward(self, x):
        return super().forward(x.mul_(2))


def test_a_net_that_works_in_place_leaves_the_samples_as_they_are():
    torch.manual_seed(0)
    net, images, labels = Doubling(4, 3), torch.randn(6, 4), torch.arange(6) % 3
    before = images.clone()
    found = loss_surface(net, [(images, labels)], radii=RADII, rays=2)["written"]
    plain = nn.Linear(4, 3)
    plain.load_state_dict(net.state_dict())
    expected = loss_surface(plain, [(2 * before, labels)], radii=RADII, rays=2)["written"]
    assert torch.equal(images, before) and torch.equal(found.risk, expected.risk)


def test_a_loss_that_is_nan_is_not_said_to_never_fall():
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, torch.nan)
    found = loss_surface(net, [(torch.ones(1, 1), torch.ones(1, 1))], nn.MSELoss(), RADII, rays=2)["written"]
    assert found.rise.isnan().all() and found.monotone == 0


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        return self.linear(x) + torch.randn(2)


@pytest.mark.parametrize(
    ("net", "loss", "labels", "message"),
    [
        (Noisy(), F.cross_entropy, [0, 1], "a loss surface needs a net that returns the same outputs each time"),
        (nn.Linear(2, 2), nn.CrossEntropyLoss(reduction="sum"), [0, 1], "a loss surface needs a loss that is an unwei"),
        (nn.Linear(2, 2), F.cross_entropy, [-100, -100], "one sample whose label counts"),
        (nn.ReLU(), F.cross_entropy, [0, 1], "at least one layer with weights"),
        (nn.Dropout().train(), F.cross_entropy, [0, 1], "call net.eval"),
    ],
)
def test_what_has_no_surface_is_refused(net, loss, labels, message):
    with pytest.raises(UserError, match=message):
        loss_surface(net, [(torch.randn(2, 2), torch.tensor(labels))], loss, RADII, rays=1)
