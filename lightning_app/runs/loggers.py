"""The run's own logger, W&B that never asks and never hangs, and loggers that must not stop training.

The run folder has everything and is what everything else reads; W&B and TensorBoard are views of it. This is the one file
that touches wandb's and WandbLogger's less public sides: they change with every minor version.
"""

import functools
import json
import logging
import math
import os
import re
import shlex
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, cast
from weakref import WeakSet

import pytorch_lightning as pl
import yaml
from lightning_fabric.utilities.rank_zero import rank_zero_only
from pytorch_lightning.loggers import Logger, WandbLogger
from pytorch_lightning.loggers.logger import rank_zero_experiment
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn
from typing_extensions import override

from lightning_app.common.errors import UserError, first_line, reason
from lightning_app.common.files import with_home, write_atomically, writing
from lightning_app.common.provenance import command_line, device_named, made_with
from lightning_app.common.seeds import spell_seed
from lightning_app.runs.configuration import changed, changes
from lightning_app.runs.folder import CONFIG, MEMBERS, Row, RunFolder
from lightning_app.runs.lock import take
from lightning_app.runs.members import describe_members

log = logging.getLogger(__name__)
_warn_once = functools.cache(log.warning)  # several runs of one service lose it together: one line says so

TAG_LENGTH = 64  # W&B's limit
CALLED = ("log_metrics", "log_hyperparams", "log_graph", "save", "finalize", "after_save_checkpoint")  # by Lightning
_warned: WeakSet[Logger] = WeakSet()
SEED = "seed"  # in the configuration of a W&B run that is about one seed


def make_best_effort(logger: Logger) -> None:
    """Let training continue if this logger fails in a call by Lightning; other loggers of its class are not affected."""
    for name in CALLED:
        setattr(logger, name, partial(_call, logger, name))  # can be pickled, unlike a closure


def _call(logger: Logger, name: str, *args: Any, **kwargs: Any) -> Any:
    with best_effort(logger):
        return getattr(type(logger), name)(logger, *args, **kwargs)


