"""Which runs there are and which are shown, without anything drawn; and the command's mistakes."""

import errno
import os
import re
import signal
import subprocess
import sys
import threading
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

from lightning_app.board import views
from lightning_app.board.views import Board, OpenPage
from lightning_app.board.worker import PageRequest, PageUpdate, Worker, WorkerEnded
from lightning_app.cli import main
from lightning_app.runs import Row, RunFolder
from tests.helpers import ROOT


def logged(path: Path, seconds: float) -> Path:
    """A run whose last number is so old."""
    RunFolder(path).append([Row("net", 0, 0, "train/risk", 1.0)])
    os.utime(path / "log.csv", (seconds, seconds))
    return path


@pytest.fixture
def board(tmp_path):
    """Of twelve runs, the later ones newer; as after the first search, with nothing that draws."""
    for number in range(12):
        logged(tmp_path / "runs" / "group" / f"run{number:02d}", 1e9 + number)
    made = Board([tmp_path / "runs"])
    made._search()
    return made


def shown(board: Board, *chosen: str) -> list[str]:
    return [run.label for run in board._shown(OpenPage(chosen))]


def test_the_newest_runs_are_shown_and_others_can_be_chosen(board):
    assert [*board.runs][:2] == ["group/run11", "group/run10"] and len(board.runs) == 12
    assert shown(board) == [f"group/run{number:02d}" for number in range(6, 12)]
    assert shown(board, "group/run03", "group/run00") == ["group/run00", "group/run03"]
    text = board._about(OpenPage(("group/run03", "nowhere")))
    assert "Live: 1 of 12 runs" in text and "There is no run nowhere." in text
    assert text.count('type="checkbox"') == 12 and text.count(" checked") == 1


def test_of_more_runs_that_train_than_are_shown_the_last_begun_stay(board, tmp_path):
    """Each number had another run among the last written: another page, drawn from its beginning, and never whole."""
    for number in range(8):
        run = logged(tmp_path / "runs" / "array" / f"seed{number}", 2e9)
        (run / "made.jsonl").write_text("{}\n")
        os.utime(run / "made.jsonl", (1.9e9 + number, 1.9e9 + number))
    for second in range(1, 30):
        os.utime(tmp_path / "runs" / "array" / f"seed{second % 8}" / "log.csv", (2e9 + second, 2e9 + second))
        board._search()
        assert shown(board) == [f"array/seed{number}" for number in range(2, 8)]
    (run / "finished").write_text("1\n")
    os.utime(tmp_path / "runs" / "group" / "run03" / "log.csv", (2e9 + 30, 2e9 + 30))  # resumed
    board._search()
    assert shown(board) == ["array/seed2", *(f"array/seed{number}" for number in range(3, 7)), "group/run03"]


def test_folders_of_a_run_are_no_runs(board, tmp_path):
    for below in ("measurements", "wandb", "deeper/still"):
        logged(tmp_path / "runs" / "group" / "run00" / below, 3e9)
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")
    board._search()
    assert len(board.runs) == 12


def test_names_are_text(board, tmp_path):
    logged(tmp_path / "runs" / '"><script>alert(1)<\\script>\u202e', 3e9)
    board._search()
    text = board._about(OpenPage(()))
    assert "<script" not in text and "⟨U+202E⟩" in text


def test_a_link_to_a_run_is_that_run(tmp_path):
    run = logged(tmp_path / "scratch" / "x7", 1)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "best").symlink_to(run)
    for folders, labels in (
        ([tmp_path / "runs"], ["best"]),
        ([tmp_path / "runs", tmp_path / "scratch"], ["runs/best"]),
    ):
        made = Board(folders)
        made._search()
        assert [*made.runs] == labels


def test_one_run_and_several_folders(tmp_path):
    one, other = logged(tmp_path / "a" / "x", 1), logged(tmp_path / "b" / "x", 2)
    for folders, labels in (([one], ["x"]), ([one, other], ["b/x", "a/x"]), ([tmp_path / "a", other], ["b/x", "a/x"])):
        made = Board(folders)
        made._search()
        assert [*made.runs] == labels


class Draws:
    """A process that draws two sections and is then killed."""

    def __init__(self):
        self.asked = []

    def draw(self, asked):
        self.asked.append(asked)
        if len(self.asked) > 2:
            raise WorkerEnded("exit code -9")
        there = ["one", "two"][: len(self.asked)]
        return PageUpdate(len(self.asked), ("<main>", "</main>"), there, {there[-1]: there[-1]}, [], 2 - len(there))

    def end(self):
        pass


