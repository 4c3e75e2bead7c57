"""The parser: errors in two lines, what is wrong and the nearest valid word, instead of pages of usage; nets as factories.

Before it reads a command line, one pass over its words (`prescan`) finds and checks configurations, gives `measure` the net and
data of its checkpoint's run, and spells nets made by functions as the parser wants them.
"""

import argparse
import functools
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pytorch_lightning as pl
import yaml
from jsonargparse import DefaultHelpFormatter, Namespace, _typehints
from jsonargparse._loaders_dumpers import get_yaml_default_loader
from pytorch_lightning.cli import LightningArgumentParser
from pytorch_lightning.loggers import Logger
from torch import nn
from typing_extensions import override

from lightning_app.cli.safety import importable, placed
from lightning_app.common.errors import UserError, nearest
from lightning_app.common.files import with_home
from lightning_app.common.provenance import configs, packaged
from lightning_app.common.safe_io import read_yaml
from lightning_app.runs.folder import CHECKPOINTS, CONFIG

CONFIG_OPTIONS = ("--config", "-c")
FROM_RUN = ("model", "data")  # what commands that look at a checkpoint take as a whole from its run's configuration
LOOKING = ("validate", "test", "measure")  # the commands that look at a checkpoint
UNKNOWN_KEY = re.compile(r"unrecognized arguments: --([\w.\[\]-]+)|[Oo]ption '(?!class_path')([\w.]+)'")
UNKNOWN_WORD = re.compile(r"unrecognized arguments: (?!-)(\S+)")
UNKNOWN_MODULE = re.compile(r"No module named '([\w.]+)'")
UNKNOWN_CLASS = re.compile(
    rf"Expected a dot import path string: (\S+)|(?<! object) has no attribute '(\w+)'|{UNKNOWN_MODULE.pattern}"
)
OF_OPTIONS = {  # groups -> one of their options
    "trainer": "max_epochs",
    "run": "name",
    "save_checkpoint": "every_n_epochs",
    "model": "net",
    "data": "class_path",
}
KEPT = {"weight_decay"}  # of the default optimizer, which base.yaml does not name
NUMBERS = ("bool", "float", "int")  # types that a word is more likely a mistake of than a class
WITHIN_CLASS = re.compile(r"\.(class_path|init_args)\b.*")  # which part of a class's value it was
OF_SEVERAL = ("help", "NAME")  # the only keys of a group in which any word may stand, as the arms' names
NO_VALUE = re.compile(r"expected (at least )?one argument")
MISSING = re.compile(r"arguments are required: (.*)")
NO_CLASS = re.compile(
    r"subclass of (?:<class ')?(\w+)|Dict must include a class_path|subclass spec|'class_path' is not acc"
)
NO_OPTIONS = re.compile(r"Unexpected config: (.*)")
NO_ARGUMENTS = re.compile(r"'(\w+)' object has no attribute 'keys'")  # which init_args need to have
NO_FACTORY = re.compile(
    r"callable class: (Expected '\S+' to be a function|.* attribute 'returns'|Unexpected import object)"
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
HINTS = {  # of options that take a name out of a few, how to have another one; of one that needs another
    "max-seeds": "it goes with --until: see docs/comparing.md.",
    "until": "it goes with fit: see docs/comparing.md.",
    "weights": "it goes with measure; others take a checkpoint, --ckpt_path.",
    "out": "it goes with measure; fit writes into run.root/run.group/run.name, others write nothing.",
    "model.loss": "a loss of your own goes into a net whose forward takes `labels` and returns it: see docs/training.md.",
}
KNOWN = re.compile(r"known subclasses: (.*?)(\)?)$", re.DOTALL)
OURS = ("callbacks.", "lightning_app.")
PLACES = {  # which options take the classes that a configuration may name in short; the first that fits
    pl.LightningModule: (),
    pl.LightningDataModule: ("data",),
    nn.Module: ("model.net", "model.arms.NAME.net"),
    pl.Callback: ("trainer.callbacks[N]",),
    Logger: ("trainer.logger[N]",),
}
PACKAGES = (
    *("callbacks", "lightning_app.datamodules", "lightning_app.modules", "lightning_app.networks"),
    "lightning_app.runs.loggers",
)
FEW = 8  # classes that a help text may list
INTEGER_TAG = "tag:yaml.org,2002:int"
INTEGER = re.compile(r"[-+]?(0b[01_]+|0x[\da-fA-F_]+|0[0-7_]*|[1-9][\d_]*)$")
WRONG_VALUE = re.compile(r"Expected an? (?!path)([^\n]+?)(?:\. Got value|: |\n|$)")


# Lightning's defaults may be words of an Enum, as Timer's interval: a configuration has their values.
yaml.SafeDumper.add_multi_representer(Enum, lambda dumper, word: dumper.represent_data(word.value))
# YAML 1.1 counts in base 60: seeds 1:6, meant as a range, would be 66 of them.
OF_VALUES = get_yaml_default_loader()
OF_VALUES.yaml_implicit_resolvers = {
    letter: [(tag, INTEGER if tag == INTEGER_TAG else pattern) for tag, pattern in resolvers]
    for letter, resolvers in OF_VALUES.yaml_implicit_resolvers.items()
}


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
    """LightningCLI's parser with short errors, which puts relative paths of loggers and callbacks below the run folder."""

    folder: Path | None = None  # of the run, when there is one
    _read: Namespace | None = None  # the defaults, once they were asked for

    def __init__(self, *args: Any, **options: Any) -> None:
        """Options in full: `--trainer.max_epoch` would be taken for max_epochs in silence."""
        super().__init__(*args, **{"allow_abbrev": False, **options})

    @override
    def get_defaults(self, *args: Any, **options: Any) -> Namespace:
        """Read once: base.yaml is asked for before and after the words of a command, a class at each place that names it.

        By then a parser has all of its arguments and defaults.
        """
        if self._read is None:
            self._read = super().get_defaults(*args, **options)
            for file in self.default_config_files or []:
                _forget_unsaid(self._read, read_yaml(Path(file)))
        return self._read.clone()

    @override
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        problem, hint = self._explain(message, ex)
        print(f"error: {problem}\n       {hint}", file=sys.stderr)
        raise SystemExit(2)

    @override
    def instantiate_classes(self, cfg: Namespace, **options: Any) -> Namespace:
        cfg = as_factories(cfg)
        if self.folder is not None:
            cfg[cfg.subcommand].trainer = placed(cfg[cfg.subcommand].trainer, self.folder)
        return super().instantiate_classes(cfg, **options)

    def _explain(self, message: str, error: BaseException | None) -> tuple[str, str]:
        """What is wrong, and what to do about it."""
        place, value = _place(error)
        if value == "None":
            return f"{place}: expected a value as in --help, got the text None.", "write null for no value."
        location = place or (found[1] if (found := re.search(r'Parser key "([\w.]+)"', message)) else None)
        hint = HINTS.get(location or "", "see --help for the options, --print_config for their values.")
        said = self._of_words(message, error, place, hint) or _of_value(message, location, place, value, hint)
        return said or _of_config(message, location, place, value, hint)

    def _of_words(self, message: str, error: BaseException | None, place: str, hint: str) -> tuple[str, str] | None:
        """Of what was typed: an option that there is not, or that lacks its value."""
        if NO_VALUE.search(message):
            typed = (frame.f_locals.get("option_string") for frame in _frames(error))
            option = next(filter(None, typed), "an option")
            return f"{option.lstrip('-')}: expected a value, got none.", f"write {option} VALUE."
        if found := UNKNOWN_KEY.search(message):
            key = WITHIN_CLASS.sub("", ".".join(filter(None, [place, *found.groups()])))
            known = self._keys(place)
            near = HINTS.get(key) or _of_item(key, place) or _did_you_mean(key, known) or _takes(place, key, known)
            return f"there is no option '{key}'.", near or hint
        if found := MISSING.search(message):
            where = f"it goes into the init_args of {place}." if place else hint
            names = found[1].split(", ")
            missing = [f"{place}.{name}" if place else name.partition(".")[2] for name in names]  # of the command
            return f"{' and '.join(missing)}: expected a value, got none.", where
        if found := UNKNOWN_WORD.search(message):
            is_file = found[1].endswith((".yaml", ".yml"))
            return f"expected options, got '{found[1]}'.", f"did you mean --config {found[1]}?" if is_file else hint
        return None

    def _keys(self, place: str) -> list[str]:
        """Every key of a class's parser; of another's, also those of its subcommands, and of each class with a short name."""
        keys = {action.dest for action in self._actions} - {"help", "print_shtab"}
        if place:
            return sorted(f"{place}.{key}" for key in keys if not key.endswith(".help"))
        subcommands = getattr(self, "_subcommands_action", None)
        for subparser in subcommands._name_parser_map.values() if subcommands else ():
            keys |= {action.dest for action in subparser._actions}
        classes: Iterable[Any] = known_classes().values()  # not each has a signature; its constructor has
        for known in classes:
            of_class = {*inspect.signature(known.__init__).parameters} - {"self", "args", "kwargs"}
            keys |= {f"{place}.{name}" for place in _places_of(known) for name in of_class}
        return sorted(keys)


def _forget_unsaid(read: Namespace, said: Mapping[str, Any]) -> None:
    """Leave of each class's arguments those that a configuration names.

    The others are defaults of that class, which a class of another kind would be given in place of its own. SGD's weight decay of
    0 stays, as the penalty is the module's: AdamW would be refused with its own.
    """
    for key, value in said.items():
        if not isinstance(value, Mapping) or key not in read:
            continue
        if "class_path" not in value:
            _forget_unsaid(read[key], value)
            continue
        for name in vars(read[key].init_args).keys() - value["init_args"].keys() - KEPT:
            del read[key].init_args[name]


def _of_value(message: str, location: str | None, place: str, value: Any, hint: str) -> tuple[str, str] | None:
    """Of a value that an option, or an argument of a class, does not take."""
    if (found := re.search(r"File does not exist: '(.+)'", message)) and location == "config":
        return f"config: there is no file {found[1]}.", _nearest_file(Path(found[1])) or hint
    types = WRONG_VALUE.findall(message)
    if isinstance(value, _typehints.NestedArg) and types and value.key not in ("class_path", "init_args"):
        return f"there is no option '{place}.{value.key}'.", f"did you mean {place}?"
    plain = [name for name in _type_names(types) if name in NUMBERS or name.startswith("[")]
    or_class = plain == ["bool"] and UNKNOWN_CLASS.search(message)  # as of trainer.logger
    if any(name in NUMBERS for name in plain) and location and not (or_class or isinstance(value, list | Mapping)):
        return f"{location}: expected {' or '.join(plain)}, got {value}.", hint
    if found := re.fullmatch(r"model\.arms\.([^.\[\]]+)", place):
        net = value if isinstance(value, str) else "CLASS"
        return f"{place}: expected options such as net, got {value}.", f"write {found[1]}: {{net: {net}}}."
    if (found := UNKNOWN_MODULE.search(message)) and location is not None and "." in str(value):
        return f"{location}: there is no module '{found[1]}'.", "install it, or put its folder on PYTHONPATH."
    if (found := NO_ARGUMENTS.search(message)) and place:
        instead = "none" if found[1] == "NoneType" else f"a {found[1]}"
        return (
            f"{place}.init_args: expected arguments by name, got {instead}.",
            "leave init_args out if there are no arguments.",
        )
    if NO_FACTORY.search(message) and place:
        wanted = "a class, or a function annotated with its return type (such as -> nn.Module)"
        return f"{place}: expected {wanted}, got {value}.", hint
    if (found := UNKNOWN_CLASS.search(message)) and location is not None:
        if other := known_classes().get(found[1]):
            places = _places_of(other)
            there = f"it goes into {' or '.join(places)}." if places else hint
            return f"{location}: expected a class of another kind, got {found[1]}.", there
        name = next(filter(None, found.groups())).rsplit(".", 1)[-1]
        return f"{location}: there is no class '{name}'.", _did_you_mean(name, known_classes()) or (
            "name a class of SkipScope, or any other class as package.module.Class."
        )
    # A Namespace is of a class that was found, and refuses an argument.
    if place and not isinstance(value, Namespace) and (found := NO_CLASS.search(message)):
        if isinstance(value, _typehints.NestedArg):
            return (
                f"there is no option '{place}.{value.key}'.",
                f"a function is given by its name alone: --{place} NAME.",
            )
        got = value
        if isinstance(value, Mapping):
            got = value.get("class_path") if {*value} <= {"class_path", "init_args"} else ", ".join(map(str, value))
        kind = f"subclass of {found[1]}" if found[1] else "class"
        return f"{place}: expected a {kind}, by its name or as class_path and init_args, got {got}.", hint
    return None


def _of_config(message: str, location: str | None, place: str, value: Any, hint: str) -> tuple[str, str]:
    """Of texts and files of options, and all else."""
    types = WRONG_VALUE.findall(message)
    if "Problems parsing config" in message:
        reason = _one_line(message.split(":", 1)[1])  # the files that --config names were read before
        return f"a value on the command line, or a file that it names, is not valid YAML: {reason}", hint
    if location in OF_OPTIONS and "Unable to load config" in message:
        got = message.rpartition(" ")[2].strip()
        if location != "model":
            return f"{location}: expected options, such as --{location}.{OF_OPTIONS[location]}, got {got}.", hint
        ours = "fit trains nets: name yours with --model.net. Train a LightningModule of your own with pl.Trainer."
        return f"model: expected options such as net, or a file of them, got {got}.", ours
    if found := OF_CLASS.search(message):
        return ": ".join(filter(None, [place, found[1]])), hint
    if types and location is not None:
        return f"{location}: expected {' or '.join(_type_names(types))}, got {value}.", hint
    if found := NO_OPTIONS.search(message):
        return (
            f"expected options such as model:, data: and trainer: in a configuration, got {found[1].strip() or 'none'}.",
            hint,
        )
    return _one_line(re.sub(r'^Parser key "([\w.]+)":', r"\1:", message)), hint


def _frames(error: BaseException | None) -> Iterator[FrameType]:
    """The calls around this one, the outermost first, and those that led to an error and to what caused it."""
    yield from [frame for frame, _ in traceback.walk_stack(inspect.currentframe())][::-1]
    while error is not None:
        yield from (frame for frame, _ in traceback.walk_tb(error.__traceback__))
        error = error.__cause__


def _place(error: BaseException | None) -> tuple[str, Any]:
    """The full path of the option that jsonargparse is at, and its value; an empty path outside of typed options.

    A message has the last part alone: jsonargparse has a parser for each class, which knows of nothing above it. Who called it
    does, and the items of lists and dicts have names nowhere else.
    """
    path, value, last = "", None, None
    for frame in dict.fromkeys(_frames(error)):
        at = frame.f_locals
        if isinstance(action := at.get("self"), _typehints.ActionTypeHint):
            path += "" if action is last else f".{action.dest}"
            last, value = action, at.get("orig_val", value)
        elif frame.f_code is _typehints.adapt_typehints.__code__ and "v" in at and ("n" in at or "k" in at):
            path += f"[{at['n']}]" if "n" in at else f".{at['k']}"
            value = at["v"]
    return path.lstrip("."), "an empty text" if value == "" else value


def _of_item(key: str, place: str) -> str | None:
    """What to do instead of naming an item of a list on the command line, as Python does.

    >>> _of_item("trainer.callbacks[0].samples", "")
    'single items of a list cannot be set: give the whole list, in a YAML file or as --trainer.callbacks.'
    """
    name, bracket, _ = key.partition("[")
    items = "single items of a list cannot be set: give the whole list, in a YAML file"
    return f"{items} or as --{name}." if bracket and not place else None


def _did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """The nearest known words: each part of a dotted one within its group, else the last part.

    >>> _did_you_mean("data-root", ["data.root"]), _did_you_mean("ckpt-path", ["ckpt_path"])
    ('did you mean data.root?', 'did you mean ckpt_path?')
    >>> _did_you_mean("model.sead", ["data.seed", "model.seeds"])  # further off by its letters, but of the same group
    'did you mean model.seeds?'
    """
    known = list(known)
    if "-" in word:  # as other programs spell what is a dot or an underscore here
        group, _, rest = (part.replace("-", "_") for part in word.partition("-"))
        if group in OF_OPTIONS and f"{group}.{rest}" in known:
            return f"did you mean {group}.{rest}?"
        word = word.replace("-", "_")
    group, _, last = word.rpartition(".")
    if OTHERWISE_NAMED.get(last, word) != word:
        return f"did you mean {OTHERWISE_NAMED[last]}?"
    if not group and (whole := sorted(key for key in known if key.endswith(f".{last}"))):
        return f"did you mean {' or '.join(whole[:3])}?"
    ends = {key: key.rsplit(".", 1)[-1] for key in known}
    # A name that another group has, or nearly has, is more likely in the wrong group than far off.
    elsewhere = nearest(last, {*ends.values()}, 1, 0.8)
    if group and (respelled := _respelled(word, known, 0.75 if elsewhere else 0.65)):
        return f"did you mean {respelled}?"
    near = [key for similar in nearest(last, {*ends.values()}, 2, 0.7) for key in known if ends[key] == similar]
    near = near or [key for key in known if ends[key].startswith(f"{last}_")]
    near = ([key for key in near if key.startswith(group.split(".")[0])] or near)[:3]
    return f"did you mean {' or '.join(near)}?" if near else None


def _takes(place: str, key: str, known: Iterable[str]) -> str | None:
    """What a class takes; None where it takes nothing or there is no class.

    >>> _takes("model.net", "model.net.size", ["model.net.depth", "model.net.width"])
    'the class of model.net takes depth, width; for its **kwargs, if it has them, write model.net.dict_kwargs.size.'
    """
    names = ", ".join(each.removeprefix(f"{place}.") for each in known)
    more = f"for its **kwargs, if it has them, write {place}.dict_kwargs.{key.removeprefix(f'{place}.')}."
    return f"the class of {place} takes {names}; {more}" if place and names else None


def _respelled(word: str, known: Iterable[str], cutoff: float) -> str | None:
    """A dotted key, each unknown part replaced by the nearest of its group; None where there is none, or nothing to replace.

    >>> keys = ["model.arms.NAME.net.depth", "model.seeds", "run.plan", "run.plan.help"]
    >>> [_respelled(word, keys, 0.75) for word in ("model.arm.plain", "run.plen.x", "model.seed.x")]
    ['model.arms.plain', 'run.plan.x', 'model.seeds']
    """
    found: list[str] = []
    group = ""
    for part in word.split("."):
        names = {key.removeprefix(group).split(".")[0] for key in known if key.startswith(group) and "." in key}
        if not names:  # nothing is below an option that is no group and no class
            break
        near = [part] if part in names or names <= {*OF_SEVERAL} else nearest(part, names, 1, cutoff)
        if not near:
            return None
        found += near
        group += f"{'NAME' if 'NAME' in names else near[0]}."
    return respelled if (respelled := ".".join(found)) != word else None


def _nearest_file(missing: Path) -> str | None:
    """Of a name like this one, beside where it was looked for, else among the configurations that come with the program."""
    for folder in (missing.parent, configs()):
        files = {file.stem: file for file in folder.glob("*.yaml")}
        for name in nearest(missing.stem, files):
            return f"did you mean --config {files[name]}?"
    return None


def known_classes() -> dict[str, type]:
    """The classes that a configuration may name in short: ours and Lightning's callbacks and loggers."""
    packages = (*map(import_module, PACKAGES), pl.callbacks, pl.loggers)
    members = {name: value for package in packages for name, value in inspect.getmembers(package, inspect.isclass)}
    return {
        name: value
        for name, value in members.items()
        if value.__module__.startswith(("callbacks", "lightning_app", "pytorch_")) and not issubclass(value, Exception)
    }


def _places_of(known: type) -> tuple[str, ...]:
    """The options that take a class of this kind."""
    return next((places for base, places in PLACES.items() if issubclass(known, base)), ())


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
    path = value.get("class_path") if key in ("net", "optimizer") and isinstance(value, Namespace) else None
    function = importable(path) if isinstance(path, str) else None
    if key == "optimizer" and inspect.isfunction(function):
        raise UserError(
            f"model.optimizer: expected a class as class_path, got the function {path}, which would be called without "
            f"weights: name it alone, `optimizer: {path}`, or write a class."
        )
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
        UserError: for a configuration file that is not YAML, and for a checkpoint to validate, test or measure if neither the
            words nor its run say which net is in it.
    """
    command, *words = argv
    found = _options(words)
    named = [option for option in found if option.name in CONFIG_OPTIONS]
    if any(option.value == "" for option in named):
        raise UserError("--config: expected a path, got an empty text: is a shell variable unset?")
    named = [replace(option, value=_config_file(option.value)) if option.value else option for option in named]
    others = [option for option in found if option.name not in CONFIG_OPTIONS]
    options = [*named, *others]  # options count over files, wherever they stand
    files = [Path(option.value) for option in named if option.value is not None]
    given = [_options_in(file) for file in files if os.path.exists(file)]  # others: texts, or for the parser to report
    names_net = any("model" in config for config in given) or any(
        option.name == "--model" or option.name.startswith(("--model.net", "--model.arms")) for option in others
    )  # any other option of the model, such as model.compile, is put on top of the run's
    checkpoints = [option.value for option in others if option.name == "--ckpt_path"]
    checkpoint = with_home(checkpoints[-1] or "") if checkpoints else Path()
    own = command in LOOKING and not names_net and checkpoint.is_file()
    if own:  # what is no file is reported as for every command
        config = _of_run(checkpoint, measures=command == "measure")
        options.insert(0, Option("--config", yaml.safe_dump(config, sort_keys=False)))
    return [command, *(word for option in _with_class_paths(options) for word in option.words())], own


def _config_file(given: str) -> str:
    """Where a file lies that a user names; a text of YAML is left as it is."""
    return packaged(str(with_home(given)) if given.startswith("~") else given)


def _options_in(file: Path) -> dict[str, Any]:
    """What a configuration says.

    Raises:
        UserError: as `read_yaml`, and where there are no options in it or in one of its groups.
    """
    content = read_yaml(file)
    if not content:
        raise UserError(f"{file}: expected options such as model:, data: and trainer: in a configuration, got none.")
    for group, such_as in OF_OPTIONS.items():
        if group in content and not isinstance(content[group], dict | str):  # a text is a file of them
            raise UserError(f"{file}: {group}: expected options, such as {such_as}, got {content[group]!r}.")
    return content


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


def _of_run(checkpoint: Path, measures: bool) -> Mapping[str, Any]:
    """Net, data and precision of the run that a checkpoint lies in, and, if asked for, its measures' options."""
    config = checkpoint.parent.parent / CONFIG
    if checkpoint.parent.name != CHECKPOINTS or not config.is_file():
        raise UserError(
            f"cannot tell which net is in {checkpoint}: expected the run's {CONFIG} in {config.parent}, found none. Name the "
            "configuration that it was trained with: --config FILE."
        )
    own = read_yaml(config)
    kept = {key: own[key] for key in FROM_RUN if key in own}
    trainer = own["trainer"] if isinstance(own.get("trainer"), dict) else {}
    kept["trainer"] = {"callbacks": _measures(trainer.get("callbacks")) if measures else []}
    if trainer.get("precision"):
        kept["trainer"]["precision"] = trainer["precision"]
    return kept


def _measures(of_run: Any) -> list[dict[str, Any]]:
    """The measures of measure.yaml; those that a run took have its options, so that they give the numbers of its log again.

    Of a stranger's file nothing but plain options of these measures is taken.
    """
    by_class: dict[str, list[dict[str, Any]]] = {}
    for spec in of_run if isinstance(of_run, list) else []:
        if isinstance(spec, dict) and isinstance(spec.get("class_path"), str):
            options = spec["init_args"] if isinstance(spec.get("init_args"), dict) else {}
            plain = {name: value for name, value in options.items() if _is_plain(value)}
            by_class.setdefault(spec["class_path"].rpartition(".")[2], []).append(plain)
    measures: list[dict[str, Any]] = []
    for spec in read_yaml(configs() / "measure.yaml")["trainer"]["callbacks"]:
        name = spec["class_path"]
        if name in by_class:  # some are listed twice there
            measures += [{"class_path": name, "init_args": options} for options in by_class[name]]
            by_class[name] = []
        else:
            measures.append(spec)
    return measures


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, list) else isinstance(value, bool | int | float | str | None)


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
