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
from torch import Tensor, nn
from torch.func import vjp, vmap

from benchmarks.harness import DEVICE, Ratio, Results, Row, Run, interleave, options_of, run, seconds
from benchmarks.loops import BATCH, EPOCH, load_cifar10, training_step
from lightning_app.measures import InterlayerStatistics, interlayer_cushions
from lightning_app.networks import CifarResNet, blocks_of, span_of

BY_HAND, CUSHIONS, EAGER, COMPILED = "by hand", "cushions", "epoch, eager", "epoch, compiled, channels last"
HALF = f"{CUSHIONS}, bfloat16 probes"
parser = partial(options_of, __doc__, images=1000, steps=150, probes=4, chunks=[64, 512, 2048], compile=True)


def measure(options: argparse.Namespace) -> Results:
    batches = load_cifar10(options.root, 10_000, BATCH)
    images = torch.cat([x for x, _ in batches])[: options.images]
    nets = f"full nets of depth 20 after {options.steps} training steps"
    found = Results(f"{nets}; 9 blocks, {options.images:,} images, {options.probes} probes")
    for residual in (True, False):
        torch.manual_seed(0)
        net = CifarResNet(20, residual).to(DEVICE, memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for step in range(options.steps):
            training_step(net, optimizer, *batches[step % (len(batches) - 1)])
        name = f"{'residual' if residual else 'plain'}-20"
        exact_norms(found, name, net.eval(), images, options)
        made = contenders(net, images, batches[0], options.probes, options.compile)
        whole = found.add(name, interleave(made, options.rounds), EAGER)
        what = f"{name}: all interlayer cushions"
        found.rows += [
            whole.row(CUSHIONS, EAGER, 0.03, what, "an eager training epoch"),
            whole.row(HALF, EAGER, 0.03, f"{what}, bfloat16 probes", "an eager training epoch"),
        ]
        if options.compile:
            found.rows.append(whole.row(CUSHIONS, COMPILED, None, what, "a compiled, channels_last epoch"))
        errors = probe_errors(net, images[: options.images // 10], options.probes)
        found.more[f"rms relative error of ||J||_F by block, {name}"] = errors
        found.rows.append(Row(f"{name}: ||J||_F from probes, rms error", "exact", Ratio.of(*errors["found"])))
    return found


def exact_norms(found: Results, name: str, net: nn.Module, images: Tensor, options: argparse.Namespace) -> None:
    span, few = span_of(net, "block05"), images[: max(1, len(images) // 10)]
    x = block_input(net, images[:4])

    def by_hand() -> float:  # J x, statistics and a forward pass of the net included
        return seconds(lambda: interlayer_cushions(net, [span], [few]))[0] / len(few)

    chunks = {f"vmap(vjp), chunk {chunk}": chunk for chunk in options.chunks}
    made = {BY_HAND: by_hand}
    made |= {of: lambda chunk=chunk: seconds(lambda: rows_norm(span, x[:1], chunk))[0] for of, chunk in chunks.items()}
    exact = interleave(made, options.rounds, unit="s a sample")
    found.add(f"{name}, exact ||J||_F of block 5", exact, BY_HAND)
    best = min(chunks, key=exact.median)
    ours = interlayer_cushions(net, [span], [images[:4]])["block05"].norms
    gap = float((ours / torch.tensor([rows_norm(span, one[None], 512) for one in x]) - 1).abs().max())
    found.rows += [
        Row(f"{name}: exact ||J||_F of a block, {best}", BY_HAND, exact.ratio(best, BY_HAND), goal=60, better="more"),
        Row(f"{name}: exact ||J||_F, relative difference", "vmap(vjp)", Ratio.of(gap), goal=1e-6),
    ]


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


@torch.no_grad()
def block_input(net: nn.Module, images: Tensor) -> Tensor:
    """What goes into block 5."""
    seen: list[Tensor] = []
    handle = span_of(net, "block05").modules[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    net(images)
    handle.remove()
    return seen[0]


def contenders(
    net: nn.Module, images: Tensor, batch: tuple[Tensor, Tensor], probes: int, compile: bool
) -> dict[str, Run]:
    """Cushions in float32 and with probes in half precision, and epochs."""
    made: dict[str, Run] = {
        name: partial(interlayer_cushions, net, blocks_of(net), images.split(250), probes=probes, half=name == HALF)
        for name in (CUSHIONS, HALF)
    }
    made[EAGER] = epoch_of(net, batch)
    return made | ({COMPILED: epoch_of(net, batch, torch.channels_last, compile=True)} if compile else {})


def epoch_of(
    net: nn.Module,
    batch: tuple[Tensor, Tensor],
    layout: torch.memory_format = torch.contiguous_format,
    compile: bool = False,
) -> Callable[[], float]:
    """Seconds of a training epoch, from one step."""
    trained = CifarResNet(20, net.residual).to(batch[0].device)
    trained.load_state_dict(net.state_dict())
    trained.to(memory_format=layout)
    images, labels = batch[0].contiguous(memory_format=layout), batch[1]
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.0, momentum=0.9)
    model = torch.compile(trained, dynamic=False) if compile else trained
    return lambda: seconds(lambda: training_step(model, optimizer, images, labels))[0] * EPOCH / BATCH


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