def test_a_page_is_drawn_step_by_step_and_outlives_its_process(board, tmp_path, monkeypatch):
    monkeypatch.setattr(views, "AGAIN", 0.0)
    board._worker = Draws()
    view = board._view(())
    assert board._step(view) and board.page(())[0] == 1
    for looking, news in (["two"], False), (["one"], True), ([views.END], True):
        view.looking = looking
        assert view.has_news(0) is news and not view.has_news(1)
    assert board._step(view) and not board._step(view)  # all is drawn
    view.looking = []
    assert view.has_news(1)
    assert board.news((), 1, ["two"], 0) == 2 and view.looking == ["two"]
    assert board.news((), 2, [], 0) == 2  # after the time that it was to wait
    logged(tmp_path / "runs" / "group" / "run11", 4e9)
    assert board._step(view)
    step, _, text, _ = board.page(())
    assert step == 2 and text.endswith("one\ntwo") and "exit code -9" in text
    assert [asked.since for asked in board._worker.asked] == [0, 1, 2]


class Remembers(Draws):
    """A process that has drawn pages of several runs, each with a section of its own."""

    def draw(self, asked):
        names = [path.name for path in asked.runs]
        self.asked += [names] if names not in self.asked else []
        step = self.asked.index(names) + 1
        new = {"-".join(names): "drawn"} if step > asked.since else {}
        return PageUpdate(step, ("<main>", "</main>"), ["-".join(names)], new, [], 0)


def test_the_page_of_runs_that_are_the_newest_again(board, tmp_path):
    """What was drawn of them was taken for received: a KeyError ended the thread, and the board stood still."""
    board._worker = Remembers()
    view, found = board._view(()), []
    for newest, other in (("run11", "run05"), ("run05", "run11"), ("run11", "run05")):
        for name, seconds in ((newest, 2e9), (other, 1)):
            os.utime(tmp_path / "runs" / "group" / name / "log.csv", (seconds, seconds))
        board._search()
        assert board._step(view)
        found.append({**view.sections})
    assert found[0] == found[2] != found[1] and [*map(len, found)] == [1, 1, 1]


def test_before_anything_is_drawn_there_is_a_page_of_what_is_known(board, monkeypatch):
    monkeypatch.setattr(views, "FIRST", 0.0)
    step, before, text, after = board.page(())
    assert step == 0 and "6 of 12 runs" in text and "still to be drawn: all" in text
    assert before.startswith("<!DOCTYPE html>") and "</body>" in after  # where the script has its place


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="needs sessions that share the processor")
def test_the_process_that_draws_gives_way_to_other_sessions_too():
    ask = "import os; print(os.nice(0), os.getsid(0) == os.getpid(), open('/proc/self/autogroup').read())"
    code = f"from lightning_app.board.worker import _give_way; _give_way(); {ask}"
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"  # leads no group
    said = subprocess.run([sys.executable, "-c", child, code], check=True, cwd=ROOT, capture_output=True, text=True)
    own = min(os.nice(0) + 10, 19)  # the tests may have given way themselves
    assert said.stdout.startswith(f"{own} True ") and said.stdout.rstrip().endswith(" nice 10")


def test_what_is_not_looked_at_is_forgotten(board, monkeypatch):
    monkeypatch.setattr(views, "CLOSED", 0.0)
    for number in range(views.VIEWS + 1):
        board._view((f"group/run{number:02d}",))
    assert len(board._views) == views.VIEWS and ("group/run00",) not in board._views


def test_more_pages_at_once_than_are_drawn_are_told_so(board, monkeypatch):
    """They took each other's place, again and again: none was ever whole."""
    board._worker = Draws()
    names = [(f"group/run{number:02d}",) for number in range(views.VIEWS + 1)]
    kept = [board._view(name) for name in names[:-1]]
    assert "close one of them" in board.page(names[-1])[2] and board._step(kept[0])
    assert [board._view(name) for name in names[:-1]] == kept
    assert [board.news(names[-1], step, [], 0) for step in (57, 0)] == [0, 0]  # an old page is told, once
    monkeypatch.setattr(views, "CLOSED", 0.0)  # one was closed
    assert board._view(names[-1]) is board._view(names[-1]) and "close one" not in board.page(names[-1])[2]


