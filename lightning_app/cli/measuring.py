"""``python main.py measure``: what all callbacks would say of a net, without training it.

A trainer that can measure: it evaluates like `validate`, and while the nets and data are on the device every measuring
callback looks once. What one callback cannot measure does not stop the others: it is written down with its reason.
"""

import contextlib
import functools
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import yaml
from jsonargparse import Namespace
from pytorch_lightning.utilities.exceptions import SIGTERMException
from typing_extensions import override

from callbacks.measure import EpochCallback
from lightning_app.cli.place import RunPlace
from lightning_app.cli.weights import load_weights
from lightning_app.common.errors import UserError
from lightning_app.common.safe_io import read_yaml
from lightning_app.common.signals import stopping
from lightning_app.runs import RunFolder
from lightning_app.runs.checkpoints import AtomicCheckpointIO
from lightning_app.runs.folder import CHECKPOINTS, CONFIG
from lightning_app.runs.loggers import RunLogger

__all__ = ["KEPT", "MeasuringTrainer", "claim", "values", "with_own_config"]

GROUP = "measured"  # folder of measurements among the groups of runs
KEPT = ("model", "data")  # of a run's configuration: the rest is about training


class MeasuringTrainer(pl.Trainer):
    """Lightning's trainer with one more thing to do, `measure`, and one less: signals are ours (see `stopping`)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Lightning's handlers talk to other ranks within the handler, where ranks wait for each other for ever, and save to
        # a file of their own under SLURM.
        self._signal_connector.register_signal_handlers = lambda: None
        self.fit_loop.epoch_loop._broadcast_sigterm_tensor = self._stop_together
        stopping.forward = self._tell_launched
        restoring = self._checkpoint_connector
        restoring._restore_modules_and_callbacks = _refusing(restoring._restore_modules_and_callbacks)
        restoring.restore_training_state = _refusing(restoring.restore_training_state)

    @property
    @override
    def received_sigterm(self) -> bool:
        """Lightning asks between batches. Of several ranks each would stop where it is: see `_stop_together`."""
        return stopping.asked is not None and self.world_size == 1

    def _stop_together(self) -> None:
        """Before each batch of several ranks: if a signal has reached one of them, all stop here."""
        asked = torch.tensor(int(stopping.asked or 0), device=self.strategy.root_device)
        torch.distributed.all_reduce(asked, torch.distributed.ReduceOp.MAX)
        if number := int(asked):
            stopping.asked = stopping.asked or signal.Signals(number)
            raise SIGTERMException

    def _tell_launched(self, number: int) -> None:
        """A container's stop, for one, reaches the first process alone."""
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
            ckpt_path: a checkpoint of ours, whose weights and epoch are taken.
            weights: a file with the weights of the one net there is: a state dict of PyTorch or .safetensors.
            out: a new folder for what is measured. None takes one in ``measured`` beside the groups of runs.

        Raises:
            UserError: for weights of another net, several nets and one file, or a checkpoint that no training here left.
        """
        if ckpt_path is not None:
            self.fit_loop.load_state_dict(_progress(ckpt_path))  # epoch and step, which `validate` leaves at 0
            epochs = self.fit_loop.epoch_progress.current
            epochs.completed = epochs.processed  # it was saved within the hooks of an epoch's end
        if weights is not None:
            load_weights(_only_net(model), Path(weights))
        for callback in self.callbacks:
            if isinstance(callback, EpochCallback):
                callback.lenient = not callback.strict
        self.callbacks.append(MeasureOnce())
        self.validate(model, datamodule=datamodule, ckpt_path=ckpt_path, verbose=False)


def _refusing(restore: Callable[..., None]) -> Callable[..., None]:
    """Its parts are of the right types here; what one says of another, or of this trainer, may still not be so."""

    @functools.wraps(restore)
    def restored(*args: Any, **kwargs: Any) -> None:
        try:
            restore(*args, **kwargs)
        except UserError:
            raise
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            said = str(error).split("\n")[0]
            raise UserError(
                f"this run cannot go on from the checkpoint ({type(error).__name__}: {said}): it is damaged, or of another "
                "program."
            ) from error

    return restored


def _progress(checkpoint: str) -> dict[str, Any]:
    """How far training was."""
    loops = AtomicCheckpointIO().load_checkpoint(checkpoint).get("loops", {})
    if "fit_loop" not in loops:
        raise UserError(
            f"{checkpoint} is no checkpoint of a run here: it does not say how far training was. Weights alone are measured "
            "with --model.net CLASS --weights FILE."
        )
    return loops["fit_loop"]


def _only_net(model: Any) -> Any:
    if len(model.members) > 1:
        names = ", ".join(member.name for member in model.members)
        raise UserError(
            f"--weights is one net's file, and there are {len(model.members)} nets ({names}): give one model.net."
        )
    return model.members[0].net


class MeasureOnce(pl.Callback):
    """After the evaluation, asks every measuring callback once, and keeps their reasons for what they do not measure."""

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        with _warnings() as reasons:
            for callback in trainer.callbacks:
                if isinstance(callback, EpochCallback):
                    _measure(trainer, pl_module, callback)
        for logger in trainer.loggers:
            if isinstance(logger, RunLogger):
                logger.folder.add_notes(reasons)


def _measure(trainer: pl.Trainer, pl_module: pl.LightningModule, callback: EpochCallback) -> None:
    name, began = type(callback).__name__, time.perf_counter()
    callback.observe(trainer, pl_module, trainer.current_epoch)
    print(f"{name}  {time.perf_counter() - began:.1f} s", flush=True)


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """What the callbacks warn of in the meantime."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    callbacks = logging.getLogger("callbacks")
    callbacks.addHandler(handler)
    try:
        yield said
    finally:
        callbacks.removeHandler(handler)


