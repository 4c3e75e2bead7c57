"""Noise injection, the direct test of noise stability: how much the output changes when one layer's weights are changed.

"The noise stability of a network is measured by how much the output changes when noise is added to the weights of some
layer" (Yu & Tomasi 2019, section 5, after Arora et al. 2018). Cushions predict this change; here it is measured. The
result depends on what "the same amount of noise" means for a plain and a residual layer. Three readings, side by side:

* relative: ``s ||W||_F``, relative to the trained weights. A residual layer has small W, so it gets little noise.
* transferred: ``s ||T(W)||_F``, relative to the plain layer that computes the same. A residual net and its plain twin then
  respond alike, so this isolates what identities do to the function. For layers without a skip it is the same as relative.
* absolute: ``s sqrt(2 D)``, with D outputs: the norm of a newly He-initialised layer of that shape, the same for all nets at
  all times. "The same amount of noise added to such a network has a smaller effect" is a claim about this one.
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
from lightning_app.measures.core.hooks import SAME_EACH_TIME, is_random, sample_norms
from lightning_app.measures.core.losses import Loss, cross_entropy, of_samples, terms_of
from lightning_app.networks.layers import Layer, each_once, layers_of

Scale = Literal["relative", "transferred", "absolute"]
SCALES: tuple[Scale, ...] = ("relative", "transferred", "absolute")
STRENGTHS = (0.01, 0.03, 0.1, 0.3)


@dataclass(frozen=True, eq=False)
class NoiseResponses:
    """Effects of noise of one scale on a net, for each of L layers at each of S strengths."""

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

    A weight that the net uses several times (a layer called repeatedly, or tied weights) is noisy in all uses, and is listed
    under its first layer. G depends only on the layer and the draw, not on the net's weights, strength or scale, so that
    differences between these are not due to chance. Weights and buffers are not changed: noisy weights are separate tensors.

    Args:
        net: images -> logits, in evaluation mode.
        batches: (images, labels).
        strengths: values of s >= 0; at 0 the response is exactly 0.
        draws: number of noise draws per layer.
        seed: seed of the noise, combined with the layer's place among the net's layers.
        loss: determines which label a token is compared with. The risk is always the cross-entropy.

    Raises:
        UserError: if there is no sample or no layer with weights, for a net that draws random numbers in evaluation mode, and for
            a layer whose skip cannot be written into its kernel (`Layer.identity`).

    For small s the response is linear in s, until ReLUs switch. It does not change if the output is scaled.

    Cost: S * draws forward passes for each layer and each *different* norm; about half of that if the net has blocks, since the
    part before the layer is not recomputed.
    """
    layers = layers_of(net)
    first = {layer.name for layer in each_once(layers)}
    norms = {layer.name: noise_norms(layer) for layer in layers}
    found: dict[tuple[str, float], list[Tensor]] = {}
    samples: list[Tensor] = []
    for images, labels in batches:
        cuts = CutNet(net, images)
        if not samples and is_random(net, images):
            raise UserError(
                f"a response to noise needs {SAME_EACH_TIME} Otherwise leave NoiseStability out of trainer.callbacks (in "
                "Python: of `measures`)."
            )
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
            "noise needs at least one sample and one layer with weights that the forward pass calls; this "
            f"{type(net).__name__} got no sample or calls no such layer."
        )
    called = [*dict.fromkeys(name for name, _ in found)]
    lengths, terms = torch.cat(samples, 1)
    return {
        scale: _responses(called, strengths, [norms[name][scale] for name in called], found, lengths == 0, terms)
        for scale in SCALES
    }


def noise_norms(layer: Layer) -> dict[Scale, float]:
    """||noise||_F at s = 1, by scale.

    >>> halves = nn.Linear(2, 2)
    >>> _ = nn.init.constant_(halves.weight, 0.5)
    >>> noise_norms(Layer("layer01", halves, "weight", skip=True))
    {'relative': 1.0, 'transferred': 2.23606797749979, 'absolute': 2.0}
    """
    return {
        "relative": float(layer.weight64().norm()),
        "transferred": float(layer.transferred().norm()),
        "absolute": math.sqrt(2 * len(layer.by_output)),
    }


def _unit_noise(weight: Tensor, stream: tuple[int, ...]) -> Tensor:
    """G / ||G||_F, drawn on the CPU so that all devices have the same."""
    (state,) = np.random.SeedSequence(stream).generate_state(1).tolist()
    generator = torch.Generator().manual_seed(state)
    noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64, device="cpu")
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
        strengths=medians.new_tensor(strengths),
        norms=medians.new_tensor(norms),
        dead=int(dead.sum()),
        median=medians.mean(1),
        mean=change.mean((1, 3)),
        deviation=medians.std(1) if medians.shape[1] > 1 else torch.full_like(medians[:, 0], math.nan),
        risk=(risk[..., labelled] @ weights / all_terms).mean(1),
        error=(error[..., labelled] @ weights / all_terms).mean(1),
    )
