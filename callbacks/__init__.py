"""Lightning callbacks: thin, one a family. Each decides when, on which data and under which name to measure."""

from callbacks.layer_cushion import LayerCushion
from callbacks.learning import Learning
from callbacks.progress import ProgressLines
from callbacks.weight_mass import WeightMass
from callbacks.weight_travel import WeightTravel

__all__ = ["LayerCushion", "Learning", "ProgressLines", "WeightMass", "WeightTravel"]
