"""The two sides of a comparison: which nets they have, which of them are pairs, and what must be known about that."""

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import cached_property
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lightning_app.common.errors import UserError, nearest
from lightning_app.common.files import with_home
from lightning_app.common.numbers import plural
from lightning_app.runs import Net, Run, find_runs, read_runs
from lightning_app.runs.configuration import ALL_DATA, changes, compared, differing
from lightning_app.runs.folder import by_number

RISKS = ("train/risk", "train/risk_running")
LOWER_IS_BETTER = re.compile(  # last parts of names; a standard_error is neither good nor bad
    r"((train|training|val|valid|validation|test|eval)_)?(error|risk|cost|loss)(_running|_ema|_paper|_epoch|_step)?"
)
OF_ARMS = ("net", "twin_of", "decay_towards")  # options of each
MEASURING = ("data.init_args.probe_size", "data.init_args.evaluate_train")  # options of the data that train nothing
# Beginnings of options that say what nets see.
SEEN = ("data.", "trainer.limit_train_batches", "trainer.overfit_batches")
APART = "model.share_batches"  # if it is false, a seed has other batches in each arm
# Options of data sets, of ours and of others', with which a task is harder or easier.
WHAT_IS_LEARNT = re.compile(
    r"data\.class_path|data\.init_args\.(classes|task|label_noise\w*|hops|letters|modulus|level|separation)"
)


@dataclass(frozen=True)
class Sides:
    """Nets of A and of B; net i of both is pair i."""

    a: tuple[Net, ...]
    b: tuple[Net, ...]
    seeds: tuple[int, ...] | None  # of the pairs; None: not paired by seed
    notes: tuple[str, ...]  # what to know about the pairs
    differing: Mapping[str, tuple[Any, Any]]  # options that differ: key -> value in A and in B, None where absent

    @cached_property
    def names(self) -> set[str]:
        """What was measured of all nets, except those whose run ended early because a net diverged."""
        return set.intersection(*(set(net.names) for net in self._going_on))

    @property
    def _going_on(self) -> list[Net]:
        return [net for net in self.a + self.b if net.run.diverged is None] or [*self.a, *self.b]

    @cached_property
    def one_loss(self) -> bool:
        """Whether no configuration names another loss than the others: risks and curvature of two have no common unit."""
        losses = (net.run.options.get("model.loss") for net in self.a + self.b)
        return len({str(loss) for loss in losses if loss is not None}) < 2

    @property
    def risk(self) -> str | None:
        """The name of the training risk that was measured of all nets; None: none was, or their losses differ."""
        return next((name for name in RISKS if name in self.names and self.one_loss), None)

    def chosen(self, patterns: Iterable[str]) -> list[str]:
        """The names that match, in the order of patterns, then of the log.

        Raises:
            UserError: for a pattern that matches nothing that all nets have, with the nets that lack it, and what is near.
        """
        found: dict[str, None] = {}
        every = dict.fromkeys(name for net in self.a + self.b for name in net.names)
        for pattern in patterns:
            matching = [name for name in every if name in self.names and fnmatchcase(name, pattern)]
            if not matching:
                near = nearest(pattern, sorted(self.names), 3)
                hint = f"did you mean {' or '.join(near)}? " if near else ""
                # Numbers of nets before those of layers.
                first = sorted(self.names, key=lambda name: (name.count("/"), name))[:6]
                there = f"there are {len(self.names)}, such as {', '.join(first)}" if first else "there is none"
                lack = self._lacking(pattern)
                raise UserError(f"no number '{pattern}' was measured of all nets of both sides{lack}: {hint}{there}.")
            found |= dict.fromkeys(matching)
        return [*found]

    def _lacking(self, pattern: str) -> str:
        """Which nets have no such number, where others have one."""
        going_on = self._going_on
        lack = [net for net in going_on if not any(fnmatchcase(name, pattern) for name in net.names)]
        some = [f"{label_of(net)} of {'A' if net in self.a else 'B'}" for net in lack[:3]]
        return f" (not of {', '.join(some)}{', ...' * (len(lack) > 3)})" * (0 < len(lack) < len(going_on))

    def table(self, name: str) -> tuple[np.ndarray, pd.DataFrame, pd.DataFrame]:
        """Epochs (E,) at which all nets have the number, and the numbers of both sides: a row an epoch, a column a pair.

        A run that ended because a net diverged also gets the later epochs of the others. Where less is better, a number that is
        not finite becomes infinite: that net has diverged. NaN: not known.

        Raises:
            UserError: if there is no such epoch.
        """
        every = pd.concat([net.series(name) for net in self.a + self.b], axis=1).index
        sides = ([_to_the_end(net, name, every) for net in side] for side in (self.a, self.b))
        both = [pd.concat(side, axis=1, join="inner") for side in sides]
        epochs = both[0].index.intersection(both[1].index).sort_values()
        if not len(epochs):
            a, b = (f"{one.index.min():g} to {one.index.max():g}" if len(one) else "none" for one in both)
            raise UserError(
                f"expected {name} at the same epoch in all nets of both sides, got epochs {a} in A and {b} in B: choose another "
                "--metric, or measure both at the same epochs."
            )
        return epochs.to_numpy(), both[0].loc[epochs], both[1].loc[epochs]


