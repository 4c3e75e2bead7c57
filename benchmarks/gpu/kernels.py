"""The step's convolutions one by one: forward, gradient of the input and of the weights, of one net and of many.

    python -m benchmarks.gpu.kernels [--nets 1 13 26] [--precision fp32 tf32 bf16] [--out FOLDER]

Shapes and their numbers are those of the simplified net of depth 20 at batch 128. Ways to compute those of many nets:
"in turn" (one kernel after the other), "streams" (side by side), "grouped" (one convolution with a group for each net) and
"vmap" (what torch.func makes of stacked weights); "nhwc" is the channels_last memory format, "tuned" cuDNN's own choice
by measurement (torch.backends.cudnn.benchmark). Each is captured into a CUDA graph and replayed: launches do not count.
The tensors of one net lie in the cache between replays, as between the layers of a step; those of 13 do not.

Ratios are to "in turn". The share of the roofline is of `roofline`, measured in the same process: FLOPs by formula, padding
included, bytes with every tensor read or written once.
"""

import argparse
import itertools
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal

import torch
from torch import Tensor

from benchmarks.frame import Findings, Line
from benchmarks.gpu.clock import Clock, graphed, side_by_side
from benchmarks.gpu.part import BATCH, DEPTH, TF32, Kept, leaving_out, options_of, run, use
from benchmarks.gpu.roofline import Roofline, roofline_of
from benchmarks.timing import Comparison, Ratio, interleave
from lightning_app.networks.groups import channels_of_blocks

__all__ = ["Convolution", "Direction", "compute", "convolutions", "ways"]

Direction = Literal["forward", "dgrad", "wgrad"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "dgrad", "wgrad")
IMAGE = 32
REFERENCE = "in turn"


@dataclass(frozen=True)
class Convolution:
    """A 3x3 convolution with padding 1, without bias, on square maps."""

    channels: int
    filters: int
    size: int  # of the input
    stride: int
    batch: int = BATCH

    def __str__(self) -> str:
        return f"{self.channels}-{self.filters}@{self.size}" + (f"/{self.stride}" if self.stride > 1 else "")

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Of input, weights and output."""
        out = self.size // self.stride
        return (
            (self.batch, self.channels, self.size, self.size),
            (self.filters, self.channels, 3, 3),
            (self.batch, self.filters, out, out),
        )

    @property
    def flops(self) -> int:
        """In any direction.

        >>> Convolution(16, 16, 32, 1).flops
        603979776
        """
        return 2 * self.batch * (self.size // self.stride) ** 2 * self.filters * self.channels * 9

    def bytes(self, item: int) -> int:
        """Two of input, weights and output are read and the third is written, in any direction."""
        return item * sum(torch.Size(shape).numel() for shape in self.shapes)


def convolutions(depth: int = DEPTH, batch: int = BATCH) -> Counter[Convolution]:
    """Those of the blocks of a simplified net, with their numbers. The first one, of the images, is none."""
    found, size = Counter(), IMAGE
    for channels, filters, stride in channels_of_blocks(16, (depth - 2) // 3):
        found[Convolution(channels, filters, size, stride, batch)] += 1
        size //= stride
    return found


def measure(options: argparse.Namespace) -> Findings:
    shapes = convolutions(batch=4) if options.quick else convolutions()
    kept, roofline = Kept.of(options, "kernels"), roofline_of(options)
    clock = Clock(options.device, least=1e-4 if options.quick else 2e-3)
    findings = Findings(f"3x3 convolutions of the simplified net of depth {DEPTH}, batch {next(iter(shapes)).batch}")
    cells, left_out = {}, {}
    for nets, precision, shape, direction in itertools.product(options.nets, options.precision, shapes, DIRECTIONS):
        name = f"{nets} x {shape} {direction}, {precision}"
        result = kept.once(name, partial(_compare, shape, direction, nets, precision, clock, options.rounds))
        cells[nets, precision, shape, direction] = findings.add(name, Comparison(result["values"], "us"), REFERENCE)
        left_out |= {f"{name}: {way}": why for way, why in result["left out"].items()}
    findings.lines = [line for nets in options.nets for line in _lines(cells, nets, options.precision)]
    findings.more = {
        "roofline": roofline.rates | {"bytes a second": roofline.bandwidth},
        "shares": {
            f"{n} x {shape} {way}, {p}": _shares(cells[n, p, shape, way], n, p, shape, roofline)
            for n, p, shape, way in cells
        },
        "convolutions": [_altogether(cells, n, p, shapes, roofline) for n in options.nets for p in options.precision],
        "left out": left_out,
    }
    print(*findings.more["convolutions"], sep="\n")
    return findings


def _compare(shape: Convolution, direction: Direction, nets: int, precision: str, clock: Clock, rounds: int) -> dict:
    made, failed = contenders(shape, direction, nets, precision, clock)
    if REFERENCE not in made:  # not kept, so that the next call tries again: a broken capture can take later ones along
        raise RuntimeError(f"{nets} x {shape} {direction}, {precision}, {REFERENCE}: {failed[REFERENCE]}")
    return {"values": interleave(made, rounds, "us").values, "left out": failed}


def contenders(
    shape: Convolution, direction: Direction, nets: int, precision: str, clock: Clock
) -> tuple[dict[str, Callable[[], float]], dict[str, str]]:
    """What to time, and why the rest is not."""
    use(precision)
    made, failed = {}, {}
    for name, way in ways(shape, direction, nets, precision, clock.device).items():
        torch.backends.cudnn.benchmark = "tuned" in name
        with leaving_out(name, failed):
            made[name] = clock.contender(graphed(way(), clock.device))
        torch.backends.cudnn.benchmark = False
    return made, failed


def ways(
    shape: Convolution, direction: Direction, nets: int, precision: str, device: str
) -> dict[str, Callable[[], Callable[[], object]]]:
    """By name, what prepares tensors and gives the work: of one net there is nothing to stack."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32

    def in_turn(memory: torch.memory_format) -> Callable[[], object]:
        runs = _separate(shape, direction, nets, memory, device, dtype)
        return lambda: [each() for each in runs]

    def streams(memory: torch.memory_format) -> Callable[[], object]:
        return side_by_side(_separate(shape, direction, nets, memory, device, dtype))

    def grouped(memory: torch.memory_format) -> Callable[[], object]:
        tensors = [t.to(memory_format=memory) for t in _grouped(shape, nets, device, dtype)]
        return lambda: compute(direction, *tensors, shape.stride, nets)

    def vmapped() -> Callable[[], object]:
        tensors = [_randn((nets, *each), device, dtype) for each in shape.shapes]
        step = torch.vmap(lambda *own: compute(direction, *own, shape.stride))
        return lambda: step(*tensors)

    nchw, nhwc = torch.contiguous_format, torch.channels_last
    made = {REFERENCE: lambda: in_turn(nchw), "in turn, nhwc": lambda: in_turn(nhwc)}
    if device == "cuda":
        made |= {f"{name}, tuned": way for name, way in made.items()}
    if nets > 1 and device == "cuda":
        made |= {"streams": lambda: streams(nchw), "streams, nhwc": lambda: streams(nhwc)}
    if nets > 1:
        made |= {"grouped": lambda: grouped(nchw), "grouped, nhwc": lambda: grouped(nhwc), "vmap": vmapped}
    return made