@contextmanager
def best_effort(logger: Logger) -> Iterator[None]:
    """Turn what a logger raises into a warning, once per logger. A UserError is raised on: its message says what to do."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # a logger may be of any program, and raises what it likes
        if logger not in _warned:
            _warned.add(logger)
            log.warning(
                f"{type(logger).__name__} failed ({reason(error)}): the run goes on, and this logger may lack numbers. The "
                "run folder has them all. With --strict the run stops instead."
            )


class RunLogger(Logger):
    """Writes the run folder. Put it first in the trainer's list of loggers: Lightning then uses the same folder for its files.

    Args:
        folder: folder of a new run, or of one that ``trainer.fit(..., ckpt_path=...)`` resumes.
        claimed: whether the caller has the folder's lock and writes down how the run is made (`fit`, `watch`).
    """

    def __init__(self, folder: Path | str, claimed: bool = False) -> None:
        super().__init__()
        self.folder = RunFolder(with_home(folder))
        self._claimed = claimed
        self._had_log = self.folder.has_log  # before this logger wrote anything
        self._hyperparameters: dict[str, Any] = {}
        self._trainer: pl.Trainer | None = None  # that logs here, once it has begun
        self._fitting: tuple[pl.Trainer, IO] | None = None  # with the folder's lock
        self._going_on = _ResumedRun(self.folder, self._write_down)

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

    log_dir = save_dir

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """What Lightning's own callbacks and foreign modules log: numbers of the whole run.

        Lightning counts the epoch under way; the log counts completed epochs, so what is logged during the first
        epoch belongs to epoch 1. Numbers without an epoch, as from `LearningRateMonitor`, belong to the present one.
        """
        epoch = self._completed(metrics.get("epoch"))
        self.folder.append(Row("", epoch, step or 0, name, value) for name, value in metrics.items() if name != "epoch")

    def _completed(self, logged: float | None) -> int:
        """Completed epochs, of which the one under way is one; ``logged``: by Lightning's count."""
        if self._trainer is None:
            return int(logged or 0) + 1
        progress: Any = self._trainer.fit_loop.epoch_progress.current
        if not progress.ready:  # nothing was trained here: a test of what lies in the folder
            return self.folder.last_epoch or 0
        return int(progress.completed if logged is None else logged) + (progress.ready > progress.completed)

    @override
    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Keep them for config.yaml, which is written when the run begins; the command `fit` writes all options there itself."""
        self._hyperparameters |= vars(params) if isinstance(params, Namespace) else params

    @override
    @rank_zero_only
    def log_graph(self, model: nn.Module, input_array: Tensor | None = None) -> None:
        """Write which nets there are into members.csv: Lightning gives every logger the module when a run starts.

        A module that does not say which of its nets is meant can still be trained; measures report it. If the code of its
        `members` fails, there is a warning.

        Raises:
            UserError: if the folder has the numbers of another run, or another process writes into it.
        """
        self._trainer = getattr(model, "_trainer", None)
        if not self._claimed:
            self._begin(self._trainer, model)
        try:
            rows = describe_members(cast(pl.LightningModule, model))  # Lightning gives no other
        except UserError:
            return
        except Exception as error:
            log.warning(
                f"{type(model).__name__}.members cannot be read ({reason(error)}): training goes on, and the "
                f"run has no {MEMBERS}."
            )
            return
        self.folder.save_members(rows)

    def _begin(self, trainer: pl.Trainer | None, model: nn.Module) -> None:
        """A run of a trainer of somebody's own: the folder is taken, and what is known of how it is made is written down."""
        if trainer is None or trainer.state.fn != TrainerFn.FITTING:
            return
        if self._had_log and trainer.ckpt_path is None and not trainer.global_step:
            raise UserError(
                f"{self.folder.path} has the numbers of a run already, and two would mix: name another folder, or resume that "
                "run with trainer.fit(..., ckpt_path=...)."
            )
        with writing(self.folder.path):
            self.folder.path.mkdir(parents=True, exist_ok=True)
            self._fitting = trainer, take(self.folder.path)
        self.folder.begin()
        if trainer.ckpt_path is None and not trainer.global_step:
            self._write_down(trainer, model)
        else:
            cast(Any, trainer).callbacks.append(self._going_on)

    def _write_down(self, trainer: pl.Trainer, model: nn.Module) -> None:
        self.folder.reopen()
        if self._hyperparameters:
            self._save_hyperparameters()
        self.folder.add_made(made_by(trainer, model, command_line()))

    def _save_hyperparameters(self) -> None:
        """Write them into config.yaml, if they are plain values. An earlier one stays, and a warning says what differs."""
        try:
            plain = json.loads(json.dumps({"hyperparameters": self._hyperparameters}, default=str))
            earlier = self.folder.config()
        except (TypeError, ValueError) as error:
            log.warning(f"the hyperparameters cannot be kept in {CONFIG} ({reason(error)}): training goes on.")
            return
        if not earlier:
            write_atomically(self.folder.path / CONFIG, yaml.safe_dump(plain, sort_keys=False).encode())
            return
        if said := changes(changed(earlier, plain)):
            log.warning(said)

    @override
    @rank_zero_only
    def finalize(self, status: str) -> None:
        if self._fitting is not None:
            trainer, lock = self._fitting
            self._fitting, self._had_log = None, self.folder.has_log  # a trainer that goes on has made steps already
            if self._going_on in (callbacks := cast(Any, trainer).callbacks):
                callbacks.remove(self._going_on)
            if status == "success" and self.folder.finished is None and self.folder.made():
                self.folder.finish(whole_epochs(trainer))
            lock.close()


class _ResumedRun(pl.Callback):
    """A run that goes on keeps what it has until it trains: its checkpoint may not fit, and nothing may be left to train."""

    def __init__(self, folder: RunFolder, write_down: Callable[[pl.Trainer, nn.Module], None]) -> None:
        self._folder, self._write_down = folder, write_down

    @override
    @rank_zero_only
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # What an earlier training measured later than this one begins. Lightning logs by batches that made a step, of which there
        # are more than optimizer steps where a module makes its own.
        batches = trainer.fit_loop.epoch_loop._batches_that_stepped
        self._folder.drop_after(max(trainer.global_step, batches))
        self._write_down(trainer, pl_module)


def whole_epochs(trainer: pl.Trainer) -> int:
    """Completed epochs: Lightning counts one in whose middle training has just ended."""
    counts: Any = trainer.fit_loop.epoch_progress.current
    ended_within = counts.started == counts.processed and not trainer.is_last_batch
    return max(0, counts.processed - ended_within)


