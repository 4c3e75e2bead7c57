"""SkipScope's Lightning callbacks: thin, one per family. Each decides when, on which data and under which name to measure."""

from typing import TYPE_CHECKING

from lightning_app.common.lazy import lazy

if TYPE_CHECKING:
    from callbacks.bn_lambda import BnLambda
    from callbacks.context import MeasureContext
    from callbacks.distance_from_start import DistanceFromStart
    from callbacks.driving_force import DrivingForce
    from callbacks.effective_depth import EffectiveDepth
    from callbacks.hessian_spectrum import HessianSpectrum
    from callbacks.interlayer_cushion import InterlayerCushion
    from callbacks.layer_cushion import LayerCushion
    from callbacks.loss_surface import LossSurface
    from callbacks.measure import Measure, Scalar, StatefulMeasure
    from callbacks.noise_stability import NoiseStability
    from callbacks.signal import Signal
    from callbacks.training import EpochBar, ProgressLines, TrainingMetrics
    from callbacks.twin_divergence import TwinDivergence
    from callbacks.weight_mass import WeightMass

__all__ = [
    # to write your own
    "Measure",
    "MeasureContext",
    "Scalar",
    "StatefulMeasure",
    # what every run logs and shows
    "EpochBar",
    "ProgressLines",
    "TrainingMetrics",
    # measures
    "BnLambda",
    "DistanceFromStart",
    "DrivingForce",
    "EffectiveDepth",
    "HessianSpectrum",
    "InterlayerCushion",
    "LayerCushion",
    "LossSurface",
    "NoiseStability",
    "Signal",
    "TwinDivergence",
    "WeightMass",
]

__getattr__ = lazy(__name__, renamed={"Learning": "TrainingMetrics", "WeightTravel": "DistanceFromStart"})
