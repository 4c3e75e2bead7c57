"""Which nets are seeds of one thing: read off the names of runs and members, and off configurations where names do not tell.

A job array has names that differ in their seed (``res20-seed03``). A sweep has one name for everything (``simplified``,
``simplified~2``, ...): there the configurations say which runs differ in nothing but the seed, and how the others differ.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lightning_app.common.errors import UserError
from lightning_app.common.seeds import parse_seeds
from lightning_app.runs.places import PLACES

if TYPE_CHECKING:
    from lightning_app.runs.reader import Net, Run

__all__ = [
    # nets and runs
    "NetName",
    "name_nets",
    "parent_of",
    "run_groups",
    "run_labels",
    "seed_of",
    # their parts
    "flatten",
    "only_seed",
    "science",
    "seed_in",
    "without_seed",
]

SEED = re.compile(r"(?:[-_]|(?<![A-Za-z]))seeds?[-_=]?(\d+)((?:[-,]\d+)*)(?![\w.])")
AGAIN = re.compile(r"~\d+$")  # a run folder whose name was taken
TOLD = 3  # differences that fit into a name
KINDS = {True: "residual", False: "plain"}  # what `residual: true` is called


def without_seed(label: str) -> str:
    """A label less its seeds: what the seeds of one arm have in common.

    >>> [without_seed(label) for label in ("fig2-seed0-6/plain-seed03", "res20-seed12", "seed0", "net")]
    ['fig2/plain', 'res20', 'nets', 'net']
    """
    return _less_seeds(label) or "nets"


def _less_seeds(label: str) -> str:
    return SEED.sub("", label).strip("/-_ ")


def seed_in(label: str) -> int | None:
    """The seed that a label ends on; None if it names none, or several.

    >>> seed_in("fig2-seed0-6/plain-seed03"), seed_in("res20"), seed_in("fig2-seed0-6")
    (3, None, None)
    """
    found = [*SEED.finditer(label)]
    return int(found[-1][1]) if found and not found[-1][2] else None


def only_seed(config: Mapping[str, Any]) -> int | None:
    """The seed of a run that trained one; None if it trained several or does not say."""
    model = config.get("model")
    asked = model.get("seeds") if isinstance(model, Mapping) else None
    try:
        seeds = parse_seeds(asked) if asked is not None else ()
    except (UserError, TypeError):  # a configuration that is not ours, or edited: it does not say
        return None
    return seeds[0] if len(seeds) == 1 else None


def seed_of(member: str, config: Mapping[str, Any], run: str) -> int | None:
    """A net's seed: as the member's name says, else the configuration, if of one seed, else the run's name; None: unknown."""
    return next((seed for seed in (seed_in(member), only_seed(config), seed_in(run)) if seed is not None), None)


class NetName(NamedTuple):
    """What a net is called among others."""

    net: "Net"
    label: str  # unique among them
    group: str  # the label without its seed: the arm


def name_nets(runs: Sequence["Run"]) -> list[NetName]:
    """Names for the nets of some runs, run by run.

    A net is called as its member, with several runs as its run, and by both if that run has several members: "plain-seed03",
    "res20-seed03", "fig2/plain-seed03". Its group has the arm instead of the member, and the run's name without a seed.
    """
    if len(runs) == 1:
        return [NetName(net, net.name, net.arm) for net in runs[0].nets]
    groups = run_groups({run.label: run.config for run in runs})
    return [_named_net(net, groups[run.label]) for run in runs for net in run.nets]


def _named_net(net: "Net", group: str) -> NetName:
    bare = _less_seeds(group)
    if len(net.run.nets) == 1:
        return NetName(net, net.run.label, bare or "nets")
    return NetName(net, f"{net.run.label}/{net.name}", f"{bare}/{net.arm}" if bare else net.arm)


def parent_of(paths: Sequence[Path]) -> Path:
    """The deepest folder that holds all paths; the path itself when there is one."""
    return Path(os.path.commonpath([path.resolve() for path in paths]))


def run_labels(paths: Sequence[Path]) -> list[str]:
    """What runs are called: a single one by its folder, several by their ways from the folder that holds all."""
    if len(paths) == 1:
        return [paths[0].name]
    parent = parent_of(paths)
    return [path.resolve().relative_to(parent).as_posix() for path in paths]


def run_groups(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The name that each run's nets go by in groups, from the runs' labels and configurations.

    It is the label, but for runs of one name: equal but for seed and place they are one, otherwise what differs is said.

    >>> run_groups({"a": {"model": {"lr": 1, "seeds": "0-0"}}, "a~2": {"model": {"lr": 1, "seeds": "1-1"}}})
    {'a': 'a', 'a~2': 'a'}
    >>> run_groups({"a": {"net": {"residual": True}}, "a~2": {"net": {"residual": False}}})
    {'a': 'a (residual)', 'a~2': 'a (plain)'}
    """
    families: dict[str, list[str]] = {}
    for label in configs:
        families.setdefault(AGAIN.sub("", label), []).append(label)
    named = {}
    for base, labels in families.items():
        named |= _named(base, {label: science(configs[label]) for label in labels})
    return {label: named[label] for label in configs}


def _named(base: str, science: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Names for runs of one name."""
    if not all(science.values()):  # a run without configuration: cannot be told
        return {label: label for label in science}
    keys = dict.fromkeys(key for values in science.values() for key in values)
    differing = [key for key in keys if len({repr(values.get(key)) for values in science.values()}) > 1]
    if not differing:
        return dict.fromkeys(science, base)
    told = {label: _told(differing, values) for label, values in science.items()}
    kinds = {repr([values.get(key) for key in differing]) for values in science.values()}
    if len(differing) > TOLD or len(set(told.values())) < len(kinds):
        return _by_first(science, differing)
    return {label: f"{base} ({words})" for label, words in told.items()}


def _by_first(science: Mapping[str, Mapping[str, Any]], differing: Sequence[str]) -> dict[str, str]:
    """Each run by the label of the first that is equal to it: too much differs to be said in a name."""
    firsts: dict[str, str] = {}
    return {
        label: firsts.setdefault(repr([values.get(key) for key in differing]), label)
        for label, values in science.items()
    }


def _told(keys: Sequence[str], values: Mapping[str, Any]) -> str:
    """The values of some keys in words: "depth=20, plain"."""
    return ", ".join(dict.fromkeys(_word(key.split(".")[-1], values.get(key)) for key in keys))


def _word(key: str, value: Any) -> str:
    return KINDS[value] if key == "residual" and isinstance(value, bool) else f"{key}={value}"


def science(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a run computes: its configuration less seed and place."""
    return {key: value for key, value in flatten(config) if not key.startswith(PLACES)}


def flatten(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested dicts and lists as (dotted key, value)."""
    if isinstance(node, dict | list) and node:
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from flatten(child, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, node
