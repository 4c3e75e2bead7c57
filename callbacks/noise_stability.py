"""Noise stability beyond the layer cushions: noise put into weights, the profile of Arora et al. (2018), their bound."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from typing_extensions import override

from callbacks.context import MeasureContext
from callbacks.measure import Measure
from lightning_app.common.errors import UserError, at_least
from lightning_app.common.numbers import plural
from lightning_app.measures import (
    STRENGTHS,
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
from lightning_app.measures.core.hooks import in_float32
from lightning_app.measures.core.losses import are_classes, rows_of
from lightning_app.measures.noise_stability.minimal_cushions import MinimalCushions
from lightning_app.networks import NEVER_CALLED, by_reason, layers_of, measurable, survey


class NoiseStability(Measure):
    """Logs what noise in the weights does to the output, and the factors of Arora's generalisation bound.

    Definition:
        Noise ``s · norm · G / ‖G‖_F``, G Gaussian, is added to one layer's weights, and the response is ``‖f' - f‖ / ‖f‖``. The
        norm is that of the weights (``noise``), that of T(W) (``noise_transferred``), or that of a new He-initialised layer,
        the same in all nets (``noise_absolute``). It also logs activation contraction c, interlayer smoothness ρ and the
        generalisation bound of Arora et al.

    Keys:
        | key | unit | meaning |
        |---|---|---|
        | ``noise[_<scale>]/response_<s>`` | 1 | response to noise of strength s: median over samples, mean over layers |
        | ``noise[_<scale>]/risk_<s>`` | nats | change of the risk, mean over layers |
        | ``noise[_<scale>]/error_<s>`` | share | change of the error, mean over layers |
        | ``noise[_<scale>]/layer10/response_<s>`` | 1 | of one layer, at the middle strength (of an even number the upper one) |
        | ``noise[_<scale>]/layer10/deviation_<s>`` | 1 | standard deviation of this over draws of the noise |
        | ``noise[_<scale>]/responses`` | 1 | array (layers, strengths) |
        | ``noise/contraction/<field>`` | 1 | fields of `Contraction`; ``maximum`` is c |
        | ``noise/smoothness/<field>`` | 1 | fields of `Smoothness` |
        | ``noise/bound/<field>`` | below | fields of `NoiseBound`: ``log10`` and every factor |
        | ``cost/noise`` | s | what measuring all nets took |

    Interpretation:
        A small response means a stable net. Which net is more stable depends on how the amount of noise is defined, and on how
        long the nets have trained. Depth 20 on CIFAR-10, strength 0.1, three seeds, residual / plain, after 30 and after 200
        epochs: 0.54 and 0.77 relative to ‖W‖, 0.85 and 0.90 relative to ‖T(W)‖, 1.04 ± 0.06 (no difference) and 0.93 with noise
        of the same norm in all nets. c is about √2 where pre-activations are symmetric; ρ is infinite for a linear map; the
        bound is vacuous by many orders of magnitude: compare it between nets, not with 1.

    Cost:
        A sixth to a third of a training epoch of a simplified net of depth 20 on CIFAR-10 on a CPU; the share grows with the
        depth. On an H100, where training is one CUDA graph and this is not, 5 to 6 epochs.

    Breaks:
        * Before training BatchNorm has mean 0 and variance 1.
        * Responses are linear in s until ReLUs switch: compare at one s.
        * Samples with an output of 0 have no response and are left out.
        * A net that draws random numbers in evaluation mode is refused: they would count as responses.
        * Biases and BatchNorm make ρ as defined small, and it goes to 0 with the noise; ``rho_linearisation`` does not.
        * A net without ReLUs (with GELU, say) has NaN as contraction and bound.
        * A skip makes the block the smallest unit: nets without blocks have neither smoothness nor bound.
        * Risk and error are those of cross-entropy, whatever the training loss.
        * Blocks that take or return anything but one tensor with one row per sample are not used. ReLUs with other rows
          (windows, tables) are skipped; ``noise/contraction/skipped`` counts them.
        * The bound needs the cushion of every layer that the net calls, and is NaN if one has none: with circular padding,
          windows, or weights standardised by a class of their own. It does not include loose parameters and position
          embeddings. Without class labels there is no bound.
        * A net in half precision is perturbed in float32, since its own format rounds small noise away, unless ``forward``
          casts.
        * The bound's order between plain and residual nets differs between seeds and readings of the cushion.

    Source:
        Arora et al. (2018), sections 4 and 5, Theorem 4.1; Yu & Tomasi (2019), section 5.

    When it measures: ``every_n_epochs`` (10; the last epoch always), ``at_start`` (True: before the first step) and
    ``every_n_steps`` (None; a number of steps, or "powers_of_2"), the arguments of `EpochCallback`.

    Args:
        every_n_epochs: number of epochs between measurements (the final one is always measured); 10, since this measure is
            expensive.
        samples: number of probe samples, evenly spread, for the expensive parts: noise injection, smoothness and minimal
            interlayer cushions. The bound's other factors use the whole probe.
        strengths: values of s, each at least 0.
        draws: number of noise draws per layer, at least 1.
        tangents: random vectors per sample for the Jacobians' norms, at least 2.
        seed: seed of all random draws.

    Raises:
        UserError: for an argument outside its range.
    """

    family = "noise"

    def __init__(
        self,
        every_n_epochs: int = 10,
        samples: int = 50,
        strengths: Sequence[float] = STRENGTHS,
        draws: int = 2,
        tangents: int = 4,
        seed: int = 0,
        **clock: Any,
    ) -> None:
        super().__init__(every_n_epochs, **clock)
        if not strengths or min(strengths) < 0:
            raise UserError(
                f"strengths of NoiseStability must be one or more numbers of at least 0, got {list(strengths)}."
            )
        self.samples = at_least(1, "NoiseStability", samples=samples)
        self.strengths = tuple(strengths)
        self.draws = at_least(1, "NoiseStability", draws=draws)
        self.tangents = at_least(2, "NoiseStability", tangents=tangents)
        self.seed = seed

    @override
    def measure(self, context: MeasureContext) -> Mapping[str, Any]:
        net, few = context.net, context.samples(self.samples)
        if not layers_of(net):
            self.warn_once(f"NoiseStability logs nothing for '{context.name}', which has no layers with weights.")
            return {}
        wide, inputs = in_float32(net, [images for images, _ in few])
        few = [(images, labels) for images, (_, labels) in zip(inputs, few)]
        injected = noise_injection(wide, few, self.strengths, draws=self.draws, seed=self.seed, loss=context.loss)
        results: dict[str, Any] = {"noise/contraction": contraction(net, context.batches())}
        for scale, responses in injected.items():
            results |= _flatten("noise" if scale == "relative" else f"noise_{scale}", responses)
            if responses.dead:
                self.warn_once(
                    f"NoiseStability: the outputs of {plural(responses.dead, 'sample')} of '{context.name}' are 0, so their "
                    "relative change does not exist: left out of all responses.",
                    about=f"dead {context.name}",
                )
        interlayer = minimal_cushions(wide, few, self.tangents, self.seed)
        if len(interlayer.minimal) > 1:  # not the output alone: there are blocks
            results["noise/smoothness"] = smoothness(wide, few, seed=self.seed)
            bound = self._bound(context, interlayer, results["noise/contraction"].maximum)
            results |= {} if bound is None else {"noise/bound": bound}
        return results

    def _bound(self, context: MeasureContext, interlayer: MinimalCushions, contracted: float) -> NoiseBound | None:
        """None where labels are no classes, which the bound is about."""
        net, batches, terms = context.net, list(context.batches()), []
        for images, labels in batches:
            outputs = net(images)
            if not are_classes(outputs, labels, context.loss):
                return None
            terms.append(rows_of(outputs, labels, context.loss))
        surveyed = survey(net, context.example())
        missing = {  # embeddings of positions are as biases, which are no part of the bound
            each.layer.name: each
            for each in surveyed
            if each.layer and each.reason not in ("", NEVER_CALLED) and not isinstance(each.layer.module, nn.Embedding)
        }
        for reason, paths in by_reason(missing.values()).items():
            self.warn_once(f"NoiseStability: the bound is NaN, because it needs the cushions of {paths}: {reason}")
        layers = measurable(surveyed)
        found = cushions(layers, probe_forward(net, layers, batches, loss=context.loss).layers)
        by_layer = {name: found.get(name) for name in sorted({*found, *missing})}
        logits, labels = map(torch.cat, zip(*terms))
        return noise_bound(by_layer, interlayer, contracted, logits, labels)


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
