"""A training step on the GPU, of one net and of banks: eager, in our CUDA graph, and all of it in a graph.

    python -m benchmarks.gpu.steps [--nets 1 13 26] [--precision fp32 tf32 bf16] [--out FOLDER]

A step is the risk's gradient, the penalty's, and SGD's update, on one batch that stays the same: no data, no metrics and
no Lightning, which `epochs` has. "loop" and "graph" are the application's back ends (`modules/backends.py`); "whole step in
a graph" captures penalty and update too, and says what a back end that did so would gain. Compiled nets are in the
channels_last format, others are not.

Goals: one net's graph at most 0.2 of its eager step, and at most 1.3 of the sum of its kernels; 13 nets at most one eager
net (stretch: half), and at most 6 times one net's graph (stretch: 3). Shares of the roofline are of the FLOPs of the step
and the bytes of its operations, each by itself: fused and cached ones can exceed the copy's bandwidth. What cannot be
compiled, captured or seen by the profiler is under "left out" in the file, with the reason.
"""

import argparse
import itertools
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity

from benchmarks.frame import Findings, Line
from benchmarks.gpu.clock import MICRO, Clock, graphed, side_by_side
from benchmarks.gpu.counting import Work, work_of
from benchmarks.gpu.part import BATCH, DEPTH, Kept, add_variants, autocast, leaving_out, options_of, run, use
from benchmarks.gpu.roofline import Roofline, roofline_of
from benchmarks.peers import DECAY
from benchmarks.seeds import sgd
from benchmarks.timing import Comparison, interleave
from lightning_app.modules.backends import Backend, Graph, Loop, Pass
from lightning_app.modules.penalty import Penalty, add_gradients
from lightning_app.networks import SimplifiedNet

__all__ = ["eager_step", "kernel_seconds", "passes_of", "step_of", "whole_step", "work_of_step"]

EAGER = "1 net, eager"
KERNELS = "sum of the kernels"
PROFILED = 20  # steps
Step = Callable[[], object]
Result = dict[str, dict]  # "values": by contender, "left out": why others are not among them


def measure(options: argparse.Namespace) -> Findings:
    kept, roofline = Kept.of(options, "steps"), roofline_of(options)
    depth, batch = (5, 4) if options.quick else (DEPTH, BATCH)
    findings = Findings(f"a step of residual simplified nets of depth {depth}, batch {batch}")
    findings.more |= {"shares": {}, "left out": {}}
    work = {p: kept.once(f"work, {p}", lambda p=p: asdict(work_of_step(depth, batch, p))) for p in options.precision}
    findings.more["work of a net's step"] = work
    for precision, compiled in itertools.product(options.precision, options.compiled):
        name = precision + (", compiled" if compiled else "")
        setting = (options, depth, batch, precision, bool(compiled))
        found = _found(findings, name, EAGER, kept.once(name, partial(_compare, *setting)))
        findings.lines += _lines(name, found)
        findings.more["shares"][name] = _shares(found, Work(**work[precision]), precision, roofline)
        if options.device == "cuda":
            kernels = f"{name}: kernels"
            found = _found(findings, kernels, KERNELS, kept.once(kernels, partial(_kernels, *setting)))
            if KERNELS in found.values:
                ratio = found.ratio("step", KERNELS)
                findings.lines.append(Line(f"{name}: 1 net, graph", "the sum of its kernels", ratio, goal=1.3))
    return findings


def _found(findings: Findings, name: str, reference: str, result: Result) -> Comparison:
    """Keep what was timed, and why the rest was not."""
    findings.more["left out"] |= {f"{name}: {step}": why for step, why in result["left out"].items()}
    found = Comparison(result["values"], "us")
    return findings.add(name, found, reference) if found.values else found


def _compare(options: argparse.Namespace, depth: int, batch: int, precision: str, compiled: bool) -> Result:
    clock = Clock(options.device, least=1e-3 if options.quick else 0.1)
    use(precision)
    torch._dynamo.reset()  # else the settings measured before count against the number of a code's variants
    made, left_out = {EAGER: clock.contender(eager_step(depth, batch, options.device, precision))}, {}
    for name, step in contenders(options, depth, batch, precision, compiled).items():
        with leaving_out(name, left_out):
            made[name] = clock.contender(step())
    return {"values": interleave(made, options.rounds, "us").values, "left out": left_out}


def contenders(
    options: argparse.Namespace, depth: int, batch: int, precision: str, compiled: bool
) -> dict[str, Callable[[], Step]]:
    """By name, what makes the step; a CPU has no graphs."""
    device, made = options.device, {}
    for nets in options.nets:
        passes = partial(passes_of, nets, depth, batch, device, compiled)
        own = f"{nets} net{'s' * (nets > 1)}"
        made[f"{own}, loop"] = lambda passes=passes: step_of(passes(), Loop(Tensor.backward), precision)
        if device == "cuda":
            made[f"{own}, graph"] = lambda passes=passes: step_of(passes(), Graph(), precision)
            made[f"{own}, whole step in a graph"] = lambda passes=passes: graphed(
                whole_step(passes(), precision), device
            )
    return made


