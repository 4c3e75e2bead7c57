"""Pure functions on tensors, one quantity a file. Each returns frozen dataclasses; their fields are what gets logged."""

from typing import TYPE_CHECKING

from lightning_app.common.lazy import lazy

if TYPE_CHECKING:
    from lightning_app.measures.core.cuts import CutNet
    from lightning_app.measures.core.histogram import Histogram, histogram
    from lightning_app.measures.core.probe import LayerNorms, ProbeResult, probe_forward
    from lightning_app.measures.core.recalibrate import needs_recalibration, recalibrated
    from lightning_app.measures.curvature.hessian import Hessian, Restricted, Symmetric, dense
    from lightning_app.measures.curvature.spectrum import Spectrum, check_asked, exact_spectrum, spectrum
    from lightning_app.measures.noise_stability.bound import NoiseBound, margins, noise_bound
    from lightning_app.measures.noise_stability.contraction import Contraction, contraction
    from lightning_app.measures.noise_stability.cushions import (
        CushionStatistics,
        WeightNorms,
        cushions,
        operator_norm,
        weight_norms,
    )
    from lightning_app.measures.noise_stability.injection import (
        SCALES,
        STRENGTHS,
        NoiseResponses,
        noise_injection,
        noise_norms,
    )
    from lightning_app.measures.noise_stability.interlayer import InterlayerStatistics, interlayer_cushions
    from lightning_app.measures.noise_stability.minimal_cushions import MinimalCushions, minimal_cushions
    from lightning_app.measures.noise_stability.smoothness import Smoothness, smoothness
    from lightning_app.measures.paths.driving_force import Comparison, Force, compare, driving_force, share
    from lightning_app.measures.paths.lengths import (
        EffectiveDepth,
        NoBranches,
        PathGradients,
        PathOutputs,
        effective_depth,
        path_gradients,
        path_outputs,
    )
    from lightning_app.measures.paths.unravel import NotPiecewiseLinear
    from lightning_app.measures.weights.absorption import (
        absorb,
        absorbed_norms,
        absorbed_weight,
        check_norm,
        weight_norm,
    )
    from lightning_app.measures.weights.distance import conv_weights, distance
    from lightning_app.measures.weights.mass import WeightStatistics, weight_mass
    from lightning_app.measures.weights.normalisation import (
        LambdaStatistics,
        LambdaTotals,
        Normalisation,
        effective_scale,
        lambda_statistics,
        lambda_totals,
        normalisations_of,
    )
    from lightning_app.measures.weights.twins import (
        Divergence,
        Flip,
        Gap,
        Growth,
        SignWatch,
        Steps,
        TwinHistory,
        growth,
        sign_flips,
        twin_divergence,
    )

# one forward pass over the probe data
__all__ = ["LayerNorms", "ProbeResult", "probe_forward"]
# noise stability (Yu & Tomasi 2019, section 5)
__all__ += ["CushionStatistics", "WeightNorms", "cushions", "operator_norm", "weight_norms"]
# weights (Yu & Tomasi 2019, SM C)
__all__ += ["WeightStatistics", "weight_mass", "conv_weights", "distance"]
# equivalent training (Yu & Tomasi 2019, section 4.1, SM B)
__all__ += ["Divergence", "Flip", "Gap", "Growth", "SignWatch", "Steps", "TwinHistory", "growth", "sign_flips"]
__all__ += ["twin_divergence"]
# curvature (Li et al. 2016)
__all__ += ["Hessian", "Restricted", "Spectrum", "Symmetric", "check_asked", "dense", "exact_spectrum", "spectrum"]
# paths through a net, by length (Littwin & Wolf 2016)
__all__ += ["EffectiveDepth", "NoBranches", "NotPiecewiseLinear", "PathGradients", "PathOutputs", "effective_depth"]
__all__ += ["path_gradients", "path_outputs"]
# distributions
__all__ += ["Histogram", "histogram"]
# noise stability, the rest of the profile (Arora et al. 2018)
__all__ += ["SCALES", "STRENGTHS", "Contraction", "CutNet", "MinimalCushions", "NoiseBound", "NoiseResponses"]
__all__ += ["Smoothness", "contraction", "margins", "minimal_cushions", "noise_bound", "noise_injection", "noise_norms"]
__all__ += ["smoothness"]
# interlayer cushions (Yu & Tomasi 2019, section 5; Arora et al. 2018)
__all__ += ["InterlayerStatistics", "interlayer_cushions"]
# normalisation layers and what they multiply by (Littwin & Wolf 2016, sections 4.1 and 4.2)
__all__ += ["Comparison", "Force", "LambdaStatistics", "LambdaTotals", "Normalisation", "absorb", "absorbed_norms"]
__all__ += ["absorbed_weight", "check_norm", "compare", "driving_force", "effective_scale", "lambda_statistics"]
__all__ += ["lambda_totals", "needs_recalibration", "normalisations_of", "recalibrated", "share", "weight_norm"]

__getattr__ = lazy(__name__)
