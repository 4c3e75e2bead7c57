"""BatchNorm recalibration ("precise BN"): statistics of given samples where a net has those of no data yet.

In training mode a BatchNorm normalises with the statistics of the whole batch, so the batch cannot be cut. But what
reaches it depends on those before it only: once these have the statistics of all samples, its own are sums over pieces.
One pass for each BatchNorm, in the order of the net.
"""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lightning_app.common.errors import UserError
from lightning_app.common.isolation import unwrapped
from lightning_app.measures.core.hooks import hooked, own_copy

TOO_FEW = "before training a normalisation is given the statistics of some samples, and"


def needs_recalibration(net: nn.Module) -> bool:
    """Whether some normalisation of it has the statistics of no data yet: mean 0 and variance 1."""
    return any(map(_is_fresh, net.modules()))


@torch.no_grad()
def recalibrated(net: nn.Module, inputs: Tensor, at_once: int | None = None) -> nn.Module:
    """The net itself, or a copy whose fresh normalisations have the statistics of these inputs.

    Before its first training step a BatchNorm remembers mean 0 and variance 1, with which a net in evaluation mode is none
    that will ever be trained.

    ``at_once``: only so many go through the net together, at a pass for every BatchNorm and with the statistics of all of
    them, up to rounding; other normalisations get all inputs at once.

    Raises:
        UserError: for too few inputs to have a variance.
    """
    net = unwrapped(net)
    if not needs_recalibration(net):
        return net
    net = own_copy(net)
    fresh: dict[Any, float | None] = {module: module.momentum for module in net.modules() if _is_fresh(module)}  # type: ignore[misc] # a torch module has any attribute
    if at_once is None and any(isinstance(module, nn.SyncBatchNorm) for module in fresh):
        at_once = len(inputs)  # in training mode it would wait for processes that do not measure
    if at_once is not None and all(isinstance(module, _BatchNorm) for module in fresh):
        recalibrate_in_pieces(net, list(fresh), inputs.split(at_once))
        return net
    for module in fresh:
        module.momentum = 1.0  # what it remembers is the last batch
        module.train()
    try:
        net(inputs)
    except ValueError as error:
        raise UserError(f"{TOO_FEW} {len(inputs)} are too few ({error}): take more, data.probe_size.") from error
    for module, momentum in fresh.items():
        module.momentum = momentum
        module.eval()
    return net


def recalibrate_in_pieces(net: nn.Module, norms: Collection[_BatchNorm], pieces: Sequence[Tensor]) -> None:
    """Give BatchNorms the running mean and (unbiased) variance of all pieces together, as one batch in training mode would.

    The net is in evaluation mode and calls each of them at most once; those that it does not call keep what they have.

    Raises:
        UserError: where a channel has one value in all.

    >>> norm = nn.BatchNorm1d(1).eval()
    >>> recalibrate_in_pieces(norm, [norm], torch.tensor([[1.0], [2.0], [3.0]]).split(2))
    >>> norm.running_mean, norm.running_var
    (tensor([2.]), tensor([1.]))
    """
    called: dict[Any, None] = {}
    with hooked(norms, before=lambda norm, _: called.setdefault(norm)):
        net(pieces[0])
    counts = {norm: _set_moments(net, norm, pieces) for norm in called}
    for norm, count in counts.items():
        if count == 1:
            raise UserError(f"{TOO_FEW} one value per channel has no variance: take more, data.probe_size.")
        norm.running_var *= count / (count - 1)


def _set_moments(net: nn.Module, norm: Any, pieces: Sequence[Tensor]) -> int:
    """Mean and biased variance, with which a batch in training mode is normalised; the count of values in a channel."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []

    def note(_: nn.Module, inputs: tuple) -> None:
        x = inputs[0]
        variance, mean = torch.var_mean(x, [0, *range(2, x.ndim)], correction=0)
        values = x.new_full((1,), x.numel() // x.shape[1], dtype=torch.float64)  # of a channel
        found.append((values, mean.double(), variance.double()))

    with hooked([norm], before=note):
        for piece in pieces:
            net(piece)
    count, mean, variance = map(torch.stack, zip(*found))  # (pieces, 1), (pieces, C), (pieces, C)
    share = count / count.sum()
    whole = (share * mean).sum(0)
    norm.running_mean.copy_(whole)
    norm.running_var.copy_((share * (variance + (mean - whole).square())).sum(0))
    return int(count.sum())


def _is_fresh(module: nn.Module) -> bool:
    mean, variance = (getattr(module, name, None) for name in ("running_mean", "running_var"))
    if variance is None or not hasattr(module, "momentum"):
        return False
    return bool((variance == 1).all()) and (mean is None or bool((mean == 0).all()))
