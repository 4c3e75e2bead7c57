"""Noise injection: closed forms, a witness that changes weights by hand, and the laws that make scales comparable."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.identity import transfer
from lightning_app.measures import SCALES, noise_injection, noise_norms
from lightning_app.networks import CifarResNet, SimplifiedNet
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


def test_a_residual_net_under_transferred_noise_is_its_plain_twin_under_relative_noise():
    some = net()
    residual, plain = (noise_injection(which, labelled(6)) for which in (some, transfer(some)))
    torch.testing.assert_close(residual["transferred"].median, plain["relative"].median, rtol=1e-8, atol=0)
    torch.testing.assert_close(residual["absolute"].median, plain["absolute"].median, rtol=1e-8, atol=0)
    torch.testing.assert_close(residual["transferred"].norms, plain["relative"].norms)
    assert not torch.allclose(residual["relative"].median, plain["relative"].median, rtol=0.1)


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
        UserError, match=r"noise needs samples, and layers with weights .* this Sequential there are none"
    ):
        noise_injection(nn.Sequential(nn.Flatten()), [(torch.zeros(2, 10), torch.zeros(2).long())], [0.1])
