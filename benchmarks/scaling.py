"""How cost grows: with depth, seeds, probe images, Lanczos steps, path lengths, and runs on a page. Exponents, not seconds.

    python -m benchmarks.scaling --root data [--run runs/digits/quickstart] [--only "seeds: training step" ...]

A series times one thing at several sizes n, which take turns, in processor time (on a CPU, whatever else there is). The
exponent a of t ~ n^a is fitted by least squares in logarithms to the three largest sizes, where constants matter least, round
by round. What the mathematics says is beside it, and the goal is at most 0.1 above. Linear is

* the training step of a net in its depth, and of a bank in its seeds: one net after the other;
* cushions in depth and in images: all come from one forward pass; interlayer cushions in images;
* a spectrum in Lanczos steps: a product each. Reorthogonalisation is quadratic, and must not show;
* a page in its runs, and reading them.

Quadratic in depth are the two resolutions by path length: a net of p layers has p lengths, and each costs a pass of p layers.

Memory: by how much a process grows that reads all of CIFAR-10 and trains a bank for two steps; one process for each number of
seeds. A seed must add its weights, gradients and momentum, and never a copy of the images.

The runs of the page are made from ``--run``, as `benchmarks.report` does it; without it these two series are left out.
"""

import argparse
import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks import harness
from benchmarks.harness import CLOCK, Batches, Ratio, Results, Row, Run, interleave, run
from benchmarks.loops import bank, load_cifar10, sgd, trainer
from benchmarks.report import stretch
from lightning_app.datamodules import CIFAR10
from lightning_app.measures import (
    Hessian,
    cushions,
    interlayer_cushions,
    path_gradients,
    path_outputs,
    probe_forward,
    spectrum,
)
from lightning_app.modules.backends import Pass, one_by_one
from lightning_app.networks import CifarResNet, SimplifiedNet, blocks_of
from lightning_app.report.page import write_report
from lightning_app.runs import RunFolder

DEPTHS = (20, 32, 44, 56, 110)
PATH_DEPTHS = (11, 20, 32, 44)
SEEDS = (1, 2, 4, 13, 26)
BANKS = (1, 13, 26)  # seeds, for memory
PROBES = (100, 200, 400, 800, 1600)
STEPS = (10, 20, 40, 80)
RUNS = (2, 6, 14, 26)  # half of them plain
FITTED = 3  # sizes, the largest
MARGIN = 0.1  # above what the mathematics says
MEMORY = "memory"
GROWTH = {1: "1 (linear)", 2: "2 (quadratic)"}
BYTES = 2**20


@dataclass(frozen=True)
class Series:
    """One thing at several sizes."""

    name: str
    sizes: Sequence[int]
    at: Callable[[int], Run]  # prepares a size; the work alone is timed
    expected: int = 1  # the exponent that the mathematics says

    def row(self, measured: harness.Comparison) -> Row:
        fitted = exponents(self.sizes, measured)
        return Row(f"{self.name}, exponent", GROWTH[self.expected], Ratio.of(*fitted), goal=self.expected + MARGIN)


def parser() -> argparse.ArgumentParser:
    parser = harness.options_of(__doc__, rounds=3, images=32)  # the batch of a step and of a product
    parser.add_argument("--run", type=Path, help="a run with one plain and one residual net, as quickstart leaves one")
    parser.add_argument("--only", nargs="+", metavar="SERIES", help="names of series, or memory")
    return parser


def measure(options: argparse.Namespace) -> Results:
    found = Results(f"eager, batches of {options.images} images; {CLOCK}")
    if options.only is None or MEMORY in options.only:  # first: of what later series free, nothing would be seen
        memory(found, options)
    ((images, labels),) = load_cifar10(options.root, options.images, options.images, "cpu")
    (probe,) = load_cifar10(options.root, max(PROBES), max(PROBES), "cpu")
    with tempfile.TemporaryDirectory() as folder:
        series = [*of_training(images, labels), *of_probes(*probe), *of_depth(images, labels)]
        series += of_report(options.run, Path(folder)) if options.run else []
        for each in (each for each in series if options.only is None or each.name in options.only):
            contenders = {f"{size}": harness.processor_time(each.at(size)) for size in each.sizes}
            measured = found.add(each.name, interleave(contenders, options.rounds), f"{each.sizes[0]}")
            found.rows.append(each.row(measured))
    return found


def exponents(sizes: Sequence[int], measured: harness.Comparison) -> list[float]:
    """a of t ~ n^a over the largest sizes, for each round.

    >>> exponents([1, 2, 4], harness.Comparison({"1": [3.0], "2": [6.0], "4": [12.0]}))
    [1.0]
    """
    times = np.array([measured.values[f"{size}"] for size in sizes[-FITTED:]])  # (sizes, rounds)
    return np.polyfit(np.log(sizes[-FITTED:]), np.log(times), 1)[0].round(6).tolist()


