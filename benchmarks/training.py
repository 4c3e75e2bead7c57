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
from collections.abc import Callable

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.apart import apart
from benchmarks.frame import Findings, Line, options_of, run
from benchmarks.timing import finish, interleave, ticks
from lightning_app.common.memory import keep_freed_memory
from lightning_app.datamodules import CIFAR10
from lightning_app.modules import ImageClassifier
from lightning_app.networks import CifarResNet, SimplifiedNet

KINDS: dict[str, type[nn.Module]] = {"simplified": SimplifiedNet, "full": CifarResNet}
SWITCHES = ("channels_last", "compile", "bf16")
BARE, KEPT = "bare loop, eager float32", "bare loop, freed memory kept"
OURS = "through Lightning"
FAST, FASTEST = "channels_last + compile", "channels_last + compile + bf16"
GOALS = {FAST: 1 / 1.6, FASTEST: 1 / 3}
FLOORS = {"convolutions alone": FAST, "convolutions alone, bf16": FASTEST}  # of which loop each is the floor
BATCH = 128


class EpochClock(pl.Callback):
    """By that clock, seconds from the start of the last epoch's first hook to the end of its last batch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.started = self.clock()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        finish()
        self.seconds = self.clock() - self.started


def classifier(
    depth: int, channels_last: bool | None = False, compile: bool = False, kind: type[nn.Module] = SimplifiedNet
) -> ImageClassifier:
    return ImageClassifier(
        lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        net=lambda: kind(depth, residual=True),
        channels_last=channels_last,
        compile=compile,
    )


def through_lightning(
    module: ImageClassifier,
    data: CIFAR10,
    precision: str = "32-true",
    accelerator: str = "cpu",
    evaluate: bool = False,
    clock: Callable[[], float] = ticks,
) -> Callable[[], float]:
    """An epoch as `fit` runs it, without measures and, unless asked, evaluation: those are not the loop's.

    As there, memory that is freed stays in the process, from now on. On a GPU it is the second epoch of a fit: in the first
    a graph is captured.
    """
    keep_freed_memory()

    def epoch() -> float:
        its = EpochClock(clock)
        trainer = pl.Trainer(
            max_epochs=2 if accelerator == "gpu" else 1,
            accelerator=accelerator,
            devices=1,
            precision=precision,
            callbacks=[its],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=1.0 if evaluate else 0,
        )
        trainer.fit(module, datamodule=data)
        return its.seconds

    return epoch


def by_hand(depth: int, data: CIFAR10) -> Callable[[], float]:
    """The same step in a loop that a user would write: batch, risk, gradient, penalty, step, running sums."""
    net = SimplifiedNet(depth, residual=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    data.setup()
    loader = data.train_dataloader()
    numbers = itertools.count()

    def epoch() -> float:
        started = ticks()
        loader.set_epoch(next(numbers))
        risk_sum, wrong = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.int64)
        for images, labels in loader:
            optimizer.zero_grad()
            logits = net(images)
            risk = F.cross_entropy(logits, labels)
            risk.backward()
            with torch.no_grad():
                for w in net.parameters():
                    w.grad.add_(w, alpha=1e-4)
                risk_sum += risk.double() * len(labels)
                wrong += (logits.argmax(1) != labels).sum()
            optimizer.step()
        assert risk_sum.isfinite()
        return ticks() - started

    return epoch


def bare(options: argparse.Namespace, keep: bool = False) -> Callable[[], float]:
    if keep:
        keep_freed_memory()
    return by_hand(options.depth, images(options))


def ours(
    options: argparse.Namespace, channels_last: bool = False, compile: bool = False, bf16: bool = False
) -> Callable[[], float]:
    data = images(options, channels_last=channels_last)
    return through_lightning(
        classifier(options.depth, channels_last, compile), data, "bf16-mixed" if bf16 else "32-true"
    )


def convolutions(options: argparse.Namespace, bf16: bool = False) -> Callable[[], float]:
    """An epoch's convolutions, each on its own map of noise: forward, and the gradients of its input and its weights."""
    keep_freed_memory()
    net = SimplifiedNet(options.depth, residual=True).to(memory_format=torch.channels_last)
    net.to(torch.bfloat16 if bf16 else torch.float32)
    first = torch.randn(BATCH, 3, 32, 32, dtype=next(net.parameters()).dtype).contiguous(
        memory_format=torch.channels_last
    )
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


def images(options: argparse.Namespace, **more: bool) -> CIFAR10:
    return CIFAR10(root=str(options.root), train_limit=options.images, **more)


def contenders(options: argparse.Namespace) -> dict[str, Callable[[], float]]:
    made = {BARE: apart(bare, options), KEPT: apart(bare, options, True), OURS: apart(ours, options)}
    if options.skip_switches:
        return made
    chosen = [on for on in itertools.product((False, True), repeat=3) if any(on)]
    switched = {
        " + ".join(name for name, on in zip(SWITCHES, which) if on): apart(ours, options, *which) for which in chosen
    }
    return made | switched | {name: apart(convolutions, options, "bf16" in name) for name in FLOORS}


def parser() -> argparse.ArgumentParser:
    parser = options_of(__doc__, rounds=7, images=2560)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--skip-switches", action="store_true")
    return parser


def measure(options: argparse.Namespace) -> Findings:
    net = f"residual simplified net of depth {options.depth}"
    found = Findings(f"{net}, epochs of {options.images:,} images in batches of {BATCH}; processor time")
    epochs = found.add("epochs", interleave(contenders(options), options.rounds), BARE)
    found.lines.append(Line(f"training epoch {OURS}", KEPT, epochs.ratio(OURS, KEPT), goal=1.03))
    found.lines += [
        Line(f"training epoch, {name}", BARE, epochs.ratio(name, BARE), GOALS.get(name))
        for name in epochs.values
        if name not in (BARE, OURS, *FLOORS)
    ]
    found.lines += [
        Line(name, f"training epoch, {loop}", epochs.ratio(name, loop))
        for name, loop in FLOORS.items()
        if name in epochs.values
    ]
    return found


if __name__ == "__main__":
    run(measure, parser())
