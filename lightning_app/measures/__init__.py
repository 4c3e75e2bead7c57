"""Pure functions on tensors, one quantity a file. Each returns frozen dataclasses; their fields are what gets logged."""

from typing import TYPE_CHECKING

from lightning_app.common.lazy import lazy

if TYPE_CHECKING:
    from lightning_app.measures.core.cuts import CutNet
    from lightning_app.measures.core.histogram import Histogram, histogram
    from lightning_app.measures.core.probe import LayerNorms, probe_forward
    from lightning_app.measures.core.recalibrate import needs_recalibration, recalibrated
    from lightning_app.measures.curvature.hessian import Hessian, Restricted, dense
    from lightning_app.measures.curvature.spectrum import Spectrum, check_asked, exact_spectrum, spectrum
    from lightning_app.measures.curvature.surface import RADII, loss_surface
    from lightning_app.measures.noise_stability.bound import NoiseBound, margins, noise_bound
    from lightning_app.measures.noise_stability.contraction import contraction
    from lightning_app.measures.noise_stability.cushions import CushionStatistics, cushions, operator_norm, weight_norms
    from lightning_app.measures.noise_stability.injection import (
        SCALES,
        STRENGTHS,
        NoiseResponses,
        noise_injection,
        noise_norms,
    )
    from lightning_app.measures.noise_stability.interlayer import InterlayerStatistics, interlayer_cushions
    from lightning_app.measures.noise_stability.minimal_cushions import minimal_cushions
    from lightning_app.measures.noise_stability.smoothness import Smoothness, smoothness
    from lightning_app.measures.paths.driving_force import Force, driving_force, scale_change
    from lightning_app.measures.paths.lengths import NoBranches, effective_depth, path_gradients, path_outputs
    from lightning_app.measures.paths.unravel import NoPaths
    from lightning_app.measures.weights.absorption import absorb, absorbed_norms, weight_norm
    from lightning_app.measures.weights.mass import WeightStatistics, conv_weights, distance, weight_mass
    from lightning_app.measures.weights.normalisation import (
        Normalisation,
        effective_scale,
        lambda_statistics,
        lambda_totals,
        normalisations_of,
    )
    from lightning_app.measures.weights.twins import (
        Divergence,
        SignWatch,
        TwinHistory,
        growth,
        sign_flips,
        twin_divergence,
    )

__getattr__ = lazy(__name__)
