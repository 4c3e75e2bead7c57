"""Lightning's trainer as every command uses it: with `measure`, and with signals handled by `common.signals`.

`measure` evaluates like `validate`, and while nets and data are on the device every measuring callback measures once. What one
callback cannot measure does not stop the others: the reason is kept in the run folder.
"""

import contextlib
import functools
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from pytorch_lightning.strategies.launchers import subprocess_script
from pytorch_lightning.utilities.combined_loader import _shutdown_workers_and_reset_iterator
from pytorch_lightning.utilities.exceptions import SIGTERMException
from pytorch_lightning.utilities.seed import isolate_rng
from typing_extensions import override

from callbacks.clock import EpochCallback
from callbacks.measure import Measure
from lightning_app.cli.console import table
from lightning_app.common.errors import UserError, reason
from lightning_app.common.files import with_home
from lightning_app.common.isolation import generators_of
from lightning_app.common.processes import observe
from lightning_app.common.signals import stopping
from lightning_app.modules.members import SeedSharding
from lightning_app.runs import RunFolder
from lightning_app.runs.checkpoints import AtomicCheckpointIO


class Trainer(pl.Trainer):
    """Lightning's trainer with `measure`. Signals end it as described in `lightning_app.common.signals`."""

    callbacks: list[pl.Callback]  # these two are set by connectors, where no type checker sees it
    fast_dev_run: bool | int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("strategy") == SeedSharding.strategy_name:  # each process trains its nets on all samples
            kwargs["use_distributed_sampler"] = False
        super().__init__(*args, **kwargs)
        self._chosen_seeds: dict[int, int] = {}  # of loaders' generators: seeds that are set here -> the user's
        if not self._supports(self.strategy):
            asked = kwargs.get("strategy")
            name = asked if isinstance(asked, str) and asked != "auto" else type(self.strategy).__name__
            raise UserError(
                f"trainer.strategy: expected auto, seeds or ddp (with start_method popen), got {name}. Nets are trained whole, "
                "and each process is started as a command of its own."
            )
        # Private parts of Lightning, checked by tests/test_private_parts.py. Its own signal handlers talk to other ranks,
        # which may wait for each other for ever within a handler, and save to a file of their own under SLURM.
        replace_method(self._signal_connector, "register_signal_handlers", lambda: None)
        replace_method(self.fit_loop.epoch_loop, "_broadcast_sigterm_tensor", self._stop_together)
        # With max_steps set, Lightning takes a checkpoint of an epoch's end for one of its middle: it ends that epoch again, and
        # counts one that it does not train.
        replace_method(self.fit_loop, "_iteration_based_training", lambda: False)
        for name in ("_restore_modules_and_callbacks", "restore_training_state"):
            connector = self._checkpoint_connector
            replace_method(connector, name, _refusing(getattr(connector, name)))
        loop = self.fit_loop.epoch_loop
        replace_method(loop, "on_run_start", functools.partial(self._begin_epoch, loop.on_run_start))
        replace_method(loop, "_should_check_val_fx", functools.partial(self._evaluates_now, loop._should_check_val_fx))
        # Both evaluate, or end what a resume finds evaluated; loaders draw on the CPU.
        for name in ("run", "increment_progress_to_evaluation_end"):
            replace_method(loop.val_loop, name, isolate_rng(include_cuda=False)(getattr(loop.val_loop, name)))
        replace_method(subprocess_script, "_launch_process_observer", observe)
        stopping.forward = self._signal_launched

    @staticmethod
    def _supports(strategy: Strategy) -> bool:
        """Nets are measured whole, and processes that are started from within this one (ddp_spawn) would need its open files."""
        commands = subprocess_script._SubprocessScriptLauncher
        return isinstance(strategy, SingleDeviceStrategy) or (
            type(strategy) in (DDPStrategy, SeedSharding) and isinstance(strategy.launcher, commands)
        )

    @property
    @override
    def received_sigterm(self) -> bool:
        """Has this process to stop? Several ranks stop together instead: see `_stop_together`."""
        return stopping.received is not None and self.world_size == 1

    def _stop_together(self) -> None:
        """Before each batch of several ranks: if a signal has reached one of them, all stop here."""
        number = torch.tensor(int(stopping.received or 0), device=self.strategy.root_device)
        torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX)
        if int(number):
            stopping.received = stopping.received or signal.Signals(int(number))
            raise SIGTERMException

    def _begin_epoch(self, begin: Callable[..., None], batches: Any) -> None:
        """A loader that is not ours draws its order from global random states: those of each epoch are a function of its number.

        So a run that is resumed sees what an unbroken one sees, and evaluation, which is isolated, changes nothing. A loader that
        keeps no state is fast-forwarded to where an epoch was left.
        """
        # Processes that share out nets, not samples, see the same batches.
        rank = 0 if isinstance(self.strategy, SeedSharding) else self.global_rank
        seed = hash((self.current_epoch, rank)) % 2**32
        random.seed(seed), np.random.seed(seed), torch.default_generator.manual_seed(seed)
        loop = self.fit_loop.epoch_loop
        done = 0 if loop.batch_progress.is_last_batch else loop.batch_progress.current.ready  # of a resumed epoch
        loaders = batches.combined_loader.flattened
        without_state = [loader for loader in loaders if not hasattr(loader, "load_state_dict")]
        # A loader that keeps its state is in the middle of its epoch already: iterated over again, it would begin anew.
        goes_on = done and len(without_state) < len(loaders)
        for loader in () if goes_on else without_state:
            self._begin_anew(loader)
        lightning_begins = self.current_epoch > 0 and not self.fit_loop.is_resuming and not loop.restarting
        if not lightning_begins and not goes_on:
            iter(batches)
            for _ in range(done):
                next(batches, None)
            batches.fetched -= done  # which Lightning adds
        begin(batches)
        if loop.restarting and loop.restarted_on_last:
            # Lightning counts the last batch among those by which it logs once more if it takes it for evaluated, whether it was
            # saved among them (after its evaluation) or not (in the last hook of that).
            loop._batches_that_stepped = loop.batch_progress.total.completed - loop._should_check_val_fx(batches)

    def _begin_anew(self, loader: Any) -> None:
        """Generators of its own, and workers that are kept, would go on from the epoch before, which a resume has not seen.

        Generators are seeded alike in all processes, each of which may take its part of an order that all draw. Workers are ended
        here: if their iterator were left to the collection of garbage, they would live until then, and each hold it up for 5 s.
        """
        for own in generators_of(loader) - {torch.default_generator}:
            seed = own.initial_seed()
            chosen = self._chosen_seeds.get(seed, seed)  # the user may also choose one in each epoch
            own.manual_seed(hash((chosen, self.current_epoch)) % 2**63)
            self._chosen_seeds[own.initial_seed()] = chosen
        if getattr(loader, "persistent_workers", False):
            _shutdown_workers_and_reset_iterator(loader)

    def _evaluates_now(self, as_asked: Callable[[Any], bool], batches: Any) -> bool:
        """Also where max_steps ends training within an epoch, as Lightning does where max_time does."""
        return as_asked(batches) or (self.enable_validation and 0 < self.max_steps <= self.global_step)

    def _signal_launched(self, number: int) -> None:
        """Pass a signal on to the ranks that this process launched: a container's stop reaches the first process alone."""
        for process in getattr(self.strategy.launcher, "procs", []):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def measure(
        self,
        model: pl.LightningModule,
        datamodule: pl.LightningDataModule | None = None,
        ckpt_path: str | None = None,
        weights: str | None = None,
        out: str | None = None,
    ) -> None:
        """Measure nets without training them.

        Args:
            model: the nets.
            datamodule: what they are evaluated and measured on.
            ckpt_path: a checkpoint of `fit`, whose weights and epoch are used.
            weights: a file with the weights of a single net: a PyTorch state dict or .safetensors.
            out: a new folder for the results. None: a new one in ``measured``, beside the groups of runs.

        Raises:
            UserError: for weights of another net, weights with several nets, or a checkpoint that `fit` did not write.
        """
        if ckpt_path is not None and weights is not None:
            raise UserError("--ckpt_path and --weights both say which weights to measure: give only one of them.")
        if ckpt_path is not None:
            self.fit_loop.load_state_dict(_fit_loop(ckpt_path))  # epoch and step, which `validate` leaves at 0
            epochs: Any = self.fit_loop.epoch_progress.current
            epochs.completed = epochs.processed  # it was saved within the hooks of an epoch's end
        if weights is not None:
            from lightning_app.cli.weights import load_weights

            members: Any = model.members
            if len(members) > 1:
                names = ", ".join(member.name for member in members)
                raise UserError(
                    f"--weights: expected one net, as the file has the weights of one, got {len(members)} ({names}): configure "
                    "one model.net with one seed."
                )
            load_weights(members[0].net, with_home(weights))
        for callback in self.callbacks:
            if isinstance(callback, Measure):
                callback.lenient = not callback.strict
        self.callbacks.append(MeasureOnce())
        self.validate(model, datamodule=datamodule, ckpt_path=ckpt_path, verbose=False)


