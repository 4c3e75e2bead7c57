"""The same measures around anybody's training loop: no trainer, no LightningModule."""

import copy
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Self
from weakref import WeakSet

import torch
import torch.distributed as dist
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor, nn

from callbacks.clock import Steps, check_steps, epochs_done
from callbacks.log import log_results
from callbacks.measure import Measure, StatefulMeasure
from callbacks.notebook import checked, shipped
from lightning_app.common.calls import described, pair_of
from lightning_app.common.errors import UserError, reason
from lightning_app.common.files import with_home
from lightning_app.common.isolation import bare, device_of, generators_of, unwrapped
from lightning_app.common.provenance import command_line, device_named, made_with
from lightning_app.measures.core.losses import Loss, cross_entropy
from lightning_app.runs.lock import take
from lightning_app.runs.loggers import RunLogger, best_effort
from lightning_app.runs.members import members_of

__all__ = ["Watch"]

log = logging.getLogger(__name__)

ranks: Any = rank_zero_only  # its attribute `rank` is missing in its types
Hook = Callable[[Measure], None]
NEVER = 10**9  # epochs: the clock of steps alone decides


class Watch:
    """Measures nets while a loop of your own trains them, into a run folder like that of ``fit``.

        with skipscope.watch(net, optimizer=optimizer, probe=batches, every=500, folder="runs/mine/first"):
            for inputs, labels in loader:
                ...
                optimizer.step()

    The nets are measured before the first step, after every ``every`` optimizer steps, and at the end. The numbers are those of
    the Lightning callbacks, bit for bit. Training is never changed or stopped: an error of the watch ends the watching with one
    warning.

    With several processes (DistributedDataParallel) the first one measures and writes; the others do nothing, and none waits.
    `Signal` then covers the first process's samples, but its ``weight_gradient`` and ``update`` those of all processes. Nets
    compiled by torch.compile are measured uncompiled; `Signal` then has only weights and updates, and says so. Steps that a
    GradScaler skips do not count.

    Args:
        net: the network, or several by name: ``{"plain": ..., "residual": ...}``.
        probe: batches of fixed samples, as the net takes them: pairs (inputs, labels) or dicts with ``labels``. They are read
            once. Other batches need ``pair_of``, unless no measure uses samples.
        optimizer: nets are measured right after its steps. Without an optimizer, call ``step()`` on the object of the ``with``
            statement after each step (for a running average of weights, after its update).
        every: number of steps between measurements, or "powers_of_2" for 1, 2, 4, 8, ...
        folder: the run's folder; a new one unless ``steps_done`` is set.
        measures: callbacks such as ``LayerCushion()``; an ``every_n_steps`` that they have takes precedence. Copies are used,
            so the same objects can measure elsewhere, too. None: those of ``configs/measure.yaml``. The run folder notes what
            cannot be measured.
        loss: (outputs, labels) -> mean loss of a batch, without penalty. It gets one tensor of outputs, such as the ``logits``.
            By default the loss that the net itself returns if its ``forward`` takes ``labels``, else cross-entropy.
        pair_of: batch -> (inputs, labels), such as ``lambda batch: (batch["pixels"], batch["digit"])``.
        steps_per_epoch: number of steps that the log counts as an epoch; 1,000 if it is not given.
        steps_done: steps of an earlier part of this training, whose numbers are in the same folder; numbers of later steps are
            dropped. Measures that compare with earlier measurements (`DistanceFromStart`, `BnLambda`, `DrivingForce`) need what
            they kept: pass ``measures=earlier.measures``, or in a new process measures that have loaded (``load_state_dict``)
            what you saved with the weights, the ``state_dict()`` of each of the ``measures`` of this object.
        total_steps: all steps of the training, with earlier parts, if known. `Signal` logs the last step only if this is given.
        scaler: a scaler of the loss, such as ``torch.amp.GradScaler``: `Signal` divides its ``gradient`` by
            ``scaler.get_scale()``.
        loggers: Lightning loggers in addition to the run folder.

    Raises:
        UserError: for mistakes in these arguments, before anything is trained.
    """

    def __init__(
        self,
        net: nn.Module | Mapping[str, nn.Module],
        probe: Iterable[Any],
        optimizer: torch.optim.Optimizer | None = None,
        every: Steps = 500,
        folder: Path | str = "runs/watched/run",
        measures: Measure | Iterable[Measure] | None = None,
        loss: Loss = cross_entropy,
        pair_of: Callable[[Any], tuple[Any, Any]] | None = None,
        steps_per_epoch: int = 1000,
        steps_done: int = 0,
        total_steps: int | None = None,
        scaler: torch.amp.GradScaler | None = None,
        loggers: Iterable[Logger] = (),
    ) -> None:
        _check_steps(steps_per_epoch, steps_done, total_steps)
        self._done_before = steps_done
        nets = {name: _whole(name, each) for name, each in _by_name(net).items()}
        with isolate_rng(), _generators_kept(probe):  # a DataLoader draws numbers when it is iterated over
            batches = [batch if pair_of is None else pair_of(batch) for batch in probe]
        if not batches:
            raise UserError("probe needs at least one batch of samples, got none.")
        if isinstance(probe, (tuple, list)) and any(isinstance(batch, Tensor) for batch in batches):
            raise UserError(
                f"probe must be a list of batches, each a pair (inputs, labels), got {described(batches[0])} as the first "
                "batch: write [(inputs, labels)]."
            )
        self.measures = [_own(one, every) for one in checked(shipped() if measures is None else measures)]
        for batch in batches if any(one.takes_samples for one in self.measures) else ():
            refused = [error for each in nets.values() if (error := _refused(batch, each))]
            if len(refused) == len(nets):
                raise refused[0]
        self._optimizer: Any = _innermost(optimizer)
        _check_optimizer(self._optimizer, nets)
        self._module = SimpleNamespace(members=[*nets.items()], loss=loss, device=device_of(*nets.values()))
        members_of(self._module)  # type: ignore[arg-type]  # refuses names that cannot be parts of keys
        folder = with_home(folder)
        there = next(each for each in (folder, *folder.parents, Path()) if each.exists())
        if not there.is_dir():
            raise UserError(f"folder must be a folder for the run, but {there} is a file: name another.")
        self._logger = RunLogger(folder, claimed=True)
        if _rank() == 0:  # which may have begun already when the others come here
            self._check_new()
            self._check_epochs(steps_per_epoch)
            self._logger.folder.made()  # which the block adds to: a damaged one is told now
        self._loop: Any = _Loop(
            self._module, batches, [self._logger, *loggers], steps_per_epoch, steps_done, total_steps, scaler
        )
        self._handles: list[Any] = []
        self._lock: Any = None
        self._block = ""  # "within" it, or "after"
        self._watching = False
        self._by_trainer = False  # of transformers: such a block has no end where training raises

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self._logger.folder.path

    def log(self, numbers: Mapping[str, float], net: str | None = None) -> None:
        """Log numbers of your own, such as ``{"test/error": 0.1}``, for the net with this name, or for the only net.

        Values that are not numbers, and numbers of a ``net`` that is not watched, are left out with a warning.

        Raises:
            UserError: outside the ``with`` block.
        """
        self._check_within("log")
        self._guarded(lambda: self._log(net, numbers))

    def _log(self, net: str | None, numbers: Mapping[str, float]) -> None:
        members = [name for name, _ in self._module.members]
        name = members[0] if net is None and len(members) == 1 else str(net)
        if name not in members:
            log.warning(
                f"net of log() must be the name of a watched net ({', '.join(members)}), got {net!r}: left out."
            )
            return
        log_results(self._loop, epochs_done(self._loop), "learning", {name: _numbers(numbers)}, by_steps=True)

    def step(self) -> None:
        """Count one optimizer step. With ``optimizer`` this is called automatically.

        Raises:
            UserError: outside the ``with`` block.
        """
        self._check_within("step")
        self._guarded(self._after_step)

    def __enter__(self) -> Self:
        if self._block:
            raise UserError(
                "a watch can be used for one `with` block only: make another, with steps_done to continue the same training."
            )
        if others := self._others():
            raise UserError(
                f"these nets are watched already, with the folder {others[0].folder}: give one watch all measures and, if "
                "needed, more loggers."
            )
        self._block = "within"
        _within.add(self)
        self._watching = _rank() == 0
        self._guarded(self._start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._guarded(self._end)
        self._stop(error)
        for handle in self._handles:  # not before: a step that is calling its hooks must not lose one
            handle.remove()
        _within.discard(self)
        self._block = "after"

    @classmethod
    def in_transformers(cls, probe: Iterable[Any], **options: Any) -> Any:
        """The same as a callback for a ``transformers.Trainer``, with its model, optimizer and steps.

            trainer = transformers.Trainer(model, ..., callbacks=[skipscope.watch.in_transformers(batches, every=100)])

        Args:
            options: arguments of `Watch` except ``net``. By default optimizer, steps_done and total_steps are the trainer's.
        """
        from transformers import TrainerCallback

        class Watching(TrainerCallback):
            def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                own = {
                    "optimizer": kwargs["optimizer"],
                    "steps_done": state.global_step,
                    "total_steps": state.max_steps,
                }
                self.scope = cls(kwargs["model"], probe, **own | options)
                self.scope._by_trainer = True
                in_its_place = (each for each in _within if each._by_trainer and each.folder == self.scope.folder)
                for left in {*self.scope._others(), *in_its_place}:  # by a training that has raised
                    left.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
                self.scope.__enter__()

            def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                self.scope.__exit__(None, None, None)

        return Watching()

    # -- what happens when --------------------------------------------------------------------------------------------

    @property
    def _whose(self) -> tuple[Any, Any]:
        """What hooks are given for trainer and module."""
        return self._loop, self._module

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = take(self.folder)
        self._check_new()  # again: another watch may have come first since
        self._logger.folder.begin()
        self._logger.folder.drop_after(self._loop.global_step)  # what is measured again
        self._logger.folder.reopen()
        self._logger.folder.add_made(self._made())
        self._logger.log_graph(self._module)  # type: ignore[arg-type]
        stateful = [one for one in self.measures if isinstance(one, StatefulMeasure)]
        # One that has measured in the earlier part, and has no state, found nothing to keep.
        forgetful = [one for one in stateful if not (one.state_dict() or one.spent)]
        if forgetful and self._done_before:
            log.warning(
                f"{', '.join(type(one).__name__ for one in forgetful)}: what was kept in the earlier part of this training is "
                "missing, and so will be numbers that compare with it. To have them, give these measures their state: see "
                "steps_done of skipscope.watch."
            )
        self._each(lambda one: one.on_train_start(*self._whose))
        if self._optimizer is not None:
            self._handles = [
                self._optimizer.register_step_pre_hook(self._before_optimizer),
                self._optimizer.register_step_post_hook(lambda *_: self._guarded(self._after_step)),
            ]
        self._before_step()

    def _before_step(self) -> None:
        self._loop.batch_idx = self._loop.global_step - self._loop.current_epoch * self._loop.num_training_batches
        self._each(lambda one: one.on_train_batch_start(*self._whose, None, self._loop.batch_idx))
        self._loop.batch_idx -= 1  # it is not made yet: what is logged until then belongs to the one before

    def _before_optimizer(self, _: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        closure = any(map(callable, (*args, *kwargs.values())))  # its passes are still to come
        scaled = getattr(self._optimizer, "grad_scale", None) is not None  # until a fused step has divided gradients
        if not closure and not scaled and not self._skipped():
            self._guarded(self._before_update)

    def _skipped(self) -> bool:
        """Whether a fused optimizer was called by a GradScaler and leaves the weights alone; others are not even called."""
        found = getattr(self._optimizer, "found_inf", None)
        return found is not None and bool(found)

    def _before_update(self) -> None:
        self._each(lambda one: one.on_before_optimizer_step(*self._whose, None))  # type: ignore[arg-type]  # one for all nets

    def _after_step(self) -> None:
        if self._skipped():
            return
        self._before_update()  # nobody announced it, or a closure has passed: what is measured now is no part of the step
        if self._loop.global_step == self._loop.max_steps:
            log.warning(
                f"training continues after total_steps={self._loop.max_steps}: from now on only `every` (or a measure's "
                "every_n_steps) says when to measure."
            )
            self._loop.max_steps = -1
        self._loop.global_step += 1
        self._loop.batch_idx += 1
        self._each(lambda one: one.on_train_batch_end(*self._whose, None, None, self._loop.batch_idx))
        last = self._loop.global_step == self._loop.max_steps
        if self._loop.is_last_batch or last:
            self._each(lambda one: one.on_train_epoch_end(*self._whose))
            self._loop.current_epoch += self._loop.is_last_batch
        self._before_step()

    def _end(self) -> None:
        """What was not measured after the last step is measured now; without a step, what was not measured at the start."""
        done = self._loop.global_step
        if done == self._done_before:
            log.warning(
                "no optimizer step was counted in the `with` block of a watch: pass the optimizer that steps, or call step() "
                "after each step."
            )
        for one in self.measures:
            if (done or not one.at_start) and not one.due_after(done) and done != self._loop.max_steps:
                one.observe(*self._whose, epochs_done(self._loop))
            one.on_train_end(*self._whose)
        self._logger.folder.finish(int(epochs_done(self._loop)))
        for logger in self._loop.loggers:
            with best_effort(logger):
                logger.finalize("success")

    def _each(self, hook: Hook) -> None:
        for one in self.measures:
            hook(one)

    def _check_new(self) -> None:
        """Raise a UserError for a folder with the numbers of a run that this one does not continue."""
        if not self._done_before and self._logger.folder.has_log:
            raise UserError(
                f"{self.folder} already has the numbers of a run, and two would mix: name another folder, or set steps_done to "
                "the steps of that run to continue it."
            )

    def _check_epochs(self, per_epoch: int) -> None:
        """Raise a UserError where the earlier part counts epochs otherwise: its numbers would stay the last ones."""
        if not self._done_before or not self._logger.folder.has_log:
            return
        try:
            log = self._logger.folder.log()
        except UserError:  # no reason not to train
            return
        rows = log[(log["member"] != "") & log["step"].between(1, self._done_before)]
        for step, epoch in rows[["step", "epoch"]].tail(1).itertuples(index=False):
            if not math.isclose(epoch, step / per_epoch, rel_tol=1e-6, abs_tol=1e-9):  # the log has 9 digits
                raise UserError(
                    f"steps_per_epoch must be that of the earlier part of this training, where step {step} was epoch {epoch:g}, "
                    f"got {per_epoch}."
                )

    def _made(self) -> dict[str, Any]:
        """What trains here, for made.jsonl."""
        return made_with() | {
            "command": command_line(),
            "processes": dist.get_world_size() if _among_others() else 1,
            **device_named(self._module.device),
            "after_epoch": self._loop.current_epoch,
        }

    # -- nothing of this is the loop's business -----------------------------------------------------------------------

    def _others(self) -> "list[Watch]":
        """Watches of one of these nets."""
        nets = {unwrapped(net) for _, net in self._module.members}
        return [each for each in _within if nets & {unwrapped(net) for _, net in each._module.members}]

    def _check_within(self, what: str) -> None:
        if self._block != "within":
            raise UserError(f"{what}() was called outside the `with` block of its watch: move it into the block.")

    def _guarded(self, what: Callable[[], None]) -> None:
        """A failure of ours ends the watching, never the training."""
        if not self._watching:
            return
        try:
            what()
        except Exception as error:
            self._stop(error)
            log.warning(f"watching ends after step {self._loop.global_step}, training continues: {reason(error)}")

    def _stop(self, error: BaseException | None) -> None:
        if error is not None and self._watching:
            for logger in self._loop.loggers:
                with suppress(Exception):
                    logger.finalize("failed")
        self._watching = False
        for one in self.measures:
            with suppress(Exception):
                one.on_exception(*self._whose, error or SystemExit())  # removes hooks from the nets
        if self._lock is not None:
            self._lock.close()


_within: WeakSet[Watch] = WeakSet()  # those whose block has not ended


class _Loop:
    """Somebody else's loop as measures see a trainer: what they ask, and nothing more."""

    world_size = 1  # what is asked of other processes is nothing
    should_stop, max_epochs = False, None

    def __init__(
        self,
        module: Any,
        batches: list[Any],
        loggers: list[Logger],
        per_epoch: int,
        done: int,
        total: int | None,
        scaler: Any,
    ) -> None:
        self.lightning_module = module
        self.datamodule = SimpleNamespace(probe_loader=lambda: batches)
        self.loggers = loggers
        self.num_training_batches = per_epoch
        self.global_step = done
        self.current_epoch = done // per_epoch
        self.max_steps = total or -1
        self.batch_idx = 0  # of the present step in its epoch
        self.precision_plugin = SimpleNamespace(scaler=scaler)
        self.fit_loop = SimpleNamespace(epoch_loop=self)

    @property
    def is_last_batch(self) -> bool:
        return self.batch_idx + 1 >= self.num_training_batches


def _by_name(net: Any) -> Mapping[str, nn.Module]:
    nets = {"net": net} if isinstance(net, nn.Module) else net
    if isinstance(nets, Mapping) and nets and all(isinstance(each, nn.Module) for each in nets.values()):
        return nets
    raise UserError(
        f"net must be a torch.nn.Module, or several by name, such as {{'plain': ..., 'residual': ...}}, got "
        f"{described(net)}."
    )


def _whole(name: str, net: nn.Module) -> nn.Module:
    """The net itself, without the wrapper that trains it in several processes, which would wait for processes that do not
    measure.

    Raises:
        UserError: for a net of which each process has only a part.
    """
    if _in_parts(net):
        raise UserError(
            f"the weights of '{name}' are split over processes (FSDP), but watch needs a whole net in each: use DDP, or "
            "train without watch."
        )
    return bare(net)


def _refused(batch: Any, net: nn.Module) -> Exception | None:
    """Why the net is not given a batch, if it is not: the batches of a probe may be those of one of several nets."""
    try:
        pair_of(batch, net)
    except Exception as error:  # what a foreign net's signature raises, each measure says
        return error if isinstance(error, UserError) else None
    return None


def _check_steps(steps_per_epoch: int, steps_done: int, total_steps: int | None) -> None:
    if steps_per_epoch < 1 or steps_done < 0:
        raise UserError(
            f"steps_per_epoch must be at least 1 and steps_done at least 0, got {steps_per_epoch} and {steps_done}."
        )
    if total_steps is not None and total_steps < max(1, steps_done):
        raise UserError(
            "total_steps counts all steps, including steps_done, so it must be at least 1 and at least steps_done, got "
            f"total_steps={total_steps} and steps_done={steps_done}."
        )


def _check_optimizer(optimizer: Any, nets: Mapping[str, nn.Module]) -> None:
    """Only a warning for other weights: one that trains parts, or copies of what it was given, may hold other tensors."""
    if isinstance(optimizer, type) or (optimizer is not None and not hasattr(optimizer, "register_step_post_hook")):
        what = f"the class {optimizer.__name__}" if isinstance(optimizer, type) else described(optimizer)
        raise UserError(
            f"optimizer must be a torch.optim.Optimizer, whose steps are counted, got {what}. Without one, call step() "
            "after each step."
        )
    groups = getattr(optimizer, "param_groups", ())
    trained = {id(weight) for group in groups for weight in group["params"]}
    if trained and not any(id(weight) in trained for net in nets.values() for weight in net.parameters()):
        log.warning(
            "the optimizer has none of the watched weights, but its steps are counted: is it that of another net?"
        )


def _numbers(given: Any) -> dict[str, Any]:
    """What can be logged of what a loop wants logged; the rest is left out with a warning."""
    if not isinstance(given, Mapping):
        log.warning(f"log() needs numbers by name, such as {{'test/error': 0.1}}, got {described(given)}: left out.")
        return {}
    kept = {}
    for name, value in given.items():
        try:
            if isinstance(value, (str, bytes)):
                raise TypeError
            kept[str(name)] = float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):  # of tensors and what else is none
            log.warning(f"log() needs a number for '{name}', got {described(value)}: left out.")
    return kept


def _own(measure: Measure, every: Steps) -> Measure:
    """A copy with the clock of a watch: the same measure may be used elsewhere too."""
    own = copy.copy(measure)
    own.forget_run()
    if isinstance(own, StatefulMeasure):
        own.load_state_dict(own.state_dict())
    if own.every_n_steps is None:
        check_steps("every", every)
    own.set_clock(NEVER, every if own.every_n_steps is None else own.every_n_steps)
    own.lenient = True
    return own


def _innermost(optimizer: Any) -> Any:
    """The optimizer that steps, within wrappers such as Accelerate's."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


def _in_parts(net: nn.Module) -> bool:
    if not _among_others():
        return False
    from torch.distributed.fsdp import FullyShardedDataParallel  # slow to import
    from torch.distributed.tensor import DTensor

    by_module = any(isinstance(module, FullyShardedDataParallel) for module in net.modules())
    return by_module or any(isinstance(weight, DTensor) for weight in net.parameters())


def _among_others() -> bool:
    return dist.is_available() and dist.is_initialized()


def _rank() -> int:
    """Of this process among those that train together."""
    return dist.get_rank() if _among_others() else ranks.rank


@contextmanager
def _generators_kept(probe: Any) -> Iterator[None]:
    """A loader of training may be the probe too: what its own generators would draw next stays what it is."""
    states = {one: one.get_state() for one in generators_of(probe)}
    try:
        yield
    finally:
        for one, state in states.items():
            one.set_state(state)
