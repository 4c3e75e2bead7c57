"""A training epoch on real CIFAR-10: through Lightning against a bare loop with the same step, and what each switch gains.

    python -m benchmarks.training --root data [--images 2560] [--rounds 7] [--skip-switches]

The bare loop is what a user would write: eager float32 on contiguous images. The switches are those of `fit`:
``model.channels_last`` (on by default on a CPU), ``model.compile`` and ``trainer.precision bf16-mixed``. Every loop is in a
process of its own; those of ours keep freed memory, as `fit` does, and a second bare loop does, too. One thread, so that
other load on the machine does not decide.

"convolutions alone" is nothing but the step's convolutions and their gradients, by the library that all these loops call,
channels_last, whole batches, each on maps of its own. Their share of a loop is about what no compiler can save.
"""

import argparse
import itertools
import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.harness import CLOCK, Results, in_process, interleave, options_of, run, ticks
from benchmarks.loops import BATCH, Epoch, bank, by_hand, images_of, through_lightning
from lightning_app.common.processes import keep_freed_memory
from lightning_app.networks import SimplifiedNet

SWITCHES = ("channels_last", "compile", "bf16")
BARE, KEPT = "bare loop, eager float32", "bare loop, freed memory kept"
OURS = "through Lightning"
FAST, FASTEST = "channels_last + compile", "channels_last + compile + bf16"
GOALS = {FAST: 1 / 1.6, FASTEST: 1 / 3}
FLOORS = {"convolutions alone": FAST, "convolutions alone, bf16": FASTEST}  # of which loop each is the floor
parser = partial(options_of, __doc__, rounds=7, images=2560, depth=20, skip_switches=False)


def bare(options: argparse.Namespace, keep: bool = False) -> Epoch:
    if keep:
        keep_freed_memory()
    return by_hand(options.depth, images_of(options))


def ours(options: argparse.Namespace, channels_last: bool = False, compile: bool = False, bf16: bool = False) -> Epoch:
    module = bank(depth=options.depth, channels_last=channels_last, compile=compile)
    return through_lightning(module, images_of(options), "bf16-mixed" if bf16 else "32-true")


def convolutions(options: argparse.Namespace, bf16: bool = False) -> Epoch:
    """An epoch's convolutions, each on its own map of noise: forward, and the gradients of its input and its weights."""
    keep_freed_memory()
    net = SimplifiedNet(options.depth, residual=True).to(memory_format=torch.channels_last)
    net.to(torch.bfloat16 if bf16 else torch.float32)
    first = torch.randn(BATCH, 3, 32, 32).to(next(net.parameters()).dtype, memory_format=torch.channels_last)
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []  # convolution, its input, the gradient of its output

    def keep(conv: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        x = torch.randn_like(inputs[0]).requires_grad_(inputs[0] is not first)
        calls.append((conv, x, torch.randn_like(output)))

    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(keep)
    with torch.no_grad():
        net(first)
    steps = math.ceil(options.images / BATCH)

    def epoch() -> float:
        started = ticks()
        for conv, x, gradient in calls * steps:
            weight = conv.weight
            out = F.conv2d(x, weight, stride=conv.stride, padding=conv.padding)
            torch.autograd.grad(out, [x, weight] if x.requires_grad else [weight], gradient)
        return (ticks() - started) * options.images / (steps * BATCH)

    return epoch


def contenders(options: argparse.Namespace) -> dict[str, Epoch]:
    made = {BARE: in_process(bare, options), KEPT: in_process(bare, options, True), OURS: in_process(ours, options)}
    if options.skip_switches:
        return made
    for which in (on for on in itertools.product((False, True), repeat=3) if any(on)):
        name = " + ".join(switch for switch, on in zip(SWITCHES, which) if on)
        made[name] = in_process(ours, options, *which)
    return made | {name: in_process(convolutions, options, "bf16" in name) for name in FLOORS}


def measure(options: argparse.Namespace) -> Results:
    net = f"residual simplified net of depth {options.depth}"
    found = Results(f"{net}, epochs of {options.images:,} images in batches of {BATCH}; {CLOCK}")
    epochs = found.add("epochs", interleave(contenders(options), options.rounds), BARE)
    found.rows.append(epochs.row(OURS, KEPT, 1.03, f"training epoch {OURS}"))
    loops = (name for name in epochs.values if name not in (BARE, OURS, *FLOORS))
    found.rows += [epochs.row(name, BARE, GOALS.get(name), f"training epoch, {name}") for name in loops]
    floors = {} if options.skip_switches else FLOORS
    found.rows += [epochs.row(name, of, against=f"training epoch, {of}") for name, of in floors.items()]
    return found


if __name__ == "__main__":
    run(measure, parser())