def replace_method(owner: Any, name: str, method: Callable[..., Any]) -> None:
    """Replace a method of one object, or a function of a module.

    Raises:
        AttributeError: if there is none of this name: an assignment alone would silently do nothing.
    """
    if not callable(getattr(owner, name, None)):
        raise AttributeError(
            f"{getattr(owner, '__name__', type(owner).__name__)}.{name} is gone: see what this Lightning has instead."
        )
    setattr(owner, name, method)


def _refusing(restore: Callable[..., None]) -> Callable[..., None]:
    """Report parts of other types, or that contradict each other or this trainer, as a damaged checkpoint."""

    @functools.wraps(restore)
    def restored(*args: Any, **kwargs: Any) -> None:
        try:
            restore(*args, **kwargs)
        except UserError:
            raise
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise UserError(
                f"this run cannot be resumed from the checkpoint ({reason(error)}): it is damaged, or was "
                "written by another program. Name another checkpoint, or leave --ckpt_path out to start a new run."
            ) from error

    return restored


def _fit_loop(checkpoint: str) -> dict[str, Any]:
    """How far training was: the state of Lightning's loop."""
    loops = AtomicCheckpointIO().load_checkpoint(checkpoint).get("loops", {})
    if "fit_loop" not in loops:
        raise UserError(
            f"{checkpoint} is not a checkpoint of `fit`: it does not say how far training had come. To measure weights alone, "
            "use --model.net CLASS --weights FILE."
        )
    return loops["fit_loop"]


