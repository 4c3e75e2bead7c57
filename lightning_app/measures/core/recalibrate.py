"""BatchNorm recalibration ("precise BN"): statistics of given samples for norms whose statistics have seen no data yet.

In training mode a BatchNorm uses the statistics of the whole batch, so the batch cannot simply be split. But the input of a
BatchNorm depends only on the BatchNorms before it: once these have the statistics of all samples, its own are sums over
pieces. This takes one pass for each call of a BatchNorm, in the order of the net.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lightning_app.common.errors import UserError
from lightning_app.common.isolation import unwrapped
from lightning_app.measures.core.hooks import hooked, own_copy

_Moments = tuple[int, Tensor, Tensor]  # values in a channel, their mean and their biased variance, (C,)
TOO_FEW = "before training, normalisations get their statistics from samples, but"


def needs_recalibration(net: nn.Module) -> bool:
    """Whether the running statistics of some normalisation have seen no data yet: mean 0 and variance 1."""
    return any(map(_is_fresh, net.modules()))


@torch.no_grad()
def recalibrated(net: nn.Module, inputs: Tensor, at_once: int | None = None) -> nn.Module:
    """The net itself, or a copy whose normalisations without data get the statistics of these inputs.

    Before the first training step a BatchNorm has mean 0 and variance 1, so that in evaluation mode the net computes another
    function than in training.

    ``at_once``: number of inputs that go through the net together. The statistics are still those of all inputs, up to rounding,
    at the cost of one pass for each call of a BatchNorm. If other normalisations lack data too, all inputs go at once.

    Raises:
        UserError: if there are too few inputs for a variance.
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
        raise UserError(
            f"{TOO_FEW} {len(inputs)} is not enough ({error}): use more samples (data.probe_size)."
        ) from error
    for module, momentum in fresh.items():
        module.momentum = momentum
        module.eval()
    return net


def recalibrate_in_pieces(net: nn.Module, norms: Collection[_BatchNorm], pieces: Sequence[Tensor]) -> None:
    """Give BatchNorms the running mean and (unbiased) variance of all pieces together, like one batch in training mode.

    The net is in evaluation mode. A BatchNorm that it calls several times gets the statistics of the last call, as with a
    momentum of 1; a BatchNorm that it does not call keeps its statistics.

    Raises:
        UserError: if a channel has only one value in all pieces.

    >>> norm = nn.BatchNorm1d(1).eval()
    >>> recalibrate_in_pieces(norm, [norm], torch.tensor([[1.0], [2.0], [3.0]]).split(2))
    >>> norm.running_mean, norm.running_var
    (tensor([2.]), tensor([1.]))
    """
    calls: list[Any] = []
    with hooked(norms, before=lambda norm, _: calls.append(norm)):
        net(pieces[0])
    known: dict[Any, list[_Moments]] = {norm: [] for norm in calls}
    for norm in calls:
        known[norm].append(_next_moments(net, norm, known, pieces))
    for norm, found in known.items():
        count, mean, variance = found[-1]
        _set(norm, mean, variance)
        norm.running_var *= count / (count - 1)


def _next_moments(
    net: nn.Module, norm: Any, known: Mapping[Any, Sequence[_Moments]], pieces: Sequence[Tensor]
) -> _Moments:
    """Of the first call of a BatchNorm whose moments are not known, where all calls before it normalise with theirs."""
    found: list[_Moments] = []  # of each piece
    called = Counter[Any]()  # in the present pass

    def enter(each: nn.Module, inputs: tuple) -> None:
        place, x = called[each], inputs[0]
        called[each] += 1
        if place < len(known[each]):
            _set(each, *known[each][place][1:])
        elif each is norm and place == len(known[norm]):
            variance, mean = torch.var_mean(x, [0, *range(2, x.ndim)], correction=0)
            found.append((x.numel() // x.shape[1], mean.double(), variance.double()))

    with hooked(known, before=enter):
        for piece in pieces:
            called.clear()
            net(piece)
    counts, means, variances = zip(*found)
    count, mean, variance = sum(counts), torch.stack(means), torch.stack(variances)  # the last two (pieces, C)
    if count == 1:
        raise UserError(f"{TOO_FEW} one value per channel has no variance: use more samples (data.probe_size).")
    share = mean.new_tensor(counts)[:, None] / count
    whole = (share * mean).sum(0)
    return count, whole, (share * (variance + (mean - whole).square())).sum(0)


def _set(norm: Any, mean: Tensor, variance: Tensor) -> None:
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(variance)


def _is_fresh(module: nn.Module) -> bool:
    mean, variance = (getattr(module, name, None) for name in ("running_mean", "running_var"))
    if variance is None or not hasattr(module, "momentum"):
        return False
    return bool((variance == 1).all()) and (mean is None or bool((mean == 0).all()))
