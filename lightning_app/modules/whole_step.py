"""A whole step of all nets as one CUDA graph: gather, passes, sums, penalty and update in a single launch.

Small nets are bound by launches: some 190 kernels a net and step, 8 us each. In a graph a step costs the host one launch, and
independent nets, in streams side by side, fill the GPU. Nothing in such a step comes from the host: the epoch's order and
augmentation lie on the device, and a counter there says which batch is next.

Nothing here decides what a net learns. The plain way, in which one net follows the other, is the reference: each graph has
to make the same update first, from the same weights and batch, and only then takes over.
"""

import contextlib
import gc
import logging
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from lightning_app.common.errors import UserError, first_line
from lightning_app.modules import optimizing
from lightning_app.modules.backends import side_by_side
from lightning_app.modules.cost import Loss, Penalty, RiskAndError, add_gradients
from lightning_app.modules.members import Member
from lightning_app.modules.optimizing import Averages, tensors_of

log = logging.getLogger(__name__)

WARM_UPS = 3  # eager runs before a capture: libraries choose their kernels and allocate in them
STREAMS = 16  # side by side; PyTorch has 32 and hands them out in turn
AGREEMENT = 1e-2  # of the update's norm: the same kernels, but sums on a GPU may run in any order, in bfloat16 too


INSIDE = ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step")  # a step
BATCHES = ("on_before_batch_transfer", "on_after_batch_transfer")


def why_not(
    optimizer: Optimizer,
    every_step: bool,
    loader: Any,
    callbacks: Iterable[pl.Callback],
    module: pl.LightningModule,
    datamodule: pl.LightningDataModule | None,
) -> str:
    """What keeps whole training steps out of a graph; "" if nothing does.

    Args:
        optimizer: of all nets.
        every_step: whether a schedule steps after each.
        loader: of batches; `Streams` can leave the gathering to a graph.
        callbacks: of the trainer.
        module: the bank, or somebody's subclass of it.
        datamodule: if there is one.
    """
    name = type(optimizer).__name__
    if optimizing.wants_cost(optimizer) or not (
        type(optimizer) is SGD or all(group.get("capturable") for group in optimizer.param_groups)
    ):
        return f"{name} does a part of its step on the host; torch's SGD does not, nor Adam and others with capturable: true"
    if every_step:
        return "the schedule changes the learning rate after every step, and a graph has it as a constant"
    if not hasattr(loader, "gathers"):
        return "the samples are not on the device, as those of the application's own data are"
    if datamodule is not None and _overrides(datamodule, pl.LightningDataModule, BATCHES):
        return f"{type(datamodule).__name__} changes batches after they were gathered"
    foreign = [type(callback).__name__ for callback in watchers(callbacks) if not hasattr(callback, "watching")]
    foreign += [type(module).__name__] * _overrides(module, pl.LightningModule, INSIDE)
    return f"{', '.join(foreign)} may look into every step's gradients" if foreign else ""


def watchers(callbacks: Iterable[pl.Callback]) -> list[pl.Callback]:
    """Those that look into steps, for which there is nothing to see in a graph. Ours say when, by ``watching``."""
    return [each for each in callbacks if _overrides(each, pl.Callback, INSIDE)]


def _overrides(one: Any, base: type, hooks: Iterable[str]) -> bool:
    return any(getattr(type(one), hook) is not getattr(base, hook) for hook in hooks)


