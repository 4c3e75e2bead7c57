"""The scripts for a GPU: counting by hand, what a second call does, and every part at a tiny size on the CPU."""

import argparse
import contextlib
import dataclasses
import json
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.frame import Findings
from benchmarks.gpu import __main__ as conductor
from benchmarks.gpu import alone, epochs, kernels, measuring, part, roofline, runs, steps
from benchmarks.gpu.clock import Clock
from benchmarks.gpu.counting import work_of
from benchmarks.gpu.kernels import DIRECTIONS, Convolution, compute
from benchmarks.gpu.part import Kept
from benchmarks.gpu.roofline import Roofline
from benchmarks.guard import make_images
from benchmarks.timing import Comparison, machine
from lightning_app.modules.backends import Loop

ROOT = Path(__file__).resolve().parents[2]
SHAPES = [Convolution(4, 4, 8, 1, batch=2), Convolution(4, 6, 8, 2, batch=2)]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Made images as CIFAR-10: two batches of 128."""
    root = tmp_path_factory.mktemp("data")
    make_images(root / "cifar10", 256, 16)
    return root


def found(module, out: Path, *words: str) -> dict:
    """What a part writes, run in this process at a tiny size."""
    part.run(
        module.measure, module.parser(), ["--device", "cpu", "--quick", "--out", str(out), "--rounds", "1", *words]
    )
    name = module.__name__.rpartition(".")[2]
    assert not part.unfinished_file(out, name).exists()
    return json.loads(part.finished_file(out, name).read_text())


# Counting


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_formula_counts_what_torch_counts(shape, direction):
    tensors = [torch.randn(each) for each in shape.shapes]
    with FlopCounterMode(display=False) as counter:
        made = compute(direction, *tensors, shape.stride)
    assert counter.get_total_flops() == shape.flops
    everything = sum(t.numel() * t.element_size() for t in tensors)
    assert shape.bytes(4) == everything
    assert made.shape == tensors[{"forward": 2, "dgrad": 0, "wgrad": 1}[direction]].shape


def test_the_convolutions_of_depth_20():
    numbers = {str(shape): times for shape, times in kernels.convolutions().items()}
    assert numbers == {"16-16@32": 6, "16-32@32/2": 1, "32-32@16": 5, "32-64@16/2": 1, "64-64@8": 5}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_all_ways_compute_the_same(shape, direction):
    """Grouped and vmapped convolutions of stacked tensors are the nets' own, one by one."""
    nets = 3
    stacked = [torch.randn(nets, *each, dtype=torch.float64) for each in shape.shapes]
    each = torch.stack([compute(direction, *(t[net] for t in stacked), shape.stride) for net in range(nets)])
    vmapped = torch.vmap(lambda *own: compute(direction, *own, shape.stride))(*stacked)
    x, w, g = stacked
    side = [t.transpose(0, 1).flatten(1, 2) for t in (x, g)]  # (B, S C, H, W)
    grouped = compute(direction, side[0], w.flatten(0, 1), side[1], shape.stride, nets)
    apart = (
        grouped.unflatten(0, (nets, -1)) if direction == "wgrad" else grouped.unflatten(1, (nets, -1)).transpose(0, 1)
    )
    assert torch.allclose(vmapped, each) and torch.allclose(apart, each)


def test_bytes_of_operations_that_are_counted_by_hand():
    x, y, many = torch.zeros(10), torch.zeros(10), [torch.zeros(3), torch.zeros(5)]
    assert work_of(lambda: x + y).bytes == 3 * 40
    assert work_of(lambda: x.add_(y)).bytes == 3 * 40  # reads both, writes one
    assert work_of(lambda: x.view(2, 5).t()).bytes == 0
    assert work_of(lambda: torch.empty(100)).bytes == 0
    assert work_of(lambda: x[0].expand(1000) + 1).bytes == 40 + 4000  # of the expanded one what is there
    assert work_of(lambda: torch._foreach_mul_(many, 2.0)).bytes == 2 * 32
    assert work_of(lambda: torch.mm(torch.ones(2, 3), torch.ones(3, 4))).flops == 2 * 2 * 3 * 4


