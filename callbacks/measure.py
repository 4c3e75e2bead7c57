"""The extension point: the base of every measuring callback, and what happens if a measurement fails.

When to measure is defined in `clock`, the mathematics in `lightning_app.measures`, the inputs of a measure in `context`, and how
a result becomes keys in `log`.
"""

import gc
import inspect
import logging
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import FSDPStrategy, ModelParallelStrategy
from pytorch_lightning.utilities import rank_zero_only
from pytorch_lightning.utilities.seed import isolate_rng
from torch import nn
from typing_extensions import override

from callbacks.clock import EpochCallback
from callbacks.context import MeasureContext, State
from callbacks.log import flatten, folders_of, is_number, log_results
from callbacks.protocol import contexts_of, unlogged
from lightning_app.common.calls import adapted
from lightning_app.common.errors import MachineError, UserError, reason
from lightning_app.common.isolation import (
    attention_written_out,
    device_of,
    evaluating,
    is_of_device,
    ran_out_of_memory,
    uncompiled,
    unrounded,
    wait_for,
    without_weight_hooks,
)

log = logging.getLogger(__name__)

NAME = re.compile(r"\w+(/\w+)*")  # a family
# Beginnings of keys that are not a measure's own.
TAKEN = ("train", "val", "test", "probe", "cost", "failed", "epoch", "lr")


class Measure(EpochCallback):
    """Measures every net of a run before training, after epochs and steps, and logs the results and their cost in seconds.

    A subclass has a `family` and a method `measure`; the rest is done here:

    * The net is measured in evaluation mode and without gradients, unless ``gradients`` is set. Its modes, ``.grad`` and
      the random state are put back, so training is bit-identical to training without measures.
    * A net that cannot be measured gets the number ``failed/<family>`` = 1 for that epoch; the reason is logged once and noted
      in the run folder, and training and other measures go on. A `UserError` before training stops the run, and with ``strict``
      every error does.
    * If memory runs out, the net is measured again with half as many samples at a time, down to one. Numbers stay the same up
      to rounding, and up to their standard errors if they are estimated from random vectors.

    Attributes:
        lenient: record what cannot be measured and continue, even for user errors before training.
    """

    lenient = False
    family: str  # of the results: names their array file, ``cost/<family>`` and ``failed/<family>``; another in each measure
    gradients = False  # whether `measure` runs with gradients enabled
    takes_samples = True  # False: it looks at weights or at training's own steps, and may be given a probe of any form
    _max_batch: int | None = None  # samples at a time, since more ran out of memory

    @override
    def forget_run(self) -> None:
        super().forget_run()
        self._described = False
        self._untold: list[str] = []  # messages that the run folder does not have yet

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if isinstance(strategy := getattr(trainer, "strategy", None), FSDPStrategy | ModelParallelStrategy):
            raise UserError(
                f"{type(self).__name__} needs whole nets in a process, but {type(strategy).__name__} splits their weights over "
                "processes: use ddp, or leave it out of the trainer's callbacks."
            )
        introduce([one for one in getattr(trainer, "callbacks", [self]) if isinstance(one, Measure)])

    @abstractmethod
    def measure(self, context: MeasureContext) -> Mapping[str, Any]:
        """Results of one net by key.

        A number is logged under its key. Of a dataclass, as in ``{"cushion/layer10": CushionStatistics(...)}``, every field is
        logged: numbers as ``cushion/layer10/median``, a `Histogram` as a histogram, other tensors as arrays in the run folder.
        """

    def describe(self) -> Mapping[str, str]:
        """Key -> meaning, for ``keys.csv`` and for the report's curves of numbers that have no section."""
        return {}

    def told_of(self, others: Sequence["Measure"]) -> None:
        """Called before anything is measured, with the other measures of the run or call, so that a message need not appear
        twice.

        Do not keep references to them: measures that hold each other would be freed, copied and pickled together.
        """

    def evaluate(self, context: MeasureContext) -> dict[str, Any]:
        """Measure one net as in a run, isolated from training.

        Raises:
            TypeError: for results that are neither numbers nor tensors; and whatever `measure` raises.
        """
        with isolated(context.net, self.gradients):
            found = dict(self.measure(context))
        for key, value in flatten(found):
            if is_number(value):
                _check_number(key, value)
        return found

    def warn_once(self, message: str, about: str | None = None) -> None:
        """Warn once (not every epoch) that something cannot be measured, and note it in the run folder.

        Args:
            message: text for the log and the notes.
            about: a key; further messages with the same key are dropped. By default the message itself.
        """
        if (about or message) not in self._warned:
            self._warned.add(about or message)
            log.warning(message)
            self._untold.append(message)

    def write_notes(self, trainer: pl.Trainer) -> None:
        """Write the messages so far into the run folder; on rank zero."""
        for folder in folders_of(trainer) if self._untold else ():
            folder.add_notes(self._untold)
        self._untold = []

    @override
    @rank_zero_only
    def observe(self, trainer: pl.Trainer, pl_module: pl.LightningModule, epoch: float) -> None:
        wait_for(pl_module.device)  # a GPU may have steps to make yet, which are no cost of measuring
        start = time.perf_counter()
        with unlogged(pl_module):  # copies that contexts make of the net, too
            contexts = contexts_of(trainer, pl_module, epoch)
            results = {context.name: self._results(context) for context in contexts}
        seconds = time.perf_counter() - start
        self.spent += seconds
        cost = {f"cost/{self.family}": seconds}
        log_results(trainer, epoch, self.family, results, cost, self.strict, self.every_n_steps is not None)
        if not self._described:
            self._described = True
            self._describe_keys(trainer, epoch)
        self.write_notes(trainer)

    def _describe_keys(self, trainer: pl.Trainer, epoch: float) -> None:
        try:
            for folder in folders_of(trainer) if (meanings := self.describe()) else ():
                folder.describe_keys(meanings)
        except Exception as error:  # of a user's own describe()
            self._go_on("cannot describe its keys", epoch, error)

    def _results(self, context: MeasureContext) -> dict[str, Any]:
        try:
            return self.within_memory(context)
        except Exception as error:  # a foreign net raises what it likes
            self._go_on(f"cannot measure '{context.name}'", context.epoch, error)
            return {f"failed/{self.family}": 1.0}

    def within_memory(self, context: MeasureContext) -> dict[str, Any]:
        """`evaluate`, with half as many samples at a time whenever memory runs out."""
        ran_out = 0
        while True:
            context.max_batch, context.largest = self._max_batch, 0
            try:
                found = self.evaluate(context)
                break
            except Exception as error:
                if context.largest < 2 or not ran_out_of_memory(error):
                    raise
            ran_out = ran_out or context.largest
            self._max_batch = context.largest // 2
            gc.collect()  # not before: the exception refers to what it failed on
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        if ran_out:
            what = f"{type(self).__name__} ran out of memory on '{context.name}' with {ran_out} samples at a time"
            print(f"{what}: continuing with {self._max_batch}.", flush=True)
        return found

    def _go_on(self, failure: str, epoch: float, error: Exception) -> None:
        """Report once what failed ("cannot measure 'net'") and why; raise the error if it must stop the run."""
        mistake = isinstance(error, UserError) and epoch == 0 and not self.lenient
        if self.strict or mistake or is_fatal(error):
            raise error
        what, why = f"{type(self).__name__} {failure}", reason(error)
        when = "" if self.lenient else f" after epoch {epoch}" if epoch else " before training"
        self.warn_once(f"{what}{when}: {why}", about=f"{what}: {why}")


