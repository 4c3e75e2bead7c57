"""Why a shortcut of length 1 is no help (Li et al. 2016, after Theorem 2): it is a plain net, orthogonally initialised."""

import torch
from torch import Tensor

from lightning_app.common.errors import UserError
from lightning_app.theory.li_et_al.linear import hessian
from lightning_app.theory.li_et_al.moments import Moments

__all__ = ["orthogonal_equivalence"]


def orthogonal_equivalence(matrices: Tensor, moments: Moments) -> float:
    """How far the Hessian of a plain linear net at orthogonal weights is from that of a 1-shortcut net at zero.

    With ``W_k = Q_k + dW_k``, the Q_k orthogonal, and ``P_k = Q_k ... Q_1``, the plain net is ``P_L (I + V_L) ... (I + V_1)``
    for ``dW_k = P_k V_k P_{k-1}^T``, an orthogonal change of variables: its loss is that of a 1-shortcut net whose targets
    are ``P_L^T y``. So the two Hessians are orthogonally similar, and shortcuts of length 1 are essentially no shortcuts.

    Args:
        matrices: Q_1, ..., Q_L, orthogonal, (L, d, d) float64.
        moments: of inputs and targets in R^d.

    Returns:
        The largest absolute difference between the plain net's Hessian in the variables V and the other; 0 but for rounding.

    Raises:
        UserError: for matrices that are not orthogonal.
    """
    eye = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
    if float((matrices @ matrices.mT - eye).abs().max()) > 1e-10:
        raise UserError("the equivalence holds at orthogonal matrices, got others: draw them with init='orthogonal'.")
    plain = hessian(matrices[:, None], moments, shortcut=False)
    changes, P = [], eye
    for Q in matrices:
        changes.append(torch.kron(P, Q @ P))  # vec(P_k V P_{k-1}^T) = (P_{k-1} kron P_k) vec(V)
        P = Q @ P
    change = torch.block_diag(*changes)
    turned = Moments(moments.xx, P.mT @ moments.yx, moments.yy)
    residual = hessian(torch.zeros_like(matrices)[:, None], turned, shortcut=True)
    return float((change.mT @ plain @ change - residual).abs().max())