def test_a_step_does_three_forward_passes_less_one_gradient():
    """The first convolution has no gradient of its input; depth 20 has 242.4 MFLOP an image."""
    assert steps.work_of_step(20, 2, "fp32").flops / 2e6 == pytest.approx(242.4, abs=0.05)


def test_the_roofline_is_the_slower_of_two():
    roof = Roofline(bandwidth=10.0, cached=20.0, rates={"fp32": 5.0})
    assert roof.seconds(flops=10.0, bytes=10.0, precision="fp32") == 2.0
    assert roof.seconds(flops=5.0, bytes=30.0, precision="fp32") == 3.0


def test_short_calls_are_repeated(monkeypatch):
    """Calls of 1 ms by a clock that only they move; first one to warm up and one to see how long it takes."""
    calls = []
    monkeypatch.setattr(time, "perf_counter", lambda: 1e-3 * len(calls))
    value = Clock("cpu", least=0.0095).contender(lambda: calls.append(1))()
    assert value == pytest.approx(1000) and len(calls) == 1 + 1 + 10


def test_a_step_captured_as_a_whole_is_the_back_ends_step(monkeypatch):
    nothing = {"stream": lambda stream: contextlib.nullcontext(), "Stream": Stand, "current_stream": Stand}
    for name, value in nothing.items():
        monkeypatch.setattr(torch.cuda, name, value)
    trained = []
    for make in (
        lambda p: steps.whole_step(p, "fp32"),
        lambda p: steps.step_of(p, Loop(torch.Tensor.backward), "fp32"),
    ):
        torch.manual_seed(0)
        passes = steps.passes_of(2, 5, 4, "cpu", compiled=False)
        step = make(passes)
        step(), step()
        trained.append([w for own in passes for w in own.net.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*trained))


class Stand:
    """For what a GPU has."""

    def wait_stream(self, other):
        pass

    def events(self):
        return []


# What survives


def test_what_is_finished_is_not_measured_again(tmp_path):
    file, calls = tmp_path / "gpu.x.unfinished.json", []

    def measure() -> Comparison:
        calls.append(1)
        return Comparison({"a": [1.0, 2.0]}, "us")

    first = Kept(file, "command").comparison("one", measure)
    assert Kept(file, "command").comparison("one", measure) == first and len(calls) == 1
    Kept(file, "command").comparison("other", measure)
    assert len(calls) == 2 and set(json.loads(file.read_text())["results"]) == {"one", "other"}


def test_what_another_commit_measured_is_measured_again(tmp_path, monkeypatch):
    file = tmp_path / "gpu.x.unfinished.json"
    Kept(file, "command").keep("one", 1)
    monkeypatch.setattr(part, "commit", lambda: "another")
    assert Kept(file, "command").once("one", lambda: 2) == 2


def test_what_another_command_measured_is_measured_again(tmp_path):
    file = tmp_path / "gpu.x.unfinished.json"
    Kept(file, "quick").keep("one", 1)
    assert Kept(file, "whole").once("one", lambda: 2) == 2


def test_a_part_that_was_killed_goes_on(tmp_path, monkeypatch):
    """The second comparison raises; the first one is not made again."""
    made, real = [], kernels.contenders

    def contenders(shape, direction, *more):
        made.append((shape, direction))
        if len(made) == 2:
            raise KeyboardInterrupt
        return real(shape, direction, *more)

    monkeypatch.setattr(kernels, "contenders", contenders)
    words = ("--nets", "1", "--precision", "fp32")
    with pytest.raises(KeyboardInterrupt):
        found(kernels, tmp_path, *words)
    assert part.unfinished_file(tmp_path, "kernels").exists()
    found(kernels, tmp_path, *words)
    assert len(made) == 1 + 15 and made.count(made[0]) == 1


