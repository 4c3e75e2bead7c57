"""Noise stability beyond the layer cushions: noise put into weights, the profile of Arora et al. (2018), their bound."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from typing_extensions import override

from callbacks.base import Measure
from callbacks.protocol import few_samples, probe_batches
from lightning_app.errors import UserError
from lightning_app.measures import (
    STRENGTHS,
    MinimalCushions,
    NoiseBound,
    NoiseResponses,
    contraction,
    cushions,
    minimal_cushions,
    noise_bound,
    noise_injection,
    probe_forward,
    smoothness,
)
from lightning_app.networks import layers_of

__all__ = ["NoiseStability"]


class NoiseStability(Measure):
    """Logs what noise in the weights does to the output, and the factors of the bound that noise stability gives.

    Keys, with one for each strength s such as 0.1; ``noise_transferred/...`` and ``noise_absolute/...`` are the same as
    the first five for the other two scales of `lightning_app.measures.noise_injection`:

    | key | unit | meaning |
    |---|---|---|
    | ``noise/response_0.1`` | 1 | relative change of the output, noise of 0.1 ||W||: median over samples, mean over layers |
    | ``noise/risk_0.1``, ``noise/error_0.1`` | nats, share | change of risk and error, mean over layers |
    | ``noise/layer10/response_0.1`` | 1 | of one layer, at the upper middle one of the strengths |
    | ``noise/layer10/deviation_0.1`` | 1 | standard deviation of this over draws of the noise |
    | ``noise/responses`` | 1 | array (layers, strengths) |
    | ``noise/contraction/<field>`` | 1 | ``maximum`` is c; fields of `Contraction` |
    | ``noise/smoothness/<field>`` | 1 | ``rho``, ``rho_linearisation``; fields of `Smoothness` |
    | ``noise/bound/<field>`` | | ``log10`` and every factor; fields of `NoiseBound` |

    A net without blocks has neither smoothness nor bound.

    Args:
        every_n_epochs: after every so many epochs, and always after the final one. This measure is dear: with
            the defaults it costs 0.15 (plain) to 0.2 (residual) of a training epoch of a simplified net of depth 20 on
            CIFAR-10, so that at every tenth epoch it takes 2 % of the time. The share grows with the depth.
        at_start: also before the first training step.
        samples: so many of the probe, evenly spread over it, are used for what is dear: noise injection, smoothness and minimal
            interlayer cushions. The bound's other factors are over the whole probe.
        strengths: s of the noise in the weights.
        draws: noises a layer.
        tangents: random vectors a sample for the Jacobians' norms.
        seed: of everything that is drawn.
    """

    family = "noise"

    def __init__(
        self,
        every_n_epochs: int = 10,
        at_start: bool = True,
        samples: int = 50,
        strengths: Sequence[float] = STRENGTHS,
        draws: int = 2,
        tangents: int = 4,
        seed: int = 0,
    ) -> None:
        super().__init__(every_n_epochs, at_start)
        for name, value, least in (("samples", samples, 1), ("draws", draws, 1), ("tangents", tangents, 2)):
            if value < least:
                raise UserError(f"{name} of NoiseStability must be at least {least}, got {value}.")
        if not strengths or min(strengths) < 0:
            raise UserError(f"strengths of NoiseStability must be numbers from 0 up, got {list(strengths)}.")
        self.samples = samples
        self.strengths = tuple(strengths)
        self.draws = draws
        self.tangents = tangents
        self.seed = seed

    @override
    def measure(self, trainer: pl.Trainer, net: nn.Module) -> Mapping[str, Any]:
        few = list(few_samples(trainer, net, self.samples))
        injected = noise_injection(net, few, self.strengths, draws=self.draws, seed=self.seed)
        results: dict[str, Any] = {"noise/contraction": contraction(net, probe_batches(trainer, net))}
        for scale, responses in injected.items():
            results |= _flatten("noise" if scale == "relative" else f"noise_{scale}", responses)
        interlayer = minimal_cushions(net, few, self.tangents, self.seed)
        if len(interlayer.minimal) > 1:  # not the output alone: there are blocks
            results["noise/smoothness"] = smoothness(net, few, seed=self.seed)
            results["noise/bound"] = _bound(
                net, list(probe_batches(trainer, net)), interlayer, results["noise/contraction"].maximum
            )
        return results


def _bound(
    net: nn.Module, batches: list[tuple[Tensor, Tensor]], interlayer: MinimalCushions, contracted: float
) -> NoiseBound:
    layers = layers_of(net)
    logits = torch.cat([net(images) for images, _ in batches])
    labels = torch.cat([labels for _, labels in batches])
    return noise_bound(
        cushions(layers, probe_forward(net, layers, batches).layers), interlayer, contracted, logits, labels
    )


def _flatten(prefix: str, responses: NoiseResponses) -> dict[str, Any]:
    """Means over layers at every strength, layers at one of them, and the table."""
    results: dict[str, Any] = {f"{prefix}/responses": responses.median}
    names = [f"{strength:g}" for strength in responses.strengths.tolist()]
    for number, name in enumerate(names):
        for kind, values in (("response", responses.median), ("risk", responses.risk), ("error", responses.error)):
            results[f"{prefix}/{kind}_{name}"] = float(values[:, number].mean())
    middle = len(names) // 2
    for layer, response, deviation in zip(responses.layers, responses.median, responses.deviation):
        results[f"{prefix}/{layer}/response_{names[middle]}"] = float(response[middle])
        results[f"{prefix}/{layer}/deviation_{names[middle]}"] = float(deviation[middle])
    return results
