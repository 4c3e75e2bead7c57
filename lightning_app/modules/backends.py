"""How the members' gradients are computed: back ends behind one call, chosen on the device.

A back end is called with a step's `Pass` for each member. It leaves d(weight * risk)/dw in every parameter's ``.grad`` and
returns each member's risk and logits. Everything else (penalty, optimizer, schedule, metrics) is the same for all of
them. Whether the nets are compiled is another matter: nets of one architecture share one compiled graph, whatever their
seed, and every back end runs them.
"""

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.modules.cost import Loss

log = logging.getLogger(__name__)

BackendName = Literal["auto", "loop", "graph"]
WARM_UPS = 3  # eager passes before a capture: libraries choose their kernels and allocate in them
STREAMS = 16  # side by side; PyTorch has 32 and hands them out in turn
AGREEMENT = 1e-2  # of the gradients' norm: the same kernels, but sums on a GPU may run in any order, in bfloat16 too
TRIALS = 10  # steps that each candidate is timed for


@dataclass(frozen=True)
class Pass:
    """One member's forward and backward pass of a step."""

    net: nn.Module
    images: Tensor  # (B, C, H, W)
    labels: Tensor  # (B,)
    seed: int  # of the net's own draws in this step
    loss: Loss = F.cross_entropy


Answer = tuple[Tensor, Tensor]  # risk () and logits (B, classes), both without a graph
Backend = Callable[[Sequence[Pass], float], list[Answer]]  # passes and weight -> answers


def backend_for(name: BackendName, device: torch.device, loop: "Loop") -> Backend:
    """The back end of that name on this device; "auto" is the loop on a CPU and measures on a GPU.

    Raises:
        UserError: for "graph" where there can be none.
    """
    possible = device.type == "cuda" and not loop.at_once
    if name == "graph" and not possible:
        wanted = "a net on one GPU: gradients averaged between processes cannot lie in one" if loop.at_once else "a GPU"
        raise UserError(
            f"model.backend 'graph' is a CUDA graph and needs {wanted}; here is {device.type}. Set it to loop."
        )
    if name == "loop" or not possible:
        return loop
    return Graph() if name == "graph" else _Fastest(loop)


class Loop:
    """One net after the other, kernel by kernel: bit by bit what each net would be if trained alone.

    Args:
        backward: of a cost; Lightning's ``manual_backward``.
        at_once: one backward pass over the sum of all costs, which DistributedDataParallel needs. Otherwise each net's
            comes right after its forward pass, so that only one net's activations are alive.
    """

    def __init__(self, backward: Callable[[Tensor], None], at_once: bool = False) -> None:
        self.backward = backward
        self.at_once = at_once

    def __call__(self, passes: Sequence[Pass], weight: float) -> list[Answer]:
        answers, costs = [], []
        for each in passes:
            seed_draws(each.seed, each.images.device)
            risk, logits = _forward(each)
            answers.append((risk.detach(), logits.detach()))
            if self.at_once:
                costs.append(risk * weight)
            else:
                self.backward(risk * weight)
        if self.at_once:
            self.backward(torch.stack(costs).sum())
        return answers


class Graph:
    """All nets' passes in one CUDA graph, in streams side by side: a step's passes cost the host one launch.

    Small nets are bound by launches (some 190 kernels a net and step, 8 us each), and independent nets fill a GPU side by
    side. One graph for each shape of the batches. Nets that draw random numbers are refused: a replay seeds all of its
    draws together, so that a member would not be the net trained alone. Lightning's hooks around a backward pass do not
    run, for there is none.

    Raises:
        UserError: at the first step, for nets that draw, or that ask the host for a number in their forward pass.
    """

    def __init__(self) -> None:
        self._captured: dict[tuple, _Capture] = {}
        self._streams: list[torch.cuda.Stream] = []
        self._pool: Any = None  # of memory, CUDA's handle: a graph's activations are dead when the next one runs

    def __call__(self, passes: Sequence[Pass], weight: float) -> list[Answer]:
        key = (weight, *((id(each.net), each.images.shape) for each in passes))
        if torch.is_autocast_enabled("cuda") and torch.is_autocast_cache_enabled():
            raise UserError(
                "model.backend 'graph' captures casts of weights, and autocast's cache would leave them out: run it with "
                "cache_enabled=False, as Lightning does, or set the back end to loop."
            )
        if key not in self._captured:
            self._captured[key] = self._capture(passes, weight)
        return self._captured[key].replay(passes)

    def _capture(self, passes: Sequence[Pass], weight: float) -> "_Capture":
        if not self._streams:
            self._streams = [torch.cuda.Stream() for _ in range(min(len(passes), STREAMS))]
            self._pool = torch.cuda.graph_pool_handle()
        try:
            return _Capture(passes, weight, self._streams, self._pool)
        except RuntimeError as error:
            cause = error.__context__ or error  # a capture that broke says only that it did
            reason = (str(cause).splitlines() or [type(cause).__name__])[0]
            raise UserError(
                f"model.backend 'graph': these nets go into no CUDA graph ({reason}): set it to loop."
            ) from error


