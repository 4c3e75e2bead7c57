"""Pure functions on tensors, one quantity a file. Each returns frozen dataclasses; their fields are what gets logged."""

from lightning_app.measures.cushions import CushionStatistics, WeightNorms, cushions, operator_norm, weight_norms
from lightning_app.measures.histogram import Histogram, histogram
from lightning_app.measures.probe import LayerNorms, ProbeResult, probe_forward
from lightning_app.measures.travel import conv_weights, distance
from lightning_app.measures.weight_mass import WeightStatistics, weight_mass

__all__ = [
    # one forward pass over the probe data
    "LayerNorms",
    "ProbeResult",
    "probe_forward",
    # noise stability (Yu & Tomasi 2019, section 5)
    "CushionStatistics",
    "WeightNorms",
    "cushions",
    "operator_norm",
    "weight_norms",
    # weights (Yu & Tomasi 2019, SM C)
    "WeightStatistics",
    "weight_mass",
    "conv_weights",
    "distance",
    # distributions
    "Histogram",
    "histogram",
]