def made_by(trainer: pl.Trainer, module: Any, command: str) -> dict[str, Any]:
    """What trains, on which machine and data, from which epoch on."""
    fingerprint = getattr(getattr(trainer, "datamodule", None), "fingerprint", None)
    device = trainer.strategy.root_device
    return made_with() | {
        "command": command,
        "precision": str(trainer.precision),
        "float32": getattr(module, "float32", None) if device.type == "cuda" else "fp32",
        "processes": trainer.world_size,
        **device_named(device),
        "after_epoch": trainer.current_epoch,
        "data": fingerprint() if fingerprint else None,  # of all that the source gave
    }


class AutoWandbLogger(WandbLogger):
    """W&B, online when logged in and reachable, otherwise offline with one line that says how to upload later.

    Directory, ids, names and group come from the run folder, so a resumed run goes on in the same W&B runs.

    Args:
        project: W&B project.
        mode: "auto" decides as above (WANDB_MODE takes precedence); or "online", "offline", "disabled".
        entity: user or team; None is the account's default.
        tags: tags of the run, in addition to those from its configuration (see `tags_of`) and WANDB_TAGS.
        run_per: "job": one W&B run, with the seeds' numbers under ``seed/03/...`` and their mean, sd, min and max. "seed": one
            W&B run a seed, all in the job's group, each like the run of a job with this seed alone: its keys have no seed, its
            configuration has ``seed``. Numbers of the whole job (``lr``, ``time/...``, ``cost/...``, those of Lightning's
            callbacks) are in each of them; checkpoints and system metrics are in the first.
        log_model: upload the checkpoints of Lightning's `ModelCheckpoint` callbacks as artifacts (SkipScope's own stay here).
        timeout: seconds to wait for a connection before the run continues offline.
        finish_timeout: seconds to wait for uploads at the end; the rest stays in the run folder. Use more if `log_model`
            uploads large checkpoints.
    """

    def __init__(
        self,
        project: str = "skipscope",
        mode: Literal["auto", "online", "offline", "disabled"] = "auto",
        entity: str | None = None,
        tags: list[str] | None = None,
        run_per: Literal["job", "seed"] = "job",
        log_model: bool = False,
        timeout: float = 20.0,
        finish_timeout: float = 60.0,
    ) -> None:
        if min(timeout, finish_timeout) <= 0:
            raise UserError(
                f"AutoWandbLogger: expected timeout and finish_timeout above 0 seconds, got {timeout} and {finish_timeout}: "
                "without a limit, a job would wait for a lost server until it is killed."
            )
        super().__init__(project=project, log_model=log_model, resume="allow", entity=entity, tags=tags)
        self._tags = tags
        self._wandb_init.pop("anonymous", None)  # wandb warns about it, even when it is None
        self._mode = mode
        self._timeout = timeout
        self._finish_timeout = finish_timeout
        self._run_per = run_per
        self._plans: dict[int | None, dict[str, Any]] = {None: {}}  # by seed (None: the job), what wandb.init gets
        self._runs: dict[int | None, Any] = {}  # as started, the first one is `experiment`

    @rank_zero_only
    def attach(
        self, folder: RunFolder, seeds: Sequence[int] = (), tags: Iterable[str] = (), job_type: str = "fit"
    ) -> None:
        """Take directory, ids, names and group from the run folder. Call it before the first use of `experiment`.

        Args:
            folder: folder of the run.
            seeds: seeds of the nets that the run trains.
            tags: words that describe the run; `tags_of` its configuration.
            job_type: the command, as W&B's job type.

        Raises:
            UserError: for tags that W&B refuses, or for ``run_per: seed`` in a process that has a W&B run already.
        """
        # Absolute: W&B writes from a service that may be another process's, with that process's working directory.
        self._save_dir, self._name, self._id = str(folder.path.absolute()), folder.label, folder.identifier()
        own = [*(self._tags or []), *filter(None, os.environ.get("WANDB_TAGS", "").split(","))]
        if wrong := [tag for tag in own if not 1 <= len(tag) <= TAG_LENGTH]:
            raise UserError(f"W&B: expected tags (and WANDB_TAGS) of 1 to {TAG_LENGTH} characters each, got {wrong}.")
        self._wandb_init |= {
            "dir": self._save_dir,
            "group": folder.path.parent.name,
            "job_type": os.environ.get("WANDB_JOB_TYPE") or job_type,
            "tags": list(dict.fromkeys([*own, *tags])),
        }
        if self._run_per == "seed" and len(seeds) > 1:
            self._plans = self._plan_seeds(seeds)
        else:
            config = {"config": {SEED: seeds[0]}} if len(seeds) == 1 else {}
            self._plans = {None: {"name": self._name, "id": self._id, **config}}

    def _plan_seeds(self, seeds: Sequence[int]) -> dict[int | None, dict[str, Any]]:
        import wandb

        if wandb.run is not None or "WANDB_SWEEP_ID" in os.environ:
            raise UserError(
                f"run_per: seed starts a W&B run for each of the {len(seeds)} seeds, but this process already has one, of a "
                "sweep or your own: set the logger's run_per to job, or give each process one seed."
            )
        plans: dict[int | None, dict[str, Any]] = {}
        for seed in seeds:
            label = f"seed{spell_seed(seed, seeds)}"
            name, id = f"{self._name}-{label}", f"{self._id}-{label}"
            plans[seed] = {"name": name, "id": id, "config": {SEED: seed}, "reinit": "create_new"}
        return plans

    @override
    def __getstate__(self) -> dict[str, Any]:
        """For a spawned process, which attaches to the job's run. W&B hands over one run, not several."""
        if len(self._plans) > 1:
            raise UserError(
                "run_per: seed works only in the process that started the W&B runs, not in spawned ones: set trainer.strategy "
                "to ddp or seeds, which do not spawn, or the logger's run_per to job."
            )
        return {**super().__getstate__(), "_runs": {}}

    @property
    @override
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The first W&B run, started with all others at the first use; says in one line where they go."""
        if self._experiment is None:
            self._connect()
        return self._experiment

    @property
    def runs(self) -> dict[int | None, Any]:
        """The W&B runs by seed; None is the job's. Empty on other ranks than zero."""
        _ = self.experiment
        return self._runs

    def _connect(self) -> None:
        """Start the runs as asked, else offline, else not at all: W&B is a view of the run and never stops it."""
        import wandb

        asked = os.environ.get("WANDB_MODE") or (self._mode if self._mode != "auto" else self._reachable_mode())
        for mode in dict.fromkeys((asked, "offline", "disabled")):
            try:
                for seed in self._plans:
                    self._runs[seed] = self._start(mode, seed)
                break
            except Exception as error:  # wandb raises much more than its own wandb.errors.Error
                why = first_line(error)
                if self._mode == "online":
                    raise UserError(
                        f"W&B did not start {mode} ({why}): log in, check the connection, or set the logger's mode to auto."
                    ) from error
                log.warning("W&B did not start %s (%s).", mode, why)
                self._runs.clear()
                wandb.teardown()  # its service would hold the runs' ids
                refused = error
        else:  # even "disabled" has no settings
            wrong = " ".join(str(refused).split())
            raise UserError(
                f"W&B rejects settings in this environment: {wrong}. Correct or unset the variables that begin with WANDB_, or "
                "train without W&B: --trainer.logger false."
            ) from refused
        first, *others = self._runs.values()
        self._experiment = first
        if mode in ("offline", "dryrun"):
            folder = _short(Path(first.dir).parent)
            target = f"{shlex.quote(str(folder.parent))}/offline-run-*" if others else shlex.quote(str(folder))
            which = "these runs" if others else "this run"
            print(f"W&B is offline; upload {which} later with: wandb sync {target}", flush=True)
        elif mode == "online":
            more = f" and {len(others)} more, one per seed" if others else ""
            print(f"W&B: {first.url}{more} (uploads nothing with WANDB_MODE=offline)", flush=True)

    def _start(self, mode: str, seed: int | None) -> Any:
        """Start the run of one seed (None: of the job) as WandbLogger does."""
        import wandb

        once: dict[str, Any] = {"console": "off", "x_disable_stats": True} if self._runs else {}  # output, load
        limits: dict[str, Any] = {"init_timeout": self._timeout, "finish_timeout": self._finish_timeout}
        limits["x_transaction_log_flush_interval"] = 1.0  # seconds, else 15: what a SIGKILL takes from W&B
        settings = wandb.Settings(silent=True, finish_timeout_raises=True, **limits, **once)
        self._wandb_init |= {"mode": mode, "settings": settings, **self._plans[seed]}
        self._experiment = None
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

        # Its argument `timeout` is for somebody who types a key; the server has 10 s, whatever that says.
        os.environ.setdefault("WANDB_HTTP_TIMEOUT", f"{math.ceil(self._timeout)}")
        try:
            logged_in = wandb.login(prompt=False)
        except Exception as error:  # any failure to reach or to be let in means the same: record offline
            log.warning("W&B login failed (%s).", first_line(error))
            logged_in = False
        return "online" if logged_in else "offline"

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """What Lightning's own callbacks and foreign modules log: of the whole job, so into every run."""
        for run in self.runs.values():
            _log(run, {**metrics, **({} if step is None else {"trainer/global_step": step})})

    @override
    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace) -> None:
        """Into every run's configuration; a run of one seed keeps its ``seed``."""
        super().log_hyperparams(params)
        known = {name: value for name, value in dict(self.experiment.config).items() if name != SEED}
        for run in [*self.runs.values()][1:]:
            run.config.update(known, allow_val_change=True)

    @override
    def finalize(self, status: str) -> None:
        """Wait for what is still to be uploaded, for all runs together at most `finish_timeout`."""
        super().finalize(status)
        if not self._runs:
            return
        with ThreadPoolExecutor(len(self._runs)) as threads:
            errors = [*threads.map(partial(_finish, exit_code=0 if status == "success" else 1), self._runs.values())]
        lost = [run for run, error in zip(self._runs.values(), errors) if isinstance(error, TimeoutError)]
        if lost:
            log.warning(
                "W&B was lost: it did not receive all of %s within %g s. The run folder has everything; upload the rest later "
                "with: wandb sync --include-online %s",  # without it, sync skips what began online
                "this run" if len(lost) == 1 else f"{len(lost)} runs",
                self._finish_timeout,
                " ".join(shlex.quote(str(_short(Path(run.dir).parent))) for run in lost),
            )
        for error in errors:
            if error and not isinstance(error, TimeoutError):
                _warn_once(f"W&B did not finish ({error}).")
        self._experiment, self._runs = None, {}


