"""What looking costs: evaluation and every measure of base.yaml in units of a training epoch of all CIFAR-10.

    python -m benchmarks.epoch --root data [--images 3200] [--rounds 5] [--modes eager compiled] [--net full]

The parts of an epoch of `fit` take turns: training on some of the images (scaled to 50,000), evaluation on 1.2 times as many
(scaled to 60,000), and each measuring callback of base.yaml, as configured there, on the whole probe of 1,000 images, plus
interlayer cushions of the probe. A measure counts as often as its schedule says. "60,000 images, all cushions" is the
evaluation and the layer cushions in one forward pass, which is what cushions of every image would cost. In the second mode
the net trains and is evaluated compiled, and that pass too; measures are as base.yaml has them.
"""

import argparse
from collections.abc import Callable
from functools import partial

import pytorch_lightning as pl

from benchmarks.harness import (
    CLOCK,
    Comparison,
    Ratio,
    Results,
    Row,
    interleave,
    options_of,
    processor_time,
    run,
    ticks,
)
from benchmarks.loops import EPOCH, KINDS, EpochClock, bank, through_lightning, trainer
from callbacks import InterlayerCushion, Signal
from callbacks.measure import Measure
from callbacks.notebook import shipped
from callbacks.protocol import contexts_of
from lightning_app.common.errors import UserError
from lightning_app.datamodules import CIFAR10
from lightning_app.measures import cushions, probe_forward
from lightning_app.modules import ImageClassifier
from lightning_app.networks import layers_of

TRAINING, EVALUATION, EVERYTHING = "training", "evaluation", "60,000 images, all cushions"
MOST = 0.4  # of an epoch, for all that is looked at after every epoch
GOALS = {"HessianSpectrum": 0.05}
MODES = {"eager": False, "compiled": True}
SIZES = {"images": 3200, "depth": 20, "probe": 1000}  # whole batches of 128 and of 50; the probe of base.yaml
parser = partial(options_of, __doc__, rounds=5, **SIZES, net=tuple(KINDS), modes=list(MODES))


def measure(options: argparse.Namespace) -> Results:
    if options.images < options.probe:
        raise UserError(
            f"--images must be at least --probe, of which measures are taken, got {options.images} and {options.probe}."
        )
    net = f"residual {options.net} net of depth {options.depth}, channels_last"
    found = Results(f"{net}; an epoch is {EPOCH:,} images; {CLOCK}")
    for mode in options.modes:
        every, contenders = parts_of_epoch(options, MODES[mode])
        parts = found.add(mode, interleave(contenders, options.rounds), TRAINING)
        found.rows += lines(parts, every, mode)
    return found


def parts_of_epoch(options: argparse.Namespace, compile: bool) -> tuple[dict[str, int], dict[str, Callable[[], float]]]:
    """After how many epochs each measure comes, and all parts, in seconds of an epoch."""
    scale = EPOCH / options.images
    limits = {"train_limit": options.images, "test_limit": options.images // 5, "probe_size": options.probe}
    data = CIFAR10(root=str(options.root), **limits)
    module = bank(depth=options.depth, kind=options.net, compile=compile)
    begun = trainer(max_epochs=1, limit_train_batches=1, limit_val_batches=0)
    begun.fit(module, datamodule=data)  # a net that has seen a step: measures find all that they ask for
    measures = {type(each).__name__: each for each in (*measures_of_base(), InterlayerCushion())}
    whole = {TRAINING: through_lightning(module, data), EVALUATION: evaluation(module, data)}
    whole[EVERYTHING] = everything(begun, module, compile)
    contenders = {name: lambda part=part: part() * scale for name, part in whole.items()}
    (context,) = contexts_of(begun, module, epoch=1)
    contenders |= {name: processor_time(partial(each.evaluate, context)) for name, each in measures.items()}
    return {name: each.every_n_epochs for name, each in measures.items()}, contenders


def lines(parts: Comparison, every: dict[str, int], mode: str) -> list[Row]:
    """Each part by its schedule, and two sums against their goals."""

    def line(what: str, names: dict[str, int], goal: float | None = None) -> Row:
        return Row(what, f"a training epoch, {mode}", share(parts, names), goal)

    def when(n: int) -> str:
        return "" if n == 1 else f", after every {n} epochs"

    alone = {EVALUATION: 1, EVERYTHING: 1} | every
    inter = InterlayerCushion.__name__
    usual = {name: n for name, n in alone.items() if name not in (EVERYTHING, inter)}
    return [
        *(line(f"{name}{when(n)}", {name: n}, GOALS.get(name)) for name, n in alone.items()),
        line(f"{EVERYTHING}, and interlayer cushions of the probe", {EVERYTHING: 1, inter: 1}, MOST),
        line("evaluation and all measures of base.yaml", usual, MOST),
    ]


def share(parts: Comparison, every: dict[str, int]) -> Ratio:
    """Of a training epoch, what these parts take that come after so many epochs.

    >>> share(Comparison({"training": [10.0], "evaluation": [3.0], "Slow": [4.0]}), {"evaluation": 1, "Slow": 2}).median
    0.5
    """
    rounds = zip(parts.values[TRAINING], *(parts.values[name] for name in every), strict=True)
    return Ratio.of(*(sum(t / n for t, n in zip(times, every.values())) / training for training, *times in rounds))


def measures_of_base() -> list[Measure]:
    """The callbacks of base.yaml that measure nets between steps, as it configures them; `measures` has what a step costs."""
    return [measure for measure in shipped("base.yaml") if not isinstance(measure, Signal)]


def evaluation(module: ImageClassifier, data: CIFAR10) -> Callable[[], float]:
    """Risk and error on training and test images, through Lightning."""

    def evaluate() -> float:
        trainer(callbacks=[clock := EvaluationClock(ticks)]).validate(module, datamodule=data, verbose=False)
        return clock.seconds

    return evaluate


class EvaluationClock(EpochClock):
    on_validation_start, on_validation_end = EpochClock.on_train_epoch_start, EpochClock.on_train_epoch_end


def everything(trainer: pl.Trainer, module: ImageClassifier, compile: bool) -> Callable[[], float]:
    """Risk, error and all cushions of all images in one pass."""
    ((_, net),) = module.members
    layers = layers_of(net)

    def forward() -> None:
        net.eval()
        for loader in trainer.datamodule.val_dataloader():
            cushions(layers, probe_forward(net, layers, loader, compile).layers)
        net.train()

    return processor_time(forward)


if __name__ == "__main__":
    run(measure, parser())
