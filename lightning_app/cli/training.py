"""LightningCLI as SkipScope runs it: base.yaml under everything, one folder a run, the command line over checkpoints."""

import logging
import os
import re
import sys
import warnings
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
import torch
import yaml
from jsonargparse import Namespace
from pytorch_lightning.callbacks import ProgressBar
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.utilities import rank_zero_only
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from typing_extensions import override

from callbacks import EpochBar, ProgressLines
from callbacks.log import LoggingCallback
from lightning_app.cli import FOLDER_VARIABLE
from lightning_app.cli.console import is_terminal, table
from lightning_app.cli.parser import FROM_RUN, HelpFormatter, Parser, known_classes, prescan, resolve_short_names
from lightning_app.cli.run_folders import (
    AS_PARSED,
    Ours,
    RunFolders,
    SaveRunConfig,
    check_names,
    claim_measured,
    discard,
    discard_if_unused,
    is_unused,
)
from lightning_app.cli.safety import check_allowed
from lightning_app.cli.trainer import Trainer, print_measured
from lightning_app.common.errors import DivergedError, MachineError, UserError, at_least, first_line
from lightning_app.common.files import with_home, writing
from lightning_app.common.numbers import plural
from lightning_app.common.provenance import configs
from lightning_app.common.seeds import ALONE, spell_seeds
from lightning_app.modules import ImageClassifier
from lightning_app.runs import RunFolder
from lightning_app.runs.checkpoints import AtomicCheckpointIO, SaveCheckpoint, Stopper
from lightning_app.runs.folder import CHECKPOINTS, CONFIG, LAST, LOG
from lightning_app.runs.lock import take
from lightning_app.runs.loggers import AutoWandbLogger, RunLogger, make_best_effort, tags_of, whole_epochs

ranks: Any = rank_zero_only  # its attribute `rank` is missing in its types
say = rank_zero_only(print)  # of several processes one says it
NAMED_TWICE = re.compile(r"more than one stateful callback of type `(\w+)`")  # Lightning's words
UNMONITORED = "Early stopping conditioned on metric"  # Lightning's words, which go on with the metrics that there are
TOO_RARELY = "`val_check_interval`"  # Lightning's words
PAST_THE_LIMIT = "You restored a checkpoint with current_epoch"  # Lightning's words
UNFIT = {  # Lightning's callbacks, and what to do instead
    "LearningRateFinder": "train one arm per learning rate, or several runs, and compare them.",
    "BatchSizeFinder": "set data.batch_size. Measures find by themselves how many samples fit into memory.",
    "StochasticWeightAveraging": "set model.ema_decay, which averages the weights of each net.",
    "WeightAveraging": "set model.ema_decay, which averages the weights of each net.",
    "EMAWeightAveraging": "set model.ema_decay, which averages the weights of each net.",
}
PATHS = ("run.root", "data.init_args.root", "ckpt_path", "weights", "out")  # empty, these would be the working folder
OF_NO_BATCH = ("max_epochs", "max_steps", "limit_train_batches")  # with 0 nothing is trained
OF_MEASURING = ("cost/", "failed/", "time/")  # beginnings of numbers that are no results
STRICT = "Stop if a measure or a logger fails, instead of warning and going on without it."
HELP = {  # of Lightning's options that do something else here; hidden ones would be missing in a run's configuration
    "ckpt_path": "a checkpoint file, or `last`: last.ckpt of the newest run in run.root/run.group/run.name. Without it the nets "
    "are untrained, except with `measure --weights`.",
    "trainer.barebones": "not supported.",
    "trainer.limit_test_batches": "how much of the test data `test` evaluates on, per device: a fraction or a number of batches.",
    "verbose": "no effect: the results are always printed.",
    "weights_only": "no effect: only tensors and plain values are ever loaded from a checkpoint.",
}
HELP_OF_LOOKING = {  # of commands that train nothing
    "run.group": "group of the run that `--ckpt_path last` takes.",
    "run.name": "name of the run that `--ckpt_path last` takes.",
}