def _finish(run: Any, exit_code: int) -> Exception | None:
    """What stopped it: a TimeoutError, or that a scheduler's SIGTERM reached W&B's service too and ended it before us."""
    try:
        run.finish(exit_code=exit_code)
    except Exception as error:
        return error
    return None


def _short(path: Path) -> Path:
    """Without the working directory, when it is below that."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def wandb_runs(logger: WandbLogger) -> dict[int | None, Any]:
    """W&B runs of any WandbLogger by the seed they are about; None: about the whole job. Rank zero only."""
    return logger.runs if isinstance(logger, AutoWandbLogger) else {None: logger.experiment}


def log_to_wandb(run: Any, values: Mapping[str, Any], epoch: float, step: int) -> None:
    """One row of a W&B run's history, drawn over the epoch. Rank zero only."""
    axes = sorted({re.sub("/.*", "/*", name) for name in values})
    _log(run, {**values, "epoch": epoch, "trainer/global_step": step}, axes)


def _log(run: Any, row: Mapping[str, Any], over_epochs: Iterable[str] = ()) -> None:
    try:
        for names in over_epochs:
            run.define_metric(names, step_metric="epoch")
        run.log(dict(row))
    except Exception as error:  # its service is gone, killed together with the job's processes
        _warn_once(f"W&B did not accept the numbers of epoch {row.get('epoch')} ({error}).")