def of_training(images: Tensor, labels: Tensor) -> list[Series]:
    """A step of a bank: full nets by depth, simplified ones by seeds."""

    def step(nets: list[torch.nn.Module]) -> Run:
        passes = [Pass(net, images, labels, seed) for seed, net in enumerate(nets)]
        optimizer = sgd([w for net in nets for w in net.parameters()])

        def work() -> None:
            one_by_one(passes, Tensor.backward)
            optimizer.step()
            optimizer.zero_grad()

        return work

    return [
        Series("depth: training step", DEPTHS, lambda depth: step([CifarResNet(depth)])),
        Series("seeds: training step", SEEDS, lambda seeds: step([SimplifiedNet(20) for _ in range(seeds)])),
    ]


def of_probes(images: Tensor, labels: Tensor) -> list[Series]:
    simplified, full = SimplifiedNet(20).eval(), CifarResNet(20).eval()
    blocks = blocks_of(full)[::3]  # one a stage

    def pairs(count: int) -> Batches:
        return list(zip(images[:count].split(100), labels[:count].split(100)))

    def interlayer(count: int) -> Run:
        return partial(interlayer_cushions, full, blocks, images[:count].split(100), probes=1)

    return [
        Series("probe images: layer cushions", PROBES, lambda count: layer_cushions(simplified, pairs(count))),
        Series("probe images: interlayer cushions", PROBES, interlayer),
    ]


def layer_cushions(net: SimplifiedNet, pairs: Batches) -> Run:
    layers = net.layers()
    return lambda: cushions(layers, probe_forward(net, layers, pairs, compile=False).layers)


def of_depth(images: Tensor, labels: Tensor) -> list[Series]:
    """Cushions of simplified nets, their paths on a few images, and a spectrum."""

    def net(depth: int) -> SimplifiedNet:
        return SimplifiedNet(depth).eval()

    def outputs(depth: int) -> Run:
        return partial(path_outputs, net(depth), images[:4])

    def gradients(depth: int) -> Run:
        return partial(path_gradients, net(depth), images[:2], labels[:2])

    hessian = partial(Hessian, net(8), [(images, labels)])
    return [
        Series("depth: layer cushions", DEPTHS, lambda depth: layer_cushions(net(depth), [(images, labels)])),
        Series("depth: outputs by path length", PATH_DEPTHS, outputs, expected=2),
        Series("depth: gradients by path length", PATH_DEPTHS, gradients, expected=2),
        Series("Lanczos steps: spectrum", STEPS, lambda steps: lambda: spectrum(hessian(), k=2, steps=steps)),
    ]


def of_report(short: Path, folder: Path, epochs: int = 20) -> list[Series]:
    """On runs of that many epochs, half of them plain."""
    stretch(RunFolder(short), folder, max(RUNS) // 2, epochs)
    arms = [sorted(folder.glob(f"{arm}-*")) for arm in ("plain", "residual")]
    folders = [path for pair in zip(*arms) for path in pair]

    def runs(count: int) -> list[RunFolder]:
        return [RunFolder(path) for path in folders[:count]]  # anew each time: nothing is remembered

    return [
        Series("runs: reading", RUNS, lambda count: lambda: [each.log() for each in runs(count)]),
        Series("runs: page", RUNS, lambda count: lambda: write_report(runs(count), folder / "page.html")),
    ]


def memory(found: Results, options: argparse.Namespace) -> None:
    """Keep megabytes by seeds, and compare what a seed adds with the training images on the device, padded and mirrored."""
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        grown = {seeds: pool.apply(growth, (options.root, seeds, options.images)) for seeds in BANKS}
    data, most = CIFAR10(root=str(options.root)), BANKS[-1]
    count, (channels, height, width), around = len(data.splits.train_images), data.sample_shape, 2 * data.padding
    images = count * channels * (height + around) * (width + around) * (1 + data.flip) / BYTES
    each = (grown[most]["kept"] - grown[1]["kept"]) / (most - 1)
    found.more[MEMORY] = {**grown, "images": images, "a seed": each}
    found.rows += [
        Row("memory that a seed adds", "the images on the device", Ratio.of(each / images), goal=0.05),
        Row(f"peak memory of {most} seeds", "of one", Ratio.of(grown[most]["peak"] / grown[1]["peak"])),
        Row("peak memory of one seed", "the images on the device", Ratio.of(grown[1]["peak"] / images)),
    ]


def growth(root: Path, seeds: int, batch: int) -> dict[str, float]:
    """Megabytes that this process has more than before, when it reads CIFAR-10 and trains a bank for two steps.

    "kept" is after these steps, in which the bank's weights, gradients and momentum are made.
    """
    import resource

    def resident() -> float:
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
        return pages * resource.getpagesize() / BYTES

    harness.quiet()
    before = resident()
    data, module = CIFAR10(root=str(root), batch_size=batch), bank(seeds)
    trainer(max_epochs=1, limit_train_batches=2, limit_val_batches=0).fit(module, datamodule=data)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / BYTES
    return {"peak": peak - before, "kept": resident() - before}


if __name__ == "__main__":
    run(measure, parser())
