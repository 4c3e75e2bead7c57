"""What must be known of a command line before its parser reads it, in one pass over its words.

Configurations are found and checked, `measure` gets the net and data of its checkpoint's run, and nets made by functions are
spelled as the parser wants them.
"""

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from lightning_app.cli.safety import importable
from lightning_app.common.errors import UserError
from lightning_app.common.provenance import packaged
from lightning_app.common.safe_io import read_yaml
from lightning_app.runs.folder import CHECKPOINTS, CONFIG

__all__ = ["FROM_RUN", "prescan"]

CONFIG_OPTIONS = ("--config", "-c")
FROM_RUN = ("model", "data")  # what `measure` takes from a run's configuration: the rest is about training


@dataclass(frozen=True)
class Option:
    """``--name value``, ``--name=value``, or a word alone."""

    name: str
    value: str | None = None
    joined: bool = False  # written with "="

    def words(self) -> list[str]:
        if self.value is None:
            return [self.name]
        return [f"{self.name}={self.value}"] if self.joined else [self.name, self.value]


def prescan(argv: Sequence[str]) -> tuple[list[str], bool]:
    """The words for the parser, and whether net and data come from a run folder, whose files may be a stranger's.

    Args:
        argv: command and its options.

    Raises:
        UserError: for a configuration file that is no YAML or beyond the limits of `safe_io`, and for a checkpoint to
            measure of which nothing says which net is in it.
    """
    command, *words = argv
    options = [
        replace(option, value=packaged(option.value)) if option.name in CONFIG_OPTIONS and option.value else option
        for option in _options(words)
    ]
    files = [Path(option.value) for option in options if option.name in CONFIG_OPTIONS and option.value is not None]
    configs = [read_yaml(file) for file in files if os.path.exists(file)]  # others: texts, or for the parser to report
    names_net = any("model" in config for config in configs) or any(
        option.name == "--model" or option.name.startswith("--model.") for option in options
    )
    checkpoints = [option.value for option in options if option.name == "--ckpt_path"]
    own = command == "measure" and not names_net and checkpoints and Path(checkpoints[-1] or "").is_file()
    if own:  # what is no file is reported as for every command
        options.insert(0, Option("--config", yaml.safe_dump(_of_run(Path(checkpoints[-1] or "")))))
    return [command, *(word for option in _with_class_paths(options) for word in option.words())], bool(own)


def _options(words: Sequence[str]) -> list[Option]:
    """
    >>> [option.words() for option in _options(["--a", "1", "--b=2", "--flag", "--c", "-1"])]
    [['--a', '1'], ['--b=2'], ['--flag'], ['--c', '-1']]
    """
    found, rest = [], [*words]
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not name.startswith("-") or equals:
            found.append(Option(name, value if equals else None, bool(equals)))
        elif rest and not rest[0].startswith("--") and rest[0] not in CONFIG_OPTIONS:
            found.append(Option(name, rest.pop(0)))
        else:
            found.append(Option(name))
    return found


def _of_run(checkpoint: Path) -> Mapping[str, Any]:
    """Net, data and precision of the run that a checkpoint lies in."""
    config = checkpoint.parent.parent / CONFIG
    if checkpoint.parent.name != CHECKPOINTS or not config.is_file():
        raise UserError(
            f"which net is in {checkpoint}? Expected the run's {CONFIG} in {config.parent}, found none: name the "
            "configuration that it was trained with, --config FILE."
        )
    own = read_yaml(config)
    kept = {key: own[key] for key in FROM_RUN if key in own}
    trainer = own.get("trainer")
    if isinstance(trainer, dict) and trainer.get("precision"):
        kept["trainer"] = {"precision": trainer["precision"]}
    return kept


def _with_class_paths(options: Sequence[Option]) -> list[Option]:
    """``--model.net FUNCTION`` as its class_path where arguments of the function follow, as one may write for a class.

    >>> net, classes = Option("--model.net", "torchvision.models.resnet18"), Option("--model.net.num_classes", "10")
    >>> [option.name for option in _with_class_paths([net, classes])]
    ['--model.net.class_path', '--model.net.num_classes']
    """
    return [
        replace(option, name=f"{option.name}.class_path")
        if option.name.startswith("--model.")
        and option.name.endswith("net")
        and any(other.name.startswith(f"{option.name}.") for other in options)
        and inspect.isfunction(importable(option.value or ""))
        else option
        for option in options
    ]
