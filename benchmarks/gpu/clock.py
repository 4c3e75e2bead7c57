"""Times of work on a GPU: by its own events, and as replays of a CUDA graph, so that launches from Python do not count."""

import itertools
import math
import time
from collections.abc import Callable, Sequence

import torch

__all__ = ["Clock", "graphed", "side_by_side"]

Run = Callable[[], object]
WARM_UPS = 3  # before a capture: libraries choose their kernels and allocate
STREAMS = 16
MICRO = 1e6


class Clock:
    """Times calls on a device.

    Args:
        device: "cuda" or "cpu".
        least: seconds that one timing lasts at least: short calls are repeated.
    """

    def __init__(self, device: str, least: float = 2e-3) -> None:
        self.device = device
        self.least = least

    def contender(self, run: Run) -> Callable[[], float]:
        """For `interleave`: microseconds a call."""
        run()
        repeats = max(1, math.ceil(self.least / self.seconds(run, 1)))
        return lambda: MICRO * self.seconds(run, repeats)

    def seconds(self, run: Run, repeats: int) -> float:
        """A call, on average of so many in a row."""
        if self.device == "cpu":
            started = time.perf_counter()
            for _ in range(repeats):
                run()
            return (time.perf_counter() - started) / repeats
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats):
            run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000 / repeats


def graphed(run: Run, device: str) -> Run:
    """The work of `run` as one launch; on a CPU, which has no graphs, `run` itself."""
    if device == "cpu":
        return run
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        kept = run()

    def replay(kept: object = kept) -> None:  # with the graph live the tensors that it writes
        graph.replay()

    return replay


def side_by_side(runs: Sequence[Run]) -> Run:
    """All of them at once, each in a stream; to be captured."""
    streams = [torch.cuda.Stream() for _ in range(min(len(runs), STREAMS))]

    def all_of_them() -> list[object]:
        here = torch.cuda.current_stream()
        for stream in streams:
            stream.wait_stream(here)
        made = []
        for run, stream in zip(runs, itertools.cycle(streams)):
            with torch.cuda.stream(stream):
                made.append(run())
        for stream in streams:
            here.wait_stream(stream)
        return made

    return all_of_them
