"""The configuration that a run keeps: config.yaml in its folder, with the command and versions that made it, and in W&B."""

import shlex
import sys
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import yaml
from pytorch_lightning.cli import SaveConfigCallback
from pytorch_lightning.loggers import WandbLogger
from typing_extensions import override

from lightning_app.common.files import write_atomically, writing
from lightning_app.common.provenance import commit, made_with, processor, threads, versions
from lightning_app.common.safe_io import read_text
from lightning_app.runs.folder import CONFIG, RunFolder
from lightning_app.runs.loggers import RunLogger

__all__ = ["SaveRunConfig"]

NOTED = ("torch", "torchvision", "pytorch-lightning", "torchmetrics", "wandb", "numpy")  # versions kept with a run


class SaveRunConfig(SaveConfigCallback):
    """The whole configuration into the run folder, with command and versions on top, and to W&B."""

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if not trainer.is_global_zero:
            return
        text = self.parser.dump(self.config, skip_none=False, format="yaml")
        for logger in trainer.loggers:
            if isinstance(logger, RunLogger):
                _write_config(logger.folder.path / CONFIG, text)
                logger.folder.add_made(_facts(trainer, logger.folder))
            elif isinstance(logger, WandbLogger):
                logger.log_hyperparams(yaml.safe_load(text))


def _facts(trainer: pl.Trainer, folder: RunFolder) -> dict[str, Any]:
    """What trains, on which machine and data, from which epoch on."""
    fingerprint = getattr(getattr(trainer, "datamodule", None), "fingerprint", None)
    return made_with() | {
        "command": f"main.py {shlex.join(sys.argv[1:])}",
        "precision": str(trainer.precision),
        "processes": trainer.world_size,
        "device": trainer.strategy.root_device.type,
        "after_epoch": folder.last_epoch or 0,
        "data": fingerprint() if fingerprint else None,  # of all that the source gave
    }


def _write_config(target: Path, text: str) -> None:
    """config.yaml; the one of an earlier part of a resumed run stays beside it when it differs."""
    if target.exists():
        earlier = "".join(line for line in read_text(target).splitlines(keepends=True) if not line.startswith("#"))
        if earlier != text:
            number = len(list(target.parent.glob("config.before-resume-*.yaml"))) + 1
            with writing(target):
                target.rename(target.with_name(f"config.before-resume-{number}.yaml"))
    with writing(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    facts = [
        f"command: main.py {shlex.join(sys.argv[1:])}",
        f"commit: {commit()}",
        f"python {sys.version.split()[0]}, {versions(NOTED)}",
        f"processor: {processor()}, {threads()} threads",
    ]
    write_atomically(target, ("".join(f"# {fact}\n" for fact in facts) + text).encode())
