"""A whole training step of all nets on the device: gather, passes, sums, penalty and update in a single launch.

Small nets are bound by launches: some 190 kernels a net and step, 8 us each. In a graph a step costs the host one launch, and
independent nets, in streams side by side, fill the GPU. Nothing in such a step comes from the host: the epoch's order and
augmentation lie on the device, and a counter there says which batch is next.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_app.common.isolation import trained_weights
from lightning_app.modules import optimizing
from lightning_app.modules.backends import side_by_side
from lightning_app.modules.cost import Loss, Penalty, RiskAndError, add_gradients
from lightning_app.modules.graphs import addresses_of
from lightning_app.modules.members import Member
from lightning_app.modules.optimizing import Averages, tensors_of


class DeviceBatches:
    """Batches of all data streams by a counter on the device.

    Args:
        upcoming: a step's `UngatheredBatches`; all positions in one source.
        convert: of gathered images, as Lightning's precision has them.
    """

    def __init__(self, upcoming: Any, convert: Callable[[Tensor], Tensor] = lambda images: images) -> None:
        positions = list(upcoming.positions.values())
        self._source, self._convert = positions[0].source, convert
        self._starts = torch.stack([position.starts for position in positions])  # (streams, N)
        self._labels = torch.stack([position.labels for position in positions])
        self.position = torch.zeros((), dtype=torch.int64, device=self._starts.device)
        self._range = torch.arange(self._starts.shape[1], device=self._starts.device)
        self._ready = 0  # what the counter holds now
        self._epoch = positions[0].starts

    def move_to(self, upcoming: Any) -> None:
        """Be where this step's batches are: in another epoch copy its plan, after a step taken elsewhere move the counter."""
        positions = list(upcoming.positions.values())
        if positions[0].starts is not self._epoch:
            self._epoch = positions[0].starts
            for row, position in enumerate(positions):
                self._starts[row].copy_(position.starts)
                self._labels[row].copy_(position.labels)
        if (first := positions[0].rows.start) != self._ready:
            self.position.fill_(first)
            self._ready = first

    def moved(self, count: int) -> None:
        """A replay of `take` was launched."""
        self._ready += count

    def take(self, count: int) -> list[tuple[Tensor, Tensor]]:
        """The next batch of each stream, all gathered at once; the counter moves on."""
        rows = self.position + self._range[:count]
        images = self._convert(self._source.batch(self._starts.index_select(1, rows).flatten()))
        labels = self._labels.index_select(1, rows)
        self.position += count
        return list(zip(images.split(count), labels.unbind()))


@dataclass(frozen=True)
class Part:
    """One net of a step."""

    member: Member
    stream: int  # number of its data stream
    penalty: Penalty
    sums: RiskAndError


class WholeStep:
    """A training step, from the counter to the updated weights; in a graph or not, bit by bit the loop's.

    Args:
        parts: the nets.
        batches: their batches.
        loss: of logits and labels.
        optimizer: of all nets; one that steps on the device alone (`in_graphs.why_not`).
        clip: each net's gradient, see `optimizing.clip`.
        averages: of the nets, where there are any.
        streams: for the nets side by side; none: one after the other.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        batches: DeviceBatches,
        loss: Loss,
        optimizer: Optimizer,
        clip: tuple[float | None, optimizing.Clipping] = (None, "norm"),
        averages: Averages | None = None,
        streams: Sequence[torch.cuda.Stream] = (),
    ) -> None:
        self.parts, self.batches, self.optimizer, self.averages = parts, batches, optimizer, averages
        self._loss, self._clip, self._streams = loss, clip, streams
        self._weights = [[*trained_weights(part.member.net).values()] for part in parts]
        self._all_weights = [w for weights in self._weights for w in weights]
        self.risks = torch.zeros(len(parts), dtype=torch.float64, device=batches.position.device)  # of the last step

    def __call__(self, count: int) -> None:
        """Of ``count`` samples."""
        taken = self.batches.take(count)
        passes = [partial(self._pass, number, *taken[part.stream]) for number, part in enumerate(self.parts)]
        side_by_side(passes, self._streams)
        add_gradients(part.penalty for part in self.parts)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.averages is not None:
            self.averages.update()

    def _pass(self, number: int, images: Tensor, labels: Tensor) -> None:
        part, weights = self.parts[number], self._weights[number]
        logits = part.member.net(images)
        risk = self._loss(logits, labels)
        # Not .backward(): its accumulation would run in the stream where a parameter was first used.
        for weight, gradient in zip(weights, _apart(weights, torch.autograd.grad(risk, weights, allow_unused=True))):
            weight.grad = gradient
        optimizing.clip([part.member], *self._clip)
        part.sums.update(risk, logits, labels)
        self.risks[number].copy_(risk.detach())

    def variant(self) -> Hashable:
        """What a graph fixes for ever: numbers of the optimizer, such as its rate, and where the weights are in memory."""
        values = [value for group in self.optimizer.param_groups for value in group.values()]
        on_host = [float(each) if isinstance(each, Tensor) and each.device.type == "cpu" else each for each in values]
        return *(each for each in on_host if isinstance(each, int | float | tuple)), *addresses_of(self._all_weights)

    def weights(self) -> list[list[Tensor]]:
        """What a step is for, of each net."""
        return [[w.detach() for w in weights] for weights in self._weights]

    def others(self) -> list[Tensor]:
        """Whatever else a step reads or changes, but for gradients."""
        states = [t for state in self.optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]
        nets = [t for t in tensors_of(*(part.member.net for part in self.parts)) if not t.requires_grad]
        averages = self.averages.tensors() if self.averages is not None else []
        return [
            *states,
            *nets,
            *averages,
            *sums_of(part.sums for part in self.parts),
            self.batches.position,
            self.risks,
        ]


def sums_of(metrics: Iterable[RiskAndError]) -> list[Tensor]:
    """The tensors that metrics add to."""
    return [getattr(metric, name) for metric in metrics for name in metric.metric_state]


def _apart(weights: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Each in memory of its own, laid out as its weight: as ``.backward()`` has them.

    Of x + (a + b), a and b have one gradient, and the penalty adds to it in place.
    """
    seen: set[int] = set()
    apart = []
    for weight, gradient in zip(weights, gradients):
        if gradient is not None and (gradient.data_ptr() in seen or gradient.stride() != weight.stride()):
            gradient = torch.empty_like(weight).copy_(gradient)
        apart.append(gradient)
        seen |= set() if gradient is None else {gradient.data_ptr()}
    return apart
