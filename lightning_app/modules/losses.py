"""The losses that a classifier trains with: means over a batch of logits (B, outputs) and labels (B,)."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_app.common.errors import UserError

__all__ = ["Loss", "LossName", "loss_named", "squared_error"]

Loss = Callable[[Tensor, Tensor], Tensor]  # logits and labels -> ()
LossName = Literal["cross_entropy", "squared_error"]


def squared_error(logits: Tensor, labels: Tensor) -> Tensor:
    """``1/(2B) sum ||f(x) - e_y||^2`` with the unit vector of the label as target (Li et al. 2016, appendix B). >= 0.

    Computed in float32 at least. Outputs beyond the classes have target 0.

    >>> squared_error(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 1]))  # 0 and 9 + 1
    tensor(2.5000)
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    targets = F.one_hot(labels, logits.shape[1]).to(logits.dtype)
    return 0.5 * (logits - targets).square().sum(1).mean()


def loss_named(name: LossName) -> Loss:
    """The mean loss of that name, a function of logits and labels.

    Raises:
        UserError: if there is none.
    """
    losses: dict[LossName, Loss] = {"cross_entropy": F.cross_entropy, "squared_error": squared_error}
    if name not in losses:
        raise UserError(f"model.loss is one of {', '.join(losses)}, got {name!r}.")
    return losses[name]
