"""Noise stability of the golden net: the same noise put into the net by hand, and its Jacobians with gates held by hand."""

import math

import numpy as np
import pytest
import torch

from lightning_app.measures.noise_stability.jacobian import signs
from tests.golden.by_hand import BLOCKS, FrozenResnet10, Gates, Resnet10, lengths, loss
from tests.golden.subject import LAYERS

pytestmark = pytest.mark.slow  # the run that all golden tests read takes a minute or two

EXACT = {"rel": 1e-9, "abs": 1e-12}
STRENGTHS = (0.01, 0.03, 0.1, 0.3)
CUTS = len(BLOCKS) + 2  # a signal before each block, one behind the last, and the logits


def same_noise(shape: torch.Size, layer: int, draw: int = 0, seed: int = 0) -> torch.Tensor:
    """What `NoiseStability` draws for a layer, by its number from 0: of norm 1."""
    (state,) = np.random.SeedSequence((seed, layer, draw)).generate_state(1).tolist()
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(state), dtype=torch.float64)
    return noise / noise.norm()


def answer(state, images, labels, clean, path: str, noise: torch.Tensor) -> tuple[float, float, float]:
    """Median response, changes of risk and error."""
    weight = f"{path}.weight"
    noisy = Resnet10(state | {weight: state[weight] + noise})(images)
    wrong = [float((logits.argmax(1) != labels).double().mean()) for logits in (clean, noisy)]
    response = float(np.median((lengths(noisy - clean) / lengths(clean)).numpy()))
    return response, float(loss(noisy, labels) - loss(clean, labels)), wrong[1] - wrong[0]


def answers(state, images, labels, strengths, norm) -> np.ndarray:
    """(layers, strengths, 3): each from a forward pass of its own."""
    clean, found = Resnet10(state)(images), []
    for number, path in enumerate(LAYERS.values()):
        weight = state[f"{path}.weight"]
        noise = norm(weight) * same_noise(weight.shape, number)
        found.append([answer(state, images, labels, clean, path, s * noise) for s in strengths])
    return np.array(found)


def own_norm(weight: torch.Tensor) -> torch.Tensor:
    return weight.square().sum().sqrt()


def check(measured, prefix: str, table: np.ndarray, strengths) -> None:
    for column, s in enumerate(strengths):
        for kind, value in zip(("response", "risk", "error"), table[:, column].mean(0)):
            assert measured[f"{prefix}/{kind}_{s:g}"] == pytest.approx(value, **EXACT), (prefix, kind, s)
        assert measured[f"{prefix}/responses"][:, STRENGTHS.index(s)] == pytest.approx(table[:, column, 0], **EXACT)
    for layer, value in zip(LAYERS, table[:, strengths.index(0.1), 0]):
        assert measured[f"{prefix}/{layer}/response_0.1"] == pytest.approx(value, **EXACT)
        assert math.isnan(measured[f"{prefix}/{layer}/deviation_0.1"])  # of one draw


def test_responses(measured, state, images, labels):
    """Of all layers at all strengths. A net that describes no skips is its own transfer."""
    table = answers(state, images, labels, STRENGTHS, own_norm)
    for prefix in ("noise", "noise_transferred"):
        check(measured, prefix, table, STRENGTHS)


def test_responses_to_noise_of_a_fresh_layer(measured, state, images, labels):
    """Its norm is sqrt(2 D), D outputs."""
    check(measured, "noise_absolute", answers(state, images, labels, (0.1,), lambda w: math.sqrt(2 * len(w))), (0.1,))


class Ratios(Resnet10):
    def __init__(self, state):
        super().__init__(state)
        self.ratios = []

    def relu(self, x):
        out = super().relu(x)
        self.ratios.append((lengths(x) / lengths(out)).numpy())
        return out


def test_contraction(measured, state, images):
    net = Ratios(state)
    net(images)
    ratios = np.array(net.ratios)
    assert ratios.shape == (2 * len(BLOCKS) + 1, len(images))
    for field, value in {
        "maximum": ratios.max(),
        "median": np.median(ratios),
        "mean": ratios.mean(),
        "dead": 0,
        "maxima": ratios.max(1),
        "medians": np.median(ratios, 1),
    }.items():
        assert measured[f"noise/contraction/{field}"] == pytest.approx(value, **EXACT), field


@pytest.fixture(scope="module")
def signals(hand, images) -> list[torch.Tensor]:
    pooled = hand.stem(images)
    return [pooled, *hand.cuts(0, pooled)]


def linearised(state, start: int, signal: torch.Tensor, tangent: torch.Tensor) -> list[torch.Tensor]:
    """J v at a signal for all later cuts, without differentiation: the net with its gates held is affine."""
    gates = Gates(state)
    gates.cuts(start, signal)
    ends = (FrozenResnet10(state, gates.kept).cuts(start, x) for x in (tangent, torch.zeros_like(tangent)))
    return [moved - still for moved, still in zip(*ends)]


