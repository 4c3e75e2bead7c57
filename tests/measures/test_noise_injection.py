"""Noise injection: closed forms, a witness that changes weights by hand, and the laws that make scales comparable."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils import parametrize as parametrization
from torch.nn.utils.parametrizations import weight_norm

from lightning_app.common.errors import UserError
from lightning_app.identity import transfer
from lightning_app.measures import SCALES, noise_injection, noise_norms
from lightning_app.networks import CifarResNet, SimplifiedNet
from lightning_app.networks.layers import layers_of
from tests.measures.nets import drawn as net
from tests.measures.nets import labelled


def unit(shape: torch.Size, *stream: int) -> Tensor:
    """The documented stream: (seed, place of the layer, draw)."""
    (state,) = np.random.SeedSequence(stream).generate_state(1).tolist()
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(state), dtype=torch.float64)
    return noise / noise.norm()


@pytest.mark.parametrize("kind", [(SimplifiedNet, 8, True), (SimplifiedNet, 8, False), (CifarResNet, 8, True)])
def test_by_changing_the_weights_by_hand(kind):
    some, ((images, labels),) = net(*kind), labelled(6)
    strengths, draws = (0.03, 0.3), 3
    found = noise_injection(some, labelled(6), strengths, draws=draws, seed=4)
    clean = some(images)
    for scale, (place, layer) in ((scale, pair) for scale in SCALES for pair in enumerate(some.layers())):
        for s, strength in enumerate(strengths):
            medians, means, risks, errors = [], [], [], []
            for draw in range(draws):
                other = copy.deepcopy(some)
                amount = strength * noise_norms(layer)[scale]
                with torch.no_grad():
                    other.get_parameter(layer.weight_name).add_(amount * unit(layer.weight.shape, 4, place, draw))
                    noisy = other(images)
                change = ((noisy - clean).norm(dim=1) / clean.norm(dim=1)).detach().numpy()
                medians.append(np.median(change))
                means.append(change.mean())
                risks.append(float(F.cross_entropy(noisy, labels) - F.cross_entropy(clean, labels)))
                wrong = [(out.argmax(1) != labels).double().mean() for out in (noisy, clean)]
                errors.append(float(wrong[0] - wrong[1]))
            one = found[scale]
            assert one.median[place, s] == pytest.approx(np.mean(medians), rel=1e-9)
            assert one.mean[place, s] == pytest.approx(np.mean(means), rel=1e-9)
            assert one.deviation[place, s] == pytest.approx(np.std(medians, ddof=1), rel=1e-7)
            assert one.risk[place, s] == pytest.approx(np.mean(risks), rel=1e-7, abs=1e-12)
            assert one.error[place, s] == pytest.approx(np.mean(errors), abs=1e-12)


def test_no_noise_no_answer():
    for dtype in (torch.float32, torch.float64):
        some = net().to(dtype)
        found = noise_injection(some, labelled(6, dtype=dtype), (0.0,))
        for scale in SCALES:
            for values in (found[scale].median, found[scale].mean, found[scale].risk, found[scale].error):
                assert torch.equal(values, torch.zeros_like(values))


def test_the_last_layer_in_closed_form():
    """f = W h + b, so the answer is s ||W|| ||G h|| / (||G|| ||W h + b||), at every strength."""
    some, ((images, _),) = net(), labelled(6)
    hidden = []
    some.fc.register_forward_pre_hook(lambda module, inputs: hidden.append(inputs[0]))
    logits = some(images)
    found = noise_injection(some, labelled(6), (0.1, 5.0), draws=1, seed=2)["relative"]
    change = (hidden[0] @ unit(some.fc.weight.shape, 2, 7, 0).T).norm(dim=1) / logits.norm(dim=1)
    expected = float(some.fc.weight.norm() * change.mean())
    assert found.mean[-1].tolist() == pytest.approx([0.1 * expected, 5 * expected], rel=1e-9)


def test_the_answer_is_linear_in_the_noise_until_relus_switch():
    """Between switches a net is an affine function of any one layer's weights; behind the last layer there are none."""
    some, strengths = net(), torch.tensor([1e-6, 1e-5, 0.3], dtype=torch.float64)
    for found in noise_injection(some, labelled(6), strengths.tolist()).values():
        slope = found.median / strengths
        torch.testing.assert_close(slope[:, 0], slope[:, 1], rtol=1e-8, atol=0)
        assert not torch.isclose(slope[:-1, 0], slope[:-1, 2], rtol=1e-3).any()