def run_training(argv: list[str], answer: dict[str, Any] | None = None) -> None:
    """Parse, build, and run fit, validate, test or measure; what comes out is put into ``answer``."""
    _quiet()
    resolve_short_names()
    words, from_run = prescan(argv)
    asked = any(word.partition("=")[0].endswith(("-help", ".help")) for word in words)
    if asked:
        known_classes()  # a help text lists the classes that are imported
    if ranks.rank == 0:
        os.environ.pop(FOLDER_VARIABLE, None)
    of_parsers: dict[str, Any] = {"formatter_class": HelpFormatter}
    for command in TrainingCLI.subcommands():
        under = ["base.yaml", *(["measure.yaml"] if command == "measure" else [])]  # all other configurations
        of_parsers[command] = {"default_config_files": [str(configs() / name) for name in under]}
        of_parsers[command] |= _above_all_options(command) if asked else {}
    with ExitStack() as held:  # the run folder's lock, until what is unused of the folder is discarded
        try:
            TrainingCLI(
                ImageClassifier,
                pl.LightningDataModule,
                subclass_mode_data=True,
                args=words,
                from_run=from_run,
                answer={} if answer is None else answer,
                held=held,
                parser_class=Parser,
                parser_kwargs=of_parsers,
                trainer_class=Trainer,
                save_config_callback=SaveRunConfig,
                auto_configure_optimizers=False,  # else --optimizer would replace what the module makes and checks
            )
        except RuntimeError as error:
            if str(error).startswith(UNMONITORED):
                raise UserError(first_line(error)) from error
            raise
        finally:
            if ranks.rank == 0 and FOLDER_VARIABLE in os.environ:
                discard_if_unused(RunFolder(Path(os.environ[FOLDER_VARIABLE])))


def _above_all_options(command: str) -> dict[str, str]:
    """Examples and the options that matter, as parts of a parser."""
    from lightning_app.cli.help import brief

    usage, _, top = brief(command).partition("\n\n")
    return {"usage": usage.removeprefix("usage: "), "description": top}


