"""What is drawn again when a run goes on: no section too few."""

import numpy as np
import pytest

from lightning_app.board import drawing
from lightning_app.board.drawing import Drawer
from lightning_app.board.worker import PageRequest
from lightning_app.report.sections import configs, first, headline, layers
from lightning_app.report.sections import cushions as sections_cushions
from lightning_app.runs import Row, RunFolder
from tests.report.conftest import cushions, make_run, of_member


class Page:
    """The page of some runs, as a server would have it."""

    def __init__(self, *paths):
        self.drawer, self.paths, self.stamp, self.step = Drawer(), paths, 0, 0
        self.sections = {}

    def redrawn(self, looking=()) -> list[str]:
        """Draw until all is drawn; the keys in the order in which they came."""
        self.stamp, keys, left = self.stamp + 1, [], 1
        while left:
            drawn = self.drawer.draw(PageRequest(dict.fromkeys(self.paths, (self.stamp,)), self.step, looking))
            self.step, left = drawn.step, drawn.left
            self.sections = {key: (self.sections | drawn.new)[key] for key in drawn.sections}
            self.shell, self.problems = drawn.shell, drawn.problems
            keys += drawn.new
        return keys


def draw_only(monkeypatch, wanted) -> None:
    """No other section: each takes its time."""
    for module in drawing.MODULES:
        if module is not wanted:
            monkeypatch.setattr(module, "section", lambda *_: None)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run with its page drawn once."""
    run = make_run(tmp_path_factory.mktemp("runs") / "quick", epochs=2)
    page = Page(run.path)
    assert {"learning", "weights", "cushions", "configs"} <= {*page.redrawn()}
    return run, page


def test_what_did_not_change_is_not_drawn_again(watched):
    _, page = watched
    assert page.redrawn() == ["configs"]  # shows what it cannot know to be unchanged


def test_numbers_of_one_measure(watched):
    run, page = watched
    run.append([Row("plain", 3, 1173, "weight_mass/norm", 12.5)])
    again = page.redrawn(looking=["weights"])
    assert again[0] == "weights" and {"learning", "cushions"}.isdisjoint(again)


def test_arrays_that_come_after_their_numbers(watched):
    run, page = watched
    rng = np.random.default_rng(1)
    numbers, arrays = cushions("plain", rng)
    run.append([Row("plain", 3, 1173, name, float(value)) for name, value in numbers.items()])
    assert "cushions" in page.redrawn()
    run.save_arrays(3, "cushion", of_member("plain", arrays))
    again = page.redrawn()
    assert "cushions" in again and {"learning", "weights"}.isdisjoint(again)


def test_in_the_end_the_page_is_that_of_a_new_start(watched):
    """After the changes above, and others: a value replaced as by a resume, a net and a measure that were not there."""
    run, page = watched
    run.append([Row("plain", 1, 391, "train/error", 0.25), Row("", 3, 1173, "time/epoch", 20.0)])
    page.redrawn()
    run.append([Row("plain", 3, 1173, "mine/number", 0.5), Row("residual-seed01", 1, 391, "test/error", 0.125)])
    page.redrawn()
    new = Page(run.path)
    new.redrawn()
    assert [*page.sections] == [*new.sections] and page.shell == new.shell
    assert [key for key in new.sections if new.sections[key] != page.sections[key]] == []
    assert "residual-seed01" in new.sections["learning"] and "mine/number" in new.sections["own-measures"]


def test_steps_of_a_loop_whose_first_epoch_is_not_over(tmp_path, monkeypatch):
    run = RunFolder(tmp_path / "loop")
    run.append([Row("net", 0.1, 100, "train/loss", 2.0)])
    draw_only(monkeypatch, first)
    page = Page(run.path)
    page.redrawn()
    assert "1 net in 1 run, 100 steps;" in page.sections["findings"]
    run.append([Row("net", 0.2, 200, "train/loss", 1.0)])
    page.redrawn()
    assert "1 net in 1 run, 200 steps;" in page.sections["findings"]


def test_a_damaged_run_is_named_and_the_others_are_drawn(watched, tmp_path, monkeypatch):
    run, _ = watched
    half = RunFolder(tmp_path / "half")
    half.append([Row("plain", 0, 0, "train/risk", 2.3)])
    with (half.path / "log.csv").open("a") as log:
        log.write("plain,1,391,train/ri")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "log.csv").write_text("what is this\n")
    page = Page(run.path, damaged, half.path)
    draw_only(monkeypatch, configs)
    page.redrawn()
    (problem,) = page.problems
    assert str(damaged) in problem and "must begin with the line" in problem
    assert "half,plain,train/risk,0,2.3" in page.sections["configs"] and "train/ri," not in page.sections["configs"]


def test_a_file_that_is_whole_again_is_not_left_out_any_more(tmp_path, monkeypatch):
    """As of a run that is being copied from another machine."""
    run = make_run(tmp_path / "copied", epochs=1)
    file = run.path / "measurements" / "epoch=0001" / "cushion.npz"
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    for module in drawing.MODULES:
        if module not in (configs, sections_cushions):
            monkeypatch.setattr(module, "section", lambda *_: None)
    page = Page(run.path)
    page.redrawn()
    assert "Left out, " in page.sections["configs"]
    file.write_bytes(whole[:200])
    page.redrawn()
    assert page.sections["configs"].count("Left out, ") == 1
    file.write_bytes(whole)
    page.redrawn()
    assert "Left out, " not in page.sections["configs"]
    read = RunFolder.arrays
    with monkeypatch.context() as patched:  # a resume removes it and measures again
        patched.setattr(RunFolder, "arrays", lambda *asked: file.unlink(missing_ok=True) or read(*asked))
        file.write_bytes(whole)
        page.redrawn()
    assert "found none" in page.sections["configs"]
    file.write_bytes(whole)
    page.redrawn()
    assert "Left out, " not in page.sections["configs"]


def test_a_section_that_fails_costs_itself(watched, monkeypatch):
    run, _ = watched
    draw_only(monkeypatch, headline)
    monkeypatch.setattr(layers, "section", lambda page: 1 / 0)
    page = Page(run.path)
    page.redrawn()
    assert "ZeroDivisionError" in page.sections["layers"] and "plain" in page.sections["headline"]
