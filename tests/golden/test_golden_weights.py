"""Weights, lambda, layer cushions and probe of the golden net against NumPy, matrices and the net by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lightning_app.measures import absorb
from tests.golden.by_hand import EPS, Resnet10, loss
from tests.golden.subject import LABELS, LAYERS, golden_images

pytestmark = pytest.mark.slow  # the run that all golden tests read takes a minute or two

EXACT = {"rel": 1e-12, "abs": 1e-14}
SAMPLES = 1e-6  # samples are kept in float32
CONVS = [name for name, path in LAYERS.items() if path != "fc"]
NORMS = {"conv1": "bn1", "conv2": "bn2", "downsample.0": "downsample.1"}  # last part of a path -> of the one behind it


def norm_behind(layer: str) -> str:
    """The normalisation that takes a convolution's output: "layer2.0.downsample.1" of "layer08"."""
    path = LAYERS[layer]
    part = next(part for part in NORMS if path.endswith(part))
    return path.removesuffix(part) + NORMS[part]


class Recorder(Resnet10):
    """Keeps what goes into every layer and what comes out."""

    def __init__(self, state):
        super().__init__(state)
        self.seen = {}

    def conv(self, x, name, stride=1):
        out = super().conv(x, name, stride)
        self.seen[name] = x, out
        return out

    def readout(self, x):
        pooled = x.mean((2, 3))
        out = super().readout(x)
        self.seen["fc"] = pooled, out - self.w["fc.bias"]
        return out


@pytest.fixture(scope="module")
def seen(state, images):
    recorder = Recorder(state)
    recorder(images)
    return recorder.seen


def test_the_probe_is_the_pictures(images, labels):
    assert labels.tolist() == list(LABELS)
    torch.testing.assert_close(images, golden_images(), rtol=0, atol=1e-6)


def test_the_net_by_hand_is_torchvisions(net, hand, images):
    with torch.no_grad():
        torch.testing.assert_close(hand(images), net(images), rtol=0, atol=1e-13)


def test_survey(run, state, images):
    """All layers in the order of the forward pass; a projection runs behind the block's convolutions."""
    recorder = Recorder(state)
    recorder(images[:1])
    rows = run.layers()
    assert {row.layer: row.path for row in rows} == LAYERS
    assert [row.path for row in rows] == list(recorder.seen)
    assert all(row.shape == tuple(state[f"{row.path}.weight"].shape) and not row.reason for row in rows)
    assert run.notes() == []


def mass_by_hand(weights: list[np.ndarray]) -> dict[str, float]:
    w = np.concatenate([each.ravel() for each in weights]).astype(np.float64)
    counts = np.histogram(w, np.linspace(-2, 2, 513))[0]
    return {
        "count": w.size,
        "id_count": 0,
        "mean": w.sum() / w.size,
        "std": np.sqrt(((w - w.mean()) ** 2).mean()),
        "all": np.abs(w).sum(),
        "large": np.abs(w[np.abs(w) >= 0.25]).sum(),
        "id_entries": 0,
        "above_07": (np.abs(w) > 0.7).sum(),
        "above_07_signed": (w > 0.7).sum(),
        "norm": np.sqrt((w**2).sum()),
        "histogram/counts": counts,
    }


def test_weight_mass(measured, state):
    """Of all convolutions together and of each; a net that describes no skips is its own transfer."""
    weights = {name: state[f"{path}.weight"].numpy() for name, path in LAYERS.items()}
    expected = {"": mass_by_hand([weights[name] for name in CONVS])}
    expected |= {f"{name}/": mass_by_hand([weight]) for name, weight in weights.items()}
    assert expected[""]["large"] > 100
    for prefix, name in (*(("weight_mass", name) for name in expected), ("weight_mass_transferred", "")):
        for field, value in expected[name].items():
            key = f"{prefix}/{name}{field}"
            assert measured[key] == pytest.approx(value, rel=1e-10, abs=1e-15), key


def test_lambda(measured, state):
    lambdas = {name: state[f"{norm_behind(name)}.weight"].numpy() for name in CONVS}
    scales = {
        name: np.abs(values) / np.sqrt(state[f"{norm_behind(name)}.running_var"].numpy() + EPS)
        for name, values in lambdas.items()
    }
    for name, values in lambdas.items():
        expected = {
            "l2": np.sqrt((values**2).sum()),
            "mean_abs": np.abs(values).mean(),
            "negative": (values < 0).sum(),
            "sign_changes": 0,
            "absorbable": 1,
            "values": values,
            "scale": scales[name].mean(),
        }
        assert expected["negative"] > 0
        for field, value in expected.items():
            assert measured[f"bn_lambda/{name}/{field}"] == pytest.approx(value, **EXACT), (name, field)
    whole = {
        "l2": np.mean([np.linalg.norm(values) for values in lambdas.values()]),
        "mean_abs": np.mean([np.abs(values).mean() for values in lambdas.values()]),
        "scale": np.mean([scale.mean() for scale in scales.values()]),
        "negative": sum((values < 0).sum() for values in lambdas.values()),
        "layers": len(CONVS),
        "absorbable": len(CONVS),
    }
    for field, value in whole.items():
        assert measured[f"bn_lambda/{field}"] == pytest.approx(value, **EXACT), field


