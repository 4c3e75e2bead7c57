"""The parser: errors in two lines, what is wrong and the nearest valid word, instead of pages of usage; nets as factories."""

import argparse
import functools
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import pytorch_lightning as pl
from jsonargparse import DefaultHelpFormatter, Namespace, _typehints
from pytorch_lightning.cli import LightningArgumentParser
from typing_extensions import override

from lightning_app.cli.safety import confined, importable
from lightning_app.common.errors import nearest

__all__ = ["HelpFormatter", "Parser", "known_classes", "resolve_short_names"]

UNKNOWN_KEY = re.compile(
    r"unrecognized arguments: --([\w.]+)|[Oo]ption '([\w.]+)' is not accepted|option '([\w.]+)'|Key '([\w.]+)'"
)
UNKNOWN_CLASS = re.compile(
    r"Expected a dot import path string: (\S+)|has no attribute '(\w+)'|No module named '([\w.]+)'"
)
# Why a class refused its arguments, among what jsonargparse reports of the types it tried.
OF_CLASS = re.compile(r"^\s+- (?!Expected a|Does not validate)(.+)$", re.MULTILINE)
OTHERWISE_NAMED = {  # what users of other programs type
    "learning_rate": "model.optimizer.lr",
    "lr": "model.optimizer.lr",
    "momentum": "model.optimizer.momentum",
    "epochs": "trainer.max_epochs",
    "gpus": "trainer.devices",
    "seed": "model.seeds",
    "seed_everything": "model.seeds",
    "lambda": "model.weight_decay",
    "resume": "ckpt_path",
}
KNOWN = re.compile(r"known subclasses: (.*?)(\)?)$", re.DOTALL)
OURS = ("callbacks.", "lightning_app.")
PACKAGES = (
    *("callbacks", "lightning_app.datamodules", "lightning_app.modules", "lightning_app.networks"),
    "lightning_app.runs.loggers",
)
FEW = 8  # classes that a help text may list
WRONG_VALUE = re.compile(r"Expected an? (?!path)([^\n]+?)(?:\. Got value|: |\n|$)")


