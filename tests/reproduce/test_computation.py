"""Computations: what is kept, what is made anew, and what an interruption costs."""

import threading
from pathlib import Path

import numpy as np
import pytest

from lightning_app.common.errors import UserError
from lightning_app.papers import predicates
from lightning_app.papers.parts import PAPER, SMOKE, Artefact, Computation, Paper, Source
from lightning_app.papers.predicates import Within
from lightning_app.papers.verdicts import Class, Verdict
from lightning_app.reproduce.computing import ComputationJob
from lightning_app.reproduce.evidence import Reproduction
from lightning_app.reproduce.job import JobOptions
from lightning_app.reproduce.making import make
from lightning_app.runs.lock import claimed

PIECES = {f"depth{depth}": {"depth": depth, "seeds": 3, "epochs": 100, "limit": None} for depth in (2, 4, 8)}


class Depths:
    """Makes depths times seed, and notes what it was asked for."""

    def __init__(self, fail_at: int | None = None):
        self.asked: list[dict] = []
        self.sources: list[Source] = []
        self.fail_at = fail_at

    def __call__(self, source: Source, **asked):
        if asked["depth"] == self.fail_at:
            raise KeyboardInterrupt
        self.asked.append(asked)
        self.sources.append(source)
        return {"depths": asked["depth"] * np.arange(asked["seeds"], dtype=float), "data": "three numbers"}


def task(compute, pieces=PIECES, scale=PAPER, version: int = 1) -> ComputationJob:
    return ComputationJob("paper", Computation("depths", compute, pieces, version), scale)


def test_all_is_computed_once(tmp_path):
    compute = Depths()
    assert task(compute).state(tmp_path) == "not run"
    for _ in range(2):
        task(compute).complete(tmp_path, JobOptions(Path("data")))
    assert [asked["depth"] for asked in compute.asked] == [2, 4, 8]
    assert task(compute).state(tmp_path) == "finished"
    computed = task(compute).found(tmp_path)
    assert computed.pieces["depth8"]["depths"].tolist() == [0, 8, 16]
    assert computed.standing == "computed on three numbers"


def test_an_interruption_costs_one_piece(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        task(Depths(fail_at=4)).complete(tmp_path, JobOptions(Path("data")))
    assert task(Depths()).state(tmp_path) == "1 of 3 pieces"
    assert list(task(Depths()).found(tmp_path).pieces) == ["depth2"]
    compute = Depths()
    task(compute).complete(tmp_path, JobOptions(Path("data")))
    assert [asked["depth"] for asked in compute.asked] == [4, 8]
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("changed", "again"),
    [
        ({"version": 2}, [2, 4, 8]),
        ({"pieces": PIECES | {"depth4": PIECES["depth4"] | {"limit": 10_000}}}, [4]),
        ({"pieces": PIECES | {"depth16": PIECES["depth8"] | {"depth": 16}}}, [16]),
        ({"scale": SMOKE}, [2, 4, 8]),
    ],
)
def test_what_decides_a_piece_makes_it_anew(tmp_path, changed, again):
    task(Depths()).complete(tmp_path, JobOptions(Path("data")))
    compute = Depths()
    task(compute, **changed).complete(tmp_path, JobOptions(Path("elsewhere")))  # the place of the data decides nothing
    assert [asked["depth"] for asked in compute.asked] == again


def test_what_is_kept_is_replaced_once_something_else_decides_it(tmp_path):
    root, kept = tmp_path / "runs", tmp_path / "results"

    def keep(numbers: float, version: int) -> tuple[bool, float]:
        job = task(lambda source, **asked: {"depths": np.full(1, numbers)}, version=version)
        job.complete(root, JobOptions(Path("data")))
        return job.keep(root, kept), job.found(tmp_path / "nowhere", kept).pieces["depth4"]["depths"].item()

    assert keep(1.0, version=1) == (True, 1.0)
    assert keep(2.0, version=1) == (False, 1.0), "the same is not computed and not kept again"
    assert keep(2.0, version=2) == (True, 2.0)


def test_a_file_that_is_no_piece_is_made_anew(tmp_path):
    task(Depths()).complete(tmp_path, JobOptions(Path("data")))
    task(Depths()).file("depth2", tmp_path).write_bytes(b"torn")
    np.savez(task(Depths()).file("depth4", tmp_path), depths=np.zeros(3))
    assert task(Depths()).state(tmp_path) == "1 of 3 pieces"
    task(Depths()).complete(tmp_path, JobOptions(Path("data")))
    assert task(Depths()).state(tmp_path) == "finished"


def test_a_scale_caps_epochs_seeds_and_subset_only(tmp_path):
    for scale, caps, stand_in in ((PAPER, (100, 3, None), False), (SMOKE, (2, 2, 512), True)):
        compute = Depths()
        task(compute, scale=scale).complete(tmp_path, JobOptions(tmp_path / "data"))
        assert [(a["epochs"], a["seeds"], a["limit"]) for a in compute.asked] == [caps] * 3
        assert [a["depth"] for a in compute.asked] == [2, 4, 8]
        assert compute.sources[0] == Source(tmp_path / "data", stand_in)
    assert {path.name for path in tmp_path.iterdir()} == {"paper", "paper-smoke"}


def test_who_comes_second_waits_and_computes_nothing(tmp_path, capsys):
    slow, second = Depths(), Depths()
    with claimed(tmp_path / "paper", "depths", "computation depths"):
        waiting = threading.Thread(target=task(second).complete, args=(tmp_path, JobOptions(Path("data"))))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        for piece in PIECES:  # what the holder of the lock does
            task(slow)._write(piece, tmp_path, slow(None, depth=2, seeds=1), seconds=0.1)
    waiting.join(60)
    assert not waiting.is_alive()
    assert second.asked == []
    assert "computation depths: another process is working on it; waiting." in capsys.readouterr().out


def test_where_nothing_can_be_written_a_message_says_so(tmp_path):
    (tmp_path / "paper").write_text("a file")
    with pytest.raises(UserError, match="Choose another --runs"):
        task(Depths()).complete(tmp_path, JobOptions(Path("data")))


def artefact(compute) -> Artefact:
    def claims(results):
        ours = results.of(computation, lambda two, eight: eight["depths"] - two["depths"], "depth2", "depth8")
        return [predicates.tested("difference", 6.0, Within(6.0, 0.1), ours)]

    computation = Computation("depths", compute, PIECES)
    return Artefact("fig-0", "depths", claims, "As they are.", computations=(computation,), about=Class.FORMULA)


def test_claims_are_about_pieces_that_are_there(tmp_path):
    def made(work, scale=PAPER):
        asked = Reproduction(Paper("paper", "A paper.", ()), artefact(Depths()), scale, tmp_path / "out")
        found = make(asked, tmp_path / "runs", work)
        return found.counts, (found.folder / "table.md").read_text()

    work = JobOptions(tmp_path)
    counts, table = made(None)
    assert counts == f"formula: 1 {Verdict.NOT_TESTED}"
    assert "depth2 of depths was not computed" in table
    assert "depths 0 of 3 pieces." in table
    assert not (tmp_path / "runs").exists()
    assert made(JobOptions(tmp_path, only=("other",)))[0] == f"formula: 1 {Verdict.NOT_TESTED}"
    counts, table = made(work)
    assert counts == f"formula: 1 {Verdict.REPRODUCED}"
    assert "depths computed on three numbers." in table
    assert made(work, SMOKE)[0] == f"formula: 1 {Verdict.NOT_TESTED}"