def test_smoothness(measured, state, hand, signals):
    """rho = ||eta|| ||x^j|| / (||x^i|| ||M(x + eta) - J (x + eta)||) for all pairs of cuts, with the same noise."""
    generator = torch.Generator().manual_seed(0)
    rho = np.full((2, CUTS, CUTS, len(signals[0])), np.inf)
    for i, x in enumerate(signals[:-1]):
        eta = torch.randn(x.shape, generator=generator).double()
        eta *= (0.1 * lengths(x) / lengths(eta)).view(-1, *[1] * (x.ndim - 1))
        moved, whole, part = hand.cuts(i, x + eta), linearised(state, i, x, x + eta), linearised(state, i, x, eta)
        for j, clean in enumerate(signals[i + 1 :], i + 1):
            there = j - i - 1
            for kind, error in enumerate((moved[there] - whole[there], moved[there] - clean - part[there])):
                rho[kind, i, j] = (0.1 * lengths(clean) / lengths(error)).numpy()
    for kind, suffix in enumerate(("", "_linearisation")):
        worst = np.sort(rho[kind].min((0, 1)))
        expected = {"rho": worst[0], "minimum": worst[0], "median": worst[1]}  # of three samples
        for field, value in expected.items():
            assert measured[f"noise/smoothness/{field}{suffix}"] == pytest.approx(value, rel=1e-7), field
        pairs = np.where(np.triu(np.ones((CUTS, CUTS)), 1) > 0, np.median(rho[kind], -1), np.nan)
        assert measured[f"noise/smoothness/pairs{suffix}"] == pytest.approx(pairs, rel=1e-7, nan_ok=True)


def test_minimal_cushions(measured, state, signals):
    """min over later cuts and samples of sqrt(n) ||J x|| / (||J||_F ||x||), ||J||_F from the same four random vectors."""
    generator = torch.Generator().manual_seed(0)
    minimal = []
    for i, x in enumerate(signals):
        found = [1 / math.sqrt(x.shape[1])]  # of the identity
        if i < CUTS - 1:
            tangents = [signs(1, x, generator)[0] for _ in range(4)]  # the source of randomness is all that is shared
            squares = sum(squares_of(linearised(state, i, x, v)) for v in tangents) / len(tangents)
            cushion = (squares_of(linearised(state, i, x, x)) / squares).sqrt() / lengths(x)
            found.append(math.sqrt(math.prod(x.shape[2:])) * float(cushion.min()))
        minimal.append(min(found))
    places = {"conv1": 0, "fc": CUTS - 1} | {block: number for number, block in enumerate(BLOCKS, start=1)}
    behind = [places[path[: len(BLOCKS[0])]] for path in LAYERS.values()]
    assert measured["noise/bound/interlayer"] == pytest.approx([minimal[cut] for cut in behind], rel=1e-9)


def squares_of(signals: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([lengths(signal) for signal in signals]).square()


def test_bound(measured, hand, images, labels):
    """c^2 d^2 max ||f||^2 sum_i 1 / (mu_i mu_{i->})^2 / (gamma^2 m), from its factors."""
    logits = hand(images)
    right = [float(row[k] - np.delete(row, k).max()) for row, k in zip(logits.numpy(), labels.tolist())]
    gamma = np.quantile([margin for margin in right if margin > 0], 0.1)
    mu = np.array([measured[f"cushion/{name}/minimum"] for name in LAYERS])
    to_later = measured["noise/bound/interlayer"]
    total = (1 / (mu * to_later) ** 2).sum()
    under_root = (
        measured["noise/contraction/maximum"] ** 2 * len(LAYERS) ** 2 * float(lengths(logits).max()) ** 2 * total
    )
    expected = {
        "depth": len(LAYERS),
        "count": len(images),
        "margin": gamma,
        "margin_loss": np.mean(np.array(right) <= gamma),
        "output": float(lengths(logits).max()),
        "contraction": measured["noise/contraction/maximum"],
    }
    for field, value in expected.items():
        assert measured[f"noise/bound/{field}"] == pytest.approx(value, **EXACT), field
    for reading in ("", "_transferred", "_branch"):
        assert measured[f"noise/bound/cushions{reading}"] == pytest.approx(mu, rel=1e-6)
        assert measured[f"noise/bound/sum{reading}"] == pytest.approx(total, rel=1e-6)
        log10 = np.log10(under_root / gamma**2 / len(images))
        assert measured[f"noise/bound/log10{reading}"] == pytest.approx(log10, rel=1e-6)