class TrainingCLI(LightningCLI):
    """fit, validate, test, and measure."""

    trainer: Trainer
    folder: RunFolder  # of a fit or a measurement; the other commands write nothing

    def __init__(self, *args: Any, answer: dict[str, Any], held: ExitStack, from_run: bool, **kwargs: Any) -> None:
        self.answer = answer  # what came out, for --json
        self._held = held  # until the command ends
        self.from_run = from_run  # are net and data those of a run folder, whose files may be a stranger's?
        self.command, *self._words = kwargs["args"]
        self._ours: Ours | None = None  # of a job that SLURM has started again: which runs can be its own
        self._stopper = Stopper()
        super().__init__(*args, **kwargs)

    @staticmethod
    @override
    def subcommands() -> dict[str, set[str]]:
        theirs = LightningCLI.subcommands()
        return {name: theirs[name] for name in ("fit", "validate", "test")} | {"measure": {"model", "datamodule"}}

    @override
    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        if subcommand != self.command:
            return Parser()  # finding all options of a command takes a quarter of a second
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        # The others know it because a run's own configuration has it.
        parser.add_argument("--strict", action="store_true", help=STRICT)
        of_looking = {} if subcommand == "fit" else HELP_OF_LOOKING
        for action in parser._actions:
            action.help = of_looking.get(action.dest, HELP.get(action.dest, action.help))
        # Lightning's docstrings begin with lines that end within a sentence.
        for group in (parser.groups or {}).values():
            group.title = (group.title or "").partition(". ")[0]
        return parser

    @override
    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """No --seed_everything: nothing here depends on the global random state, a run's seeds are `model.seeds`."""

    @override
    def _set_seed(self) -> None:
        """See `add_default_arguments_to_parser`."""

    @override
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_class_arguments(RunFolders, "run")
        parser.add_lightning_class_args(SaveCheckpoint, "save_checkpoint")

    @override
    def _parse_ckpt_path(self) -> None:
        """Nothing: Lightning would let the checkpoint's hyperparameters override the command line, silently."""

    @override
    def _dump_config(self) -> None:
        """Of net and data alone: all that Lightning reads of it, as hyperparameters of a module that keeps its own."""
        if not hasattr(self, "config_dump"):
            parts = Namespace(**{key: self._get(self.config, key) for key in ("model", "data")})
            text = self._parser(self.subcommand).dump(parts, skip_link_targets=False, **AS_PARSED)
            self.config_dump = yaml.safe_load(text)

    @override
    def before_instantiate_classes(self) -> None:
        for option in PATHS:
            if self._get(self.config, option) == "":
                raise UserError(f"{option}: expected a path, got an empty text: is a shell variable unset?")
        path = self._resolve_checkpoint()
        _check_trainer(self._get(self.config, "trainer"), self.subcommand)
        if self.subcommand == "measure":
            check_names(self._words, self._get(self.config, "out"), path)
        self._leave_out_what_is_missing()
        if self.from_run:
            check_allowed({key: self._get(self.config, key) for key in FROM_RUN})
        if self.subcommand in ("fit", "measure"):
            self.folder = self._choose_folder()
            cast(Parser, self.parser).folder = self.folder.path

    def _resolve_checkpoint(self) -> str | None:
        """``--ckpt_path``: `last` also for a job that SLURM has started again, a file with its home folder written out."""
        path = self._get(self.config, "ckpt_path")
        again = int(os.environ.get("SLURM_RESTART_COUNT") or 0) > 0
        of_sweep = "WANDB_SWEEP_ID" in os.environ  # where the newest run is another trial
        if self.subcommand == "fit" and path in (None, "last") and again and not of_sweep:
            self._ours = "first" if path == "last" else "only"  # that this job began
        if self._ours == "only":
            path = self.config[self.subcommand].ckpt_path = "last"
            say("SLURM has started this job again: it resumes its run, if it has saved a checkpoint.")
        if path in (None, "last"):
            return path
        path = self.config[self.subcommand].ckpt_path = str(with_home(path))
        if not Path(path).is_file():
            below = Path(path, CHECKPOINTS, LAST)
            hint = f" Did you mean {below}?" if below.is_file() else ""
            raise UserError(f"--ckpt_path: expected 'last' or a checkpoint file, found no file {path}.{hint}")
        return path

    def _leave_out_what_is_missing(self) -> None:
        """W&B is a view of a run and in base.yaml: where it is not installed, the run goes on without it and says so."""
        trainer = self._get(self.config, "trainer")
        asked = _as_list(trainer.get("logger"))
        ours = [one for one in asked if getattr(one, "class_path", "").endswith(f".{AutoWandbLogger.__name__}")]
        if not ours or find_spec("wandb") is not None:
            return
        if any(one.init_args.mode == "online" for one in ours):
            raise UserError(
                "the W&B logger's mode is online, but W&B is not installed: run pip install wandb, or set mode to auto."
            )
        trainer["logger"] = [one for one in asked if one not in ours]
        if self.subcommand in ("fit", "measure"):
            say("W&B is not installed: the run folder has everything, nothing is uploaded.")

    @override
    def instantiate_classes(self) -> None:
        """Report a class that refuses its arguments as a user's mistake, whatever it raised."""
        try:
            super().instantiate_classes()
        except (UserError, MisconfigurationException):
            raise
        except (ValueError, TypeError, AssertionError, OSError, ImportError) as error:
            if "Does not validate against any" in str(error):  # jsonargparse wraps what a class said
                self.parser.error(str(error), error)
            raise UserError(f"this configuration cannot be built: {error}") from error
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except RuntimeError as error:
            if twice := NAMED_TWICE.search(str(error)):
                raise UserError(
                    f"trainer.callbacks has {twice[1]} twice, and a checkpoint could not tell their states apart: "
                    "`callbacks+:` adds to the list of base.yaml. Give one of them an argument that makes it different, if "
                    "it has one (BnLambda: norm), or write the whole list in `callbacks:`, which replaces that of base.yaml."
                ) from error
            raise UserError(f"this configuration cannot be built: {first_line(error)}") from error

    @override
    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Add what every run has: its folder's logger first, so that all of Lightning's files land there."""
        trainer = self._get(self.config_init, "trainer")
        plugins = [*_as_list(trainer.get("plugins")), AtomicCheckpointIO()]
        for callback in _as_list(trainer.get("callbacks")):
            if why := UNFIT.get(type(callback).__name__):
                raise UserError(f"{type(callback).__name__} does not work where a run may have several nets: {why}")
        kwargs["accelerator"] = _accelerator(trainer.get("accelerator", "auto"))
        kwargs["enable_progress_bar"] = is_terminal(sys.stdout) and trainer.get("enable_progress_bar") is not False
        if self.subcommand == "measure":
            kwargs["inference_mode"] = False  # measures differentiate
        elif self.subcommand != "fit":
            return super().instantiate_trainer(logger=False, callbacks=_progress(kwargs, []), plugins=plugins, **kwargs)
        saving = self._get(self.config_init, "save_checkpoint")
        saving.folder = self.folder.checkpoints if trainer.get("enable_checkpointing") is not False else None
        loggers = [logger for logger in _as_list(trainer.get("logger")) if not isinstance(logger, bool)]
        for logger in loggers:
            if isinstance(logger, AutoWandbLogger):
                seeds = dict.fromkeys(member.seed for member in self.model.members)
                logger.attach(
                    self.folder, tuple(seeds), tags_of(self.config[self.subcommand].as_dict()), self.subcommand
                )
        callbacks = _as_list(trainer.get("callbacks"))
        strict = self._get(self.config_init, "strict")
        for callback in callbacks:
            if isinstance(callback, LoggingCallback):
                callback.strict |= strict
        for logger in () if strict else loggers:
            make_best_effort(logger)
        return super().instantiate_trainer(
            logger=[RunLogger(self.folder.path, claimed=True), *loggers],
            plugins=plugins,
            enable_checkpointing=True,
            default_root_dir=str(self.folder.path),
            callbacks=[self._stopper, *_progress(kwargs, callbacks)],
            **kwargs,
        )

    def _choose_folder(self) -> RunFolder:
        """Once a run, by rank zero; the ranks that it launches find its choice in the environment.

        Ranks that a cluster launched never write: any path will do for them.
        """
        folders = RunFolders(**self._get(self.config, "run").as_dict())
        asked = self._get(self.config, "ckpt_path")
        if ranks.rank != 0:
            if FOLDER_VARIABLE in os.environ:
                return RunFolder(Path(os.environ[FOLDER_VARIABLE]))
            found = folders.last(self._is_same, self._ours) if asked == "last" and self.subcommand == "fit" else None
            return found or folders.free()
        if self.subcommand == "measure":
            out, model = self._get(self.config, "out"), self._get(self.config, "model")
            folder = claim_measured(out, folders, folders.checkpoint(asked), model)
        else:
            folder = folders.find(asked, self._is_same, self._ours)
        with writing(folder.path):
            self._held.enter_context(take(folder.path))
            folder.begin()
        os.environ[FOLDER_VARIABLE] = str(folder.path)
        return folder

    def _is_same(self, folder: RunFolder) -> bool:
        """Was this folder's run started with the present configuration, or killed before it wrote down its own?"""
        if not (folder.path / CONFIG).exists():  # another job may have claimed it just now
            return self._ours != "only" and not (folder.path / LOG).exists()
        own = yaml.safe_load(self._parser(self.subcommand).dump(self.config[self.subcommand], **AS_PARSED))
        try:
            stored = folder.config()
        except UserError:  # somebody has edited it
            return False
        return {**stored, "ckpt_path": None} == {**own, "ckpt_path": None}

    @override
    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        kwargs = super()._prepare_subcommand_kwargs(subcommand)
        if "verbose" in kwargs:
            kwargs["verbose"] = False  # Lightning's table rounds to float32: see `after_validate`
        asked, run = kwargs.get("ckpt_path"), self._get(self.config_init, "run")
        if asked == "last" and subcommand == "fit":
            kwargs["ckpt_path"] = self._last_of_folder()
        else:
            kwargs["ckpt_path"] = run.checkpoint(asked)
            if asked == "last" and kwargs["ckpt_path"] is None:
                raise UserError(
                    f"--ckpt_path last: expected a run with a checkpoint, found none at {run.parent / run.name}. Train it with "
                    "`fit` first, or name a file."
                )
        if asked is None and subcommand in ("validate", "test"):
            say("no --ckpt_path: the nets have their initial weights, they are not trained.")
        return kwargs

    def _last_of_folder(self) -> str | None:
        """Checkpoint from which the run of the chosen folder goes on. Before its first one: the one it began from, if any."""
        if (last := self.folder.checkpoints / LAST).exists():
            return str(last)
        # Earlier ones, too: a resume may have been killed as early.
        configs = (self.folder.config(), *reversed(self.folder.earlier_configs()))
        asked = (one.get("ckpt_path") for one in configs)
        others = (path for path in asked if path is None or (path != "last" and Path(path).resolve() != last.resolve()))
        began = next(others, None)
        say(f"--ckpt_path last: no checkpoint yet, starting from {began or 'the beginning'}.")
        return began

    @override
    def _run_subcommand(self, subcommand: str) -> None:
        """Keep in the run's folder why training stopped by itself: a diverged loss is raised before it could be logged."""
        try:
            super()._run_subcommand(subcommand)
        except DivergedError as error:
            # The rank whose net it was. One that a cluster launched does not know the folder.
            knows = ranks.rank == 0 or FOLDER_VARIABLE in os.environ
            if subcommand == "fit" and knows and not self.trainer.fast_dev_run:
                with suppress(MachineError):  # a full disk is not why it stops
                    self.folder.add_divergence(self.trainer.current_epoch + 1, str(error))
            raise
        except ValueError as error:
            if not str(error).strip().startswith(TOO_RARELY):
                raise
            raise UserError(" ".join(str(error).split())) from error
        except MisconfigurationException as error:
            if not str(error).startswith(PAST_THE_LIMIT):
                raise
            raise UserError(
                "nothing is left to train: the checkpoint is from a later epoch than trainer.max_epochs, "
                f"{self.trainer.max_epochs}. Raise trainer.max_epochs to continue."
            ) from error

    def before_fit(self) -> None:
        """What will be done, and where it will be written. W&B says where it uploads, `ProgressLines` how long it takes."""
        members, trainer = self.model.members, self.trainer
        if ranks.rank != 0:
            return
        arms = dict.fromkeys(one.arm if one.arm != ALONE else type(one.net).__name__ for one in members)
        seeds = [*dict.fromkeys(one.seed for one in members)]
        which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {spell_seeds(seeds)}, {len(members)} nets"
        limit = trainer.max_epochs
        epochs = "until a limit is reached" if limit is None or limit < 0 else plural(limit, "epoch")
        device = trainer.strategy.root_device.type + (f" x {trainer.world_size}" if trainer.world_size > 1 else "")
        if device == "cpu" and torch.backends.mps.is_available():
            device = "cpu (Apple's GPU has no float64)"
        data, precision = type(self.datamodule).__name__, f"precision {trainer.precision}"
        if trainer.strategy.root_device.type == "cuda":
            precision += f", float32 convolutions in {self.model.float32}"
        print(f"training: {', '.join(arms)} ({which}) on {data}, {epochs}, {device}, {precision}")
        print(f"run folder: {self.folder.path}", flush=True)

    def after_validate(self) -> None:
        """Print risks and errors."""
        if self.trainer.is_global_zero:
            metrics = self.model.last_metrics  # computed while the processes were together
            if not metrics:
                raise UserError(
                    f"{self.subcommand} expected data to evaluate on, got none from {type(self.datamodule).__name__}."
                )
            self.answer |= {"nets": metrics}
            names = [f"{split}/{key}" for split in self.model.plan.eval_splits for key in ("risk", "error")]
            shown = [name for name in names if all(name in numbers for numbers in metrics.values())]
            rows = [[member, *(f"{numbers[name]:.6g}" for name in shown)] for member, numbers in metrics.items()]
            table("", ["net", *shown], rows)

    after_test = after_validate

    def after_measure(self) -> None:
        """The numbers, what could not be measured, and where the page is."""
        if self.trainer.is_global_zero:
            self._check_measured()
            self.folder.finish(self.trainer.current_epoch)
            print_measured(self.folder)
            self._write_page()

    def _check_measured(self) -> None:
        """Raise what could not be measured where that is everything: there is nothing to show, and nothing to keep."""
        names = self.folder.log()["name"] if self.folder.has_log else []
        if any(not name.startswith(OF_MEASURING) for name in names):
            return
        why = self.folder.notes() or ["trainer.callbacks has no measure."]
        discard(self.folder)
        raise UserError(f"nothing could be measured: {'; '.join(why)}")

    def after_fit(self) -> None:
        """Say what came out and where it is."""
        if not self.trainer.is_global_zero:
            return
        nothing: dict[str, Any] = {"run": None, "nets": {}, "notes": [], "report": None}
        if self.trainer.fast_dev_run:
            self.answer |= nothing
            return
        began = (self.folder.path / CONFIG).exists() and self.folder.finished is None and self._is_same(self.folder)
        if self._stopper.trained or began:  # else nothing was left to train, of a run that stays what it is
            self.folder.finish(whole_epochs(self.trainer))
        if is_unused(self.folder):
            why = [f"trainer.{name} is 0" for name in OF_NO_BATCH if getattr(self.trainer, name) == 0]
            what = "logged" if self._stopper.trained else "trained"
            print("; ".join([f"nothing was {what}, the run folder is removed", *why]))
            self.answer |= nothing
            return
        if not (self.folder.path / LOG).exists():
            print(f"run: {self.folder.path} (no callback logged anything, so there is no report)")
            self.answer |= nothing | {"run": self.folder.path, "notes": self.folder.notes()}
            return
        from lightning_app.report import findings, summary

        table(*summary(self.folder))
        for sentence in findings(self.folder):
            print(sentence)
        self._write_page()

    def _write_page(self) -> None:
        """Of a run that is finished: what ends the program here costs no more than the page."""
        from lightning_app.report import write_report

        try:
            page = write_report([self.folder])
        except (KeyboardInterrupt, SystemExit, MachineError):
            path = self.folder.path
            print(f"{path} is finished and saved, except for its page: `report {path}` makes it", file=sys.stderr)
            raise
        print(f"report: {page}")
        self.answer |= _numbers(self.folder) | {"report": page}


