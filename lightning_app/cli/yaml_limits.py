"""Configurations within limits: what jsonargparse reads, from files or from words, is looked at before it is built.

jsonargparse loads whatever is named with libyaml's loader, which a few hundred kilobytes of brackets end the process with.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import get_loader, set_loader

from lightning_app.common.errors import UserError
from lightning_app.common.safe_io import TEXT, check_yaml, read_text

__all__ = ["check_configs", "limit_yaml"]

_load = get_loader("yaml")


def check_configs(files: Iterable[str]) -> None:
    """Refuse configuration files beyond the limits by their names. What is not YAML the parser says in its own words."""
    for file in map(Path, files):
        if file.is_file() or file.is_dir():
            _check(read_text(file), str(file))


def limit_yaml() -> None:
    """Let jsonargparse load nothing unseen, a file that a configuration names included. Loaders are the process's."""
    set_loader("yaml", _within_limits, (yaml.YAMLError,))


def _within_limits(text: str) -> Any:
    if len(text) > TEXT:
        raise UserError(f"a configuration has {len(text):,} characters, expected at most {TEXT:,}.")
    _check(text, "the configuration")
    try:
        return _load(text)
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # of tags such as !!bool on another word
        raise yaml.YAMLError(f"a tag that does not fit its value ({error})") from error


def _check(text: str, name: str) -> None:
    try:
        check_yaml(text, name)
    except UserError as error:
        if not isinstance(error.__cause__, yaml.YAMLError):
            raise
