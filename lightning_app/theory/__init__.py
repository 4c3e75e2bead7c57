"""What needs no training: closed forms and constructions of the papers, executable. Pure functions on tensors."""

from lightning_app.theory.li_et_al.detour import detour
from lightning_app.theory.li_et_al.lemmas import directional_derivatives, lemma_1, lemma_2, lemma_3, lemma_4
from lightning_app.theory.li_et_al.linear import Moments, gradient, hessian, loss, loss_and_gradient
from lightning_app.theory.li_et_al.shortcut import IDENTITY, RELU, TANH, Activation, ShortcutForm, relu_surrogate
from lightning_app.theory.li_et_al.small_norm import SmallNormNet, moving_unit, perturbed_labels, small_norm_net
from lightning_app.theory.li_et_al.zero_point import (
    ZeroPoint,
    orthogonal_equivalence,
    zero_point,
    zero_point_deviations,
)
from lightning_app.theory.littwin_wolf import driving_force, hamiltonian, spin_glass, unravelled

# linear nets (Li et al. 2016, section 3)
__all__ = ["Moments", "gradient", "hessian", "loss", "loss_and_gradient"]
# n-shortcut nets as functions of one vector (Definitions 2 and 5)
__all__ += ["IDENTITY", "RELU", "TANH", "Activation", "ShortcutForm", "relu_surrogate"]
# their loss at zero (Theorem 2)
__all__ += ["ZeroPoint", "zero_point"]
# Theorem 2 checked
__all__ += ["directional_derivatives", "orthogonal_equivalence", "zero_point_deviations"]
# exact with small weights (Theorem 1, Eq. 3)
__all__ += ["SmallNormNet", "detour", "moving_unit", "perturbed_labels", "small_norm_net"]
# Lemmas 1 to 4 checked
__all__ += ["lemma_1", "lemma_2", "lemma_3", "lemma_4"]
# residual nets as mixtures of spherical spin glasses (Littwin & Wolf 2016): modules, as their names are the paper's
__all__ += ["hamiltonian", "spin_glass"]
# their paths, one by one
__all__ += ["unravelled"]
# what makes their scales grow
__all__ += ["driving_force"]