def test_a_residual_net_under_transferred_noise_is_its_plain_twin_under_relative_noise():
    some = net()
    residual, plain = (noise_injection(which, labelled(6)) for which in (some, transfer(some)))
    torch.testing.assert_close(residual["transferred"].median, plain["relative"].median, rtol=1e-8, atol=0)
    torch.testing.assert_close(residual["absolute"].median, plain["absolute"].median, rtol=1e-8, atol=0)
    torch.testing.assert_close(residual["transferred"].norms, plain["relative"].norms)
    assert not torch.allclose(residual["relative"].median, plain["relative"].median, rtol=0.1)


def test_the_absolute_scale_is_by_outputs_wherever_a_weight_has_them():
    some = nn.Sequential(nn.Linear(3, 5), nn.ConvTranspose2d(6, 4, 3, groups=2), nn.Embedding(7, 2))
    assert [noise_norms(layer)["absolute"] ** 2 for layer in layers_of(some)] == pytest.approx([10, 8, 4])


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_risk_that_is_no_number_shows_in_the_mean(lost):
    """It is not left out as a sample without a label that counts is."""
    some, ((images, labels),) = net(), labelled(4)
    images[1] = lost
    found = noise_injection(some, [(images, labels)], (0.1,), draws=1)["relative"]
    assert found.risk.isnan().all() and not found.error.isnan().any()


def test_a_net_without_blocks():
    torch.manual_seed(0)
    some = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(144, 10)
    )
    found = noise_injection(some.double().eval(), labelled(6))["relative"]
    assert found.layers == ("layer01", "layer02") and (found.median > 0).all()
    assert some[1].num_batches_tracked == 0


def test_a_net_without_layers_is_an_error_message():
    with pytest.raises(
        UserError,
        match=r"noise needs at least one sample and one layer with weights .* this Sequential got no sample or",
    ):
        noise_injection(nn.Sequential(nn.Flatten()), [(torch.zeros(2, 10), torch.zeros(2).long())], [0.1])


