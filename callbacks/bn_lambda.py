"""What normalisation multiplies by, and how large weights are: the scales of Littwin & Wolf (2016), after epochs."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from typing_extensions import override

from callbacks.context import MeasureContext
from callbacks.measure import StatefulMeasure
from lightning_app.common.errors import UserError
from lightning_app.measures import (
    Normalisation,
    absorbed_norms,
    effective_scale,
    lambda_statistics,
    lambda_totals,
    normalisations_of,
)
from lightning_app.measures.weights.absorption import NormName
from lightning_app.networks import layers_of


class BnLambda(StatefulMeasure):
    """Logs λ, the factor of every normalisation layer (``weight``; others write γ), and the norms of the layers' weights.

    Definition:
        In evaluation mode a BatchNorm multiplies channel d by ``s_d = λ_d / √(var_d + ε)``. Behind a convolution or linear map
        it can be absorbed into the weights, ``w'_d = s_d w_d``, and ‖w'‖ is the layer's effective scale.

        LayerNorm, GroupNorm, InstanceNorm, RMSNorm and similar modules also have a λ (or γ), but no running statistics: they
        divide by a statistic of the sample itself, which is not linear, so the layer before cannot absorb them. Only their λ
        can be absorbed by the linear maps behind them, as ``W diag(λ)`` with bias ``b + W β``, if these take the whole output
        of the normalisation; the division stays.

    Keys:
        | key | unit | meaning |
        |---|---|---|
        | ``bn_lambda/layer07/l2`` | 1 | ‖λ‖₂ of the normalisation after that layer |
        | ``bn_lambda/layer07/mean_abs`` | 1 | mean absolute value of its entries |
        | ``bn_lambda/layer07/negative`` | entries | below 0 |
        | ``bn_lambda/layer07/sign_changes`` | entries | whose sign differs from the last measurement's; 0 at the first |
        | ``bn_lambda/layer07/absorbable`` | 0 or 1 | 1 where the layer before can absorb it |
        | ``bn_lambda/layer07/values`` | 1 | λ itself: array (channels,) |
        | ``bn_lambda/layer07/scale`` | 1 | mean absolute value of s_d, where there are running statistics |
        | ``bn_lambda/l2``, ``bn_lambda/mean_abs``, ``bn_lambda/scale`` | 1 | means over layers |
        | ``bn_lambda/negative``, ``bn_lambda/sign_changes`` | entries | sums over layers |
        | ``bn_lambda/layers``, ``bn_lambda/absorbable`` | layers | how many have a λ; how many of them can be absorbed |
        | ``weight_norm[_<norm>]/layer07/own`` | 1 | norm of the layer's weights |
        | ``weight_norm[_<norm>]/layer07/absorbed`` | 1 | with the normalisation after it absorbed, where possible |
        | ``weight_norm[_<norm>]/own`` | 1 | mean over convolutions; over all layers where most are not convolutions |
        | ``weight_norm[_<norm>]/absorbed`` | 1 | mean of absorbed norms, over those of the same layers that have one |
        | ``weight_norm[_<norm>]/total`` | 1 | of convolutions, linear maps, embeddings, attention together, a shared one once |
        | ``cost/bn_lambda[_<norm>]`` | s | what measuring all nets took |

        "layer07" is the layer that ran last before the normalisation; a second one after it is "layer07_2", one before
        all layers has the name of its module.

    Interpretation:
        λ starts at 1. According to Littwin & Wolf, a growing |λ| of layers with a skip moves weight to longer paths. Measured
        on ten Gaussians over 100 epochs, six seeds, BatchNorm before or after the ReLU: from λ = 1 mean |λ| of skipped layers
        ends 1 % above its start where classes are easily separated, and falls where they overlap (by 0.54 at most). From
        Torch7's start, λ from U(0, 1), it rises in all settings. Without normalisation ‖w‖ rises in 99 % of epochs or more.

    Cost:
        One forward pass on one image and a pass over the weights: negligible.

    Breaks:
        * Before training, when running statistics have seen no data, scales and absorbed norms use those of probe samples.
        * Nothing is absorbed across an addition, or if a skip starts between the two (pre-activation nets have few pairs that
          can be absorbed), nor into a transposed convolution.
        * λ of a LayerNorm and ‖W‖ of the map behind it can compensate each other: the net uses W diag(λ). ``own`` norms do not
          contain λ, and ``absorbed`` ones exist for BatchNorm only.
        * Without running statistics a BatchNorm has no scale: those keys are left out, with a warning.
        * Normalisations without λ (``affine=False``) are absorbed but not listed; a net without normalisation has weight norms
          only.
        * Weights before a BatchNorm can be scaled without changing the function: compare ``absorbed`` norms, not
          ``own``.

    Source:
        Littwin & Wolf (2016), sections 4.1 and 4.2, Figs. 1d, 1e, 2 and 3; e-lab's BN-absorber.

    When it measures: ``every_n_epochs`` (1; the last epoch always), ``at_start`` (True: before the first step) and
    ``every_n_steps`` (None; a number of steps, or "powers_of_2"), the arguments of `EpochCallback`.

    Args:
        norm: of the weights, "frobenius"; "rms" and "filter" (mean norm of an output channel's weights) have keys
            ``weight_norm_rms/...``, ``weight_norm_filter/...``.
    """

    family = "bn_lambda"

    def __init__(self, norm: NormName = "frobenius", **clock: Any) -> None:
        super().__init__(**clock)
        if norm not in get_args(NormName):
            raise UserError(f"norm of BnLambda must be one of {', '.join(get_args(NormName))}, got '{norm}'.")
        self.norm = norm
        suffix = "" if norm == "frobenius" else f"_{norm}"
        self.family, self.prefix = f"bn_lambda{suffix}", f"weight_norm{suffix}"

    @property
    @override
    def state_key(self) -> str:
        return self._generate_state_key(norm=self.norm)

    @override
    def measure(self, context: MeasureContext) -> Mapping[str, Any]:
        net = context.recalibrated()
        norms = normalisations_of(net, context.example())
        weights = absorbed_norms(layers_of(net), norms, self.norm)
        return self._lambdas(context, norms) | self._scales(norms) | _under(self.prefix, weights)

    def _lambdas(self, context: MeasureContext, norms: Sequence[Normalisation]) -> dict[str, Any]:
        listed = [norm for norm in norms if norm.has_lambda]
        before = context.kept("last", {})
        context.keep("last", {norm.name: norm.lambdas for norm in listed})
        found = {norm.name: lambda_statistics(norm, before.get(norm.name)) for norm in listed}
        return _under("bn_lambda", found) | ({"bn_lambda": lambda_totals(list(found.values()))} if found else {})

    def _scales(self, norms: Sequence[Normalisation]) -> dict[str, float]:
        for norm in norms:
            if norm.lacks_statistics:
                self.warn_once(
                    f"'{norm.path}' keeps no running statistics, so its scale in evaluation mode is not defined and it cannot "
                    "be absorbed: its scale and absorbed keys are left out."
                )
        found = {norm.name: effective_scale(norm) for norm in norms if norm.has_lambda and norm.has_statistics}
        each = {f"bn_lambda/{name}/scale": scale for name, scale in found.items()}
        return each | ({"bn_lambda/scale": sum(found.values()) / len(found)} if found else {})


def _under(prefix: str, results: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}/{name}": result for name, result in results.items()}
