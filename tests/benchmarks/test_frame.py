"""Lines know their goals, files can be read again, the page is made of files, and the guard fails only far off."""

import argparse
import importlib
import json
import pkgutil
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import benchmarks
from benchmarks import data, epoch, guard, hessian, page, seeds, solo, training
from benchmarks.__main__ import NAMES, main
from benchmarks.frame import Findings, Line, lines_of, options_of, run
from benchmarks.timing import Comparison, Ratio

FAST, SLOW, FREE = (
    Line("a", "b", Ratio(0.5, 0.4, 0.9), goal=0.6),
    Line("c", "d", Ratio(40, 30, 50), goal=100, better="more"),
    Line("e", "f", Ratio.of(2.0)),
)


def test_a_median_decides_whether_a_goal_is_met():
    assert [line.met for line in (FAST, SLOW, FREE)] == [True, False, None]


def test_a_file_of_results_says_how_it_was_made_and_gives_its_lines_back(tmp_path, monkeypatch):
    parser = options_of("what", rounds=2, images=8)
    parser.add_argument("--fast", action="store_true")
    for switch in ("--compile", "--check"):
        parser.add_argument(switch, action=argparse.BooleanOptionalAction, default=True)

    def measure(options):
        return Findings("a setting", [FAST, FREE], {"all": Comparison({"a": [1.0, 2.0]}, "s")}, {"count": 3})

    monkeypatch.setitem(measure.__globals__, "__spec__", SimpleNamespace(name="benchmarks.some"))
    run(measure, parser, ["--root", "/somewhere", "--out", str(tmp_path), "--fast", "--no-compile", "--images", "9"])
    content = json.loads((tmp_path / "some.json").read_text())
    assert lines_of(content) == [FAST, FREE]
    assert content["command"] == "python -m benchmarks.some --rounds 2 --images 9 --fast --no-compile"
    assert content["values"]["all"] == {"unit": "s", "a": [1.0, 2.0]} and content["count"] == 3
    assert "/somewhere" not in json.dumps(content) and str(tmp_path) not in json.dumps(content)


@pytest.mark.parametrize("margin, failing", [(1, [SLOW]), (2, [SLOW]), (3, [])])
def test_the_guard_fails_on_what_misses_its_goal_by_more_than_the_margin(margin, failing):
    assert [line for line in (FAST, SLOW, FREE) if not guard.within(line, margin)] == failing


def test_the_guard_exits_with_1_and_names_the_figure(monkeypatch, capsys):
    monkeypatch.setattr(guard, "GUARDED", {"linear_hessian": "--units 1 --width 2 --samples 4 --rounds 1"})
    monkeypatch.setattr(guard, "within", lambda line, margin: "autograd" in line.what or "relative" in line.what)
    monkeypatch.setattr("sys.argv", ["guard"])
    with pytest.raises(SystemExit) as stopped:
        guard.main()
    assert stopped.value.code == 1
    assert "beyond 3 times its goal: exact Hessian" in capsys.readouterr().out


def test_the_guard_leaves_out_what_is_known_to_miss_its_goal():
    known = Line("start-up", data.CACHED, Ratio.of(20), goal=100, better="more")
    assert guard.within(known, 3) and not guard.within(replace(known, against=data.ARRAY_FILES), 3)


def test_what_the_guard_runs_is_there():
    for name, words in guard.GUARDED.items():
        importlib.import_module(f"benchmarks.{name}").parser().parse_args(words.split())


def test_the_command_for_all_knows_every_benchmark():
    modules = {module.name for module in pkgutil.iter_modules(benchmarks.__path__) if not module.ispkg}
    measuring = {
        name for name in modules - {"__main__"} if hasattr(importlib.import_module(f"benchmarks.{name}"), "parser")
    }
    assert set(NAMES) == measuring - {"soak", "guard", "trained_spectrum"}


@pytest.mark.parametrize(
    "words, names",
    [
        ("", [name for name in NAMES if name != "report"]),
        ("--run some", list(NAMES)),
        ("data report", ["data", "report"]),
    ],
)
def test_the_command_for_all_hands_on_what_is_asked(monkeypatch, words, names):
    called = []
    monkeypatch.setattr("subprocess.run", lambda call: called.append(call[2:]) or SimpleNamespace(returncode=0))
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), "--root", "data", "--out", "results"])
    assert ended.value.code == 0
    run = ["--run", "some"] if "--run" in words else []
    assert called == [
        [f"benchmarks.{name}", "--root", "data", "--out", "results", *(run if name in ("scaling", "report") else [])]
        for name in names
    ]


def test_a_benchmark_that_fails_does_not_stop_the_others_and_is_named(monkeypatch):
    codes = {"benchmarks.data": 0, "benchmarks.seeds": 1, "benchmarks.solo": 0}
    monkeypatch.setattr("subprocess.run", lambda call: SimpleNamespace(returncode=codes.pop(call[2])))
    with pytest.raises(SystemExit) as ended:
        main(["--root", "data", "data", "seeds", "solo"])
    assert (ended.value.code, codes) == ("failed: seeds", {})