def tags_of(config: Mapping[str, Any]) -> list[str]:
    """What to look for a run by: data set, networks, depths, and plain, residual or twin.

    >>> tags_of({"data": {"class_path": "lightning_app.datamodules.CIFAR10"},
    ...          "model": {"net": {"class_path": "SimplifiedNet", "init_args": {"depth": 20, "residual": True}}}})
    ['CIFAR10', 'SimplifiedNet', 'depth 20', 'residual']
    """
    model = config["model"]
    arms = model.get("arms") or {"net": {"net": model["net"]}}
    nets = [arm["net"] for arm in arms.values() if arm.get("net")]
    paths = [  # of a class with its arguments, or of a function that makes a net
        spec["class_path"] if isinstance(spec, Mapping) else getattr(spec, "__name__", str(spec))
        for spec in (config["data"], *nets)
    ]
    arguments = [net.get("init_args") or {} for net in nets if isinstance(net, Mapping)]
    depths = [f"depth {given['depth']}" for given in arguments if "depth" in given]
    kinds = ["residual" if given["residual"] else "plain" for given in arguments if "residual" in given]
    twins = ["twin" for arm in arms.values() if arm.get("twin_of")]
    classes = [path.split(".")[-1] for path in paths]
    return [tag[:TAG_LENGTH] for tag in dict.fromkeys([*classes, *depths, *kinds, *twins])]
