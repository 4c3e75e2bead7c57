"""Noise injection, the direct test of noise stability: change the weights of one layer, see the output change.

"The noise stability of a network is measured by how much the output changes when noise is added to the weights of some
layer" (Yu & Tomasi 2019, section 5, after Arora et al. 2018). Cushions predict the answer; this is the answer. All
depends on how much noise is the same amount of noise for a plain and a residual layer. Three readings, side by side:

* relative: ``s ||W||_F``, of the weights that are trained. A residual layer has small W, so it gets little noise.
* transferred: ``s ||T(W)||_F``, of the plain layer that computes the same: a residual net and its plain twin then answer
  alike, so this isolates what identities do to the function. Layers without a skip have the same as relative.
* absolute: ``s sqrt(2 D)``, with D outputs: the norm of a fresh He-initialised layer of that shape, the same for all
  nets and times. "The same amount of noise added to such a network has a smaller effect" is a claim about this one.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.measures.core.cuts import CutNet
from lightning_app.measures.core.hooks import sample_norms
from lightning_app.measures.core.losses import Loss, cross_entropy, of_samples, terms_of
from lightning_app.networks.layers import Layer, each_once, layers_of

Scale = Literal["relative", "transferred", "absolute"]
SCALES: tuple[Scale, ...] = ("relative", "transferred", "absolute")
STRENGTHS = (0.01, 0.03, 0.1, 0.3)


@dataclass(frozen=True, eq=False)
class NoiseResponses:
    """What noise of one scale does to a net, for each of L layers at each of S strengths."""

    layers: tuple[str, ...]  # those that the forward pass calls
    strengths: Tensor  # (S,) float64, s
    norms: Tensor  # (L,) float64, ||noise||_F at s = 1
    dead: int  # samples whose output f(x) is 0: median and mean are of the others
    median: Tensor  # (L, S) float64, of ||f(x; A') - f(x)|| / ||f(x)|| over samples, then mean over draws; >= 0
    mean: Tensor  # (L, S) likewise, mean over samples
    deviation: Tensor  # (L, S) standard deviation of the median over draws, of one draw; NaN where there is only one
    risk: Tensor  # (L, S) change of the cross-entropy, nats, mean over samples or tokens whose label counts, and draws
    error: Tensor  # (L, S) change of the share misclassified


@torch.no_grad()
def noise_injection(
    net: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    strengths: Sequence[float] = STRENGTHS,
    draws: int = 2,
    seed: int = 0,
    loss: Loss = cross_entropy,
) -> dict[Scale, NoiseResponses]:
    """Relative change of the output, layer by layer, when ``A' = A + s norm G / ||G||_F`` for a Gaussian G.

    A weight that the net uses several times, in calls of one layer or tied, is noisy in all of them, and has the row of its first
    layer. A layer and a draw have one G, whatever the net's weights, the strength and the scale, so that differences between
    those are not differences of luck. Weights and buffers are not touched: the noisy weights are tensors of their own.

    Args:
        net: images -> logits, in evaluation mode.
        batches: (images, labels).
        strengths: s >= 0; at 0 the answer is 0 exactly.
        draws: noises a layer.
        seed: of the noises, beside a layer's place among the net's layers.
        loss: says which label a token is compared with; risk is the cross-entropy, whatever it is.

    Raises:
        UserError: if there is no layer to put noise into.
        UserError: for a layer whose skip is no convolution with a centre tap (`Layer.identity`).

    For small s the response is linear in s, until ReLUs switch. Invariant to scaling the output.

    Cost: S draws forward passes for each layer and each *different* norm, at half price where a net has blocks, since
    what lies before the layer is not computed again.
    """
    layers = layers_of(net)
    first = {layer.name for layer in each_once(layers)}
    norms = {layer.name: noise_norms(layer) for layer in layers}
    found: dict[tuple[str, float], list[Tensor]] = {}
    samples: list[Tensor] = []
    for images, labels in batches:
        cuts = CutNet(net, images)
        samples.append(torch.stack([sample_norms(cuts.signals[-1]), terms_of(labels, loss).double()]).cpu())
        for number, layer in enumerate(layers):
            if layer.name not in cuts.cut_after or layer.name not in first:
                continue
            for norm in {norms[layer.name][scale] for scale in SCALES}:
                noises = [norm * _unit_noise(layer.weight, (seed, number, draw)) for draw in range(draws)]
                responses = [_response(cuts, layer, labels, s * noise, loss) for noise in noises for s in strengths]
                by_draw = torch.stack(responses).unflatten(0, (draws, len(strengths)))  # (draws, S, 3, B)
                found.setdefault((layer.name, norm), []).append(by_draw.cpu())
    if not found:
        raise UserError(
            f"noise needs samples, and layers with weights that the forward pass calls; for this {type(net).__name__} there are "
            "none."
        )
    called = [*dict.fromkeys(name for name, _ in found)]
    lengths, terms = torch.cat(samples, 1)
    return {
        scale: _responses(called, strengths, [norms[name][scale] for name in called], found, lengths == 0, terms)
        for scale in SCALES
    }


def noise_norms(layer: Layer) -> dict[Scale, float]:
    """||noise||_F at s = 1 by scale.

    >>> halves = nn.Linear(2, 2)
    >>> _ = nn.init.constant_(halves.weight, 0.5)
    >>> noise_norms(Layer("layer01", halves, "weight", skip=True))
    {'relative': 1.0, 'transferred': 2.23606797749979, 'absolute': 2.0}
    """
    weight = layer.weight64()
    whole = layer.transferred()
    return {
        "relative": float(weight.norm()),
        "transferred": float(whole.norm()),
        "absolute": math.sqrt(2 * len(layer.by_output)),
    }


def _unit_noise(weight: Tensor, stream: tuple[int, ...]) -> Tensor:
    """G / ||G||_F, drawn on the CPU so that all devices have the same."""
    (state,) = np.random.SeedSequence(stream).generate_state(1).tolist()
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(state), dtype=torch.float64)
    return (noise / noise.norm()).to(weight)


def _response(cuts: CutNet, layer: Layer, labels: Tensor, noise: Tensor, loss: Loss) -> Tensor:
    """Relative change of the output, changes of loss and of error, by sample: (3, B) float64."""
    clean = cuts.signals[-1]
    noisy = cuts.output_with(layer.name, layer.with_weight(layer.weight + noise))
    change = sample_norms(noisy - clean) / sample_norms(clean)
    return torch.cat([change[None], of_samples(noisy, labels, loss) - of_samples(clean, labels, loss)])


def _responses(
    layers: list[str],
    strengths: Sequence[float],
    norms: list[float],
    found: dict[tuple[str, float], list[Tensor]],
    dead: Tensor,
    terms: Tensor,
) -> NoiseResponses:
    """Of samples (n,): whether their output is 0, and over how many terms their risk is a mean."""
    response = torch.stack([torch.cat(found[key], -1) for key in zip(layers, norms)])  # (L, draws, S, 3, n)
    change, risk, error = response.unbind(3)
    change = change[..., ~dead] if not dead.all() else torch.full_like(change, math.nan)
    labelled = ~error[0, 0, 0].isnan()  # a loss can be NaN by itself, a share misclassified cannot
    weights, all_terms = terms[labelled], terms[labelled].sum()  # 0 / 0 where no label counts
    medians = change.quantile(0.5, -1)  # (L, draws, S)
    return NoiseResponses(
        layers=tuple(layers),
        strengths=torch.tensor(strengths, dtype=torch.float64),
        norms=torch.tensor(norms, dtype=torch.float64),
        dead=int(dead.sum()),
        median=medians.mean(1),
        mean=change.mean((1, 3)),
        deviation=medians.std(1) if medians.shape[1] > 1 else torch.full_like(medians[:, 0], math.nan),
        risk=(risk[..., labelled] @ weights / all_terms).mean(1),
        error=(error[..., labelled] @ weights / all_terms).mean(1),
    )