# The command

PARTS = {
    "quick": "import json; json.dump(made, open(out + '/gpu.quick.json', 'w'))",
    "slow": "print(os.getpid(), file=open(out + '/pid', 'w')); time.sleep(60)",
    "broken": "sys.exit(3)",
    "deaf": (
        "import signal; child = os.fork(); "
        "print(child, file=open(out + '/pid', 'w')) if child else signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "time.sleep(60)"
    ),
}


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Parts of one line."""
    made = {"command": "command", "commit": part.commit(), "machine": machine()}

    def words(each, options, left):
        (options.out / "started").open("a").write(f"{each.name}\n")
        return [
            sys.executable,
            "-c",
            f"import os, sys, time; out = {str(options.out)!r}; made = {made}; {PARTS[each.name]}",
        ]

    monkeypatch.setattr(conductor, "_words", words)
    monkeypatch.setattr(conductor, "_command", lambda each, options: "command")
    monkeypatch.setattr(conductor, "NAMES", list(PARTS))
    monkeypatch.setattr(conductor, "GRACE", 2.0)

    def call(minutes: float, *only: str, again: bool = False) -> tuple[int, dict, list[str]]:
        monkeypatch.setattr(conductor, "PARTS", tuple(conductor.Part(name, 0.001) for name in only))
        handler = signal.getsignal(signal.SIGTERM)
        words = ["--out", str(tmp_path), "--minutes", str(minutes), "--device", "cpu", *(["--again"] if again else [])]
        code = conductor.main(words)
        signal.signal(signal.SIGTERM, handler)
        started = tmp_path / "started"
        return code, json.loads((tmp_path / "summary.json").read_text()), started.read_text().split()

    return call


def test_a_second_call_does_what_the_first_left(stand_in):
    code, states, started = stand_in(1, "quick", "broken")
    assert (code, states, started) == (1, {"quick": "done", "broken": "failed (exit code 3)"}, ["quick", "broken"])
    code, states, started = stand_in(1, "quick")
    assert (code, states, started) == (0, {"quick": "done"}, ["quick", "broken"])
    assert stand_in(1, "quick", again=True)[2] == ["quick", "broken", "quick"]


def test_what_was_found_quickly_is_not_taken_for_the_whole(tmp_path):
    """A part's file has the command that the conductor expects of it, and of it only."""
    (roofline_part,) = (each for each in conductor.PARTS if each.name == "roofline")
    words = ["--out", str(tmp_path), "--device", "cpu"]
    quick, whole = (conductor._parse([*words, *more]) for more in (["--quick"], []))
    part.run(roofline.measure, roofline.parser(), conductor._words(roofline_part, quick, 60)[3:])
    assert part.is_finished(tmp_path, "roofline", conductor._command(roofline_part, quick))
    assert not part.is_finished(tmp_path, "roofline", conductor._command(roofline_part, whole))


@pytest.mark.parametrize(
    "differs",
    [{"command": "another"}, {"commit": "another"}, {"machine": {"gpu": "another", "torch": torch.__version__}}],
)
def test_what_another_command_commit_or_gpu_finished_is_measured_again(stand_in, tmp_path, capsys, differs):
    stand_in(1, "quick")
    file = tmp_path / "gpu.quick.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | differs))
    code, states, started = stand_in(1, "quick")
    assert (code, states, started) == (0, {"quick": "done"}, ["quick", "quick"])
    assert "gpu.quick.json is of" in (said := capsys.readouterr().out) and "another" in said
    assert part.is_finished(tmp_path, "quick", "command")


def test_what_was_cut_off_while_it_was_written_is_not_finished(tmp_path):
    (tmp_path / "gpu.x.json").write_text('{"commit": "on')
    assert not part.is_finished(tmp_path, "x", "command")


