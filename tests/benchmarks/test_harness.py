"""Rows have goals, files can be read again, contenders live in processes, the page is made of files, the guard fails far off."""

import argparse
import gc
import importlib
import json
import multiprocessing
import os
import pkgutil
import re
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

import benchmarks
from benchmarks import guard, hessian, page, training
from benchmarks.__main__ import NAMES, PAGES, main
from benchmarks.harness import Comparison, Ratio, Results, Row, in_process, interleave, options_of, rows_of, run
from lightning_app.common.errors import UserError

FAST, SLOW, FREE = (
    Row("a", "b", Ratio(0.5, 0.4, 0.9), goal=0.6),
    Row("c", "d", Ratio(40, 30, 50), goal=100, better="more"),
    Row("e", "f", Ratio.of(2.0)),
)


def test_contenders_take_turns_in_alternating_order_and_are_compared_round_by_round():
    turns = []
    values = {"a": iter([0.0, 2.0, 9.0]), "b": iter([0.0, 1.0, 3.0])}  # the first is a warm-up
    contenders = {name: lambda name=name: turns.append(name) or next(values[name]) for name in values}
    found = interleave(contenders, rounds=2)
    assert turns == ["a", "b", "a", "b", "b", "a"]
    assert found.ratio("a", "b") == Ratio(2.5, 2.0, 3.0)


def counter(start: int) -> Callable[[], float]:
    """Made once: counts its turns, and has this process's number of threads."""
    turns = iter(range(start, 100))
    return lambda: float(next(turns)) + 1000 * torch.get_num_threads()


def sleeper() -> Callable[[], None]:
    return lambda: None


def dying() -> Callable[[], float]:
    return lambda: os._exit(7)


def mistaken() -> Callable[[], float]:
    raise UserError("no data there")


def test_a_contender_in_a_process_is_made_once_and_has_our_threads():
    turn = in_process(counter, 5)
    assert [turn() - 1000 * torch.get_num_threads() for _ in range(3)] == [5, 6, 7]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [(mistaken, UserError, "no data there"), (dying, RuntimeError, "terminated abruptly")],
)
def test_errors_of_a_process_are_raised_here(make, error, message):
    with pytest.raises(error, match=message):
        in_process(make)()


def test_a_process_that_nobody_can_call_again_ends():
    before = set(multiprocessing.active_children())
    turn = in_process(sleeper)
    assert turn() > 0  # what returns nothing is timed
    (process,) = set(multiprocessing.active_children()) - before
    del turn
    gc.collect()
    process.join(120)
    assert process.exitcode == 0


def test_the_median_decides_whether_a_goal_is_met():
    assert [row.met for row in (FAST, SLOW, FREE)] == [True, False, None]
    assert [SLOW.within(margin) for margin in (1, 2, 3)] == [False, False, True]


def test_a_file_of_results_has_its_command_and_gives_its_rows_back(tmp_path, monkeypatch):
    parser = options_of("what", rounds=2, images=8)
    parser.add_argument("--fast", action="store_true")
    for switch in ("--compile", "--check"):
        parser.add_argument(switch, action=argparse.BooleanOptionalAction, default=True)

    def measure(options):
        return Results("a setting", [FAST, FREE], {"all": Comparison({"a": [1.0, 2.0]}, "s")}, {"count": 3})

    monkeypatch.setitem(measure.__globals__, "__spec__", SimpleNamespace(name="benchmarks.some"))
    run(measure, parser, ["--root", "/somewhere", "--out", str(tmp_path), "--fast", "--no-compile", "--images", "9"])
    content = json.loads((tmp_path / "some.json").read_text())
    assert rows_of(content) == [FAST, FREE]
    assert content["command"] == "python -m benchmarks.some --rounds 2 --images 9 --fast --no-compile"
    assert content["values"]["all"] == {"unit": "s", "a": [1.0, 2.0]} and content["count"] == 3
    assert {"commit", "machine", "versions"} <= content.keys()
    assert "/somewhere" not in json.dumps(content) and str(tmp_path) not in json.dumps(content)


def test_the_page_is_what_the_files_of_results_make_and_every_command_of_it_exists():
    results = page.read(page.RESULTS)
    assert page.PAGE.read_text() == page.page(results)
    for name, content in results.items():
        python, _, module, *words = content["command"].split()
        assert (python, module) == ("python", f"benchmarks.{name.partition(':')[0]}")
        parser = importlib.import_module(module).parser()
        assert module == "benchmarks.gpu" or parser.parse_args(words)  # which needs a GPU to parse its words


def test_a_table_has_goals_misses_and_ranges():
    assert page.table([FAST, SLOW, FREE]).splitlines()[2:] == [
        "| a | b | 0.5 (0.4 - 0.9) | ≤ 0.6 | met |",
        "| c | d | 40 (30 - 50) | ≥ 100 | **missed** |",
        "| e | f | 2 |  |  |",
    ]


@pytest.mark.parametrize("benchmark", [training, hessian], ids=["in processes of their own", "in one"])
def test_missing_data_is_an_error_message(benchmark, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(benchmark.measure, benchmark.parser(), ["--root", str(tmp_path), "--rounds", "1", "--depth", "5"])
    assert stopped.value.code == 2
    assert re.match(r"error: expected CIFAR-10.* in ", capsys.readouterr().err)


def test_the_guard_fails_on_what_misses_its_goal_by_more_than_the_margin(monkeypatch, capsys):
    rows = [FAST, SLOW, FREE]
    monkeypatch.setattr(guard, "GUARDED", {"linear_hessian": ""})
    monkeypatch.setattr(guard, "run", lambda *_: Results("a setting", rows))
    for margin, code in (("2", 1), ("3", 0)):
        monkeypatch.setattr("sys.argv", ["guard", "--margin", margin])
        with pytest.raises(SystemExit) as stopped:
            guard.main()
        assert stopped.value.code == code
    assert capsys.readouterr().out.count("beyond") == 1


def test_what_the_guard_runs_exists():
    for name, words in guard.GUARDED.items():
        importlib.import_module(f"benchmarks.{name}").parser().parse_args(words.split())


def test_the_command_for_all_knows_every_benchmark():
    modules = {module.name for module in pkgutil.iter_modules(benchmarks.__path__)} - {"__main__", "gpu", "host"}
    assert set(NAMES) == {m for m in modules if hasattr(importlib.import_module(f"benchmarks.{m}"), "measure")}


def test_the_command_for_all_hands_options_on_and_names_what_failed(monkeypatch):
    called = []
    monkeypatch.setattr(
        "subprocess.run", lambda words: called.append(words[2:]) or SimpleNamespace(returncode="data" in words[2])
    )
    with pytest.raises(SystemExit) as ended:
        main(["--root", "data", "--run", "some", "data", "report"])
    assert ended.value.code == "failed: data"
    words = ["--root", "data"]
    assert called == [["benchmarks.data", *words], ["benchmarks.report", *words, "--run", "some"]]
    called.clear()
    with pytest.raises(SystemExit):
        main([])
    assert [words[0] for words in called] == [f"benchmarks.{name}" for name in NAMES if name not in PAGES]
