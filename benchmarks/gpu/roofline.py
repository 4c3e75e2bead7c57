"""What this device can do: bytes copied and products computed a second, measured with the library's best.

    python -m benchmarks.gpu.roofline [--out FOLDER]

Copies count bytes read and bytes written; the small one fits the level-2 cache with its source. Products are square and
of random numbers: on zeros a GPU is faster than on data.
"""

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from benchmarks.frame import Findings, Line
from benchmarks.gpu.clock import Clock, graphed
from benchmarks.gpu.part import TF32, options_of, run, use
from benchmarks.timing import Comparison, interleave

__all__ = ["Roofline", "roofline_of"]

LARGE, SMALL, SIDE = 1 << 30, 1 << 23, 8192  # bytes of a copy's source, and of a matrix the side
QUICK = (1 << 22, 1 << 16, 128)
COPIES = 20  # in one graph: a copy within the cache is as short as its launch


@dataclass(frozen=True)
class Roofline:
    """Medians; rates by precision."""

    bandwidth: float  # bytes a second, read and written, of a copy beyond the cache
    cached: float  # likewise, within
    rates: dict[str, float]  # FLOP a second

    def seconds(self, flops: float, bytes: float, precision: str) -> float:
        """The least that so much work can take: the slower of computing and moving.

        >>> Roofline(100.0, 200.0, {"fp32": 10.0}).seconds(20.0, 100.0, "fp32")
        2.0
        """
        return max(flops / self.rates[precision], bytes / self.bandwidth)


def measure(options: argparse.Namespace) -> Findings:
    roofs = found(options.device, options.quick, options.rounds)
    large, small, side = QUICK if options.quick else (LARGE, SMALL, SIDE)
    findings = Findings(f"copies of {large:,} and {small:,} bytes, products of {side} x {side} matrices")
    copies = findings.add("copies", roofs["copies"], "large")
    products = findings.add("products", roofs["products"], "fp32")
    findings.lines = [Line("bandwidth in the cache", "beyond it", copies.ratio("in cache", "large"))]
    findings.lines += [Line(name, "fp32", products.ratio(name, "fp32")) for name in TF32 if name != "fp32"]
    findings.more["roofline"] = asdict(_roofline(roofs))
    return findings


def roofline_of(options: argparse.Namespace) -> Roofline:
    """Measured now: other parts compare with what the device can do while they run."""
    return _roofline(found(options.device, options.quick, rounds=3))


def found(device: str, quick: bool, rounds: int) -> dict[str, Comparison]:
    clock = Clock(device, least=1e-3 if quick else 2e-2)
    large, small, side = QUICK if quick else (LARGE, SMALL, SIDE)
    copies = {"large": _copy(clock, large), "in cache": _copy(clock, small)}
    products = {precision: _product(clock, side, precision) for precision in TF32}
    return {
        "copies": interleave(copies, rounds, "GB/s"),
        "products": interleave(products, rounds, "TFLOP/s"),
    }


def _roofline(roofs: dict[str, Comparison]) -> Roofline:
    copies, products = roofs["copies"], roofs["products"]
    rates = {name: products.median(name) * 1e12 for name in products.values}
    return Roofline(copies.median("large") * 1e9, copies.median("in cache") * 1e9, rates)


def _copy(clock: Clock, size: int) -> Callable[[], float]:
    source = torch.randint(256, (size,), dtype=torch.uint8, device=clock.device)
    target = torch.empty_like(source)
    time = clock.contender(graphed(lambda: [target.copy_(source) for _ in range(COPIES)], clock.device))
    return lambda: COPIES * 2 * size / time() / 1e3  # bytes a microsecond are MB/s


def _product(clock: Clock, side: int, precision: str) -> Callable[[], float]:
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    one, other = (torch.randn(side, side, device=clock.device).to(dtype) for _ in range(2))
    use(precision)
    time = clock.contender(lambda: torch.mm(one, other))

    def rate() -> float:
        use(precision)
        return 2 * side**3 / time() / 1e6

    return rate


def parser() -> argparse.ArgumentParser:
    return options_of(__doc__)


if __name__ == "__main__":
    run(measure, parser())