class Tied(nn.Module):
    """The weight of its first layer, as registered, is used again after its last one, and one block has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.stem, inner = nn.Linear(5, 5), nn.Linear(5, 5), Inner()
        self.stem.weight = self.head.weight
        self.blocks = nn.Sequential(Inner(), inner, inner)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(torch.relu(self.stem(x))))


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.other(torch.relu(self.one(x))))


def test_a_weight_that_is_used_twice_is_noisy_in_both_places_and_as_before_afterwards():
    torch.manual_seed(0)
    some, x = Tied().double().eval(), torch.randn(6, 5, dtype=torch.float64)
    found = noise_injection(some, [(x, torch.arange(6) % 5)], (0.1,), draws=1)["relative"]
    layers = {layer.name: (place, layer) for place, layer in enumerate(layers_of(some))}
    assert len(found.layers) == 5  # the shared weight, and two of each block
    with torch.no_grad():
        for at, name in enumerate(found.layers):
            place, layer = layers[name]
            other = copy.deepcopy(some)
            weight = other.get_parameter(layer.weight_name)
            weight.add_(0.1 * weight.norm() * unit(weight.shape, 0, place, 0))
            change = (other(x) - some(x)).norm(dim=1) / some(x).norm(dim=1)
            assert found.median[at, 0] == pytest.approx(float(change.quantile(0.5)), rel=1e-9)


@pytest.mark.parametrize("parametrize", [parametrizations.spectral_norm, parametrizations.orthogonal, weight_norm])
def test_noise_in_a_parametrized_weight_is_that_in_the_weight_itself(parametrize):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)).eval()
    some = copy.deepcopy(plain)
    parametrize(some[0])
    kind = type(some[0])
    plain[0].weight.data = some[0].weight.detach().clone()
    x, before = torch.randn(6, 4), copy.deepcopy(some.state_dict())
    ours, theirs = (noise_injection(one, [(x, torch.arange(6) % 3)], (0.3,))["relative"] for one in (some, plain))
    torch.testing.assert_close(ours.median, theirs.median, rtol=1e-5, atol=0)
    assert all(torch.equal(value, before[key]) for key, value in some.state_dict().items())
    assert parametrization.is_parametrized(some[0]) and type(some[0]) is kind


def test_a_weight_that_a_hook_computes_is_refused():
    with pytest.warns(FutureWarning, match="weight_norm"):
        some = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(4, 3)))
    with pytest.raises(
        UserError, match=r"'0.weight' of this Sequential is computed from others: use .*parametrizations"
    ):
        noise_injection(some, [(torch.randn(2, 4), torch.arange(2))])


class Dropping(nn.Linear):
    """Without ``training=self.training``, as it is often forgotten."""

    def forward(self, x):
        return F.dropout(super().forward(x))


def test_a_net_that_draws_random_numbers_is_refused_and_not_measured_by_them():
    some = nn.Sequential(Dropping(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    with pytest.raises(UserError, match=r"draws random numbers in evaluation mode \(.* leave NoiseStability out"):
        noise_injection(some, [(torch.randn(6, 4), torch.arange(6) % 3)])


def test_labels_that_are_no_classes_have_no_risk_and_no_error():
    some, ((images, labels),) = net(), labelled(10)
    ours, theirs = (
        noise_injection(some, [(images, each)], (0.3,))["relative"] for each in (labels, F.one_hot(labels, 10).double())
    )
    assert torch.equal(ours.median, theirs.median)
    assert theirs.risk.isnan().all() and theirs.error.isnan().all() and not ours.risk.isnan().any()


def test_of_tokens_risk_and_error_change_as_means_over_tokens():
    torch.manual_seed(0)
    some = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7)).double().eval()
    tokens = torch.randint(7, (6, 4))
    labels = torch.randint(7, (6, 4))
    labels[:3, 1:] = -100  # one that counts, and four
    found = noise_injection(some, [(tokens[:2], labels[:2]), (tokens[2:], labels[2:])], (0.3,), draws=1)["relative"]
    place = found.layers.index("layer02")
    noisy = copy.deepcopy(some)
    with torch.no_grad():
        noisy[1].weight += 0.3 * some[1].weight.norm() * unit(noisy[1].weight.shape, 0, place, 0)

    def numbers(net: nn.Module) -> tuple[float, float]:
        rows, kept = net(tokens).flatten(0, 1), labels.flatten()
        wrong = (rows.argmax(1) != kept)[kept != -100].double().mean()
        return float(F.cross_entropy(rows, kept)), float(wrong)

    before, after = numbers(some), numbers(noisy)
    assert found.risk[place, 0] == pytest.approx(after[0] - before[0], rel=1e-9)
    assert found.error[place, 0] == pytest.approx(after[1] - before[1], abs=1e-12)


def test_samples_of_output_zero_are_left_out_and_counted():
    some = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False)).eval()
    images, labels = torch.randn(6, 4), torch.arange(6) % 3
    images[2] = 0
    kept = torch.arange(6) != 2
    found, others = (
        noise_injection(some, [(images[rows], labels[rows])], draws=1)["relative"] for rows in (slice(None), kept)
    )
    assert (found.dead, others.dead) == (1, 0)
    assert torch.equal(found.median, others.median) and found.median.isfinite().all()
    none = noise_injection(some, [(0 * images, labels)], draws=1)["relative"]
    assert none.dead == 6 and none.median.isnan().all() and torch.equal(none.risk, torch.zeros(2, 4).double())
