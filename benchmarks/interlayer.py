"""Interlayer cushions of the full depth-20 nets: exact ||J||_F against autograd, and what a whole measurement costs.

    python -m benchmarks.interlayer --root data --rounds 7

Both nets are trained for some steps first, that masks and errors are those of a working net. Then, for each,

* exact ||J||_F of block 5 (of 9; J is 8192 x 8192), seconds a sample: hand-made Jacobian against vmap(vjp) over all rows
  at its best chunk;
* interlayer cushions of all 9 blocks, 1,000 images, 4 probes, against a training epoch of 50,000 images, which is
  scaled from one step of batch 128;
* the error of ||J||_F from 4 probes against the exact one, rms over 100 images, beside the error that it states.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vjp, vmap

from benchmarks import harness
from benchmarks.harness import Ratio, Results, Row, interleave, run
from lightning_app.measures import InterlayerStatistics, interlayer_cushions
from lightning_app.networks import CifarResNet, blocks_of, span_of

EPOCH, BATCH = 50_000, 128
BY_HAND, CUSHIONS, EAGER, COMPILED = "by hand", "cushions", "epoch, eager", "epoch, compiled, channels last"
HALF = f"{CUSHIONS}, bfloat16 probes"


parser = partial(harness.options_of, __doc__, images=1000, steps=150, probes=4, chunks=[64, 512, 2048], compile=True)


def measure(options: argparse.Namespace) -> Results:
    batches = harness.load_cifar10(options.root, 10_000, BATCH)
    images = torch.cat([x for x, _ in batches])[: options.images]
    found = Results(
        f"full nets of depth 20 after {options.steps} training steps; 9 blocks, {options.images:,} images, "
        f"{options.probes} probes"
    )
    for residual in (True, False):
        torch.manual_seed(0)
        net = CifarResNet(20, residual).to(harness.DEVICE, memory_format=torch.channels_last)
        train(net, batches, options.steps)
        name = f"{'residual' if residual else 'plain'}-20"
        exact_norms(found, name, net.eval(), images, options)
        whole = found.add(name, interleave(cushion_contenders(net, images, batches, options), options.rounds), EAGER)
        found.rows += epoch_lines(name, whole)
        found.more[f"rms relative error of ||J||_F by block, {name}"] = errors = probe_errors(
            net, images[: options.images // 10], options.probes
        )
        found.rows.append(Row(f"{name}: ||J||_F from probes, rms error", "exact", Ratio.of(*errors["found"])))
    return found


def exact_norms(found: Results, name: str, net: nn.Module, images: Tensor, options: argparse.Namespace) -> None:
    contenders = norm_contenders(net, images, options.chunks)
    exact = interleave(contenders, options.rounds, unit="s a sample")
    found.add(f"{name}, exact ||J||_F of block 5", exact, BY_HAND)
    best = min((chunk for chunk in contenders if chunk != BY_HAND), key=exact.median)
    gap = difference(net, images[:4])
    found.rows += [
        Row(f"{name}: exact ||J||_F of a block, {best}", BY_HAND, exact.ratio(best, BY_HAND), goal=60, better="more"),
        Row(f"{name}: exact ||J||_F, relative difference", "vmap(vjp)", Ratio.of(gap), goal=1e-6),
    ]


def epoch_lines(name: str, whole: harness.Comparison) -> list[Row]:
    """Cushions against a training epoch of the net, in float32 and with probes in half precision, and a faster epoch."""
    what = f"{name}: all interlayer cushions"
    lines = [
        Row(what, "an eager training epoch", whole.ratio(CUSHIONS, EAGER), goal=0.03),
        Row(f"{what}, bfloat16 probes", "an eager training epoch", whole.ratio(HALF, EAGER), goal=0.03),
    ]
    if COMPILED in whole.values:
        lines.append(Row(what, "a compiled, channels_last epoch", whole.ratio(CUSHIONS, COMPILED)))
    return lines


def norm_contenders(net: nn.Module, images: Tensor, chunks: list[int]) -> dict[str, Callable[[], float]]:
    span, few = span_of(net, "block05"), images[: max(1, len(images) // 10)]
    x = block_input(net, images[:1])

    def by_hand() -> float:  # J x, statistics and a forward pass of the net included
        return harness.seconds(lambda: interlayer_cushions(net, [span], [few]))[0] / len(few)

    return {BY_HAND: by_hand} | {
        f"vmap(vjp), chunk {chunk}": lambda chunk=chunk: harness.seconds(lambda: rows_norm(span, x, chunk))[0]
        for chunk in chunks
    }


@torch.no_grad()
def rows_norm(span: Callable[[Tensor], Tensor], x: Tensor, chunk: int) -> float:
    """||J||_F of one sample (1, C, H, W), row by row."""
    y, back = vjp(span, x)
    size, total = y.numel(), 0.0
    for places in torch.arange(size).split(chunk):
        rows = torch.zeros(len(places), size, dtype=x.dtype, device=x.device)
        rows[torch.arange(len(places)), places] = 1
        (pulled,) = vmap(back)(rows.view(-1, *y.shape))
        total += float(pulled.double().square().sum())
    return total**0.5


def block_input(net: nn.Module, images: Tensor) -> Tensor:
    """What goes into block 5."""
    seen = []
    handle = span_of(net, "block05").modules[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        net(images)
    handle.remove()
    return seen[0]


def difference(net: nn.Module, images: Tensor) -> float:
    span = span_of(net, "block05")
    ours = interlayer_cushions(net, [span], [images])["block05"].norms
    theirs = torch.tensor([rows_norm(span, x[None], 512) for x in block_input(net, images)])
    return float((ours / theirs - 1).abs().max())


def cushion_contenders(
    net: nn.Module, images: Tensor, batches: harness.Batches, options: argparse.Namespace
) -> dict[str, Callable[[], float]]:
    blocks, parts = blocks_of(net), images.split(250)

    def cushions(half: bool) -> float:
        return harness.seconds(lambda: interlayer_cushions(net, blocks, parts, probes=options.probes, half=half))[0]

    contenders: dict[str, Callable[[], float]] = {
        CUSHIONS: lambda: cushions(half=False),
        HALF: lambda: cushions(half=True),
        EAGER: epoch_of(net, batches[0]),
    }
    if options.compile:
        contenders[COMPILED] = epoch_of(net, batches[0], channels_last=True, compile=True)
    return contenders


def epoch_of(
    net: nn.Module, batch: tuple[Tensor, Tensor], channels_last: bool = False, compile: bool = False
) -> Callable[[], float]:
    """Seconds of a training epoch, from one step."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    trained = CifarResNet(20, net.residual).to(batch[0].device)
    trained.load_state_dict(net.state_dict())
    trained.to(memory_format=layout)
    batch = batch[0].contiguous(memory_format=layout), batch[1]
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.0, momentum=0.9)
    model = torch.compile(trained, dynamic=False) if compile else trained

    def step() -> float:
        return harness.seconds(lambda: training_step(model, optimizer, *batch))[0] * EPOCH / BATCH

    return step


def training_step(model: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


def train(net: nn.Module, batches: harness.Batches, steps: int) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        training_step(net, optimizer, *batches[step % (len(batches) - 1)])


def probe_errors(net: nn.Module, images: Tensor, probes: int) -> dict[str, list[float]]:
    """rms relative errors of ||J||_F from probes, block by block: found, found in bfloat16, stated."""
    blocks = blocks_of(net)
    exact = interlayer_cushions(net, blocks, [images])
    whole, half = (interlayer_cushions(net, blocks, [images], probes=probes, half=half) for half in (False, True))

    def rms(estimated: dict[str, InterlayerStatistics]) -> list[float]:
        return [float((estimated[name].norms / exact[name].norms - 1).square().mean().sqrt()) for name in exact]

    return {"found": rms(whole), "bfloat16": rms(half), "stated": [one.relative_error for one in whole.values()]}


if __name__ == "__main__":
    run(measure, parser())
