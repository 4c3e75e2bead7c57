"""What needs no training: closed forms and constructions of the papers, executable. Pure functions on tensors."""

from lightning_app.theory.linear import gradient, hessian, loss, loss_and_gradient
from lightning_app.theory.moments import Moments

__all__ = [
    # linear nets (Li et al. 2016, section 3)
    "Moments",
    "gradient",
    "hessian",
    "loss",
    "loss_and_gradient",
]
