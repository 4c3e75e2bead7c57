"""A page drawn section by section, and again only those sections that read something which has changed.

A whole page takes seconds, nearly all of them matplotlib's, and an epoch is logged bit by bit: each measure changes a section
or two. So a run notes what a section asks of it (`Watched`), and the section is drawn again when a question has another answer.
"""

import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from lightning_app.board.worker import PAGES, PageRequest, PageUpdate, Stamp, stamp_of
from lightning_app.report.blocks import Section
from lightning_app.report.page import AFTER, BEFORE, render, seldom_collected, title_of
from lightning_app.report.page_data import PageData, page_of
from lightning_app.report.sections import configs, first, further
from lightning_app.runs import Run, RunFolder
from lightning_app.runs.folder import ARRAYS, SMALL_FILES
from lightning_app.runs.naming import run_labels
from lightning_app.runs.reader import Points

__all__ = ["Drawer"]

MODULES = (first, *BEFORE, further, *AFTER)  # in the order of the page
MAIN = re.compile(r"""(.*<main(?:"[^"]*"|'[^']*'|[^>"'])*>)(.*)(</main>.*)""", re.DOTALL)
Question = tuple[str, ...]


class Drawer:
    """Draws pages step by step, and remembers what it needs to decide what to draw again."""

    def __init__(self, step: int = 1) -> None:
        steps = count(step)
        self._page = lru_cache(PAGES)(lambda runs: _Page(steps))

    @seldom_collected()
    def draw(self, asked: PageRequest) -> PageUpdate:
        """Read the runs that changed, then draw one section of those that have to be drawn."""
        page = self._page(tuple(asked.runs))
        page.read(asked.runs)
        page.step(asked.looking)
        return page.since(asked.since)


class Watched(Run):
    """A run that notes in ``asked`` what it is asked, and finds the questions whose answers changed since an earlier reading."""

    def __init__(self, folder: RunFolder, label: str) -> None:
        self.asked: set[Question] = set()
        self._arrays_of: dict[str, list[Stamp]] = {}
        self.small_files = [stamp_of(folder.path / name) for name in SMALL_FILES]
        super().__init__(folder, label)

    def names(self, member: str = "") -> list[str]:
        self.asked.add(("names", member))
        return super().names(member)

    def points(self, name: str, member: str = "") -> Points:
        self.asked.add(("number", member, name))
        return super().points(name, member)

    @property
    def last_epochs(self) -> dict[str, int]:
        self.asked.add(("epochs",))
        return super().last_epochs

    @property
    def last_step(self) -> int:
        self.asked.add(("steps",))
        return super().last_step

    def array_epochs(self, family: str) -> list[float]:
        self.asked.add(("arrays", family))
        self._stamps(family)  # before they are read: what is written meanwhile is noticed later
        return super().array_epochs(family)

    def changed_since(self, earlier: "Watched") -> set[Question]:
        """The questions about the log and its arrays whose answers differ from the earlier ones."""
        keys: Collection[tuple[str, str]] = self._rows.keys() | earlier._rows.keys()
        if self.log[: len(earlier.log)].equals(earlier.log):  # it goes on: all others are the same
            rest = self.log[len(earlier.log) :]
            keys = {*zip(rest["member"], rest["name"], strict=True)}
        changed: set[Question] = {("number", *key) for key in keys if not self._same(earlier, key)}
        changed |= {("names", member) for member, _ in self._rows.keys() ^ earlier._rows.keys()}
        changed |= {("epochs",)} if self.last_epochs != earlier.last_epochs else set()
        changed |= {("steps",)} if self.last_step != earlier.last_step else set()
        return changed | {("arrays", name) for name, was in earlier._arrays_of.items() if was != self._stamps(name)}

    def _same(self, earlier: "Watched", key: tuple[str, str]) -> bool:
        if key not in self._rows or key not in earlier._rows:
            return False
        ours, theirs = self._rows[key], earlier._rows[key]
        columns = ((self._columns[each][ours], earlier._columns[each][theirs]) for each in self._columns)
        return len(ours) == len(theirs) and all(np.array_equal(*pair, equal_nan=True) for pair in columns)

    def _stamps(self, family: str) -> list[Stamp]:
        if family not in self._arrays_of:
            files = sorted((self.folder.path / ARRAYS).glob(f"epoch=*/{family}.npz"))
            self._arrays_of[family] = [(file.parent.name, *stamp_of(file)) for file in files]
        return self._arrays_of[family]


class DrawnSection(NamedTuple):
    """What the last drawing of a module gave."""

    asked: set[tuple[Path, Question]]
    given: object  # besides the runs
    step: int  # when it was drawn
    section: Section | None = None  # without its blocks
    html: str = ""
    anchors: Sequence[str] = ()


