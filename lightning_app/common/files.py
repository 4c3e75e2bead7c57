"""Writing files so that neither a crash nor a full disk leaves half of one in the place of a whole one."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning_app.common.errors import MachineError, UserError


def write_atomically(target: Path, content: bytes | memoryview, check: Callable[[Path], None] | None = None) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new one, never a part of it.

    The temporary file stands beside the target: a rename is atomic only within one file system.

    Args:
        check: looks at the whole new file before it replaces the old one, which stays if this raises.

    Raises:
        MachineError: if the system refuses.
    """
    with writing(target):
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                # So that it is read back from the disk; macOS has no such call.
                if check is not None and hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.chmod(temporary, 0o666 & ~UMASK)
            if check is not None:
                check(Path(temporary))
            os.replace(temporary, target)
            _flush_folder(target.parent)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def with_folder(file: Path) -> Path:
    """The same path, after making the folder that it lies in.

    Raises:
        MachineError: if the system refuses.
    """
    with writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
    return file


def with_home(path: Path | str) -> Path:
    """A path as a user names it, with the home folder in place of ``~``.

    Raises:
        UserError: if there is no such home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(
            f"expected a path, got {path}: there is no such home folder here. Write the path in full."
        ) from error


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn what the system reports while a file is written (full disk, quota, no permission) into an error message.

    Raises:
        MachineError: instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"{target} cannot be written: {error.strerror or error}. What was saved before is kept. Free space or "
            "correct the permissions, or choose another folder."
        ) from error


def _flush_folder(folder: Path) -> None:
    """The new name survives a crash of the machine too."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


UMASK = _umask()  # asked once, while there is one thread: for that moment it is 0
