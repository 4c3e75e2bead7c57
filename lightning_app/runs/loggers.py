"""The run's own logger, and W&B that never asks and never hangs.

The run folder is what everything else reads; W&B and TensorBoard are views of it. This is the one file that touches
wandb's and WandbLogger's less public sides: they change with every minor version.
"""

import logging
import os
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from lightning_fabric.utilities.rank_zero import rank_zero_only
from pytorch_lightning.loggers import Logger, WandbLogger
from pytorch_lightning.loggers.logger import rank_zero_experiment
from typing_extensions import override

from lightning_app.errors import UserError
from lightning_app.runs.folder import Row, RunFolder

__all__ = ["AutoWandbLogger", "RunLogger", "log_to_wandb"]

log = logging.getLogger(__name__)


class RunLogger(Logger):
    """Writes the run folder. First in the trainer's list, so that Lightning takes the folder as the run's own."""

    def __init__(self, folder: Path | str) -> None:
        super().__init__()
        self.folder = RunFolder(Path(folder))

    @property
    @override
    def name(self) -> str:
        return ""  # Lightning's callbacks join it to save_dir, which is the run's own already

    @property
    @override
    def version(self) -> str:
        return ""

    @property
    @override
    def save_dir(self) -> str:
        return str(self.folder.path)

    @property
    @override
    def log_dir(self) -> str:
        return str(self.folder.path)

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """What Lightning's own callbacks and foreign modules log: numbers of the whole run.

        Lightning counts the epoch under way; the log counts completed epochs, so what is logged during the first
        epoch belongs to epoch 1.
        """
        epoch = int(metrics.get("epoch", 0)) + 1
        self.folder.append(Row("", epoch, step or 0, name, value) for name, value in metrics.items() if name != "epoch")

    @override
    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: config.yaml holds the whole configuration."""


class AutoWandbLogger(WandbLogger):
    """W&B, online when logged in and reachable, otherwise offline with one line that says how to upload later.

    Directory, run id, name and group come from the run folder, so a resumed run goes on in the same W&B run.

    Args:
        project: W&B project.
        mode: "auto" decides as above (WANDB_MODE wins when set); or "online", "offline", "disabled".
        entity: user or team; None is the account's default.
        tags: labels of the run.
        log_model: upload checkpoints as artifacts.
        timeout: seconds that a connection may take before the run goes on offline.
    """

    def __init__(
        self,
        project: str = "skipscope",
        mode: Literal["auto", "online", "offline", "disabled"] = "auto",
        entity: str | None = None,
        tags: list[str] | None = None,
        log_model: bool = False,
        timeout: float = 20.0,
    ) -> None:
        super().__init__(project=project, log_model=log_model, resume="allow", entity=entity, tags=tags)
        self._wandb_init.pop("anonymous", None)  # wandb warns about it, even when it is None
        self._mode = mode
        self._timeout = timeout

    @rank_zero_only
    def attach(self, folder: RunFolder) -> None:
        """Take directory, id, name and group from the run folder. Before the first use of `experiment`."""
        # Absolute: W&B writes from a service that may be another process's, with that process's working directory.
        self._save_dir, self._name, self._id = str(folder.path.absolute()), folder.label, folder.identifier()
        self._wandb_init |= {
            "dir": self._save_dir,
            "name": self._name,
            "id": self._id,
            "group": folder.path.parent.name,
        }

    @property
    @override
    @rank_zero_experiment
    def experiment(self):
        """The W&B run, started at the first use; says in one line where it goes."""
        if self._experiment is None:
            self._connect()
        return super().experiment

    def _connect(self) -> None:
        """Start the run as asked, else offline, else not at all: W&B is a view of the run and never stops it."""
        import wandb

        asked = os.environ.get("WANDB_MODE") or (self._mode if self._mode != "auto" else self._reachable_mode())
        for mode in dict.fromkeys((asked, "offline", "disabled")):
            try:
                run = self._start(mode)
                break
            except Exception as error:  # wandb raises much more than its own wandb.errors.Error
                reason = str(error).split("\n")[0]
                if self._mode == "online":
                    sentence = f"W&B did not let this run in ({reason}): log in, or set the logger's mode to auto."
                    raise UserError(sentence) from error
                log.warning("W&B did not start %s (%s).", mode, reason)
                wandb.teardown()  # its service would hold the run's id
        if mode in ("offline", "dryrun"):
            print(f"W&B is offline; upload this run later with: wandb sync {Path(run.dir).parent}", flush=True)
        elif mode == "online":
            print(f"W&B: {run.url}", flush=True)

    def _start(self, mode: str):
        import wandb

        self._wandb_init |= {"mode": mode, "settings": wandb.Settings(init_timeout=self._timeout, silent=True)}
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return super().experiment
            except Exception as error:  # the service of a killed process holds its run for some seconds
                if "is in use" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def _reachable_mode(self) -> str:
        import wandb

        try:
            logged_in = wandb.login(prompt=False, timeout=int(self._timeout))
        except Exception as error:  # any failure to reach or to be let in means the same: record offline
            log.warning("W&B login failed (%s).", str(error).split("\n")[0])
            logged_in = False
        return "online" if logged_in else "offline"

    @override
    def finalize(self, status: str) -> None:
        super().finalize(status)
        if self._experiment is not None and rank_zero_only.rank == 0:
            try:
                self._experiment.finish(exit_code=0 if status == "success" else 1)
            except Exception as error:  # a scheduler's SIGTERM reaches W&B's service too, and may end it before us
                log.warning("W&B did not finish (%s).", error)
            self._experiment = None


def log_to_wandb(logger: WandbLogger, values: Mapping[str, Any], epoch: int, step: int) -> None:
    """One history row, drawn over the epoch. Rank zero only; any WandbLogger."""
    run = logger.experiment
    try:
        for prefix in sorted({name.split("/")[0] for name in values}):
            run.define_metric(f"{prefix}/*", step_metric="epoch")
        run.log({**values, "epoch": epoch, "trainer/global_step": step})
    except Exception as error:  # its service is gone, killed together with the job's processes
        log.warning("W&B does not take epoch %d (%s).", epoch, error)