class HelpFormatter(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Examples with their line breaks, and of the known classes only ours by their short names: torch has 500 modules."""

    @override
    def _get_help_string(self, action: argparse.Action) -> str:
        return KNOWN.sub(self._few, super()._get_help_string(action))

    @staticmethod
    def _few(found: re.Match[str]) -> str:
        """Ours, or the first few where none is ours."""
        classes = found[1].split(", ")
        shown = [name.rsplit(".", 1)[-1] for name in classes if name.startswith(OURS)] or classes[:FEW]
        return f"known classes: {', '.join(shown)}{', ...' if len(shown) < len(classes) else ''}{found[2]}"


class Parser(LightningArgumentParser):
    """LightningCLI's parser with short errors, and a run folder that nothing it makes writes out of."""

    folder: Path | None = None  # of the run, when there is one

    @override
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        problem, hint = self._explain(message)
        print(f"error: {problem}\n       {hint}", file=sys.stderr)
        raise SystemExit(2)

    @override
    def instantiate_classes(self, cfg: Namespace, **options: Any) -> Namespace:
        cfg = as_factories(cfg)
        if self.folder is not None:
            cfg[cfg.subcommand].trainer = confined(cfg[cfg.subcommand].trainer, self.folder)
        return super().instantiate_classes(cfg, **options)

    def _explain(self, message: str) -> tuple[str, str]:
        """What is wrong, and what to do about it."""
        hint = "see --help for the options, --print_config for their values."
        location = key[1] if (key := re.search(r'Parser key "([\w.]+)"', message)) else None
        if found := UNKNOWN_KEY.search(message):
            key = next(filter(None, found.groups()))
            return f"there is no option '{key}'.", _did_you_mean(key, self._keys()) or hint
        if (found := UNKNOWN_CLASS.search(message)) and location is not None:
            name = next(filter(None, found.groups())).rsplit(".", 1)[-1]
            return f"{location}: there is no class '{name}'.", _did_you_mean(name, known_classes()) or (
                "give a class of ours by name, or any other as package.module.Class."
            )
        if "Problems parsing config" in message:
            reason = _one_line(message.split(":", 1)[1])  # the files that --config names were read before
            return f"a value on the command line, or a file that it names, is not valid YAML: {reason}", hint
        if found := OF_CLASS.search(message):
            return found[1], hint
        if (types := WRONG_VALUE.findall(message)) and location is not None:
            value = (
                found[1].strip() if (found := re.search(r"(?:Given|Got) value: (.*)", message)) else "something else"
            )
            return f"{location}: expected {' or '.join(_type_names(types))}, got {value}.", hint
        return _one_line(message), hint

    def _keys(self) -> list[str]:
        """Every key of this parser and its subcommands, and the arguments of every class a user may name."""
        keys = {action.dest for action in self._actions}
        subcommands = getattr(self, "_subcommands_action", None)
        for subparser in subcommands._name_parser_map.values() if subcommands else ():
            keys |= {action.dest for action in subparser._actions}
        classes: Iterable[Any] = known_classes().values()  # not each has a signature; its constructor has
        arguments = {name for known in classes for name in inspect.signature(known.__init__).parameters}
        return sorted(keys | arguments - {"self", "args", "kwargs"})


def _did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """The nearest known words, comparing last parts where whole keys are not near."""
    known = list(known)
    group, _, last = word.rpartition(".")
    if last in OTHERWISE_NAMED:
        return f"did you mean {OTHERWISE_NAMED[last]}?"
    near = nearest(word, known, 2, 0.75)
    by_last = {key: key.rsplit(".", 1)[-1] for key in known}
    for similar in nearest(last, set(by_last.values()), 2, 0.7):
        keys = [key for key, end in by_last.items() if end == similar]
        near += [key for key in keys if key.startswith(group.split(".")[0])] or keys
    near = list(dict.fromkeys(near))[:3]
    if last in near:
        return f"'{group or 'this class'}' names no argument '{last}'; if it hands it on, it goes under dict_kwargs."
    return f"did you mean {' or '.join(near)}?" if near else None


def known_classes() -> dict[str, type]:
    """The classes that a configuration may name in short: ours and Lightning's callbacks and loggers."""
    packages = (*map(import_module, PACKAGES), pl.callbacks, pl.loggers)
    members = {name: value for package in packages for name, value in inspect.getmembers(package, inspect.isclass)}
    return {
        name: value
        for name, value in members.items()
        if value.__module__.startswith(("callbacks", "lightning_app", "pytorch_")) and not issubclass(value, Exception)
    }


def resolve_short_names() -> None:
    """Let a short name in a configuration mean a class of ours, imported yet or not, by its present or an earlier name.

    jsonargparse searches the subclasses that are imported and has no hook for others: its function is replaced.
    """
    search: Any = _typehints  # whose functions are not meant to be replaced
    resolve = search.resolve_class_path_by_name
    if hasattr(resolve, "__wrapped__"):
        return

    @functools.wraps(resolve)
    def ours_first(base: Any, name: str) -> str:
        for package in PACKAGES if "." not in name and inspect.isclass(base) else ():
            found = getattr(import_module(package), name, None)
            if inspect.isclass(found) and issubclass(found, base):
                return f"{package}.{found.__name__}"
        return resolve(base, name)

    search.resolve_class_path_by_name = ours_first


def _type_names(types: Iterable[str]) -> list[str]:
    names = [re.sub(r"<class '([\w.]+)'>|typing\.Literal(\[.*\])", r"\1\2", text).rstrip(".") for text in types]
    return list(dict.fromkeys(name for name in names if name != "NoneType")) or ["None"]


def _one_line(message: str) -> str:
    """A message with its line breaks folded, cut where it becomes a dump."""
    return re.sub(r"\s+", " ", message).strip()[:300]


def as_factories(config: Any) -> Any:
    """A configuration in which nets that a function makes (torchvision's, timm's) are factories: every seed calls them anew.

    For a class jsonargparse passes a factory on; for a function with arguments what it returned, before any seed was set.
    """
    if isinstance(config, Namespace):
        return Namespace(**{key: _factory(key, value) for key, value in vars(config).items()})
    if isinstance(config, Mapping):
        return {key: _factory(key, value) for key, value in config.items()}
    return config


def _factory(key: str, value: Any) -> Any:
    path = value.get("class_path") if key == "net" and isinstance(value, Namespace) else None
    function = importable(path) if isinstance(path, str) else None
    return functools.partial(function, **_arguments(value)) if inspect.isfunction(function) else as_factories(value)


def _arguments(spec: Namespace) -> dict[str, Any]:
    """A class among the arguments (a norm_layer) is a recipe too."""
    groups = [spec.get("init_args") or {}, spec.get("dict_kwargs") or {}]
    given = [vars(group) if isinstance(group, Namespace) else group for group in groups]
    return {
        name: functools.partial(importable(value.class_path), **_arguments(value))
        if isinstance(value, Namespace) and value.get("class_path")
        else value
        for group in given
        for name, value in group.items()
    }