class MeasureOnce(pl.Callback):
    """After the evaluation, lets every measuring callback measure once."""

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measure, and print the time of each callback."""
        for callback in trainer.callbacks:  # type: ignore[attr-defined]  # set by a connector
            if isinstance(callback, EpochCallback):
                began = time.perf_counter()
                callback.observe(trainer, pl_module, trainer.current_epoch)
                if trainer.is_global_zero:  # other ranks do not measure
                    print(f"{type(callback).__name__}  {time.perf_counter() - began:.1f} s", flush=True)


def print_measured(run: RunFolder) -> None:
    """Print what was measured in one run: layer by layer, the nets as a whole, and what could not be measured."""
    from lightning_app.report.page_data import gather
    from lightning_app.report.sections import layers

    nets = gather([run]).nets
    for net in nets:
        print()
        rows = (layers.layer_cells(net, row) for row in layers.layers_of_net(net))
        table(f"{net.label}", layers.HEAD, _texts(rows))
        if blocks := layers.block_cells(net):
            print()
            table(f"{net.label}: interlayer cushions", layers.BLOCK_HEAD, _texts(blocks))
    print()
    table("the nets as a whole", ["", *(net.label for net in nets)], _texts(layers.of_whole_nets(nets)))
    for note in run.notes():
        print(f"not measured: {note}")


def _texts(rows: Iterable[Sequence[Any]]) -> list[list[str]]:
    return [[cell.text for cell in row] for row in rows]
