"""SkipScope's Lightning callbacks: thin, one a family. Each decides when, on which data and under which name to measure."""

from callbacks.bn_lambda import BnLambda
from callbacks.driving_force import DrivingForce
from callbacks.effective_depth import EffectiveDepth
from callbacks.hessian_spectrum import HessianSpectrum
from callbacks.interlayer_cushion import InterlayerCushion
from callbacks.layer_cushion import LayerCushion
from callbacks.learning import Learning
from callbacks.noise_stability import NoiseStability
from callbacks.progress import EpochBar, ProgressLines
from callbacks.twin_divergence import TwinDivergence
from callbacks.weight_mass import WeightMass
from callbacks.weight_travel import WeightTravel

__all__ = [
    "BnLambda",
    "DrivingForce",
    "EffectiveDepth",
    "EpochBar",
    "HessianSpectrum",
    "InterlayerCushion",
    "LayerCushion",
    "Learning",
    "NoiseStability",
    "ProgressLines",
    "TwinDivergence",
    "WeightMass",
    "WeightTravel",
]