class Feed:
    """Batches of all data streams by a counter on the device.

    Args:
        upcoming: a step's `Upcoming`; all positions in one source.
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
        feed: their batches.
        loss: of logits and labels.
        optimizer: of all nets; one that steps on the device alone (`why_not`).
        clip: each net's gradient, see `optimizing.clip`.
        averages: of the nets, where there are any.
        streams: for the nets side by side; none: one after the other.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        feed: Feed,
        loss: Loss,
        optimizer: Optimizer,
        clip: tuple[float | None, optimizing.Clipping] = (None, "norm"),
        averages: Averages | None = None,
        streams: Sequence[torch.cuda.Stream] = (),
    ) -> None:
        self.parts, self.feed, self.optimizer, self.averages = parts, feed, optimizer, averages
        self._loss, self._clip, self._streams = loss, clip, streams
        self._weights = [[w for w in part.member.net.parameters() if w.requires_grad] for part in parts]
        self._all_weights = [w for weights in self._weights for w in weights]
        self.risks = torch.zeros(len(parts), dtype=torch.float64, device=feed.position.device)  # of the last step

    def __call__(self, count: int) -> None:
        """Of ``count`` samples."""
        batches = self.feed.take(count)
        passes = [partial(self._pass, number, *batches[part.stream]) for number, part in enumerate(self.parts)]
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
        return *(each for each in on_host if isinstance(each, int | float | tuple)), *_addresses(self._all_weights)

    def weights(self) -> list[list[Tensor]]:
        """What a step is for, of each net."""
        return [[w.detach() for w in weights] for weights in self._weights]

    def others(self) -> list[Tensor]:
        """Whatever else a step reads or changes, but for gradients."""
        states = [t for state in self.optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]
        nets = [t for t in tensors_of(*(part.member.net for part in self.parts)) if not t.requires_grad]
        averages = self.averages.tensors() if self.averages is not None else []
        return [*states, *nets, *averages, *sums_of(part.sums for part in self.parts), self.feed.position, self.risks]


def sums_of(metrics: Iterable[RiskAndError]) -> list[Tensor]:
    """The tensors that metrics add to."""
    return [getattr(metric, name) for metric in metrics for name in metric.metric_state]


def streams_for(passes: int) -> list[torch.cuda.Stream]:
    """To run so many nets side by side."""
    return [torch.cuda.Stream() for _ in range(min(passes, STREAMS))]


@dataclass
class _Captured:
    """A graph, and where the tensors are that it writes to."""

    variant: Hashable
    graph: torch.cuda.CUDAGraph
    tensors: Callable[[], list[Tensor]]
    addresses: list[int]


def _addresses(tensors: Iterable[Tensor]) -> list[int]:
    return list(map(Tensor.data_ptr, tensors))


@dataclass(frozen=True)
class Work:
    """What is to be done, in a graph or the plain way."""

    shape: Hashable  # a graph each, compared with the plain way once
    captured: Callable[[], None]  # on the device alone
    plain: Callable[[], None]  # the same
    outcome: Callable[[], list[list[Tensor]]]  # what is compared, of each net
    others: Callable[[], list[Tensor]]  # whatever else it changes or reads
    variant: Hashable = ()  # what else a graph fixes, such as the learning rate: captured anew when it changes


class Graphs:
    """Work of one kind, graphs of it by shape. What fits into none is done the plain way for ever, and the run says why.

    Args:
        what: it is, for that line.
        strict: an error instead.
    """

    def __init__(self, what: str, strict: bool) -> None:
        self._what, self._strict = what, strict
        self._captured: dict[Hashable, _Captured] = {}
        self._pool: Any = None  # of memory, CUDA's handle: one graph's activations are dead when the next one runs
        self.given_up = False

    def __call__(self, work: Work) -> bool:
        """Do it. Whether it was a graph's replay, and not the plain way."""
        if self.given_up:
            work.plain()
            return False
        known = self._captured.get(work.shape)
        if known is None:
            self._compare(work)
            return False
        if known.variant != work.variant:
            try:
                graph = captured(work.captured, self._pool, warm_ups=0)
            except (RuntimeError, UserError) as error:
                torch.cuda.synchronize()  # what was launched before it broke is still running
                self.give_up(_reason(error))
                work.plain()
                return False
            addresses = _addresses(known.tensors())
            known = self._captured[work.shape] = _Captured(work.variant, graph, known.tensors, addresses)
        known.graph.replay()
        return True

    def check(self) -> None:
        """Before an epoch: forget each graph whose tensors are not where they were."""
        self._captured = {
            shape: each for shape, each in self._captured.items() if _addresses(each.tensors()) == each.addresses
        }

    def forget(self) -> None:
        """Every graph: the work is another one now."""
        self._captured.clear()

    def _compare(self, work: Work) -> None:
        """The plain way, after a graph's first run that leaves no trace but the graph."""
        if not self._captured:  # a pool of which no graph is left cannot be shared again
            self._pool = torch.cuda.graph_pool_handle()
        start = _copies(work.outcome())
        more = [(tensor, tensor.clone()) for tensor in work.others()]
        graph, reason = None, ""

        @torch.no_grad()
        def put_back() -> None:
            for tensor, before in (*zip(chain(*work.outcome()), chain(*start)), *more):
                tensor.copy_(before)

        try:
            graph = captured(work.captured, self._pool, put_back)
            graph.replay()
        except (RuntimeError, UserError) as error:
            reason = _reason(error)
            torch.cuda.synchronize()  # what was launched before it broke is still running
        found = _copies(work.outcome())
        put_back()
        work.plain()
        if graph is not None:
            gap = max(map(_gap, found, work.outcome(), start), key=lambda gap: (math.isnan(gap), gap))
            reason = "" if gap <= AGREEMENT else f"it differs from the loop by {gap:.2g} of the update"  # nan, too
        if graph is None or reason:
            self.give_up(reason)
            return
        if not self._captured:
            print(f"{self._what}: one CUDA graph, which differs from the loop by {gap:.2g} of the update", flush=True)

        def tensors() -> list[Tensor]:
            return [*chain(*work.outcome()), *work.others()]

        self._captured[work.shape] = _Captured(work.variant, graph, tensors, _addresses(tensors()))

    def give_up(self, reason: str) -> None:
        """From now on the plain way.

        Raises:
            UserError: if that was not asked for.
        """
        self._captured.clear()
        if self._strict:
            raise UserError(f"model.backend 'graph': {self._what} goes into no CUDA graph: {reason}. Set it to loop.")
        self.given_up = True
        log.warning("%s: loop (%s)", self._what, reason)


