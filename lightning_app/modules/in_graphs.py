"""Which steps of a bank go into CUDA graphs: of training, where nothing has to look into a step, and of evaluation."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from lightning_app.modules import graphs, optimizing
from lightning_app.modules.cost import RiskAndError
from lightning_app.modules.graphs import Graphs, Work
from lightning_app.modules.whole_step import DeviceBatches, Part, WholeStep, sums_of

if TYPE_CHECKING:
    from lightning_app.modules.classifier import ImageClassifier

INSIDE = ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step")  # a step
BATCHES = ("on_before_batch_transfer", "on_after_batch_transfer")


def why_not(
    optimizer: Optimizer,
    every_step: bool,
    loader: Any,
    callbacks: Iterable[pl.Callback],
    module: pl.LightningModule,
    datamodule: pl.LightningDataModule | None,
) -> str:
    """What keeps whole training steps out of a graph; "" if nothing does.

    Args:
        optimizer: of all nets.
        every_step: whether a schedule steps after each.
        loader: of batches; `Streams` can leave the gathering to a graph.
        callbacks: of the trainer.
        module: the bank, or somebody's subclass of it.
        datamodule: if there is one.
    """
    name = type(optimizer).__name__
    if optimizing.wants_cost(optimizer) or not (
        type(optimizer) is SGD or all(group.get("capturable") for group in optimizer.param_groups)
    ):
        return f"{name} does part of its step on the host; torch's SGD does not, nor do Adam and others with capturable: true"
    if every_step:
        return "the schedule changes the learning rate after every step, and it is a constant in a graph"
    if not hasattr(loader, "gathers"):
        return "the samples are not on the device, as they are with SkipScope's own data"
    if datamodule is not None and _overrides(datamodule, pl.LightningDataModule, BATCHES):
        return f"{type(datamodule).__name__} changes batches after they were gathered"
    foreign = [type(callback).__name__ for callback in watchers(callbacks) if not hasattr(callback, "watching")]
    foreign += [type(module).__name__] * _overrides(module, pl.LightningModule, INSIDE)
    return f"{', '.join(foreign)} may look into every step's gradients" if foreign else ""


def watchers(callbacks: Iterable[pl.Callback]) -> list[pl.Callback]:
    """Those that look into steps, for which there is nothing to see in a graph. Ours say when, by ``watching``."""
    return [each for each in callbacks if _overrides(each, pl.Callback, INSIDE)]


def _overrides(one: Any, base: type, hooks: Iterable[str]) -> bool:
    return any(getattr(type(one), hook) is not getattr(base, hook) for hook in hooks)


class StepsInGraphs:
    """Training steps and evaluations of a bank, each in a graph as soon as it can be.

    Args:
        bank: whose steps. Its own loop is what graphs are compared with, and what does all that they cannot.
        strict: whether a training step that cannot be in a graph is an error.
    """

    def __init__(self, bank: "ImageClassifier", strict: bool) -> None:
        self._bank = bank
        self._training = Graphs("training step", strict)
        self._evaluations = Graphs("evaluation", strict=False)
        self._whole: WholeStep | None = None  # made with the first batch
        self._fixed: Any = None  # which weights it trains, and which modules are in training mode
        self._began = False  # whether the optimizer has made its state
        self._watchers: list[Any] = []
        self._held: dict[Any, tuple[Tensor, Tensor]] = {}  # by shape: batches that evaluation's graphs read
        self._side: Sequence[torch.cuda.Stream] = ()  # of all evaluation's graphs, which share memory by stream

    def start_training(self) -> None:
        """Decide whether steps of this fit can be in graphs. If so, its loader leaves the gathering of batches to them.

        Raises:
            UserError: if they cannot, and have to.
        """
        bank, trainer = self._bank, self._bank.trainer
        callbacks: list[pl.Callback] = getattr(trainer, "callbacks")  # noqa: B009 (of no type known to checkers)
        self._began, self._watchers = False, watchers(callbacks)
        loader: Any = trainer.train_dataloader
        every_step = bank.scheduler_interval == "step" and bank.lr_schedulers() is not None
        datamodule = getattr(trainer, "datamodule", None)
        why = why_not(trainer.optimizers[0], every_step, loader, callbacks, bank, datamodule)
        if bank.finite_every is not None:
            why = "model.finite_every looks into steps"
        if why:
            self._training.give_up(why)
        else:
            loader.gathers = False

    def takes(self, batch: Any, batch_idx: int) -> bool:
        """Whether a graph does this step.

        The loop does the first step of a process, and the first after layers were frozen or set free, as the optimizer makes its
        state in it; and each step that a callback looks into.
        """
        if self._training.given_up or not hasattr(batch, "positions"):
            return False
        if batch_idx == 0:
            trained = tuple(weight.requires_grad for weight in self._bank.nets.parameters())
            fixed = trained, tuple(module.training for module in self._bank.nets.modules())
            if fixed != self._fixed:  # a callback has frozen layers, or set them free
                self._fixed, self._whole, self._began = fixed, None, False
                self._training.forget()
            self._training.check()
        began, self._began = self._began, True
        return began and not any(callback.watching for callback in self._watchers)

    def train(self, batch: Any) -> Sequence[Tensor]:
        """The step in one launch, or at first in both ways; risks of the members."""
        self._whole = whole = self._whole or self._make_whole(batch)
        rows = next(iter(batch.positions.values())).rows
        count = rows.stop - rows.start
        whole.batches.move_to(batch)
        risks: list[Tensor] = []

        def plain() -> None:
            risks.extend(self._bank.loop_step(batch))

        if not self._training(Work(count, partial(whole, count), plain, whole.weights, whole.others, whole.variant())):
            return risks
        whole.batches.moved(count)
        self._count_as_stepped()
        kept = whole.risks.clone()
        self._bank.finite_checks.keep(self._bank.global_step, kept)
        return kept.unbind()

    def _count_as_stepped(self) -> None:
        """What the loop's metrics and Lightning count as they go."""
        for member in self._bank.own:
            self._bank.running[member.name].added_elsewhere()
        progress = self._bank.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        progress.increment_ready()
        progress.increment_completed()

    def _make_whole(self, batch: Any) -> WholeStep:
        bank = self._bank
        number = {stream: row for row, stream in enumerate(batch.positions)}
        parts = [Part(m, number[bank.stream_of(m)], bank.penalties[m.name], bank.running[m.name]) for m in bank.own]
        return WholeStep(
            parts,
            DeviceBatches(batch, bank.as_trained),
            bank.loss,
            bank.trainer.optimizers[0],
            (bank.gradient_clip_val, bank.gradient_clip_algorithm),
            bank.averaging,
            graphs.streams_for(len(parts)),
        )

    def evaluate(
        self,
        split: int,
        batch: tuple[Tensor, Tensor],
        nets: Sequence[nn.Module],
        metrics: Sequence[RiskAndError],
        evaluate: Callable[[tuple[Tensor, Tensor], Sequence[torch.cuda.Stream]], None],
    ) -> None:
        """Add a batch to the metrics.

        Args:
            split: number of the loader that it comes from.
            batch: images and labels.
            nets: all that are evaluated.
            metrics: of each net.
            evaluate: does it, of a batch, with the nets in these streams.
        """
        shape = split, batch[0].shape
        if shape not in self._held:
            self._held[shape] = batch[0].clone(), batch[1].clone()
            self._side = self._side or graphs.streams_for(len(nets))
        held = self._held[shape]
        for kept, new in zip(held, batch):
            kept.copy_(new)
        in_graph, plain = partial(evaluate, held, self._side), partial(evaluate, batch, ())

        def sums() -> list[list[Tensor]]:
            return [sums_of([metric]) for metric in metrics]

        if self._evaluations(Work(shape, in_graph, plain, sums, partial(optimizing.tensors_of, *nets))):
            for metric in metrics:
                metric.added_elsewhere()

    def check_evaluations(self) -> None:
        """Before an evaluation: forget each graph whose tensors are not where they were."""
        self._evaluations.check()