def test_a_part_whose_packages_are_not_here_is_left_and_the_others_decide(stand_in, monkeypatch, capsys):
    lacking = dataclasses.replace(conductor.Part("slow", 0.001), lacking=lambda: ["wandb", "jinja2"])
    stand_in(1, "quick", "broken")
    make = conductor.Part
    monkeypatch.setattr(conductor, "Part", lambda name, minutes: lacking if name == "slow" else make(name, minutes))
    code, states, _ = stand_in(1, "quick", "slow")
    assert (code, states) == (0, {"quick": "done", "slow": "left (needs wandb, jinja2)"})
    assert "slow needs wandb, jinja2: install these" in capsys.readouterr().out
    assert stand_in(1, "slow", "broken")[0] == 1


def test_what_runs_needs_is_what_the_application_requires():
    """But for what every part needs, and the embedded digits."""
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.match(r"[\w-]+", each)[0] for each in required}
    everywhere = {"torch", "torchvision", "torchmetrics", "pytorch-lightning", "numpy", "scikit-learn"}
    assert names - everywhere == set(runs.NEEDED.values()) - {"docstring-parser", "typeshed-client"}
    assert runs.lacking() == []


def test_a_package_that_lacks_one_of_its_own_names_that_one(monkeypatch, tmp_path):
    (tmp_path / "broken_one.py").write_text("import nowhere_to_be_found.deeper")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(runs, "NEEDED", {"broken_one": "broken-one", "absent_one": "absent-one", "json": "json"})
    assert runs.lacking() == ["nowhere_to_be_found", "absent-one"]


@pytest.mark.parametrize("part", ["slow", "deaf"])
def test_a_part_that_takes_too_long_is_cut_off_in_time_with_all_its_processes(stand_in, tmp_path, part):
    begun = time.monotonic()
    code, states, _ = stand_in(0.1, part, "quick")
    assert time.monotonic() - begun < 30  # of the minute that it would take
    assert code == runs.AGAIN and states[part] == "left (under way)" and states["quick"].startswith("left (wants")
    while runs_still(int((tmp_path / "pid").read_text())):
        assert time.monotonic() - begun < 30


def runs_still(process: int) -> bool:
    """What has ended may stay in the list until someone asks how."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_part_that_does_not_fit_is_left(stand_in, monkeypatch, tmp_path):
    (tmp_path / "started").touch()
    code, states, started = stand_in(0.0334, "quick")
    assert code == runs.AGAIN and states["quick"].startswith("left (wants 0.001 minutes") and started == []


def test_without_a_gpu_it_is_a_sentence(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        conductor.main(["--out", str(tmp_path)])
    assert ended.value.code == 2 and "there is no GPU here" in capsys.readouterr().err


def test_every_part_has_a_module_with_the_options_it_is_given():
    for each in conductor.PARTS:
        module = sys.modules[f"benchmarks.gpu.{each.name}"]
        options = argparse.Namespace(root=Path("r"), out=Path("o"), work=Path("w"), device="cpu", quick=True)
        words = conductor._words(each, options, 60.0)
        asked = module.parser().parse_args(words[3:])
        assert asked.quick and asked.root == Path("r") and asked.out == Path("o")


# Reproductions in slices

FAKE = """
import os, pathlib, signal, sys, time
words = sys.argv[1:]
work = pathlib.Path(words[words.index("--out") + 1])
table = work / words[1] / "smoke" / "table.md"
if "--no-train" in words:
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text("paper against ours")
else:
    slices = work.parent / words[1].replace("/", "-")
    with slices.open("a") as file: print("slice", file=file)
    if len(slices.read_text().split()) < 2:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        time.sleep(60)