def sides_of(a: str, b: str) -> Sides:
    """Two sides as a user names them: ``PATH[,PATH...][:ARM]``, a path being a run, a folder of runs or a pattern of them.

    Raises:
        UserError: for a side without nets, of several arms, with a seed twice, or of other data than the other side's.
    """
    return matched(_nets(a), _nets(b))


def matched(nets_a: Sequence[Net], nets_b: Sequence[Net]) -> Sides:
    """Two sides, each of nets of one kind with a seed each.

    Nets with the same seed are a pair if the recorded configurations say that they saw the same data in the same order: then
    what the seed does to both cancels in the difference. Otherwise the first net of A is compared with the first of B, etc.

    Raises:
        UserError: if the two were trained on different tasks.
    """
    if both := _keys(nets_a).keys() & _keys(nets_b).keys():
        label = label_of(_keys(nets_a)[min(both)])
        raise UserError(f"{label} is on both sides: name two different arms or runs.")
    every = (*nets_a, *nets_b)
    runs = [*{net.run.folder.path: net.run for net in every}.values()]
    options = differing(_options(nets_a[0]), _options(nets_b[0]))
    within = {side: _differing_within(nets) for side, nets in (("A", nets_a), ("B", nets_b))}
    notes = [
        f"The nets of {side} differ among themselves in {', '.join(keys)}." for side, keys in within.items() if keys
    ]
    labels, on_a = Counter(run.label for run in runs), {net.run.folder.path for net in nets_a}
    for run in runs:
        side = f" of {'A' if run.folder.path in on_a else 'B'}" * (labels[run.label] > 1)
        notes += [f"{run.label}{side}: {changes(found)}." for found in run.changed_options]
        notes += [f"{run.label}{side}: {damaged}" for damaged in run.damage]
    anywhere = {**options, **within["A"], **within["B"]}
    recorded = all("data" in run.config for run in runs)
    known = len(runs) == 1 or recorded
    # A run from before an option existed lacks it; where the others have 0 or False, the task is the same.
    apart = (item for net in _kinds(every) for item in differing(_options(nets_a[0]), _options(net)).items())
    tasks = {key: values for key, values in apart if WHAT_IS_LEARNT.fullmatch(key) and any(values)}
    if known and tasks:
        key, values = next(iter(tasks.items()))
        raise UserError(
            f"A and B were trained on different tasks ({key} is {' and '.join(map(str, values))}), so their numbers cannot be "
            "compared."
        )
    last = max(net.epoch for net in every)
    notes += [*_unfinished("A", nets_a, last), *_unfinished("B", nets_b, last)]
    by_seed = [{net.seed: net for net in nets if net.seed is not None} for nets in (nets_a, nets_b)]
    shared = sorted(by_seed[0].keys() & by_seed[1].keys())
    pairs_a, pairs_b = (tuple(side[seed] for seed in shared) for side in by_seed)
    if all(a.run.folder == b.run.folder for a, b in zip(pairs_a, pairs_b, strict=True)):  # whatever data these runs had
        known |= bool(shared)
    else:
        known &= not any(run.damage for run in runs)
        anywhere |= _ways_apart(runs)
    data = [key for key in anywhere if key.startswith(SEEN) and key not in MEASURING] if recorded else []
    data += [APART] * (len({_batches_of(net) for net in every}) > 1)
    if shared and not data and known:
        if left_out := len(every) - 2 * len(shared):
            notes.append(f"Left out: {plural(left_out, 'net')} without a counterpart of the same seed.")
        return Sides(pairs_a, pairs_b, tuple(shared), tuple(notes), options)
    why = f"their data differ ({', '.join(data)})" if data else "they share no seed"
    why = why if known else "not all configurations say on which data the nets were trained"
    count = min(len(nets_a), len(nets_b))
    notes.append(f"Not paired by seed, because {why}: nets are compared in their order.")
    if len(nets_a) != len(nets_b):
        notes.append(f"A has {plural(len(nets_a), 'net')} and B {len(nets_b)}: the first {count} of each are compared.")
    return Sides(tuple(nets_a[:count]), tuple(nets_b[:count]), None, tuple(notes), options)