@dataclass
class _Page:
    """Some runs, and what has been drawn of them."""

    steps: Iterator[int]
    runs: dict[Path, Watched] = field(default_factory=dict)
    stamps: dict[Path, Stamp] = field(default_factory=dict)
    problems: dict[Path, str] = field(default_factory=dict)
    data: PageData = field(default_factory=lambda: PageData([], []))
    parts: dict[ModuleType, DrawnSection] = field(default_factory=dict)  # by module
    stale: set[ModuleType] = field(default_factory=lambda: {*MODULES})

    def read(self, stamps: dict[Path, Stamp]) -> None:
        """Read the runs that have other stamps, and note the sections to which that matters."""
        folders = [path for path, stamp in stamps.items() if self.stamps.get(path) != stamp]
        if not folders:
            return
        labels = dict(zip(stamps, run_labels([*stamps]), strict=True))
        earlier, names = self.runs, self._names()
        read = {path: self._read(path, labels[path]) for path in folders}
        found = {path: read[path] if path in read else earlier.get(path) for path in stamps}
        self.runs, self.stamps = {path: run for path, run in found.items() if run}, dict(stamps)
        self.data = page_of([*self.runs.values()])
        changed: set[tuple[Path, Question]] = set()
        for path, run in read.items():
            was = earlier.get(path)
            if run is None or was is None or run.small_files != was.small_files:
                self.stale |= {*MODULES}
            else:
                questions = run.changed_since(was)
                changed |= {(path, question) for question in questions}
                # What is drawn again reads these again.
                again = [f"{os.sep}{question[1]}.npz" for question in questions if question[0] == "arrays"]
                run.damage += [message for message in was.damage if not any(file in message for file in again)]
        if names != self._names():
            self.stale |= {*MODULES}
        self.stale |= {configs, *(module for module, part in self.parts.items() if part.asked & changed)}

    def _read(self, path: Path, label: str) -> Watched | None:
        self.problems.pop(path, None)
        try:
            run = Watched(RunFolder(path), label)
            _ = run.config  # which groups of runs are named after
            return run
        except (ValueError, OSError) as error:
            self.problems[path] = f"{label} is left out: {error}"
            return None

    def _names(self) -> list[tuple[object, ...]]:
        """What nets are called and how they are drawn: in every section."""
        return [(net.label, net.group, net.style, net.kind, net.seed, net.twin_of) for net in self.data.nets]

    def step(self, looking: Sequence[str]) -> None:
        """Draw what is looked at, else what comes first; nothing when all is drawn."""
        if due := self._due():
            on_screen = (
                each for each in due if (part := self.parts.get(each)) and part.section and part.section.key in looking
            )
            self._draw(next(on_screen, due[0]))

    def since(self, step: int) -> PageUpdate:
        """What there is, with the HTML of what was drawn after a step."""
        drawn = [part for module in MODULES if (part := self.parts.get(module))]
        there = [(part, part.section) for part in drawn if part.section]
        title = title_of([run.folder for run in self.runs.values()])
        before, _, after = _split(render([section for _, section in there], title, self.data))
        new = {section.key: part.html for part, section in there if part.step > step}
        problems = [self.problems[path] for path in self.stamps if path in self.problems]
        last = max((part.step for part in drawn), default=step)
        return PageUpdate(last, (before, after), [section.key for _, section in there], new, problems, len(self._due()))

    def _due(self) -> list[ModuleType]:
        """What is stale; if nothing else is, also sections that were given something other than what there is now."""
        due = [module for module in MODULES if module in self.stale and module is not further]
        others = (further, first, configs)
        return due or [each for each in others if each in self.stale or self.parts[each].given != self._given(each)]

    def _given(self, module: ModuleType) -> object:
        """What a section gets from the other sections: this is why it is drawn last, or twice."""
        parts = [part for each, part in self.parts.items() if each is not module]
        if module is first:
            return frozenset(anchor for part in parts for anchor in part.anchors)
        if module is further:
            return frozenset(family for part in parts if part.section for family in part.section.families)
        return [sorted({*run.damage}) for run in self.runs.values()] if module is configs else None

    def _draw(self, module: ModuleType) -> None:
        given = self._given(module)
        page = replace(self.data, nets=[replace(net) for net in self.data.nets])  # none has an answer at hand
        for run in self.runs.values():
            run.asked, run.damage = set(), [*dict.fromkeys(run.damage)]
        try:
            section = module.section(page, given) if module in (first, further) else module.section(page)
        except Exception as error:  # of damaged files, or of numbers that no run of ours has: the others are drawn
            name = module.__name__.rpartition(".")[2]
            section = Section(name, name.capitalize(), notices=[f"Not drawn ({type(error).__name__}: {error})"])
        asked = {(path, question) for path, run in self.runs.items() for question in run.asked}
        self.stale.discard(module)
        if section is None:
            self.parts[module] = DrawnSection(asked, given, next(self.steps))
            return
        html = _split(render([section], "", self.data))[1]
        bare = replace(section, lead="", blocks=(), notices=())
        self.parts[module] = DrawnSection(asked, given, next(self.steps), bare, html, section.anchors)


def _split(page: str) -> tuple[str, str, str]:
    """A page before, within and after its main part."""
    found = MAIN.fullmatch(page)
    assert found is not None, "the page has no <main>"
    return found[1], found[2], found[3]