def _reason(error: Exception) -> str:
    """Why a capture broke: it says itself only that it did."""
    return first_line(error.__context__ or error)


def captured(
    work: Callable[[], None], pool: Any, put_back: Callable[[], None] = lambda: None, warm_ups: int = WARM_UPS
) -> torch.cuda.CUDAGraph:
    """A graph of the work.

    Args:
        work: on the device alone.
        pool: of memory.
        put_back: undoes the work, before each run.
        warm_ups: eager runs before; none where this work has run so before.

    Raises:
        UserError: for work that draws random numbers.
        RuntimeError: for work that waits for the device, and what CUDA says else.
    """
    if torch.is_autocast_enabled("cuda") and torch.is_autocast_cache_enabled():
        raise UserError(
            "autocast's cache would leave casts of weights out of it; Lightning runs with cache_enabled=False"
        )
    before = torch.get_rng_state(), torch.cuda.get_rng_state()
    side, here = torch.cuda.Stream(), torch.cuda.current_stream()
    for number in range(warm_ups):
        put_back()
        side.wait_stream(here)
        with torch.cuda.stream(side), _waiting_is_an_error(number == warm_ups - 1):
            work()
        here.wait_stream(side)
    if not all(map(torch.equal, before, (torch.get_rng_state(), torch.cuda.get_rng_state()))):
        raise UserError("a replay would draw the random numbers of all nets together (dropout?)")
    put_back()
    if warm_ups:
        gc.collect()  # a gradient accumulator in a dead cycle is of the stream that it was first used in
    graph, gradients = torch.cuda.CUDAGraph(), torch.is_grad_enabled()
    with (
        _nothing_freed(),
        # all graphs share CUDA's seeds: made with the first, in an evaluation's inference mode, later ones may not write them
        torch.inference_mode(False),
        torch.set_grad_enabled(gradients),
        torch.cuda.stream(here),
        torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"),
    ):
        work()
    return graph


@contextlib.contextmanager
def _nothing_freed() -> Iterator[None]:
    """By Python's collector: CUDA's memory and graphs cannot be within a capture."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@contextlib.contextmanager
def _waiting_is_an_error(yes: bool) -> Iterator[None]:
    """A capture that breaks off leaves CUDA's random numbers unusable: so what would break it is found in a warm-up."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error" if yes else before)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


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


def _copies(of_nets: Iterable[Iterable[Tensor]]) -> list[list[Tensor]]:
    return [[tensor.clone() for tensor in tensors] for tensors in of_nets]


def _gap(found: Sequence[Tensor], expected: Sequence[Tensor], start: Sequence[Tensor]) -> float:
    """||found - expected|| / ||expected - start|| of one net, 0 where nothing differs but by rounding of what is stored."""
    between, length = _distance(found, expected), _distance(expected, start)
    rounding = [torch.finfo(one.dtype).eps * one.double().norm() for one in expected if one.is_floating_point()]
    if between <= float(torch.stack(rounding).norm()):  # an update may be that small where gradients vanish
        return 0.0
    return between / length if length else math.inf


def _distance(ones: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    return float(torch.stack([(one - other).double().norm() for one, other in zip(ones, others)]).norm())