def _differing_within(nets: Sequence[Net]) -> dict[str, tuple[Any, Any]]:
    """Options in which the nets of one side differ from the first of them."""
    return {key: two for net in _kinds(nets) for key, two in differing(_options(nets[0]), _options(net)).items()}


def _batches_of(net: Net) -> str:
    """The arm whose batches a net gets, a twin those of its original; "" where all arms share them."""
    return "" if net.run.options.get(APART, True) else net.spec.get("twin_of") or net.arm


def _kinds(nets: Iterable[Net]) -> Iterable[Net]:
    """One net of each arm of each run: the others have the same options."""
    return {(net.run.folder, net.arm): net for net in nets}.values()


def _ways_apart(runs: Iterable[Run]) -> dict[str, tuple[Any, Any]]:
    """Options of the data that runs changed when they were resumed, and not all alike; after which epoch is not known.

    An option that the earlier configuration lacks is one of a newer version, and no change.
    """
    ways: list[list[dict[str, tuple[Any, Any]]]] = []
    for run in runs:
        both = itertools.pairwise(map(_of_one_spelling, map(compared, [*run.earlier_configs, run.config])))
        found = [differing(old, {key: new.get(key) for key in old}) for old, new in both]
        ways.append([of_data for each in found if (of_data := {k: v for k, v in each.items() if k.startswith(SEEN)})])
    return (
        {key: values for way in ways for each in way for key, values in each.items()} if ways[1:] != ways[:-1] else {}
    )


def _of_one_spelling(options: Mapping[str, Any]) -> dict[str, Any]:
    """All of the data as None, however it is spelled: then options differ only where nets see other data."""
    return {key: None if repr(value) in ALL_DATA.get(key, ()) else value for key, value in options.items()}


