"""CUDA graphs of work that is done again and again, taken only where they do the same as the work done kernel by kernel.

Nothing here decides what a net learns. The plain way, in which one net follows the other, is the reference: each graph has
to make the same update first, from the same weights and batch, and only then takes over.
"""

import contextlib
import gc
import logging
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from lightning_app.common.errors import UserError, first_line

log = logging.getLogger(__name__)

WARM_UPS = 3  # eager runs before a capture: libraries choose their kernels and allocate in them
STREAMS = 16  # side by side; PyTorch has 32 and hands them out in turn
AGREEMENT = 1e-2  # of the update's norm: the same kernels, but sums on a GPU may run in any order, in bfloat16 too


def streams_for(passes: int) -> list[torch.cuda.Stream]:
    """To run so many nets side by side."""
    return [torch.cuda.Stream() for _ in range(min(passes, STREAMS))]


def addresses_of(tensors: Iterable[Tensor]) -> list[int]:
    return list(map(Tensor.data_ptr, tensors))


@dataclass
class _Captured:
    """A graph, and where the tensors are that it writes to."""

    variant: Hashable
    graph: torch.cuda.CUDAGraph
    tensors: Callable[[], list[Tensor]]
    addresses: list[int]


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
            except (RuntimeError, ValueError) as error:
                torch.cuda.synchronize()  # what was launched before it broke is still running
                self.give_up(_reason(error))
                work.plain()
                return False
            addresses = addresses_of(known.tensors())
            known = self._captured[work.shape] = _Captured(work.variant, graph, known.tensors, addresses)
        known.graph.replay()
        return True

    def check(self) -> None:
        """Before an epoch: forget each graph whose tensors are not where they were."""
        self._captured = {
            shape: each for shape, each in self._captured.items() if addresses_of(each.tensors()) == each.addresses
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
        except (RuntimeError, ValueError) as error:
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

        self._captured[work.shape] = _Captured(work.variant, graph, tensors, addresses_of(tensors()))

    def give_up(self, reason: str) -> None:
        """Do this work without graphs from now on.

        Raises:
            UserError: with ``strict``.
        """
        self._captured.clear()
        if self._strict:
            said = f"model.backend 'graph': {self._what} cannot be captured in a CUDA graph: {reason}."
            raise UserError(f"{said} Set it to loop.")
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
        work: on the device alone. A graph keeps nothing alive of what it reads and writes: that is for whoever replays it.
        pool: of memory.
        put_back: undoes the work, before each run.
        warm_ups: eager runs before; none where this work has run so before.

    Raises:
        UserError: for work that draws random numbers, or runs with autocast's cache.
        RuntimeError: for work that waits for the device, and for other errors of CUDA.
    """
    if torch.is_autocast_enabled("cuda") and torch.is_autocast_cache_enabled():
        raise UserError(
            "autocast's cache would leave the casts of weights out of the graph; Lightning runs with cache_enabled=False"
        )
    before = torch.get_rng_state(), torch.cuda.get_rng_state()
    side, here = torch.cuda.Stream(), torch.cuda.current_stream()
    for number in range(warm_ups):
        put_back()
        side.wait_stream(here)
        with torch.cuda.stream(side), _no_inference_mode(), _waiting_is_an_error(number == warm_ups - 1):
            work()
        here.wait_stream(side)
    if not all(map(torch.equal, before, (torch.get_rng_state(), torch.cuda.get_rng_state()))):
        raise UserError("a replay would draw the random numbers of all nets together (dropout?)")
    put_back()
    if warm_ups:
        gc.collect()  # a gradient accumulator in a dead cycle is of the stream that it was first used in
    graph = torch.cuda.CUDAGraph()
    with (
        _nothing_freed(),
        _no_inference_mode(),
        torch.cuda.stream(here),
        torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"),
    ):
        work()
    return graph


@contextlib.contextmanager
def _no_inference_mode() -> Iterator[None]:
    """Leave it, with gradients as they are: what is captured in it makes CUDA's seeds unwritable, which all graphs share.

    Warm-ups leave it as well, so that torch.compile meets nothing new in the capture, which compiling would break.
    """
    gradients = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(gradients):
        yield


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
