"""Where a run lives, runs/<group>/<name>, the same folder for a resumed run; and the configuration that it keeps there."""

import contextlib
import errno
import itertools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import yaml
from jsonargparse import Namespace
from lightning_fabric.utilities.rank_zero import rank_zero_only
from pytorch_lightning.cli import SaveConfigCallback
from pytorch_lightning.loggers import WandbLogger
from typing_extensions import override

from callbacks.log import folders_of
from lightning_app.common.errors import MachineError, UserError
from lightning_app.common.files import with_folder, with_home, write_atomically, writing
from lightning_app.common.provenance import commit, processor, threads, versions
from lightning_app.common.safe_io import read_bytes
from lightning_app.runs import RunFolder
from lightning_app.runs.configuration import changed, changes
from lightning_app.runs.folder import CHECKPOINTS, CONFIG, EARLIER_CONFIG, LAST, LOG
from lightning_app.runs.loggers import made_by

Ours = Literal["first", "only"]  # see `RunFolders.find`
NO_PLACES = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.ELOOP)
MEASURED = "measured"  # folder of measurements among the groups of runs
AS_PARSED: dict[str, Any] = {"skip_none": False, "skip_validation": True}  # to spell what a parser has checked
NOTED = ("torch", "torchvision", "pytorch-lightning", "torchmetrics", "wandb", "numpy")  # versions kept with a run


class RunFolders:
    """The folder of a run: ``root/group/name``, or ``name~2``, ``name~3``, ... when that is taken (no name has a ``~``).

    Args:
        root: folder of all runs.
        group: runs that belong together, e.g. a data set or an experiment.
        name: the run's own name.
        plan: internal: a digest by which `reproduce` finds its runs. Do not set it.
    """

    def __init__(self, root: str = "runs", group: str = "default", name: str = "run", plan: str | None = None) -> None:
        for label, value in (("group", group), ("name", name)):
            if not re.fullmatch(r"\w[\w.=+-]*", value):
                raise UserError(
                    f"run.{label}: expected the name of a folder (letters, digits and _ . = + -, the first one a letter, digit "
                    f"or _), got '{value}'. Set run.root to write somewhere else."
                )
        self.parent = with_home(root) / group
        self.name = name

    def find(
        self, ckpt_path: str | None, same: Callable[[RunFolder], bool] = lambda _: False, ours: Ours | None = None
    ) -> RunFolder:
        """The folder in which a run resumed from ``ckpt_path`` continues, else a new one.

        A run continues in its own folder only from its last checkpoint. From an earlier checkpoint, or from one of another
        run, training takes a different course, and its log must not mix with the old one. A run that was killed before its
        first checkpoint starts again in its folder.

        Args:
            same: says whether a folder's run has our configuration.
            ours: for a job that may have started before. "first": of several runs of this name prefer one that is `same`;
                "only": accept no other.
        """
        if ckpt_path == "last":
            return self.last(same, ours) or self.claim()
        if ckpt_path is not None:
            home = Path(ckpt_path).resolve().parent
            own = [folder.path.resolve() for folder in self.existing()]
            if Path(ckpt_path).name == LAST and home.name == CHECKPOINTS and home.parent in own:
                return RunFolder(home.parent)
        return self.claim()

    def checkpoint(self, ckpt_path: str | None) -> str | None:
        """``ckpt_path`` with "last" replaced by the newest run's last.ckpt, None when there is none yet."""
        if ckpt_path != "last":
            return ckpt_path
        last = [file for folder in self.existing() if (file := folder.checkpoints / LAST).exists()]
        return str(last[-1]) if last else None

    def last(self, same: Callable[[RunFolder], bool], ours: Ours | None = None) -> RunFolder | None:
        """The newest run of this name that has a checkpoint, or that is ours and was killed before it had one.

        Arguments as of `find`.
        """
        for only_ours in {None: (False,), "first": (True, False), "only": (True,)}[ours]:
            for folder in reversed(self.existing()):
                begun = (folder.checkpoints / LAST).exists()
                if (begun and not only_ours) or ((begun or folder.finished is None) and same(folder)):
                    return folder
        return None

    def free(self) -> RunFolder:
        """The next that nobody has claimed."""
        paths = (self.parent / (self.name if n == 1 else f"{self.name}~{n}") for n in itertools.count(1))
        return RunFolder(next(path for path in paths if not os.path.lexists(path)))

    def existing(self) -> list[RunFolder]:
        """Folders of this name, oldest first."""
        numbered = re.compile(re.escape(self.name) + r"(?:~(\d+))?")
        paths = [path for path in self.parent.glob(f"{self.name}*") if path.is_dir()]
        found = [(int(match[1] or 1), path) for path in paths if (match := numbered.fullmatch(path.name))]
        return [RunFolder(path) for _, path in sorted(found)]

    def claim(self) -> RunFolder:
        """Make the next free folder. Making it is the claim: of two runs that start at once, each gets its own."""
        try:
            self.parent.mkdir(parents=True, exist_ok=True)
            while True:
                path = self.free().path
                with contextlib.suppress(FileExistsError):
                    path.mkdir()
                    break
        except OSError as error:
            what = "a shorter run.name" if error.errno == errno.ENAMETOOLONG else "another run.root"
            raise _not_made(f"a run folder in {self.parent}", error, what) from error
        return RunFolder(path)


