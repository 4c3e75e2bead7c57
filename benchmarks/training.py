"""A training epoch on real CIFAR-10: through Lightning against a bare loop with the same step, and what each switch gains.

    python -m benchmarks.training --root data [--images 6400] [--rounds 7] [--json FILE] [--skip-switches]

Goal: an epoch through Lightning costs at most 1.03 times the bare loop. One thread, so that other load on the machine
does not decide.
"""

import argparse
import itertools
import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytorch_lightning as pl
import torch
import torch.nn.functional as F

from benchmarks.timing import Comparison, finish, interleave, machine, save
from lightning_app.datamodules import CIFAR10
from lightning_app.modules import ImageClassifier
from lightning_app.networks import SimplifiedNet

SWITCHES = ("channels_last", "compile", "bf16")


class EpochClock(pl.Callback):
    """Seconds from the start of the last epoch's first hook to the end of its last batch."""

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.started = time.perf_counter()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        finish()
        self.seconds = time.perf_counter() - self.started


def quiet() -> None:
    """No line of Lightning's between the figures."""
    warnings.simplefilter("ignore")
    for name in ("pytorch_lightning", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)


def classifier(depth: int, channels_last: bool = False, compile: bool = False) -> ImageClassifier:
    return ImageClassifier(
        lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        net=lambda: SimplifiedNet(depth, residual=True),
        channels_last=channels_last,
        compile=compile,
    )


def through_lightning(
    module: ImageClassifier, data: CIFAR10, precision: str = "32-true", accelerator: str = "cpu"
) -> Callable[[], float]:
    """An epoch as `fit` runs it, without evaluation and measures: those are not the loop's.

    On a GPU the second one of a fit: in the first a graph is captured.
    """

    def epoch() -> float:
        clock = EpochClock()
        trainer = pl.Trainer(
            max_epochs=2 if accelerator == "gpu" else 1,
            accelerator=accelerator,
            devices=1,
            precision=precision,
            callbacks=[clock],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
        )
        trainer.fit(module, datamodule=data)
        return clock.seconds

    return epoch


def by_hand(depth: int, data: CIFAR10) -> Callable[[], float]:
    """The same step in a loop that a user would write: batch, risk, gradient, penalty, step, running sums."""
    net = SimplifiedNet(depth, residual=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    data.setup()
    loader = data.train_dataloader()
    numbers = itertools.count()

    def epoch() -> float:
        started = time.perf_counter()
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
        return time.perf_counter() - started

    return epoch


def loop_overhead(depth: int, data: Callable[[], CIFAR10], rounds: int) -> Comparison:
    contenders = {
        "bare loop": by_hand(depth, data()),
        "through Lightning": through_lightning(classifier(depth), data()),
    }
    return interleave(contenders, rounds)


def switches(depth: int, data: Callable[..., CIFAR10], rounds: int) -> Comparison:
    contenders = {}
    for chosen in itertools.product((False, True), repeat=len(SWITCHES)):
        on = dict(zip(SWITCHES, chosen))
        name = " + ".join(switch for switch in SWITCHES if on[switch]) or "eager float32"
        module = classifier(depth, on["channels_last"], on["compile"])
        precision = "bf16-mixed" if on["bf16"] else "32-true"
        contenders[name] = through_lightning(module, data(channels_last=on["channels_last"]), precision)
    return interleave(contenders, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data", help="folder with cifar10/train_images.npy")
    parser.add_argument("--images", type=int, default=6400, help="training images in an epoch (50000: the whole set)")
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--skip-switches", action="store_true")
    parser.add_argument("--json", type=Path, help="write all values here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    quiet()

    def data(**options: bool) -> CIFAR10:
        return CIFAR10(root=arguments.root, train_limit=arguments.images, **options)

    print(" | ".join(f"{key}: {value}" for key, value in machine().items()))
    overhead = loop_overhead(arguments.depth, data, arguments.rounds)
    print(
        f"\nan epoch of {arguments.images} images, depth {arguments.depth}, goal <= 1.03\n{overhead.table('bare loop')}"
    )
    gained = None
    if not arguments.skip_switches:
        gained = switches(arguments.depth, data, arguments.rounds)
        print(f"\nthe same epoch with the switches of `fit`\n{gained.table('eager float32')}")
    if arguments.json:
        save(arguments.json, overhead, "bare loop", switches=gained.values if gained else None)


if __name__ == "__main__":
    main()