def _check_trainer(trainer: Namespace, command: str | None) -> None:
    """UserError: for options of Lightning's trainer that do not work here, or contradict each other."""
    for option in ("gradient_clip_val", "gradient_clip_algorithm"):
        if trainer[option] is not None:
            raise UserError(
                f"trainer.{option} is for clipping all nets of a run as one: set model.{option}, which clips each net by itself."
            )
    if trainer["accumulate_grad_batches"] not in (None, 1):
        raise UserError(
            "trainer.accumulate_grad_batches is not supported, as each net of a run is stepped by itself: set a larger "
            "data.batch_size."
        )
    if trainer["default_root_dir"] is not None:
        raise UserError(
            "trainer.default_root_dir is not used: set run.root, the folder of all runs, or --out of measure."
        )
    if trainer["barebones"]:
        raise UserError("trainer.barebones is not supported: it would disable logging and checkpoints.")
    if command != "test" and trainer["limit_test_batches"] is not None:
        raise UserError(
            "trainer.limit_test_batches has an effect only in `test`; other commands evaluate the test data together with the "
            "validation data: set data.test_limit, or trainer.limit_val_batches, which limits both."
        )
    if (every := trainer["check_val_every_n_epoch"]) is not None:
        at_least(1, "trainer", check_val_every_n_epoch=every)
    if trainer["val_check_interval"] == 0:
        raise UserError(
            "trainer.val_check_interval: expected a fraction of an epoch, or batches, above 0, got 0. To evaluate nothing set "
            "trainer.limit_val_batches to 0."
        )
    for least, most in (("min_epochs", "max_epochs"), ("min_steps", "max_steps")):
        low, high = trainer[least], trainer[most]
        if command == "fit" and 0 <= (-1 if high is None else high) < (low or 0):  # -1: no limit
            raise UserError(
                f"trainer.{least}: expected at most {high}, trainer.{most}, got {low}: training always ends at trainer.{most}. "
                f"Raise trainer.{most}, or lower trainer.{least}."
            )


