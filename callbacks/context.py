"""What a measure gets: one net with its loss, fixed samples and memory limit. No trainer is needed."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lightning_app.common.calls import PAIRS, Inputs, adapted, form_of, joined, pair_of
from lightning_app.common.errors import UserError
from lightning_app.common.isolation import (
    bare,
    device_of,
    evaluating,
    trained_weights,
    unwrapped,
    with_float64,
    without_weight_hooks,
)
from lightning_app.measures import needs_recalibration, recalibrated
from lightning_app.measures.core.hooks import HALF, check_not_merged, own_copy
from lightning_app.measures.core.losses import (
    Batch,
    Loss,
    LossOfMaps,
    LossOfTokens,
    ReturnedLoss,
    are_numbers,
    counted,
    cross_entropy,
    evenly_spread,
    loss_of_net,
    of_one_form,
    scalar_loss,
)
from lightning_app.measures.curvature.hessian import MEMORY

log = logging.getLogger(__name__)
_warn_once = cache(log.warning)

State = dict[str, dict[str, Any]]  # key -> name of a net -> what is kept

RECALIBRATION = 256  # samples whose statistics a normalisation gets that has seen none


class MeasureContext:
    """One net, and what a measure needs to measure it.

    In a run a `Measure` gets it from the trainer. It can also be made by hand, in a notebook or a test:

    >>> net = nn.Linear(1, 2)
    >>> context = MeasureContext(net, [(torch.ones(3, 1), torch.tensor([0, 1, 1]))])
    >>> [len(labels) for _, labels in context.batches()], context.samples(2)[0][1]
    ([3], tensor([0, 1]))

    Args:
        net: the network, also wrapped by ``torch.compile``, DistributedDataParallel or Fabric. On a device without float64
            (Apple's GPU), a copy on the CPU is measured instead.
        probe: batches of fixed samples, pairs (inputs, labels) or dicts with ``labels`` (see `pair_of`). It is iterated again
            whenever samples are requested.
        loss: (outputs, labels) -> mean loss of a batch, without penalty. Outputs are one tensor, picked by `outputs_of` from
            what the net returns. By default the loss that the net itself returns if its ``forward`` takes ``labels``, else the
            cross-entropy in nats.
        name: the net's name, unique in its run.
        epoch: completed epochs, 2.25 after a quarter of the third.
        arm: the net's architecture in a bank of nets.
        seed: the net's seed in a bank of nets.
        others: for each other arm of the bank, the name of its net with the same seed.

    Attributes:
        max_batch: the most samples in memory at once, set after memory ran out; None: no limit is known.
        largest: samples in the largest batch that was handed out.
        state: what a `StatefulMeasure` keeps; None for a measure that keeps nothing.
    """

    def __init__(
        self,
        net: nn.Module,
        probe: Iterable[Any] = (),
        loss: Loss = cross_entropy,
        name: str = "net",
        *,
        epoch: float = 0,
        arm: str = "net",
        seed: int = 0,
        others: Mapping[str, str] | None = None,
    ) -> None:
        self.net = _where_float64_is(unwrapped(bare(net)))
        self.loss = loss_of_net(self.net, LossOfTokens(loss) if isinstance(loss, nn.CrossEntropyLoss) else loss)
        self.name = name
        self.epoch = epoch
        self.arm = arm
        self.seed = seed
        self.others = dict(others or {})
        self.max_batch: int | None = None
        self.largest = 0
        self.state: State | None = None
        self._probe = probe

    def batches(self) -> Iterator[Batch]:
        """All probe samples, on the net's device and in its precision, at most `max_batch` at a time.

        The precision is that of the first floating-point weight. Samples in bfloat16 or float16 stay so if some weight has that
        type.

        Raises:
            UserError: during iteration, for a batch that `pair_of` does not accept, or a net without parameters.
        """
        return self._in_pieces(self._moved())

    def samples(self, count: int) -> list[Batch]:
        """``count`` probe samples (all if there are fewer), evenly spread, since a data set may be sorted by class.

        Batches are as large as the probe's if shapes allow: many small batches would make a Hessian slower.
        """
        batches = list(self._moved())
        largest = max((len(labels) for _, labels in batches), default=0)
        return list(self._in_pieces(_joined(evenly_spread(batches, count), largest)))

    def example(self) -> Tensor | Inputs:
        """The inputs of one sample (1, ...), to see which layers a forward pass calls.

        Two samples if the net has a BatchNorm without running statistics, which may not accept a single one.
        """
        alone = not any(isinstance(each, _BatchNorm) and each.running_mean is None for each in self.net.modules())
        return next(self._moved())[0][: 1 if alone else 2]

    def recalibrated(self) -> nn.Module:
        """The net; before training, when BatchNorms have no statistics, a copy with those of probe samples."""
        if not needs_recalibration(self.net):
            return self.net
        inputs = joined([inputs for inputs, _ in of_one_form(self.samples(RECALIBRATION))])
        return recalibrated(self.net, inputs, self.max_batch)

    def gradient(self) -> dict[str, Tensor]:
        """The gradient of the mean loss over all probe samples, by name of the trained parameter.

        It is summed over batches in evaluation mode, whether or not gradients are enabled. Empty if nothing is trained.

        >>> net = nn.Linear(1, 1, bias=False)
        >>> half_square = lambda outputs, labels: (outputs - labels).square().mean() / 2
        >>> context = MeasureContext(net, [(torch.ones(2, 1), torch.ones(2, 1))], half_square)
        >>> bool(torch.isclose(context.gradient()["weight"], net.weight - 1))
        True
        """
        weights = trained_weights(self.net)
        if not weights:
            return {}
        sums, count = {name: torch.zeros_like(weight) for name, weight in weights.items()}, 0
        with (
            evaluating(self.net),
            without_weight_hooks(self.net),
            torch.inference_mode(False),
            torch.enable_grad(),
            adapted(self.net),
        ):
            for inputs, labels in self.batches():
                if not (terms := counted(labels, self.loss)):  # the mean over none may be 0 / 0
                    continue
                if not count:
                    check_not_merged(self.net, inputs[:2])  # a net may squeeze one sample alone
                loss = scalar_loss(self.loss(self.net(inputs), labels))
                found = torch.autograd.grad(loss, [*weights.values()], materialize_grads=True)
                for name, one in zip(weights, found):
                    sums[name] += one * terms
                count += terms
        return {name: one / count for name, one in sums.items()}

    @property
    def graph_memory(self) -> int:
        """Bytes for graphs that a Hessian may keep: none after memory ran out."""
        return MEMORY if self.max_batch is None else 0

    def keep(self, key: str, value: Any) -> None:
        """Keep a tensor or plain Python value for this net under ``key``, also in checkpoints; replaces an earlier one.

        Keep tensors on the CPU: that is where they are after a resume.

        Raises:
            TypeError: in a measure that is not a `StatefulMeasure`.
        """
        if self.state is None:
            raise TypeError(
                "only a StatefulMeasure can keep values from one measurement to the next: derive yours from "
                "skipscope.callbacks.StatefulMeasure."
            )
        self.state.setdefault(key, {})[self.name] = value

    def kept(self, key: str, default: Any = None, name: str | None = None) -> Any:
        """The value kept under ``key`` for this net, or the net with that name; ``default`` if there is none."""
        return (self.state or {}).get(key, {}).get(name or self.name, default)

    def _in_pieces(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for inputs, labels in batches:
            size = self.max_batch or max(1, len(labels))
            self.largest = max(self.largest, min(size, len(labels)))
            yield from zip(inputs.split(size), labels.split(size), strict=True)

    def _moved(self) -> Iterator[Batch]:
        weights = [*self.net.parameters()]
        if not weights:
            raise UserError(f"there is nothing to measure in a {type(self.net).__name__} without parameters.")
        like = next(filter(torch.is_floating_point, weights), weights[0])  # the first one may be a table of indices
        half = {weight.dtype for weight in weights} & {*HALF}  # beside float32 it may be what the net takes

        def moved(each: Tensor) -> Tensor:
            asis = each.dtype in half or not each.is_floating_point()
            return _differentiable(each.to(like.device, each.dtype if asis else like.dtype))

        found, returned = False, isinstance(self.loss, ReturnedLoss)
        for batch in self._probe:
            inputs, labels = pair_of(batch, self.net, with_labels=returned)
            if not len(labels):
                continue
            inputs = inputs.each(moved) if isinstance(inputs, Inputs) else moved(inputs)
            if isinstance(self.loss, (LossOfMaps, ReturnedLoss)) and not found:
                with evaluating(self.net):
                    self.loss.look(self.net, inputs)
            found = True
            whole = not are_numbers(labels) and labels.dtype != torch.bool
            yield inputs, _differentiable(labels.to(like.device, torch.long if whole else None))
        if not found:
            raise UserError(f"there are no samples to measure '{self.name}' on: {PAIRS}")


def _differentiable(samples: Tensor) -> Tensor:
    """What was made in inference mode, as validation's batches are, autograd takes as a copy only."""
    return samples.clone() if samples.is_inference() else samples


def _where_float64_is(net: nn.Module) -> nn.Module:
    device = device_of(net)
    if (other := with_float64(device)) is device:
        return net
    _warn_once(f"the device {device.type} has no float64: copies of the nets are measured on the {other.type}.")
    return own_copy(net).to(other)


def _joined(batches: Iterable[Batch], size: int) -> Iterator[Batch]:
    """Neighbours together, where they are of the same shape and type and no more than ``size`` samples."""
    groups: list[list[Batch]] = []
    for batch in batches:
        waiting = groups[-1] if groups else []
        alike = waiting and form_of(batch) == form_of(waiting[0])
        if not alike or sum(len(labels) for _, labels in (*waiting, batch)) > size:
            groups.append([])
        groups[-1].append(batch)
    for group in groups:
        inputs, labels = zip(*group)
        yield joined(inputs), torch.cat(labels)