# What is measured


def with_own_config(argv: Sequence[str]) -> list[str] | None:
    """The command line with the net and data of a checkpoint's own run under it; None where another net is named.

    Raises:
        UserError: if no net is named and the checkpoint does not lie in a run folder.
    """
    checkpoint = _value(argv, "--ckpt_path")
    if checkpoint is None or not Path(checkpoint).is_file() or _names_net(argv):
        return None  # what is no file is answered like everywhere
    config = Path(checkpoint).parent.parent / CONFIG
    if Path(checkpoint).parent.name != CHECKPOINTS or not config.is_file():
        raise UserError(
            f"which net is in {checkpoint}? Expected the run's {CONFIG} in {config.parent}, found none: name the "
            "configuration that it was trained with, --config FILE."
        )
    own = read_yaml(config)
    kept = {key: own[key] for key in KEPT if key in own}
    trainer = own.get("trainer")
    if isinstance(trainer, dict) and trainer.get("precision"):
        kept["trainer"] = {"precision": trainer["precision"]}
    command, *rest = argv
    return [command, "--config", yaml.safe_dump(kept), *rest]


def _names_net(argv: Sequence[str]) -> bool:
    if any(word.startswith("--model.") or word == "--model" for word in argv):
        return True
    return any("model" in _read(Path(name)) for name in values(argv, "--config", "-c"))


def _read(config: Path) -> Mapping[str, Any]:
    """Empty for what is no configuration: the parser says so in its own words."""
    try:
        return read_yaml(config)
    except UserError:
        return {}


def _value(argv: Sequence[str], option: str) -> str | None:
    return next(reversed(values(argv, option)), None)


def values(argv: Sequence[str], *options: str) -> list[str]:
    """What a command line gives to options, as often as it names one of them.

    >>> values(["measure", "--ckpt_path", "a", "--ckpt_path=b"], "--ckpt_path")
    ['a', 'b']
    """
    found = []
    for word, following in pairwise([*argv, ""]):
        name, equals, value = word.partition("=")
        if name in options:
            found.append(value if equals else following)
    return found


def claim(out: str | None, place: RunPlace, checkpoint: str | None, model: Namespace) -> RunFolder:
    """A new folder for the measurement of a configuration's model.

    Raises:
        UserError: if there is something in the one that was asked for.
    """
    if out is None:
        return RunPlace(str(place.parent.parent), GROUP, _name(checkpoint, model)).claim()
    folder = RunFolder(Path(out).expanduser())
    if folder.path.exists() and (not folder.path.is_dir() or any(folder.path.iterdir())):
        raise UserError(
            f"--out names a new folder, and there is something at {folder.path}: choose another or remove it."
        )
    folder.path.mkdir(parents=True, exist_ok=True)
    return folder


def _name(checkpoint: str | None, model: Namespace) -> str:
    """After the checkpoint's run and its file, or after what makes the nets."""
    if checkpoint is None:
        return "-".join(dict.fromkeys(map(_maker, _nets(model)))) or "nets"
    file = Path(checkpoint).resolve()
    run = file.parent.parent.name if file.parent.name == CHECKPOINTS else ""
    return re.sub(r"[^\w.=+-]", "-", "-".join(filter(None, (run, file.stem)))).lstrip("-.=+") or "checkpoint"


def _nets(model: Namespace) -> list[Any]:
    arms = (model.arms or {}).values()
    return [net for net in (model.net, *(arm["net"] for arm in arms)) if net is not None]


def _maker(net: Any) -> str:
    """The last word of the class or function, in small letters."""
    path = net.class_path if isinstance(net, Namespace) else getattr(net, "__name__", str(net))
    return path.rsplit(".", 1)[-1].lower()