def _numbers(run: RunFolder) -> dict[str, Any]:
    """A run's last numbers, net by net (``""`` is the run as a whole), and what could not be measured."""
    nets: dict[str, dict[str, dict[str, float]]] = {}
    for row in run.log().sort_values("epoch", kind="stable").itertuples():
        nets.setdefault(row.member, {})[row.name] = {"value": row.value, "epoch": row.epoch, "step": row.step}
    return {"run": run.path, "nets": nets, "notes": run.notes()}


def _progress(kwargs: dict[str, Any], callbacks: list[pl.Callback]) -> list[pl.Callback]:
    """The callbacks with a line an epoch, on a terminal with a bar below the lines, unless they have a bar of their own."""
    if not kwargs["enable_progress_bar"]:
        return [*callbacks, ProgressLines()]
    if any(isinstance(callback, ProgressBar) for callback in callbacks):
        return callbacks
    return [*callbacks, ProgressLines(), EpochBar()]


def _accelerator(asked: Any) -> Any:
    """Apple's GPU has no float64, in which risks and norms are summed: "auto" takes a CUDA GPU or the CPU.

    Raises:
        UserError: for a GPU where PyTorch sees none.
    """
    apple, nvidia = torch.backends.mps.is_available(), torch.cuda.is_available()
    if asked in ("gpu", "cuda") and not nvidia and not (apple and asked == "gpu"):
        raise UserError(
            f"trainer.accelerator '{asked}' needs a GPU, and PyTorch {torch.__version__} sees none here: set it to cpu or "
            "auto, or install a driver that fits this PyTorch."
        )
    return "cpu" if asked == "auto" and apple and not nvidia else asked