def compute(direction: Direction, x: Tensor, w: Tensor, g: Tensor, stride: int, groups: int = 1) -> Tensor:
    """The output for input x and weights w, or the gradient of the one or the other for the output's gradient g."""
    pair = [stride, stride]
    if direction == "forward":
        return torch.conv2d(x, w, None, pair, [1, 1], [1, 1], groups)
    mask = [direction == "dgrad", direction == "wgrad", False]
    found = torch.ops.aten.convolution_backward(g, x, w, None, pair, [1, 1], [1, 1], False, [0, 0], groups, mask)
    return found[mask.index(True)]


def _separate(shape, direction, nets, memory, device, dtype) -> list[Callable[[], Tensor]]:
    made = [[_randn(each, device, dtype).to(memory_format=memory) for each in shape.shapes] for _ in range(nets)]
    return [lambda own=own: compute(direction, *own, shape.stride) for own in made]


def _grouped(shape: Convolution, nets: int, device: str, dtype: torch.dtype) -> list[Tensor]:
    """All nets' channels in one tensor: input (B, S C, H, W), weights (S D, C, 3, 3), gradient (B, S D, H, W)."""
    (batch, channels, *size), (filters, _, *kernel), (*_, height, width) = shape.shapes
    shapes = (
        (batch, nets * channels, *size),
        (nets * filters, channels, *kernel),
        (batch, nets * filters, height, width),
    )
    return [_randn(each, device, dtype) for each in shapes]


def _randn(shape: tuple[int, ...], device: str, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, device=device, dtype=dtype, generator=_generator(device))


@cache
def _generator(device: str) -> torch.Generator:
    """One of our own: up to torch 2.11 the GPU's default one draws no more after a capture that broke off."""
    return torch.Generator(device)


def _lines(cells: dict, nets: int, precisions: list[str]) -> list[Line]:
    """Each way against "in turn", over all shapes and directions."""
    lines = []
    for precision in precisions:
        own = [cell for (n, p, _, _), cell in cells.items() if (n, p) == (nets, precision)]
        for way in (way for way in own[0].values if way != REFERENCE):
            ratios = [cell.ratio(way, REFERENCE).median for cell in own if way in cell.values]
            spread = Ratio(statistics.median(ratios), min(ratios), max(ratios))
            lines.append(Line(f"{nets} nets, {precision}: {way}", f"{REFERENCE}, over shapes and directions", spread))
    return lines


def _shares(cell: Comparison, nets: int, precision: str, shape: Convolution, roofline: Roofline) -> dict[str, dict]:
    """TFLOP/s and share of the roofline of every way."""
    least = _least(nets, precision, shape, roofline)
    return {
        way: {"TFLOP/s": nets * shape.flops / cell.median(way) / 1e6, "share": least / cell.median(way)}
        for way in cell.values
    }


def _least(nets: int, precision: str, shape: Convolution, roofline: Roofline) -> float:
    """Microseconds at the roofline."""
    item = 2 if precision == "bf16" else 4
    return 1e6 * roofline.seconds(nets * shape.flops, nets * shape.bytes(item), precision)


def _altogether(cells: dict, nets: int, precision: str, shapes: Counter, roofline: Roofline) -> dict:
    """All block convolutions of a step of all nets, in microseconds: sums of medians, each with its best way."""
    best = ideal = 0.0
    ways_taken: Counter[str] = Counter()
    for (shape, times), direction in itertools.product(shapes.items(), DIRECTIONS):
        cell = cells[nets, precision, shape, direction]
        way = min(cell.values, key=cell.median)
        ways_taken[way] += times
        best += times * cell.median(way)
        ideal += times * _least(nets, precision, shape, roofline)
    return {"nets": nets, "precision": precision, "best": best, "roofline": ideal, "best ways": dict(ways_taken)}


def parser() -> argparse.ArgumentParser:
    made = options_of(__doc__)
    made.add_argument("--nets", type=int, nargs="+", default=[13, 1, 26])
    made.add_argument("--precision", nargs="+", choices=TF32, default=list(TF32))
    return made


if __name__ == "__main__":
    run(measure, parser())