"""


def test_reproductions_go_on_in_slices(tmp_path, monkeypatch):
    (tmp_path / "main.py").write_text(FAKE)
    monkeypatch.setattr(runs, "MAIN", tmp_path / "main.py")
    monkeypatch.setattr(runs, "SHOWING", 0.0)
    monkeypatch.setattr(runs, "SAVING", 2.0)
    words = ("--work", str(tmp_path), "--minutes", "0.06")  # 3.6 s
    stopped = 0
    for _ in range(10):  # a busy machine may start nothing within a slice
        try:
            states = found(runs, tmp_path, *words)["reproductions"]
            break
        except SystemExit as ended:
            assert ended.code == runs.AGAIN
            stopped += 1
    assert stopped >= 2
    assert set(states) == {"yu-tomasi/table-1", "yu-tomasi/fig-2"}
    assert all(state["finished"] and state["table"] == "paper against ours" for state in states.values())
    for name in states:  # each was stopped in one slice and ended in the next
        assert (tmp_path / name.replace("/", "-")).read_text().split() == ["slice"] * 2


def test_the_reproductions_are_ones_that_there_are():
    from lightning_app.reproduce.papers import find

    for each in runs.WANTED:
        ((_, artefact),) = find(each.artefact)
        assert each.run in [run.name for run in artefact.runs]


# Every part, small


def test_roofline(tmp_path):
    content = found(roofline, tmp_path)
    assert set(content["values"]) == {"copies", "products"}
    assert all(rate > 0 for rate in content["roofline"]["rates"].values())


def test_kernels_without_the_reference_are_tried_again(tmp_path, monkeypatch):
    def broken(run, device):
        raise RuntimeError("captures are underway")

    monkeypatch.setattr(kernels, "graphed", broken)
    words = ("--nets", "1", "--precision", "fp32")
    with pytest.raises(RuntimeError, match=r"1 x 16-16@32 forward, fp32, in turn: captures are underway"):
        found(kernels, tmp_path, *words)
    monkeypatch.undo()
    assert len(found(kernels, tmp_path, *words)["values"]) == 5 * 3


def test_kernels(tmp_path):
    content = found(kernels, tmp_path, "--nets", "2", "--precision", "fp32", "bf16")
    assert len(content["values"]) == 2 * 5 * 3 and not content["left out"]
    (one, _) = content["convolutions"]
    assert one["nets"] == 2 and sum(one["best ways"].values()) == 3 * 18
    cell, shares = content["values"]["2 x 16-16@32 forward, fp32"], content["shares"]["2 x 16-16@32 forward, fp32"]
    flops = 2 * Convolution(16, 16, 32, 1, batch=4).flops
    assert shares["vmap"]["TFLOP/s"] == pytest.approx(flops / cell["vmap"][0] / 1e6)


def test_steps(tmp_path):
    content = found(steps, tmp_path, "--nets", "1", "2", "--precision", "bf16", "--compiled", "0")
    assert set(content["values"]["bf16"]) == {"unit", "1 net, eager", "1 net, loop", "2 nets, loop"}
    assert len(content["lines"]) == 2 and content["shares"]["bf16"]["2 nets, loop"]["TFLOP/s"] > 0


def test_a_step_that_cannot_be_made_is_left_out_with_the_reason(tmp_path, monkeypatch):
    """Also what broke a capture, of which the error at its end says nothing."""
    step_of = steps.step_of

    def broken(passes, *more):
        if len(passes) == 1:
            return step_of(passes, *more)
        try:
            raise ValueError("asks the host for a number\nmore")
        finally:
            raise RuntimeError("a previous error during capture")

    monkeypatch.setattr(steps, "step_of", broken)
    content = found(steps, tmp_path, "--nets", "1", "2", "--precision", "fp32", "--compiled", "0")
    assert set(content["values"]["fp32"]) == {"unit", "1 net, eager", "1 net, loop"} and len(content["lines"]) == 1
    why = "a previous error during capture, after: asks the host for a number"
    assert content["left out"] == {"fp32: 2 nets, loop": why}


@pytest.mark.parametrize(
    ("activities", "why"), [([], "looks at no GPU"), ([ProfilerActivity.CUDA], "the profiler saw no kernel")]
)
def test_kernels_that_the_profiler_does_not_see_are_left_out(monkeypatch, activities, why):
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: activities)
    monkeypatch.setattr(torch.profiler, "profile", lambda activities: contextlib.nullcontext(Stand()))
    monkeypatch.setattr(steps, "Graph", lambda: Loop(torch.Tensor.backward))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    result = steps._kernels(argparse.Namespace(device="cpu", rounds=1), 5, 4, "fp32", False)
    assert result["values"] == {} and why in result["left out"][steps.KERNELS]
    findings = Findings("a step", more={"left out": {}})
    assert not steps._found(findings, "fp32: kernels", steps.KERNELS, result).values
    assert list(findings.more["left out"]) == ["fp32: kernels: sum of the kernels"] and not findings.values


def test_what_is_no_failure_of_a_contender_is_not_left_out():
    left_out = {}
    with pytest.raises(AttributeError), part.leaving_out("one", left_out):
        raise AttributeError
    assert left_out == {}


@pytest.mark.parametrize("channels_last", [True, False])
def test_nets_and_images_that_are_measured_have_the_format_that_fit_would_choose(data, monkeypatch, channels_last):
    if not channels_last:
        monkeypatch.setattr(measuring, "choose_memory_format", lambda members, shape, asked, device: False)
    options = argparse.Namespace(root=data, depth=8, device="cpu", images=64, measured=64, probed=16)
    net, *batches = measuring.measured(options, "full")
    tensors = [images for each in batches for images, _ in each]
    tensors += [w for w in net.parameters() if w.ndim == 4 and w.shape[1] > 1 and w.shape[2] > 1]
    memory = torch.channels_last if channels_last else torch.contiguous_format
    assert len(tensors) > 4 and all(tensor.is_contiguous(memory_format=memory) for tensor in tensors)


@pytest.mark.slow
def test_epochs(tmp_path, data):
    words = ("--root", str(data), "--images", "128", "--depth", "5", "--nets", "1", "2")
    content = found(epochs, tmp_path, *words, "--precision", "fp32", "--compiled", "0")
    assert {"1 net, eager", "1 net, usual script", "1 net, loop, by hand", "2 nets, loop"} < set(
        content["values"]["fp32"]
    )


def test_26_runs_of_the_usual_script_are_26_times_one():
    values = {epochs.EAGER: [2.0], epochs.USUAL: [8.0], "1 net, graph": [0.5], "13 nets, graph": [2.0]}
    made = epochs.lines("tf32", Comparison({**values, "26 nets, graph": [4.0]}), "graph")
    assert [(line.ratio.median, line.met) for line in made] == [(0.25, False), (1.0, True), (4.0, True), (52.0, True)]


@pytest.mark.slow
def test_alone(tmp_path, data):
    words = ("--root", str(data), "--seeds", "2", "--depth", "5", "--compiled", "0", "--precision", "32-true")
    content = found(alone, tmp_path, *words, "--steps", "1", "2")
    assert [line["ratio"]["median"] for line in content["lines"]] == [0, 0]  # the loop on a CPU: every bit


@pytest.mark.slow
def test_measuring(tmp_path, data):
    words = ("--root", str(data), "--images", "128", "--measured", "16", "--probed", "8", "--depth", "8")
    assert len(found(measuring, tmp_path, *words)["lines"]) == 4


@pytest.mark.slow
def test_the_command_itself_goes_on(tmp_path):
    words = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--quick", "--out", str(tmp_path)]
    words += ["--only", "roofline", "--minutes"]
    early = subprocess.run([*words, "0.3"], cwd=ROOT, capture_output=True, text=True)
    assert early.returncode == runs.AGAIN and "roofline: left (wants" in early.stdout
    done = subprocess.run([*words, "3"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("roofline: done\n"), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu.roofline.json", "summary.json"]