class Clock:
    """Time that passes only in searches and waits; also the event that closes a board, after 100 s."""

    now = used = 0.0

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.used

    def is_set(self) -> bool:
        return self.now > 100

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("takes", "searches"), [(0.01, 94), (0.5, 10)])
def test_searches_take_at_most_a_twentieth_of_a_processor_from_training(board, monkeypatch, takes, searches):
    """Of thousands of runs each took longer than the time between two."""
    clock, begun = Clock(), []

    def search() -> None:
        begun.append(clock.now)
        clock.now += takes
        clock.used += takes

    monkeypatch.setattr(views, "time", clock)
    monkeypatch.setattr(board, "_closed", clock)
    monkeypatch.setattr(board, "_search", search)
    board._follow()
    assert len(begun) == pytest.approx(searches, abs=2) and clock.used <= 0.05 * clock.now + takes


def test_new_numbers_need_no_search_for_runs(board, tmp_path, monkeypatch):
    """Of runs that log all the time there was one before each section, whatever it took."""
    board._worker = Draws()
    view = board._view(())
    monkeypatch.setattr(board, "_search", lambda: pytest.fail("searched"))
    os.utime(tmp_path / "runs" / "group" / "run07" / "log.csv", (3e9, 3e9))
    assert board._step(view)
    assert [*board.runs][:2] == ["group/run07", "group/run11"] and len(board.runs) == 12


def test_a_run_that_may_not_be_entered_is_one_run_less(board, tmp_path, monkeypatch):
    closed = tmp_path / "runs" / "group" / "run05"
    stat = Path.stat

    def refused(path: Path, **options: bool) -> os.stat_result:
        if closed in path.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refused)  # as of a folder that can be listed only, for which root has no test
    board._search()
    assert len(board.runs) == 12 and [*board.runs][-1] == "group/run05"


def test_a_link_to_itself_is_a_folder_that_is_not_there(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    made = Board([tmp_path / "loop"])
    made._search()
    assert made.runs == {}


def test_mistakes_are_one_line(tmp_path, capsys):
    (tmp_path / "log.csv").touch()
    for words in ([], [str(tmp_path / "log.csv")], [str(tmp_path), "--port", "x"]):
        assert main(["board", *words]) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ") and said.count("\n") == 1


def test_help_has_examples(capsys):
    assert main(["board", "--help"]) == 0
    assert "board runs/ --open" in capsys.readouterr().out


def test_open_shows_the_address_to_a_browser_and_says_where_there_is_none(monkeypatch, tmp_path, capsys):
    asked, before = [], signal.getsignal(signal.SIGTERM)

    def no_browser(url: str) -> bool:
        asked.append(url)
        os.kill(os.getpid(), signal.SIGTERM)  # ends the board
        return False

    monkeypatch.setattr("webbrowser.open", no_browser)
    try:
        assert main(["board", str(tmp_path), "--port", "0", "--open"]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    said, errors = capsys.readouterr()
    assert [said] == [f"board: {url}\n" for url in asked] and "there is no browser" in errors


def test_a_process_can_be_ended_while_it_is_being_started(monkeypatch):
    begun, go, told = threading.Event(), threading.Event(), []

    def slow(process: SpawnProcess, start=SpawnProcess.start) -> None:
        begun.set()
        go.wait(60)
        start(process)

    def draw() -> None:
        try:
            worker.draw(PageRequest({}))
        except WorkerEnded as error:
            told.append(error)

    monkeypatch.setattr(SpawnProcess, "start", slow)
    worker = Worker()
    threads = [threading.Thread(target=target) for target in (draw, worker.end)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    threads[1].join(0.2)  # it waits, and does not fail
    assert threads[1].is_alive()
    go.set()
    for thread in threads:
        thread.join(60)
    assert len(told) == 1


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads which signals a process takes")
def test_ctrl_c_is_kept_from_the_process_that_draws_from_its_first_moment():
    """It would print a traceback where it interrupts the imports before `_work`."""
    worker = Worker()
    with worker._started():
        status = Path(f"/proc/{worker._process.pid}/status").read_text()
    kept = int(re.search(r"^SigBlk:\s*(\w+)", status, re.MULTILINE)[1], 16)
    worker.end()
    assert kept >> (signal.SIGINT - 1) & 1
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())  # it ends the server


def test_a_process_that_cannot_be_started_is_ended_and_tried_again(monkeypatch):
    def refused(process: SpawnProcess) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    worker = Worker()
    with monkeypatch.context() as patched:
        patched.setattr(SpawnProcess, "start", refused)
        for _ in range(2):
            with pytest.raises(WorkerEnded, match="Resource temporarily unavailable"):
                worker.draw(PageRequest({}))
    assert worker.draw(PageRequest({})).problems == []
    worker.end()