def _nets(side: str) -> list[Net]:
    """The nets of one side, by seed."""
    paths, colon, arm = side.rpartition(":")
    if not colon or Path(side).exists() or "/" in arm:
        paths, colon, arm = side, "", ""
    if colon and not arm:
        raise UserError(
            f"expected the name of an arm behind the colon of '{side}', got none: name it, or leave out the colon."
        )
    if not all(paths.split(",")):
        raise UserError(f"a side of compare is a run, or several with commas between them, got '{side}'.")
    whole = with_home(paths)
    parts = [whole] if whole.exists() else [with_home(part) for part in paths.split(",")]
    found = [path for part in parts for path in ([] if part.exists() else _matching(part)) or [part]]
    runs = read_runs(find_runs(dict.fromkeys(map(os.path.realpath, found))))
    nets_of = [_with_numbers_of_their_run(run) for run in runs]
    nets = [net for of_run in nets_of for net in of_run if arm in ("", net.arm)]
    for run in runs:
        run.check()
    arms = sorted({net.arm for of_run in nets_of for net in of_run})
    if not nets and not arm:
        raise UserError(f"{paths} has no numbers yet, which compare needs: name another run.")
    if not nets:
        raise UserError(
            f"no arm '{arm}' in {paths}; there are {', '.join(arms) or 'no nets'}: name one of them behind the colon."
        )
    if not arm and any(len({net.arm for net in of_run}) > 1 for of_run in nets_of):
        raise UserError(f"{paths} has the arms {', '.join(arms)}: say which, as in {paths}:{arms[0]}.")
    twice = sorted(seed for seed, count in Counter(net.seed for net in nets).items() if seed is not None and count > 1)
    if twice:
        raise UserError(f"{side} has seed {twice[0]} in several runs: name the run of each seed once.")
    return sorted(nets, key=lambda net: -1 if net.seed is None else net.seed)


def _matching(pattern: Path) -> list[Path]:
    return sorted(map(Path, glob(str(pattern))), key=by_number)


class OnlyNet(Net):
    """The net of a run that has no other: its numbers, and what was logged of the run as a whole, as by a module of one's own."""

    @cached_property
    def names(self) -> list[str]:
        return [*dict.fromkeys((*self.run.names(self.name), *self.run.names()))]

    def _member(self, name: str) -> str:
        return self.name if name in self.run.names(self.name) else ""


def _with_numbers_of_their_run(run: Run) -> list[Net]:
    """A run's nets; of a single one, or of a run that measured none, with the numbers of the run."""
    if len(run.nets) > 1 or not len(run.log):
        return run.nets
    net = run.nets[0] if run.nets else run.net("")
    return [OnlyNet(**{field.name: getattr(net, field.name) for field in fields(net)})]


def lower_is_better(name: str) -> bool:
    """Whether a number is an error, a risk, a cost or a loss; if it is not finite, the net has diverged."""
    return LOWER_IS_BETTER.fullmatch(name.rpartition("/")[2]) is not None


def _has_stopped(net: Net) -> bool:
    """Whether its run ended because this net diverged: then its log ends before what tells."""
    return net.run.diverged is not None and net.run.diverged[0] == net.name


def _to_the_end(net: Net, name: str, every: pd.Index) -> pd.Series:
    """A net's numbers by epoch, and at the others' later ones what is known of a net whose run has ended: see `Sides.table`."""
    own, failing = net.series(name), lower_is_better(name)
    if failing:
        own = own.where(np.isfinite(own), math.inf)
    if net.run.diverged is None:
        return own
    gone = failing and _has_stopped(net)
    if gone:  # its last number too, since there may be no later epoch to compare at
        own.iloc[-1:] = math.inf
    return own.reindex(own.index.union(every[every > net.epoch]), fill_value=math.inf if gone else math.nan)


def _keys(nets: Iterable[Net]) -> dict[tuple[Path, str], Net]:
    return {(net.run.folder.path, net.name): net for net in nets}


def label_of(net: Net) -> str:
    return f"{net.run.label}/{net.name}".rstrip("/")


def _unfinished(side: str, nets: Sequence[Net], last: int) -> list[str]:
    stopped = [f"{label_of(net)} after epoch {net.epoch}" for net in nets if _has_stopped(net)]
    behind = [f"{label_of(net)} at {net.epoch}" for net in nets if net.epoch < last and not _has_stopped(net)]
    diverged = [f"Nets of {side} that diverged and stopped: {', '.join(stopped)}."] if stopped else []
    return diverged + ([f"Not all nets of {side} are at epoch {last}: {', '.join(behind)}."] if behind else [])


def _options(net: Net) -> dict[str, Any]:
    """What its run computes, and of the run's arms its own only."""
    options = _of_one_spelling(net.run.options)
    run = {key: value for key, value in options.items() if not key.startswith(("model.arms.", "model.net."))}
    return run | compared({key: net.spec.get(key) for key in OF_ARMS})
