"""Which runs there are, which pages of them are looked at, and how far these are drawn.

One thread looks at the folders and has pages drawn in another process, a section at a time. Requests take what there is, and
wait for more. What nobody looks at is not drawn.
"""

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from pathlib import Path
from typing import NamedTuple

from lightning_app.board.worker import PAGES, PageRequest, PageUpdate, Stamp, Worker, WorkerEnded, stamp_of
from lightning_app.common.text import visible
from lightning_app.runs.folder import ARRAYS, FINISHED, LOGS, MADE, SMALL_FILES, by_number, each_once, run_folders
from lightning_app.runs.naming import parent_of

__all__ = ["SHOWN", "Board"]

SHOWN = 6  # runs on the page when none are chosen: the newest
TICK = 0.1  # seconds between two looks at the files of runs on a page
GOING_ON = 600.0  # seconds before the last number of all, within which a run that has not ended is taken to train
SEARCH = 1.0  # seconds between two searches for runs
SHARE = 0.05  # of a processor that searches may take: of thousands of runs each takes long, and training comes first
WATCHED = 60.0  # seconds after the last request for which a page is kept up to date
VIEWS = PAGES  # pages at once
CLOSED = 10.0  # seconds after the last request for which a page may still be open in a browser, which asks every 3 s
AGAIN = 5.0  # seconds until the process that draws is started again
FIRST = 0.5  # seconds that a request waits for the first section; without one it gets an empty page, and then news
LOST = (
    "The process that draws this page ended ({}) and is started again. If it ends again, choose fewer runs, which need less "
    "memory."
)
MANY = f"The board draws {VIEWS} pages at once, and so many others are open: close one of them, and this one is drawn."


END = "live"  # what a page calls its end: a new section may be there
EMPTY = (
    '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
    '<meta name="viewport" content="width=device-width, initial-scale=1"><title>Board</title></head><body><main>',
    "</main></body></html>",
)


class ListedRun(NamedTuple):
    """A run folder."""

    label: str  # unique
    path: Path
    written: float  # when its log was, in seconds since 1970
    begun: float  # or resumed; as far as it is known
    finished: bool


@dataclass
class OpenPage:
    """A page of some runs."""

    chosen: tuple[str, ...]  # labels of runs; none: the newest
    looked: float = 0.0  # when somebody asked for it last
    looking: Sequence[str] = ()  # keys of sections on the screen
    stamps: dict[Path, Stamp] | None = None  # of what is drawn
    drawn: PageUpdate | None = None
    sections: dict[str, str] = field(default_factory=dict)  # key -> HTML
    steps: dict[str, int] = field(default_factory=dict)  # key -> step at which it came
    lost: str = ""  # why there is no newer one

    @property
    def step(self) -> int:
        return self.drawn.step if self.drawn else 0

    def has_news(self, step: int) -> bool:
        """Is something new to be seen? A browser takes a second for a page, so what is off the screen waits for the rest."""
        if self.drawn is None or step == self.drawn.step:
            return False
        return not self.drawn.left or END in self.looking or any(self.steps.get(key, 0) > step for key in self.looking)


