"""BatchNorm's statistics of many samples where memory holds few of them at once.

In training mode a BatchNorm normalises with the mean and variance of the whole batch, so the batch cannot be cut. But
what reaches a BatchNorm hangs on those before it only: once they have the statistics of all samples, pieces go through them
as the whole batch would, and its own are sums over pieces. One pass for each BatchNorm, in the order of the net.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["settle_in_pieces"]


def settle_in_pieces(net: nn.Module, norms: Collection[_BatchNorm], pieces: Sequence[Tensor]) -> None:
    """Give BatchNorms the running mean and (unbiased) variance of all pieces together, as one batch in training mode would.

    Args:
        net: in evaluation mode; a forward pass calls each of its BatchNorms at most once.
        norms: of this net; those that are not called keep what they have.
        pieces: (B, ...) each.

    >>> norm = nn.BatchNorm1d(1).eval()
    >>> settle_in_pieces(norm, [norm], torch.tensor([[1.0], [2.0], [3.0]]).split(2))
    >>> norm.running_mean, norm.running_var
    (tensor([2.]), tensor([1.]))
    """
    counts = {norm: _settle(net, norm, pieces) for norm in _in_order(net, norms, pieces[0])}
    for norm, count in counts.items():
        norm.running_var *= count / (count - 1)


def _in_order(net: nn.Module, norms: Collection[_BatchNorm], inputs: Tensor) -> list[_BatchNorm]:
    called: dict[_BatchNorm, None] = {}
    handles = [norm.register_forward_pre_hook(lambda norm, _: called.setdefault(norm)) for norm in norms]
    net(inputs)
    for handle in handles:
        handle.remove()
    return list(called)


def _settle(net: nn.Module, norm: _BatchNorm, pieces: Sequence[Tensor]) -> int:
    """Mean and biased variance, with which a batch in training mode is normalised; the count of values in a channel."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    handle = norm.register_forward_pre_hook(lambda _, inputs: found.append(_moments(inputs[0])))
    for piece in pieces:
        net(piece)
    handle.remove()
    count, mean, variance = map(torch.stack, zip(*found))  # (pieces, 1), (pieces, C), (pieces, C)
    share = count / count.sum()
    whole = (share * mean).sum(0)
    norm.running_mean.copy_(whole)
    norm.running_var.copy_((share * (variance + (mean - whole).square())).sum(0))
    return int(count.sum())


def _moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How many values a channel has (1,), their mean and biased variance (C,), float64."""
    variance, mean = torch.var_mean(x, [0, *range(2, x.ndim)], correction=0)
    return x.new_full((1,), x.numel() // x.shape[1], dtype=torch.float64), mean.double(), variance.double()
