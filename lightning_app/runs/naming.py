"""What runs and nets are called when several are shown together, and which nets are seeds of one arm.

A net's own arm and seed are recorded (see `reader`). Runs of a job array have names that differ in their seed
(``res20-seed03``). A sweep has one name for everything (``simplified``, ``simplified~2``, ...): there the configurations say
which runs differ in nothing but the seed, and how the others differ.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lightning_app.common.errors import UserError
from lightning_app.common.seeds import parse_seeds
from lightning_app.runs.configuration import compared, keys_that_differ

if TYPE_CHECKING:
    from lightning_app.runs.reader import Net, Run

SEED = re.compile(r"(?:[-_]|(?<![A-Za-z]))seeds?[-_=]?(\d+)((?:[-,]\d+)*)(?![\w.])")
KEPT = re.compile(r"~\d+[-,]\d[\d,-]*$")  # the seeds of a run that is kept as evidence
AGAIN = re.compile(rf"~\d+$|{KEPT.pattern}")  # or a run folder whose name was taken
# A number of one layer: "cushion/layer10/median", "interlayer/block02-block05/median", "own/measure/layer1.0.conv1/norm".
OF_LAYER = re.compile(r"(?P<family>.+?)/(?P<layer>(?P<part>layer|block)\d[^/]*)/(?P<field>.+)")
SHOWN = 3  # differences that fit into a name
KINDS = {True: "residual", False: "plain", None: "other"}  # what a net is called by its `residual`; None: unknown


def without_seed(label: str) -> str:
    """A label less its seeds: what the seeds of one arm have in common; "" if nothing is left.

    >>> [without_seed(label) for label in ("fig2-seed0-6/plain-seed03", "depth20~0-2", "depth20~0,2", "seed0", "net")]
    ['fig2/plain', 'depth20', 'depth20', '', 'net']
    """
    return SEED.sub("", KEPT.sub("", label)).replace("//", "/").strip("/-_ ")


def seed_of(member: str, config: Mapping[str, Any], run: str) -> int | None:
    """A seed that nothing recorded: in the member's name, else of a configuration with one seed, else in the run's name."""
    found = (_seed_in(member), _only_seed(config), _seed_in(run))
    return next((seed for seed in found if seed is not None), None)


def _seed_in(label: str) -> int | None:
    """The seed that a label ends on; None if it names none, or several.

    >>> _seed_in("fig2-seed0-6/plain-seed03"), _seed_in("res20"), _seed_in("fig2-seed0-6")
    (3, None, None)
    """
    found = [*SEED.finditer(label)]
    return int(found[-1][1]) if found and not found[-1][2] else None


def _only_seed(config: Mapping[str, Any]) -> int | None:
    """The seed of a run that trained one; None if it trained several or does not say."""
    model = config.get("model")
    seeds = model.get("seeds") if isinstance(model, Mapping) else None
    try:
        parsed = parse_seeds(seeds) if seeds is not None else ()
    except (UserError, TypeError):  # a configuration of another program, or edited
        return None
    return parsed[0] if len(parsed) == 1 else None


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
    # A resume may have raised the limits of one seed, or those of all before others were added: the fewer arms are meant.
    ways = [{run.label: run.options for run in runs}, {run.label: run.planned for run in runs}]
    found = min(map(run_groups, ways), key=lambda groups: len({*groups.values()}))
    groups = {label: without_seed(group) for label, group in found.items()}
    by_arm_alone = len({*groups.values()}) == 1 and any(len(run.nets) > 1 for run in runs)
    named = []
    for run in runs:
        alone = len(run.nets) == 1
        for net in run.nets:
            label = run.label if alone else f"{run.label}/{net.name}"
            parts = ("" if by_arm_alone else groups[run.label], "" if alone and not by_arm_alone else net.arm)
            named.append(NetName(net, label, "/".join(filter(None, parts)) or "nets"))
    return named


def parent_of(paths: Sequence[Path]) -> Path:
    """The deepest folder that holds all paths; the path itself when there is one. A link is where it lies, not where it leads.

    Of several none is the folder of the others: a run with another one in it, such as a measurement, is named like that, too.

    >>> parent_of([Path("/runs/a"), Path("/runs/a/measured")]).as_posix()
    '/runs'
    """
    absolute = [os.path.abspath(path) for path in paths]
    parent = Path(os.path.commonpath(absolute))
    return parent.parent if len(paths) > 1 and str(parent) in absolute else parent


def run_labels(paths: Sequence[Path]) -> list[str]:
    """What runs are called: a single one by its folder, several by their ways from the folder that holds all."""
    if len(paths) == 1:
        return [parent_of(paths).name]
    parent = parent_of(paths)
    return [Path(os.path.abspath(path)).relative_to(parent).as_posix() for path in paths]


def run_groups(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The name that each run's nets go by in groups, from the runs' labels and configurations, or options by dotted key.

    It is the label, but for runs of one name: equal but for seed and machine they are one, otherwise the name has what differs.
    A job array's names are one as soon as one of its seeds was trained again: else that seed would leave its arm.

    >>> run_groups({"a": {"model": {"lr": 1, "seeds": "0-0"}}, "a~2": {"model": {"lr": 1, "seeds": "1-1"}}})
    {'a': 'a', 'a~2': 'a'}
    >>> run_groups({"a": {"net": {"residual": True}}, "a~2": {"net": {"residual": False}}})
    {'a': 'a (residual)', 'a~2': 'a (plain)'}
    >>> [*run_groups({"a-seed0": {"lr": 1}, "a-seed1": {"lr": 1}, "a-seed1~2": {"lr": 2}}).values()]
    ['a (lr=1)', 'a (lr=1)', 'a (lr=2)']
    """
    names = {label: AGAIN.sub("", label) for label in configs}
    again = {without_seed(name) for label, name in names.items() if label != name}
    by_name: dict[str, list[str]] = {}
    for label, name in names.items():
        by_name.setdefault(stem if (stem := without_seed(name)) in again else name, []).append(label)
    groups: dict[str, str] = {}
    for base, labels in by_name.items():
        groups |= _groups(base, {label: compared(configs[label]) for label in labels})
    return {label: groups[label] for label in configs}


def _groups(base: str, runs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The groups of runs that have one name, by what they compute."""
    if not all(runs.values()):  # one has no configuration
        return {label: label for label in runs}
    differing = keys_that_differ(runs.values())
    same = {label: repr([values.get(key) for key in differing]) for label, values in runs.items()}
    words = {}
    for label, values in runs.items():  # "depth=20, plain"
        words[label] = ", ".join(dict.fromkeys(_word(key.split(".")[-1], values.get(key)) for key in differing))
    if len(differing) > SHOWN or len(set(words.values())) < len(set(same.values())):
        firsts: dict[str, str] = {}  # each by the label of the first that is equal to it
        return {label: firsts.setdefault(values, label) for label, values in same.items()}
    return {label: f"{base} ({text})" if text else base for label, text in words.items()}


def _word(key: str, value: Any) -> str:
    return KINDS[value] if key == "residual" and isinstance(value, bool) else f"{key}={value}"