def _as_list(value: Any) -> list:
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


def _quiet() -> None:
    """Silence what a user can do nothing about: advertisements, and warnings about Lightning's own inside."""
    for name in ("pytorch_lightning.utilities.rank_zero", "pytorch_lightning.trainer.connectors.checkpoint_connector"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for pattern in (
        r".*isinstance\(treespec, LeafSpec\).* is deprecated.*",
        r"LightningCLI's args parameter is intended to run from within Python.*",  # which `run_training` does
        r".*does not have many workers.*",  # batches lie on the device: there are no workers
        r".*Checkpoint directory .* exists and is not empty.*",
        r".*The number of training batches .* is smaller than the logging interval.*",
        r".*srun.*",
        r".*your dataloader is not resumable.*",  # `Trainer` fast-forwards it
        r".*callbacks used to create the checkpoint need to be provided.*",  # a measure that is left out keeps nothing
        r"\s*Unable to serialize instance .*",  # a default of a foreign net that no YAML can hold
        r".*recommended to use `self.log\(.*sync_dist=True.*",  # what is logged has been summed over the ranks
        r".*Found .* module\(s\) in eval mode.*",
        r".*`torch\.jit\.\w+` is .*deprecated.*",  # torch's own, at the first forward-mode derivative
        r"Synchronization debug mode is a prototype.*",  # each graph is warmed up in it
    ):
        warnings.filterwarnings("ignore", pattern)
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