class Board:
    """The runs in some folders, and pages of them.

    Args:
        folders: run folders, or folders of them; they may come into being later.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = [Path(os.path.realpath(folder)) for folder in folders]
        self.runs: dict[str, ListedRun] = {}  # by label, the newest first
        self._views: dict[tuple[str, ...], OpenPage] = {}
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._worker = Worker()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def start(self) -> None:
        """Begin with the page of the newest runs, before anybody asks for it."""
        self._search()
        self._view(())
        self._thread.start()

    def close(self) -> None:
        """End the process that draws; whoever waits gets what there is."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        self._worker.end()
        self._thread.join()

    def page(self, chosen: Sequence[str]) -> tuple[int, str, str, str]:
        """The page as far as it is drawn: its step, and HTML before, within and after the main part."""
        with self._changed:
            view = self._view(tuple(chosen))
            self._changed.wait_for(lambda: view.drawn or view.lost or self._closed.is_set(), FIRST)
            before, after = view.drawn.shell if view.drawn else EMPTY
            keys = view.drawn.sections if view.drawn else ()
            return view.step, before, "\n".join([self._about(view), *(view.sections[key] for key in keys)]), after

    def news(self, chosen: Sequence[str], step: int, looking: Sequence[str], seconds: float) -> int:
        """The step of a page when something on the screen is new, or all is drawn, or after so many seconds."""
        with self._changed:
            view = self._view(tuple(chosen))
            view.looking = looking
            self._changed.wait_for(lambda: view.has_news(step) or self._closed.is_set(), seconds)
            return view.step or (0 if view.lost == MANY else step)

    def _view(self, chosen: tuple[str, ...]) -> OpenPage:
        """A page of these runs, to be drawn; where `VIEWS` others are open, one that will not be drawn, and says so."""
        view, now = self._views.pop(chosen, None) or OpenPage(chosen), time.monotonic()
        if len(self._views) == VIEWS:
            oldest = next(iter(self._views))
            if now - self._views[oldest].looked < CLOSED:
                view.lost = MANY
                return view
            del self._views[oldest]
        view.looked = now
        self._views[chosen] = view
        return view

    def _about(self, view: OpenPage) -> str:
        """How new the page is, what is wrong, and the runs to choose from."""
        shown = self._shown(view)
        last = max((run.written for run in shown), default=None)
        facts = [f"{len(shown)} of {len(self.runs)} runs"]
        facts += [f"last number logged {_spelt(last)}"] if last is not None else []
        left = view.drawn.left if view.drawn else "all" * bool(shown)
        facts += [f"sections still to be drawn: {left}"] if left else []
        problems = [f"There is no run {label}." for label in view.chosen if label not in self.runs]
        problems += [f"There are no runs in {folder} yet." for folder in self.folders if not self.runs]
        problems += [*(view.drawn.problems if view.drawn else ()), *filter(None, [view.lost])]
        boxes = "".join(_box(run, run in shown) for run in self.runs.values())
        return (
            '<aside id="about"><details><summary>Live: ' + _text(", ".join(facts)) + "</summary>"
            f'<form>{boxes}<p><button>Show these runs</button> <a href="?">The {SHOWN} newest</a></p></form></details>'
            + "".join(f'<p class="notice">{_text(problem)}</p>' for problem in problems)
            + "</aside>"
        )

    def _shown(self, view: OpenPage) -> list[ListedRun]:
        """Those chosen, in the order of `report`."""
        chosen = [self.runs[label] for label in view.chosen if label in self.runs]
        return sorted(chosen or [*self.runs.values()][:SHOWN], key=lambda run: by_number(run.path))

    def _follow(self) -> None:
        due = time.monotonic() + SEARCH
        while not self._closed.is_set():
            if time.monotonic() > due:
                began = time.thread_time()
                self._search()
                due = time.monotonic() + max(SEARCH, (time.thread_time() - began) / SHARE)
            with self._changed:
                views = [view for view in self._views.values() if time.monotonic() - view.looked < WATCHED]
            if not any([self._step(view) for view in views]):
                self._closed.wait(TICK)

    def _step(self, view: OpenPage) -> bool:
        """Have one section drawn; False if there is none to draw."""
        shown = self._shown(view)
        stamps = {run.path: _stamp(run.path) for run in shown}
        if view.drawn and not view.drawn.left and stamps == view.stamps:
            return False
        # Nobody looks for runs during a drawing, and the first one takes long on a busy machine.
        if not view.drawn and not stamps:
            return False
        if stamps != view.stamps:
            # The order of the runs, and when each was written, are of the same moment as the numbers.
            self._list([*self.runs.values(), *(_found(run.label, run.path) for run in shown)])
        goes_on = view.stamps is not None and [*view.stamps] == [*stamps]  # else what was received is of other runs
        try:
            drawn = self._worker.draw(PageRequest(stamps, view.step if goes_on else 0, view.looking))
        except WorkerEnded as error:
            view.lost = LOST.format(error)
            self._closed.wait(AGAIN)
            return True
        with self._changed:
            known = view.sections | drawn.new
            view.sections = {key: known[key] for key in drawn.sections}
            view.steps |= dict.fromkeys(drawn.new, drawn.step)
            view.drawn, view.stamps, view.lost = drawn, stamps, ""
            self._changed.notify_all()
        return True

    def _search(self) -> None:
        base = self.folders[0] if len(self.folders) == 1 else parent_of(self.folders)
        paths = each_once(path for folder in self.folders for path in run_folders(folder))
        self._list([_found(path.relative_to(base).as_posix() if path != base else path.name, path) for path in paths])

    def _list(self, found: Sequence[ListedRun]) -> None:
        """In their order; of one that is there twice the later counts."""
        runs = {run.label: run for run in found}.values()
        last = max((run.written for run in runs), default=0.0)
        self.runs = {run.label: run for run in sorted(runs, key=lambda run: _age(run, last))}


def _found(label: str, path: Path) -> ListedRun:
    written = max((int(stamp[1]) for name in LOGS if (stamp := stamp_of(path / name))), default=0)
    begun = int(stamp[1]) if (stamp := stamp_of(path / MADE)) else written
    return ListedRun(label, path, written / 1e9, begun / 1e9, stamp_of(path / FINISHED) != ())


def _age(run: ListedRun, last: float) -> tuple[bool, float, str]:
    """To sort runs by, the newest first: those that train by their begin, as with each number another one is the last written."""
    trains = not run.finished and run.written > last - GOING_ON
    return not trains, -(run.begun if trains else run.written), run.label


def _stamp(run: Path) -> Stamp:
    """Another one whenever one of the run's files is."""
    arrays = run / ARRAYS
    try:
        newest = max(os.listdir(arrays), default="")
    except OSError:
        newest = ""
    return tuple(map(stamp_of, [*(run / name for name in (*LOGS, *SMALL_FILES)), arrays, arrays / newest]))


def _box(run: ListedRun, shown: bool) -> str:
    state = ", finished" if run.finished else ""
    return (
        f'<p><label><input type="checkbox" name="run" value="{escape(run.label)}"{" checked" if shown else ""}> '
        f"{_text(run.label)} <small>{_spelt(run.written)}{state}</small></label></p>"
    )


def _spelt(seconds: float) -> str:
    """A time of this machine; without the date if that is today.

    >>> _spelt(0)[:4] in ("1969", "1970")
    True
    """
    then = datetime.fromtimestamp(seconds)
    return then.strftime("%H:%M:%S" if then.date() == datetime.now().date() else "%Y-%m-%d %H:%M")


def _text(text: str) -> str:
    return escape(visible(text))
