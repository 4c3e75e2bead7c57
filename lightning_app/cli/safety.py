"""What files of others may make this program do, and what is refused. This is the one place that says it.

A configuration that the user names is code: it says which classes and functions are called, with which arguments. Do not use
one from anybody whose scripts you would not run. Relative paths in it are below the run folder (`placed`).

Everything else is read as if a stranger had written it (`lightning_app.common.safe_io`). Arrays, checkpoints and weights hold
tensors and plain values; nothing in them is executed; a file that is damaged or of another kind is refused with an error
message and exit code 2. A report leaves out damaged arrays, layers and notes and says so at its end; it refuses a damaged
``log.csv`` or ``config.yaml``. There is no protection against a file that is made to fill the memory, or is nested so deeply
that the process ends: it can stop a command and do nothing else.

``validate``, ``test`` and ``measure`` with ``--ckpt_path FILE`` alone take net, data and precision from the ``config.yaml`` of
the checkpoint's run, which the user has not named, and ``measure`` those options of the measures in configs/measure.yaml that
are numbers, texts or lists of them. An allow-list says what that file may name (`check_allowed`): classes of nets, data
modules, optimizers and learning rate schedules, and functions of ``torchvision.models`` and ``timm.models``. No other function
is allowed, whatever it declares to return. The list does not make the file harmless: modules that it names are imported, and
the constructors of allowed classes run with its arguments. A package of nets whose constructor reads a pickle, or downloads
weights, does so.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

import pytorch_lightning as pl
import torch
from jsonargparse import Namespace
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_app.common.errors import UserError

CLASSES = (nn.Module, Optimizer, LRScheduler, pl.LightningDataModule, torch.Tensor)  # allowed, with their subclasses
FUNCTIONS = ("torchvision.models", "timm.models")  # packages whose functions are allowed: they make nets
FROM_SOURCE = ("torch.fx", "torch.jit", "torch.package", "torch.export")  # whose nets run source text: not allowed

PATH_ARGUMENT = re.compile(r"(?!class_path$)(?:\w*_)?(?:dir|dirpath|directory|folder|path|file)")
ELSEWHERE = re.compile(r"/|~|[a-z][\w+.-]*:", re.IGNORECASE)  # how an absolute path or a URL begins


# What a checkpoint's own configuration may name


def check_allowed(config: Any) -> None:
    """Refuse a configuration that names anything outside the allow-list, before anything is built.

    Args:
        config: as parsed: class paths, their arguments, and functions that jsonargparse has imported. Texts that name
            something callable count too: a class may look them up.

    Raises:
        UserError: naming the first thing that is not allowed, or does not exist.
    """
    for key, value in _leaves(config):
        found = importable(value) if isinstance(value, str) else value
        if key == "class_path" and isinstance(value, str) and found is None and "." in value:
            raise UserError(
                f"the checkpoint's own config.yaml names {value}, and there is no such class or function here."
            )
        if callable(found) and not _is_allowed(found):
            name = f"{getattr(found, '__module__', '?')}.{getattr(found, '__qualname__', type(found).__name__)}"
            raise UserError(
                f"the checkpoint's own config.yaml names {name}, which could do anything: expected only classes of nets, "
                "data, optimizers and schedules, and functions of torchvision or timm that make nets. If you trust that "
                "file, name it yourself: --config FILE."
            )


def _leaves(config: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no container, with the name it is given under."""
    if isinstance(config, Namespace | Mapping):
        for name, value in (vars(config) if isinstance(config, Namespace) else config).items():
            yield from _leaves(value, name)
    elif isinstance(config, list | tuple | set):
        for value in config:
            yield from _leaves(value, key)
    else:
        yield key, config


def _is_allowed(found: Any) -> bool:
    packages = FROM_SOURCE if inspect.isclass(found) else FUNCTIONS
    within = f"{found.__module__}.".startswith(tuple(f"{package}." for package in packages))
    return issubclass(found, CLASSES) and not within if inspect.isclass(found) else inspect.isfunction(found) and within


def importable(path: str) -> Any:
    """The class, function or method that a dotted path names; None where there is none."""
    parts = path.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found: Any = import_module(".".join(parts[:cut]))
        except (ImportError, ValueError):
            continue
        for name in parts[cut:]:
            found = getattr(found, name, None)
        return found if callable(found) else None
    return None


# Where loggers and callbacks write


def placed(trainer: Any, folder: Path, name: str = "") -> Any:
    """A trainer's configuration with every relative path of its loggers, callbacks and plugins below the run folder.

    config.yaml keeps what the user wrote.

    Args:
        trainer: as parsed; unchanged.
        folder: of the run.
        name: of the argument that this is.

    >>> placed(Namespace(save_dir="tb", dirpath="/tmp/x", name="v1"), Path("runs/a"))
    Namespace(save_dir='runs/a/tb', dirpath='/tmp/x', name='v1')
    """
    if isinstance(trainer, Namespace):
        return Namespace(**{key: placed(value, folder, key) for key, value in vars(trainer).items()})
    if isinstance(trainer, Mapping):
        return {key: placed(value, folder, key) for key, value in trainer.items()}
    if isinstance(trainer, list | tuple):
        return type(trainer)(placed(value, folder, name) for value in trainer)
    is_path = isinstance(trainer, str | PurePosixPath) and trainer != "" and PATH_ARGUMENT.fullmatch(name)
    return str(folder / trainer) if is_path and not ELSEWHERE.match(str(trainer)) else trainer