def introduce(measures: Sequence[Measure]) -> None:
    """Tell each measure about the others, and check that each has its own family, with which its keys begin.

    Raises:
        UserError: if a family is missing, cannot be part of a file's name, is reserved for training, or occurs twice.
    """
    found: dict[str, str] = {}
    for measure in measures:
        own, family = type(measure).__name__, getattr(measure, "family", None)
        if not isinstance(family, str) or not NAME.fullmatch(family) or family.partition("/")[0] in TAKEN:
            raise UserError(
                f"{own}.family, with which its keys begin, must consist of letters, digits, '_' and '/', and its first "
                f"part must be none of {', '.join(TAKEN)}, got {family!r}."
            )
        if family in found:
            raise UserError(
                f"{found[family]} and {own} have the same family, '{family}', and would overwrite each other's numbers or "
                "files: leave one out, make one of both if it takes lists (blocks, bn_modes), or give one another prefix or "
                "name."
            )
        found[family] = own
        measure.told_of([other for other in measures if other is not measure])


def _check_number(key: str, value: Any) -> None:
    try:
        float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"'{key}' is a {type(value).__name__}, expected a number or a tensor") from error


class StatefulMeasure(Measure):
    """A measure that compares a net with its earlier states, also after a resume.

    Values kept by `MeasureContext.keep` are saved in the checkpoint. A measurement that fails keeps nothing.
    """

    def __init__(self, **clock: Any) -> None:
        super().__init__(**clock)
        self._state: State = {}

    def forget(self) -> None:
        """Drop all kept values, as if nothing had been measured yet."""
        self._state = {}

    def begin(self, context: MeasureContext) -> None:
        """Called before the first training step, even if nothing is measured then, to keep what later epochs need."""

    def begin_with(self, context: MeasureContext) -> None:
        """`begin`, without changing the net."""
        with self._or_as_before(), isolated(context.net):
            context.state = self._state
            self.begin(context)

    @override
    def evaluate(self, context: MeasureContext) -> dict[str, Any]:
        with self._or_as_before():
            context.state = self._state
            return super().evaluate(context)

    @contextmanager
    def _or_as_before(self) -> Iterator[None]:
        before = self.state_dict()
        try:
            yield
        except BaseException:
            self._state = before
            raise

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not (trainer.global_step or trainer.current_epoch):
            self.forget()  # what was kept in an earlier fit
            self._begin(trainer, pl_module)
        super().on_train_start(trainer, pl_module)

    @rank_zero_only
    def _begin(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for context in contexts_of(trainer, pl_module, 0):
            try:
                with unlogged(pl_module):
                    self.begin_with(context)
            except Exception as error:
                self._go_on(f"cannot measure '{context.name}'", context.epoch, error)
        self.write_notes(trainer)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {key: dict(by_name) for key, by_name in self._state.items()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state = state_dict


class Scalar(Measure):
    """Logs one number of each net, computed by a function of your own.

    The function gets a `MeasureContext` and returns a number, or a tensor with one element. Gradients are enabled in it. The
    net is not a copy: a function that changes weights changes training.

    The number is logged under its name in ``log.csv`` and every tracker. The report plots it against epochs, with the first
    line of the function's docstring. ``cost/<name>`` is the time that it took for all nets.

    Args:
        name: the key, such as "grad_norm"; a slash groups keys.
        function: the function; in YAML its dotted path, such as ``my_measures.grad_norm``. Its annotations are ignored.
        clock: when to measure, the arguments of `EpochCallback`.
    """

    gradients = True
    takes_samples = False  # not known: its function does as it likes

    def __init__(self, name: str, function: Callable[[MeasureContext], Any], **clock: Any) -> None:
        super().__init__(**clock)
        if not NAME.fullmatch(name):
            raise UserError(
                f"name of Scalar must consist of letters, digits, '_' and '/', such as grad_norm, got '{name}'."
            )
        self.name = self.family = name
        self.function = function

    @override
    def describe(self) -> Mapping[str, str]:
        text = (inspect.getdoc(self.function) or "") if inspect.isroutine(self.function) else ""
        return {self.name: text.partition("\n")[0]} if text else {}

    @override
    def measure(self, context: MeasureContext) -> Mapping[str, Any]:
        value = self.function(context)
        try:
            return {self.name: float(value)}
        except (TypeError, ValueError, RuntimeError) as error:
            if is_of_device(error):  # which computes the tensor only now
                raise
            raise UserError(
                f"the function of Scalar '{self.name}' must return one number, got {value!r:.100}."
            ) from error


@contextmanager
def isolated(net: nn.Module, gradients: bool = False) -> Iterator[None]:
    """Evaluation mode, gradients as given, no autocast, nothing rounded to tf32, attention written out, one tensor of outputs
    (`adapted`); afterwards everything is as it was.

    Training with a measure is then bit-identical to training without it: buffers and attributes that a pass of the net writes
    are put back, what a measure draws is not drawn from training's random streams (torch's, NumPy's and Python's), what it
    leaves in ``.grad`` is removed, and hooks of weights do not run. Compiled parts of a net are called uncompiled, so that hooks
    see their layers. Not restored are a random generator of the net's own, changes within lists, dicts and tensors that are not
    buffers, and weights that its ``forward`` itself changes.
    """
    grads = {parameter: parameter.grad for parameter in net.parameters()}
    autocast = torch.autocast(device_of(net).type, enabled=False)
    try:
        for parameter in grads:
            parameter.grad = None
        with (
            isolate_rng(include_cuda=False),
            evaluating(net),
            adapted(net),
            uncompiled(net),
            without_weight_hooks(net),
            torch.inference_mode(False),
            torch.set_grad_enabled(gradients),
            autocast,
            unrounded(),
            attention_written_out(),
        ):
            yield
    finally:
        for parameter, grad in grads.items():
            parameter.grad = grad


# What can go wrong


def is_fatal(error: Exception) -> bool:
    """Whether everything that follows would fail too: the GPU accepts no more work, or the run folder cannot be written.

    >>> is_fatal(RuntimeError("CUDA error: device-side assert triggered")), is_fatal(RuntimeError("CUDA error: out of memory"))
    (True, False)
    """
    return isinstance(error, MachineError) or (is_of_device(error) and not ran_out_of_memory(error))