class _Capture:
    """One graph with its own inputs, gradients and answers, which every replay overwrites."""

    def __init__(self, passes: Sequence[Pass], weight: float, streams: Sequence[torch.cuda.Stream], pool: Any) -> None:
        copies = {id(t): t.clone() for p in passes for t in (p.images, p.labels)}  # members of a seed share their batch
        self._passes = [replace(p, images=copies[id(p.images)], labels=copies[id(p.labels)]) for p in passes]
        self._parameters = [[w for w in p.net.parameters() if w.requires_grad] for p in passes]
        self._streams = streams
        self._weight = weight
        self._warm_up()
        self._graph = torch.cuda.CUDAGraph()
        here = torch.cuda.stream(torch.cuda.current_stream())  # to come back to, also from a capture that fails
        with here, torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._answers, self._gradients = self._run()

    def replay(self, passes: Sequence[Pass]) -> list[Answer]:
        for source, target in {id(mine.images): (p, mine) for p, mine in zip(passes, self._passes)}.values():
            target.images.copy_(source.images)
            target.labels.copy_(source.labels)
        self._graph.replay()
        for parameters, gradients in zip(self._parameters, self._gradients):
            for parameter, gradient in zip(parameters, gradients):
                parameter.grad = gradient
        return self._answers

    def _warm_up(self) -> None:
        before = torch.get_rng_state(), torch.cuda.get_rng_state()
        with _untouched(p.net for p in self._passes):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    self._run()
            torch.cuda.current_stream().wait_stream(side)
        if not all(map(torch.equal, before, (torch.get_rng_state(), torch.cuda.get_rng_state()))):
            raise UserError(
                "model.backend 'graph' cannot keep the random draws of each net its own, and these nets draw numbers "
                "(dropout?): set it to loop."
            )

    def _run(self) -> tuple[list[Answer], list[Sequence[Tensor | None]]]:
        here = torch.cuda.current_stream()
        answers: list[Answer] = []
        gradients: list[Sequence[Tensor | None]] = []
        for stream in self._streams:
            stream.wait_stream(here)
        for each, parameters, stream in zip(self._passes, self._parameters, itertools.cycle(self._streams)):
            with torch.cuda.stream(stream):
                risk, logits = _forward(each)
                # Not .backward(): its accumulation would run in the stream where a parameter was first used.
                found = torch.autograd.grad(risk * self._weight, parameters, allow_unused=True)
                gradients.append(_apart(found))
            answers.append((risk.detach(), logits.detach()))
        for stream in self._streams:
            here.wait_stream(stream)
        return answers, gradients


class _Fastest:
    """Loop or graph, whichever takes less time for the first step on this device; the loop if gradients differ."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._chosen: Backend | None = None

    def __call__(self, passes: Sequence[Pass], weight: float) -> list[Answer]:
        if self._chosen is None:
            self._chosen = self._choose(passes, weight)
        return self._chosen(passes, weight)

    def _choose(self, passes: Sequence[Pass], weight: float) -> Backend:
        graph = Graph()
        with _untouched(each.net for each in passes):
            try:
                graphed = _seconds(graph, passes, weight)
            except UserError as error:
                log.warning("back end: loop (%s)", error)
                return self._loop
            one, other = _gradients(graph, passes, weight), _gradients(self._loop, passes, weight)
            apart = float((one - other).norm() / other.norm()) if one.shape == other.shape else float("inf")
            looped = _seconds(self._loop, passes, weight)
        if not apart <= AGREEMENT:  # nan, too
            log.warning("back end: loop, for the graph's gradients differ from its by %.2g of their norm.", apart)
            return self._loop
        name, chosen = ("graph", graph) if graphed < looped else ("loop", self._loop)
        print(
            f"back end: {name}; a step's passes take {graphed:.3g} s in a graph, {looped:.3g} s in a loop", flush=True
        )
        return chosen


def seed_draws(seed: int, device: torch.device) -> None:
    """`torch.manual_seed` for the device at hand: that of all kinds formats a stack trace for each absent one, 1 ms a call."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type != "cpu":
        torch.manual_seed(seed)


def _forward(each: Pass) -> Answer:
    logits = each.net(each.images)
    return each.loss(logits, each.labels), logits


def _apart(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Each in memory of its own, as ``.grad`` has them: of x + a + b, a and b have one tensor, and the penalty adds in place."""
    seen: set[int] = set()
    apart = []
    for gradient in gradients:
        if gradient is not None and (gradient.data_ptr() in seen or 0 in gradient.stride()):
            gradient = gradient.clone(memory_format=torch.contiguous_format)
        apart.append(gradient)
        seen |= set() if gradient is None else {gradient.data_ptr()}
    return apart


def _gradients(backend: Backend, passes: Sequence[Pass], weight: float) -> Tensor:
    """Of all nets, in one vector."""
    for each in passes:
        each.net.zero_grad(set_to_none=True)
    backend(passes, weight)
    found = [w.grad.flatten().float() for each in passes for w in each.net.parameters() if w.grad is not None]
    return torch.cat(found)


def _seconds(backend: Backend, passes: Sequence[Pass], weight: float) -> float:
    backend(passes, weight)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(TRIALS):
        backend(passes, weight)
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / TRIALS


@contextlib.contextmanager
def _untouched(nets: Iterable[nn.Module]) -> Iterator[None]:
    """Passes that leave no trace: buffers as before, and no gradients."""
    nets = list(nets)
    buffers = [(buffer, buffer.clone()) for net in nets for buffer in net.buffers()]
    try:
        yield
    finally:
        for buffer, before in buffers:
            buffer.copy_(before)
        for net in nets:
            net.zero_grad(set_to_none=True)