def test_the_readme_and_the_page_say_what_the_files_say():
    results = page.read(page.RESULTS)
    assert page.README.read_text() == page.with_table(page.README.read_text(), results)
    assert page.PAGE.read_text() == page.page(results)


def test_a_readme_without_a_place_for_the_table_is_refused():
    with pytest.raises(ValueError, match="expected one place"):
        page.with_table("no place", {})


def test_a_table_has_goals_misses_and_ranges():
    assert page.table([FAST, SLOW, FREE]).splitlines()[2:] == [
        "| a | b | 0.5 (0.4 - 0.9) | ≤ 0.6 | met |",
        "| c | d | 40 (30 - 50) | ≥ 100 | **missed** |",
        "| e | f | 2 |  |  |",
    ]


TINY = ("--images", "64", "--rounds", "1", "--depth", "5")


def test_the_loop_is_compared_with_a_bare_one(found):
    findings = found(training, *TINY, "--skip-switches")
    line, kept = findings.lines
    assert (line.what, line.against, line.goal) == ("training epoch through Lightning", training.KEPT, 1.03)
    values = findings.values["epochs"].values
    assert line.ratio.median == pytest.approx(values[training.OURS][0] / values[training.KEPT][0])
    assert kept.ratio.median == pytest.approx(values[training.KEPT][0] / values[training.BARE][0])


def test_the_floor_is_every_convolution_of_every_step(monkeypatch):
    """And its gradients, but for the images, of which a step takes none."""
    convolved, differentiated = [], []
    conv2d, grad = torch.nn.functional.conv2d, torch.autograd.grad
    monkeypatch.setattr(
        "benchmarks.training.F.conv2d", lambda *a, **b: convolved.append(a[0].shape[1:]) or conv2d(*a, **b)
    )
    monkeypatch.setattr("torch.autograd.grad", lambda out, of, g: differentiated.append(len(of)) or grad(out, of, g))
    epoch = training.convolutions(training.parser().parse_args(["--images", "192", "--depth", "8"]))
    convolved.clear()
    assert epoch() > 0
    maps = [(3, 32, 32), (16, 32, 32), (16, 32, 32), (16, 32, 32), (32, 16, 16), (32, 16, 16), (64, 8, 8)]
    assert sorted(map(tuple, convolved)) == sorted(2 * maps)  # two steps
    assert sorted(differentiated) == sorted(2 * ([1] + 6 * [2]))


@pytest.mark.parametrize("benchmark", [training, hessian], ids=["in processes of their own", "in one"])
def test_no_data_is_a_sentence(benchmark, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(benchmark.measure, benchmark.parser(), ["--root", str(tmp_path), *TINY])
    assert stopped.value.code == 2
    assert re.match(r"error: expected CIFAR-10.* in ", capsys.readouterr().err)


def test_a_bank_is_counted_in_nets(found, monkeypatch):
    monkeypatch.setattr(seeds, "BANKS", {"": (False, None)})
    findings = found(seeds, *TINY, "--nets", "1", "3", "--stacked")
    values = findings.values["epochs"].values
    of_three = findings.lines[1]
    assert of_three.ratio.median == pytest.approx(values["3 nets"][0] / values[seeds.ONE][0] / 3)
    assert [line.goal for line in findings.lines] == [None, 0.85]


@pytest.mark.slow  # compiles
def test_a_member_of_the_loop_is_the_net_trained_alone(found):
    lines = found(solo, "--seeds", "2", "--steps", "2", "--depth", "5").lines
    assert [(line.ratio.median, line.goal) for line in lines if "compiled" not in line.what] == [(0, 0), (0, 0)]
    assert all(0 < line.ratio.median < 1e-3 for line in lines if "compiled" in line.what)


@pytest.mark.slow  # all measures of base.yaml
def test_the_parts_of_an_epoch_are_scaled_and_weighed_by_their_schedule(found):
    findings = found(epoch, *TINY, "--modes", "eager", "--probe", "20")
    seconds = {name: values[0] for name, values in findings.values["eager"].values.items()}
    by_name = {line.what: line.ratio.median for line in findings.lines}
    assert by_name["evaluation"] == pytest.approx(seconds["evaluation"] / seconds["training"])
    assert by_name["HessianSpectrum, after every 2 epochs"] == pytest.approx(
        seconds["HessianSpectrum"] / 2 / seconds["training"]
    )
    usual = sum(t for name, t in seconds.items() if name not in ("training", epoch.EVERYTHING, "InterlayerCushion"))
    expected = (usual - seconds["HessianSpectrum"] / 2) / seconds["training"]
    assert by_name["evaluation and all measures of base.yaml"] == pytest.approx(expected)


def test_an_epoch_of_fewer_images_than_the_probe_is_refused(found):
    """Its measures would look at fewer than they say."""
    with pytest.raises(SystemExit, match=r"at least --probe, .* got 64 and 1000"):
        found(epoch, *TINY)
