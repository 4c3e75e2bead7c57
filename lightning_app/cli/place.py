"""Where a run lives: runs/<group>/<name>, a folder of its own for every run, the same one for a resumed run."""

import contextlib
import itertools
import re
from collections.abc import Callable
from pathlib import Path

from lightning_app.common.errors import UserError
from lightning_app.runs import RunFolder
from lightning_app.runs.folder import CHECKPOINTS, LAST, LOG

__all__ = ["RunPlace"]


class RunPlace:
    """The folder of a run: ``root/group/name``, or ``name~2``, ``name~3``, ... when that is taken (no name has a ``~``).

    Args:
        root: folder of all runs.
        group: runs that belong together, e.g. a data set or an experiment.
        name: the run's own name.
        plan: set by `reproduce`: what this run is a part of, so that it is found again. Leave it alone.
    """

    def __init__(self, root: str = "runs", group: str = "default", name: str = "run", plan: str | None = None) -> None:
        for label, value in (("group", group), ("name", name)):
            if not re.fullmatch(r"\w[\w.=+-]*", value):
                raise UserError(
                    f"run.{label} becomes a folder: letters, digits and _ . = + - only, no path; got '{value}'. "
                    "Other places go into run.root."
                )
        self.parent = Path(root).expanduser() / group
        self.name = name

    def find(self, ckpt_path: str | None, same: Callable[[RunFolder], bool] = lambda _: False) -> RunFolder:
        """The folder that a run resumed from ``ckpt_path`` goes on in, else a new one.

        A run goes on in its folder from its last checkpoint only: from an earlier one, or one of another run, it takes
        another way from there, and its log must not mix with that of the old way. One that was killed before its first
        checkpoint begins again where it was.

        Args:
            same: does this folder's run have the configuration of ours?
        """
        if ckpt_path == "last":
            return self.last(same) or self.claim()
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
        latest = self.latest()
        return str(latest.checkpoints / LAST) if latest else None

    def latest(self) -> RunFolder | None:
        """The newest run of this name that can be resumed."""
        resumable = [folder for folder in self.existing() if (folder.checkpoints / LAST).exists()]
        return resumable[-1] if resumable else None

    def last(self, same: Callable[[RunFolder], bool]) -> RunFolder | None:
        """The newest run of this name that has a checkpoint, or that is ours and was killed before it had one."""
        for folder in reversed(self.existing()):
            if (folder.checkpoints / LAST).exists() or (folder.finished is None and same(folder)):
                return folder
        return None

    def existing(self) -> list[RunFolder]:
        """Folders of this name, oldest first."""
        numbered = re.compile(re.escape(self.name) + r"(?:~(\d+))?")
        found = []
        for path in self.parent.glob(f"{self.name}*"):
            if path.is_dir() and (match := numbered.fullmatch(path.name)):
                found.append((int(match[1] or 1), path))
        return [RunFolder(path) for _, path in sorted(found)]

    def claim(self) -> RunFolder:
        """Make the next free folder. Making it is the claim: of two runs that start at once, each gets its own."""
        try:
            self.parent.mkdir(parents=True, exist_ok=True)
            for number in itertools.count(1):
                path = self.parent / (self.name if number == 1 else f"{self.name}~{number}")
                with contextlib.suppress(FileExistsError):
                    path.mkdir()
                    break
        except OSError as error:
            raise UserError(
                f"cannot make a run folder in {self.parent}: {error.strerror}. Choose another run.root."
            ) from error
        return RunFolder(path)


def discard_if_unused(folder: RunFolder) -> None:
    """Remove a folder in which nothing was logged, so that a mistake in a configuration leaves no empty run behind."""
    if folder.path.is_dir() and not (folder.path / LOG).exists() and not folder.checkpoints.exists():
        for file in sorted(folder.path.rglob("*"), reverse=True):
            file.unlink() if not file.is_dir() or file.is_symlink() else file.rmdir()
        folder.path.rmdir()