class Absorbed(Resnet10):
    """Without normalisation: its factors are in the weights, its shifts in biases."""

    def __init__(self, state):
        super().__init__(state)
        self.shifts = {}
        for name in CONVS:
            scale, shift = self.affine(norm_behind(name))
            self.w[f"{LAYERS[name]}.weight"] = scale[:, :, :, None] * self.w[f"{LAYERS[name]}.weight"]
            self.shifts[norm_behind(name)] = shift

    def norm(self, x, name):
        return x + self.shifts[name]


def test_absorbed_norms(measured, net, state, hand, images):
    folded = Absorbed(state)
    torch.testing.assert_close(folded(images), hand(images), rtol=0, atol=1e-12)
    torch.testing.assert_close(absorb(net, images[:1])(images).detach(), hand(images), rtol=0, atol=1e-12)
    absorbed = {name: float(folded.w[f"{LAYERS[name]}.weight"].square().sum().sqrt()) for name in CONVS}
    own = {name: float(state[f"{path}.weight"].square().sum().sqrt()) for name, path in LAYERS.items()}
    for kind, norms in (("absorbed", absorbed), ("own", own)):
        for name, value in norms.items():
            assert measured[f"weight_norm/{name}/{kind}"] == pytest.approx(value, **EXACT), (name, kind)
        assert measured[f"weight_norm/{kind}"] == pytest.approx(np.mean([norms[name] for name in CONVS]), **EXACT)
    assert measured["weight_norm/total"] == pytest.approx(np.sqrt(sum(value**2 for value in own.values())), **EXACT)
    assert "weight_norm/layer13/absorbed" not in measured


def test_probe(measured, hand, images, labels):
    logits = hand(images)
    wrong = float((logits.argmax(1) != labels).double().mean())
    assert 0 < wrong < 1
    for prefix in ("probe", "train", "test"):
        assert measured[f"{prefix}/risk"] == pytest.approx(float(loss(logits, labels)), rel=2e-7), prefix
        assert measured[f"{prefix}/error"] == pytest.approx(wrong, rel=1e-7), prefix
    assert measured["probe/risk"] == pytest.approx(float(F.cross_entropy(logits, labels)), **EXACT)


def operator_norm(weight: torch.Tensor, x: torch.Tensor, stride: int) -> float:
    """||A||_F: a weight's square counts once for every output at which it reads the map, as a convolution of ones does."""
    squares = F.conv2d(torch.ones_like(x[:1]), weight.square(), stride=stride, padding=weight.shape[-1] // 2)
    return float(squares.sum().sqrt())


@pytest.mark.parametrize("layer", LAYERS)
def test_cushions(measured, state, seen, layer):
    """||A x|| / (||A||_F ||x||) without the bias; all three readings are one, since torchvision describes no skips."""
    x, out = seen[LAYERS[layer]]
    weight = state[f"{LAYERS[layer]}.weight"]
    norms = [float(sample.square().sum().sqrt()) for sample in x]
    images = [float(sample.square().sum().sqrt()) for sample in out]
    kernel = float(weight.square().sum().sqrt())
    operator = operator_norm(weight, x, -(-x.shape[-1] // out.shape[-1])) if x.ndim == 4 else kernel
    mu = np.array(images) / (kernel * np.array(norms))
    expected = {
        "median": np.median(mu),
        "minimum": mu.min(),
        "mean": mu.mean(),
        "median_operator": np.median(mu) * kernel / operator,
        "kernel_norm": kernel,
        "operator_norm": operator,
        "dead": 0,
    }
    for field, value in expected.items():
        for reading in ("", "_transferred", "_branch"):
            name = field.replace("median", f"median{reading}") if "median" in field else field
            assert measured[f"cushion/{layer}/{name}"] == pytest.approx(value, **EXACT), name
    for reading in ("", "_transferred", "_branch"):
        assert measured[f"cushion/{layer}/samples{reading}"] == pytest.approx(mu, rel=SAMPLES)