def passes_of(nets: int, depth: int, batch: int, device: str, compiled: bool) -> list[Pass]:
    """Nets of their own, each with a batch of its own."""
    made = []
    memory = torch.channels_last if compiled else torch.contiguous_format
    for seed in range(nets):
        net = SimplifiedNet(depth, residual=True).to(device, memory_format=memory)
        if compiled:
            net.compile(dynamic=False)
        images, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
        made.append(Pass(net, images.to(device, memory_format=memory), labels.to(device), seed))
    return made


def eager_step(depth: int, batch: int, device: str, precision: str) -> Step:
    """As a user would write it."""
    (own,) = passes_of(1, depth, batch, device, compiled=False)
    optimizer = torch.optim.SGD(own.net.parameters(), lr=0.01, momentum=0.9, weight_decay=DECAY)

    def step() -> None:
        optimizer.zero_grad()
        with autocast(device, precision):
            risk = F.cross_entropy(own.net(own.images), own.labels)
        risk.backward()
        optimizer.step()

    return step


def step_of(passes: list[Pass], backend: Backend, precision: str) -> Step:
    """As `ImageClassifier` does it, but for the metrics."""
    optimizer, penalties = _updates(passes)

    def step() -> None:
        optimizer.zero_grad()
        with autocast(passes[0].images.device.type, precision):
            backend(passes, 1.0)
        add_gradients(penalties)
        optimizer.step()

    return step


def whole_step(passes: list[Pass], precision: str) -> Step:
    """A step that can be captured from its beginning to its end."""
    optimizer, penalties = _updates(passes)
    gradients = side_by_side([lambda own=own: _gradients(own, precision) for own in passes])

    def step() -> None:
        for own, found in zip(passes, gradients()):
            for w, gradient in zip(own.net.parameters(), found):
                w.grad = gradient
        add_gradients(penalties)
        optimizer.step()

    return step


def _updates(passes: list[Pass]) -> tuple[torch.optim.Optimizer, list[Penalty]]:
    return sgd([w for own in passes for w in own.net.parameters()]), [Penalty(own.net, DECAY) for own in passes]


def _gradients(own: Pass, precision: str) -> tuple[Tensor, ...]:
    with autocast(own.images.device.type, precision):
        risk = own.loss(own.net(own.images), own.labels)
    return torch.autograd.grad(risk, list(own.net.parameters()))


def work_of_step(depth: int, batch: int, precision: str) -> Work:
    """Of one net, eager; counted on the CPU, for it is the same anywhere."""
    step = eager_step(depth, batch, "cpu", precision)
    step()  # makes the momentum
    return work_of(step)


def _kernels(options: argparse.Namespace, depth: int, batch: int, precision: str, compiled: bool) -> Result:
    """One net's step in the graph back end and the sum of its kernels' times, in turns."""
    use(precision)
    left_out: dict[str, str] = {}
    with leaving_out(KERNELS, left_out):
        step = step_of(passes_of(1, depth, batch, options.device, compiled), Graph(), precision)
        clock = Clock(options.device)
        steps = {"step": clock.contender(step), KERNELS: lambda: MICRO * kernel_seconds(step, PROFILED)}
        return {"values": interleave(steps, options.rounds, "us").values, "left out": {}}
    return {"values": {}, "left out": left_out}


def kernel_seconds(step: Step, steps: int) -> float:
    """Time that kernels ran in a step, by the profiler.

    Raises:
        RuntimeError: if it sees none.
    """
    if ProfilerActivity.CUDA not in torch.profiler.supported_activities():
        raise RuntimeError("the profiler of this torch looks at no GPU")
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    gpu = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    kernels = [event for event in gpu if not event.is_user_annotation]
    if not kernels:
        raise RuntimeError("the profiler saw no kernel: may this process read the GPU's activity?")
    return sum(event.device_time_total for event in kernels) / MICRO / steps


def _lines(name: str, found: Comparison) -> list[Line]:
    """Every contender against one eager net, and the goals of the graph and of 13 nets."""
    goals = {"1 net, graph": 0.2, "13 nets, graph": 1.0}
    lines = [Line(f"{name}: {k}", EAGER, found.ratio(k, EAGER), goals.get(k)) for k in found.values if k != EAGER]
    if {"1 net, graph", "13 nets, graph"} <= set(found.values):
        ratio = found.ratio("13 nets, graph", "1 net, graph")
        lines.append(Line(f"{name}: 13 nets, graph", "1 net, graph", ratio, goal=6))
    return lines


def _shares(found: Comparison, work: Work, precision: str, roofline: Roofline) -> dict[str, dict[str, float]]:
    """Of the measured rate of products, and of the measured bandwidth, by contender."""
    shares = {}
    for name in found.values:
        nets, seconds = int(name.split()[0]), found.median(name) / MICRO
        shares[name] = {
            "TFLOP/s": nets * work.flops / seconds / 1e12,
            "of the products' rate": nets * work.flops / seconds / roofline.rates[precision],
            "of the copies' bandwidth": nets * work.bytes / seconds / roofline.bandwidth,
        }
    return shares


def parser() -> argparse.ArgumentParser:
    made = options_of(__doc__, rounds=7)
    add_variants(made)
    return made


if __name__ == "__main__":
    run(measure, parser())
