"""Timing side by side: whatever else the machine does meets all the contenders alike.

Contenders take turns, in an order that is reversed every other round, and are compared round by round.
The median of these ratios is what a benchmark reports, with its range beside it.
"""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = ["Comparison", "Ratio", "finish", "interleave", "machine", "processor", "seconds", "ticks"]


@dataclass(frozen=True)
class Ratio:
    """One contender against the reference, in units of the reference."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, *values: float) -> "Ratio":
        """Of one value a round, or of a number that needs no rounds."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Comparison:
    """What `interleave` measured: contender -> one value a round, in the unit of ``unit``."""

    values: dict[str, list[float]]
    unit: str = "s"

    @property
    def rounds(self) -> int:
        return len(next(iter(self.values.values())))

    def median(self, name: str) -> float:
        return statistics.median(self.values[name])

    def ratio(self, name: str, reference: str) -> Ratio:
        """`name` / `reference`, taken round by round."""
        return Ratio.of(*(one / other for one, other in zip(self.values[name], self.values[reference])))

    def table(self, reference: str) -> str:
        """A line for each contender: median, and its ratio to `reference` with the range over the rounds."""
        width = max(map(len, self.values))
        lines = [f"{'':{width}}  {self.unit:>12}  {'ratio':>8}  (min - max of {self.rounds} rounds)"]
        for name in self.values:
            ratio = self.ratio(name, reference)
            span = "reference" if name == reference else f"({ratio.lowest:.3g} - {ratio.highest:.3g})"
            lines.append(f"{name:{width}}  {self.median(name):12.4g}  {ratio.median:8.3g}  {span}")
        return "\n".join(lines)


def interleave(
    contenders: Mapping[str, Callable[[], float | None]], rounds: int, unit: str = "s", warm_up: int = 1
) -> Comparison:
    """Let contenders take turns.

    Args:
        contenders: name -> what to time. It may return its own value (samples per second, say); where it returns None,
            its wall time in seconds is taken, after the GPU has finished.
        rounds: measured rounds; the order is reversed in every other one.
        unit: of the values.
        warm_up: turns of each contender before the first round that are not counted.
    """
    for _ in range(warm_up):
        for run in contenders.values():
            run()
    values: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        names = list(contenders) if number % 2 == 0 else list(contenders)[::-1]
        for name in names:
            wall, value = seconds(contenders[name])
            values[name].append(wall if value is None else value)
    return Comparison(values, unit)


def seconds(run: Callable[[], float | None]) -> tuple[float, float | None]:
    """Wall time of one call, the GPU's work included, and what it returned."""
    finish()
    start = time.perf_counter()
    value = run()
    finish()
    return time.perf_counter() - start, value


def ticks() -> float:
    """Seconds of processor time, which others on the machine hardly touch; on a GPU of wall time."""
    return time.perf_counter() if torch.cuda.is_available() else time.process_time()


def processor(run: Callable[[], object]) -> Callable[[], float | None]:
    """For `interleave`: the processor time of a call, which others on the machine hardly touch; on a GPU its wall time."""

    def timed() -> float | None:
        start = time.process_time()
        run()
        return None if torch.cuda.is_available() else time.process_time() - start

    return timed


def machine() -> dict[str, str | int | float]:
    """What a figure depends on besides the code."""
    return {
        "processor": _processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "cores": os.cpu_count() or 1,
        "torch threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def finish() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _processor() -> str:
    """Its name, from where Linux keeps it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