def claim_measured(out: str | None, folders: RunFolders, checkpoint: str | None, model: Namespace) -> RunFolder:
    """A new folder for the measurement of a configuration's model.

    Raises:
        UserError: if ``out`` is neither new nor an empty folder.
    """
    if out is None:
        return RunFolders(str(folders.parent.parent), MEASURED, _name_of(checkpoint, model)).claim()
    folder = RunFolder(with_home(out))
    try:
        if folder.path.exists() and (not folder.path.is_dir() or any(folder.path.iterdir())):
            raise UserError(
                f"--out: expected a new or empty folder, got {folder.path}, which has files in it or is no folder: choose "
                "another, or remove it."
            )
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_made(f"the folder {folder.path}", error, "another --out") from error
    return folder


def _not_made(what: str, error: OSError, instead: str) -> UserError:
    """A name that cannot be is a mistake; a full disk, or one that is read-only, a fault of the machine."""
    kind = UserError if error.errno in NO_PLACES else MachineError
    return kind(f"cannot make {what}: {error.strerror}. Choose {instead}.")


def check_names(words: Sequence[str], out: str | None, checkpoint: str | None) -> None:
    """Refuse `run.group` and `run.name` for a measurement that does not use them: they name the run of ``--ckpt_path last``.

    They are allowed in a configuration, which may be one for `fit`, and together with ``--out``, which names the folder.

    Raises:
        UserError: where an option on the command line would have no effect.
    """
    if out is not None or checkpoint == "last":
        return
    if unused := [name for word in words if (name := word.partition("=")[0]) in ("--run.group", "--run.name")]:
        raise UserError(
            f"{unused[0]} has an effect in measure only with --ckpt_path last, got {checkpoint or 'no --ckpt_path'}: leave "
            "it out. To choose the folder of the results, give --out DIR."
        )


def _name_of(checkpoint: str | None, model: Namespace) -> str:
    """After the checkpoint's run and its file, or after the classes and functions that make the nets, in small letters."""
    if checkpoint is None:
        nets = filter(None, (model.net, *(arm["net"] for arm in (model.arms or {}).values())))
        paths = [net.class_path if isinstance(net, Namespace) else getattr(net, "__name__", str(net)) for net in nets]
        return "-".join(dict.fromkeys(path.rsplit(".", 1)[-1].lower() for path in paths)) or "nets"
    file = Path(checkpoint).resolve()
    run = file.parent.parent.name if file.parent.name == CHECKPOINTS else ""
    return re.sub(r"[^\w.=+-]", "-", "-".join(filter(None, (run, file.stem)))).lstrip("-.=+") or "checkpoint"


def is_unused(folder: RunFolder) -> bool:
    """Was nothing logged in this folder?

    A run that has finished one epoch or more counts as used: other loggers and callbacks may have written into it.
    """
    return not (folder.finished or (folder.path / LOG).exists() or folder.checkpoints.exists())


def discard_if_unused(folder: RunFolder) -> None:
    """Remove a folder that `is_unused`, so that a mistake in a configuration leaves no empty run behind."""
    if folder.path.is_dir() and is_unused(folder):
        discard(folder)


def discard(folder: RunFolder) -> None:
    """Remove a folder with everything in it.

    What cannot be removed (a mount, a link to a folder, on NFS an open file such as the lock) stays, without an error: it must
    not hide the one that led here.
    """
    for path in [*folder.path.iterdir()]:
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    with contextlib.suppress(OSError):
        folder.path.rmdir()


class SaveRunConfig(SaveConfigCallback):
    """The whole configuration into the run folder, with command and versions on top, and to W&B.

    A new run writes it at once, as it may be killed before it trains. A resumed run keeps its earlier one until training
    starts: its checkpoint may be refused, or nothing may be left to train. Then the options that were not used are printed.
    """

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        has_one = any((folder.path / CONFIG).exists() for folder in folders_of(trainer))
        self._waits = stage == "fit" and (has_one or self.config.get("ckpt_path") not in (None, "last"))
        if not self._waits:
            self._save(trainer, pl_module)

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._waits:
            self._save(trainer, pl_module)
            self._waits = False

    @override
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The numbers that follow are of the run as it was: they must not pass for those of other options."""
        for folder in folders_of(trainer) if self._waits and trainer.is_global_zero else ():
            if other := _changed(folder, self._text()):
                print(changes(other, "nothing was trained, so these changed options were not used"))

    def _text(self) -> str:
        return self.parser.dump(self.config, format="yaml", **AS_PARSED)

    @rank_zero_only
    def _save(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        text = self._text()
        for folder in folders_of(trainer):
            if other := _changed(folder, text):
                print(changes(other))
            _write_config(folder.path / CONFIG, text)
            folder.reopen()
            folder.add_made(made_by(trainer, pl_module, f"main.py {shlex.join(sys.argv[1:])}"))
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.log_hyperparams(yaml.safe_load(text))


def _changed(folder: RunFolder, text: str) -> dict[str, tuple[Any, Any]]:
    """How a run goes on otherwise than it began."""
    try:
        return changed(folder.config(), yaml.safe_load(text))
    except UserError:  # a damaged one is kept beside the new one
        return {}


def _write_config(target: Path, text: str) -> None:
    """config.yaml; the one of an earlier part of a resumed run stays beside it when it differs."""
    if target.exists():
        lines = read_bytes(target).decode(errors="replace").replace("\r\n", "\n").splitlines(keepends=True)
        earlier = "".join(line for line in lines if not line.startswith("#"))
        if earlier != text:
            number = len(list(target.parent.glob(EARLIER_CONFIG.format("*")))) + 1
            with writing(target):
                target.rename(target.with_name(EARLIER_CONFIG.format(number)))
    facts = [
        f"command: main.py {shlex.join(sys.argv[1:])}",
        f"commit: {commit()}",
        f"python {sys.version.split()[0]}, {versions(NOTED)}",
        f"processor: {processor()}, {threads()} threads",
    ]
    write_atomically(with_folder(target), ("".join(f"# {fact}\n" for fact in facts) + text).encode())
