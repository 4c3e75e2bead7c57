"""What a GPU makes of the application, in one command that stops in time and, run again, continues.

    python -m benchmarks.gpu --root data --out results-gpu               all that fits into 9.5 minutes; again for the rest
    python -m benchmarks.gpu --root data --out results-gpu --only steps --minutes 3
    python -m benchmarks.gpu --device cpu --quick --out /tmp/tried       tiny sizes, where there is no GPU

Needs CIFAR-10 as ``cifar10/train_images.npy`` (and its three sisters) below ``--root``, and a C compiler for torch.compile;
neither jsonargparse nor wandb nor curvlinops. Parts, by importance, each of one or more cases:

* ``roofline``: what the device reaches in products of matrices, in copies and in launches, and so the least time of a step.
* ``proof``: is a member of a bank the net trained alone, by the loop and by our CUDA graph, compiled and not? The largest
  ||u_bank - u_alone|| / ||u_alone|| of the updates after 3 and 8 steps (the graph's are the third and later ones), in float32
  without tf32 and in float64. Where float64 is much closer, it is the signs of ReLUs that differ and not the nets. Goal: 1e-4.
* ``steps``: a training step with its batch, penalty, SGD and sums: eager as a user writes it, by the loop and in one graph, of
  1, 13 and 26 nets, and which share of the least time that is.
* ``streams``: 13 nets in one graph, so many side by side, or all in grouped convolutions.
* ``epochs``: the same through Lightning, against a bare loop of replays, and against the script that most public
  repositories have.
* ``measuring``: what is measured after an epoch, against the epoch.

Each case is a process of its own, since a capture that breaks can take later ones along, and it is cut off when the time is
up. ``gpu.json`` in ``--out`` has every finished case, with command, commit, machine and versions; a case of another commit, GPU
or torch is measured again.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import harness, loops
from benchmarks.harness import Comparison, Ratio, Results, Row, interleave, made_by, synchronize
from benchmarks.loops import BATCH, DECAY, KINDS, Epoch, bank, load_cifar10, named, sgd, through_lightning
from benchmarks.seeds import stacked_step
from benchmarks.solo import differences
from lightning_app.common.batch_plan import BatchPlan
from lightning_app.common.errors import UserError, first_line
from lightning_app.common.files import write_atomically
from lightning_app.common.isolation import Float32, tensors_in, unrounded, use_float32
from lightning_app.datamodules.loaders import UngatheredBatches
from lightning_app.measures import Hessian, cushions, interlayer_cushions, probe_forward, spectrum
from lightning_app.modules import backends, graphs
from lightning_app.modules.backends import Pass, one_by_one
from lightning_app.modules.cost import Penalty, RiskAndError, add_gradients
from lightning_app.modules.graphs import STREAMS, captured, streams_for
from lightning_app.modules.members import Member
from lightning_app.modules.whole_step import DeviceBatches, Part, WholeStep
from lightning_app.networks import SimplifiedNet, blocks_of

AGAIN = 75  # exit code: there is more to do
GRACE = 5.0  # seconds between asking a case to end and ending it
MANY = 26
TRUE = ("32-true", "64-true")
STREAM_COUNTS = (1, 2, 4, 8, STREAMS)
EAGER, PUBLIC, BARE, STACKED = "1 net, eager", "1 net, public script", "bare loop of replays", "stacked weights"
GOALS = [("1 net, graph", EAGER, 0.2), ("13 nets, graph", EAGER, 1.0), ("13 nets, graph", "1 net, graph", 6)]
Step = Callable[[], object]


@dataclass(frozen=True)
class Size:
    """Of what a case works on."""

    nets: tuple[int, ...] = (1, 13, MANY)
    seeds: int = 13
    depth: int = 20
    batch: int = BATCH
    images: int = 12_800  # of an epoch: a quarter of CIFAR-10, so that all of it fits into minutes
    measured: int = 12_800  # with loss, error and cushions
    probed: int = 250  # images of interlayer cushions and the Hessian: a quarter of 1,000
    rounds: int = 5
    matrix: int = 8192


QUICK = Size((1, 2), 1, 8, 4, 16, 16, 8, 1, 64)


def proof(at: "Run", precision: str, steps: str, compiled: str = "") -> Results:
    where = {"root": at.root, "device": at.device, "net": "simplified", "precision": precision}
    options = argparse.Namespace(**where, depth=at.size.depth, seeds=at.size.seeds)
    ways = [(backend, bool(compiled)) for backend in (("loop", "graph") if at.graphs else ("loop",))]
    gaps = {way: gap for (way, _), gap in differences(options, int(steps.split()[0]), ways).items()}
    found = Results(f"simplified nets of depth {at.size.depth}, plain and residual, {at.size.seeds} seeds of each")
    found.more["updates"] = gaps
    largest = {f"largest gap in a bank, {way}": Ratio.of(gap["largest"]) for way, gap in gaps.items()}
    found.rows = [Row(what, "the update alone", gap, 1e-4) for what, gap in largest.items()]
    return found


def roofline(at: "Run", precision: str) -> Results:
    matrices = f"{at.size.matrix} x {at.size.matrix} matrices"
    found = Results(f"products of {matrices}, copies of as many float32, empty launches")
    a = torch.empty(1, device=at.device)
    made = {"a launch": at.microseconds(lambda: a.add_(1))}
    if at.graphs:
        made["100 launches in a graph"] = at.microseconds(Replay(lambda: [a.add_(1) for _ in range(100)] and None))
    timed = found.add("launches", interleave(made, at.size.rounds, "us"), "a launch")
    found.rows += rows(timed, [("100 launches in a graph", "a launch", None)])
    operations, bandwidth = speeds(at, precision)
    found.more |= {"operations a second": operations, "bytes a second": bandwidth}
    found.more["least seconds of a step of one net"] = least_seconds(at, precision)
    return found


def speeds(at: "Run", precision: str) -> tuple[float, float]:
    """Operations and bytes a second that the device reaches, in a product of matrices and in a copy."""
    size, kind = at.size.matrix, torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = torch.randn(2, size, size, device=at.device, dtype=kind)
    copy = torch.empty_like(a)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"  # as convolutions have it, for this product alone
    product = at.microseconds(lambda: torch.mm(a, b, out=copy))() / 1e6
    use_float32(rounding(precision))
    copied = at.microseconds(lambda: copy.copy_(a))() / 1e6
    return 2 * size**3 / product, 2 * a.numel() * a.element_size() / copied


def rounding(precision: str) -> Float32:
    """Of convolutions: "fp32" is what `reproduce` trains in, all else has PyTorch's default."""
    return "fp32" if precision == "fp32" else "tf32"


def least_seconds(at: "Run", precision: str) -> float:
    """Of one net's step: its convolutions at full speed, or every operation's tensors moved once, whichever takes longer."""
    with torch.device("meta"):
        net, images = SimplifiedNet(at.size.depth, residual=True), torch.empty(at.size.batch, 3, 32, 32)
    operations, moved = FlopCounterMode(display=False), Moved()
    with operations, moved:
        torch.autograd.grad(net(images).sum(), list(net.parameters()))
    per_second, bandwidth = speeds(at, precision)
    return max(operations.get_total_flops() / per_second, moved.bytes * (0.5 if precision == "bf16" else 1) / bandwidth)


class Moved(TorchDispatchMode):
    """Bytes that operations read and write."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.bytes += sum(t.numel() * t.element_size() for t in tensors_in((args, kwargs or {}, out)))
        return out


def steps(at: "Run", precision: str, how: str = "") -> Results:
    """By ``how``: "", "compiled" (in channels_last), "channels_last" or "benchmark" (cuDNN tries its kernels)."""
    torch.backends.cudnn.benchmark = how == "benchmark"
    found = Results(f"a step of residual simplified nets of depth {at.size.depth}, batch {at.size.batch}")
    found.more["left out"] = left_out = {}
    made = {EAGER: at.microseconds(eager_step(at, precision))}
    for nets in at.size.nets:
        for way in ("loop", "graph"):
            with leaving_out(own := f"{named(nets)}, {way}", left_out):
                made[own] = at.microseconds(bank_step(at, nets, way, precision, how))
    timed = found.add("steps", interleave(made, at.size.rounds, "us"), EAGER)
    found.rows += rows(timed, [*((name, EAGER, None) for name in made if name.endswith("loop")), *GOALS])
    least = least_seconds(at, precision)
    for name in (name for name in made if name.endswith("graph")):
        share = Ratio.of(*(1e6 * least * int(name.split()[0]) / value for value in timed.values[name]))
        found.rows.append(Row(f"least time of {name.removesuffix(', graph')}", name, share))
    return found


def streams(at: "Run", precision: str) -> Results:
    nets, usual = at.size.nets[1], STREAMS
    made = {}
    for number in STREAM_COUNTS:
        graphs.STREAMS = number
        made[f"{number} streams"] = at.microseconds(bank_step(at, nets, "graph", precision, ""))
    found = Results(f"a step of {named(nets)} of depth {at.size.depth} in a graph, batch {at.size.batch}")
    found.more["left out"] = left_out = {}
    with leaving_out(STACKED, left_out):
        made[STACKED] = at.microseconds(stacked(at, nets))
    timed = found.add("streams", interleave(made, at.size.rounds, "us"), f"{usual} streams")
    found.rows += rows(timed, [(name, f"{usual} streams", None) for name in made])
    return found


def stacked(at: "Run", nets: int) -> Step:
    """On one batch, without its gathering and without sums: the contender's work is less."""
    images = torch.randn(nets, at.size.batch, 3, 32, 32, device=at.device)
    step = stacked_step(nets, at.size.depth, at.device)
    work = partial(step, images, torch.zeros(images.shape[:2], dtype=torch.int64, device=at.device))
    work()  # the optimizer makes its momentum
    return Replay(work)


def epochs(at: "Run", precision: str, compiled: str = "") -> Results:
    """Goals: 13 nets at most one eager net; 26 nets 20 times faster than 26 runs of the public script; Lightning for 5 %."""
    bf16, depth = precision == "bf16", at.size.depth
    switches = dict.fromkeys(("compile", "channels_last"), bool(compiled))
    made: dict[str, Epoch] = {EAGER: loops.by_hand(depth, at.data(), at.device, bf16)}
    if not compiled:
        made[PUBLIC] = loops.public_script(depth, at.data(), at.device, bf16)
    for nets in at.size.nets:
        module = bank(nets, depth, backend=at.backend, float32="tf32", **switches)
        lightning = "bf16-mixed" if bf16 else "32-true"
        made[f"{named(nets)}, graph"] = through_lightning(module, at.data(), lightning, at.device)
        made[f"{named(nets)}, {BARE}"] = bare_epoch(at, nets, precision, compiled)
    found = Results(f"an epoch of {at.size.images:,} images, simplified nets of depth {depth}, batch {at.size.batch}")
    timed = found.add("epochs", interleave(made, at.size.rounds), EAGER)
    found.rows += rows(timed, [*GOALS, *((f"{named(n)}, graph", f"{named(n)}, {BARE}", 1.05) for n in at.size.nets)])
    if {PUBLIC, many := f"{MANY} nets, graph"} <= timed.values.keys():
        found.rows.append(Row(f"{MANY} runs of the public script", many, timed.ratio(PUBLIC, many) * MANY, 20, "more"))
    return found


def measuring(at: "Run", kind: str) -> Results:
    """ "every epoch": loss, error and layer cushions, and interlayer cushions of all blocks with 4 probes. "Hessian": the five
    largest eigenvalues from 20 products; 1.05 of an epoch are 5 % at one in 20 epochs."""
    net = KINDS[kind](at.size.depth, residual=True).to(at.device).eval()
    images = load_cifar10(at.root, at.size.measured, min(1000, at.size.measured), at.device)
    probed = load_cifar10(at.root, at.size.probed, min(250, at.size.probed), at.device)
    images, probed = ([(x.contiguous(), y) for x, y in batches] for batches in (images, probed))

    def every_epoch() -> None:
        with torch.no_grad(), unrounded():  # as measures are
            cushions(net.layers(), probe_forward(net, net.layers(), images).layers)
            interlayer_cushions(net, blocks_of(net), [x for x, _ in probed], probes=4)

    made: dict[str, Step] = {
        "epoch": through_lightning(bank(1, at.size.depth, kind, backend=at.backend), at.data(), "32-true", at.device),
        "every epoch": every_epoch,
        "Hessian": lambda: spectrum(Hessian(net, probed), k=5, steps=20),
    }
    net_of = f"residual {kind} net of depth {at.size.depth}"
    found = Results(f"{net_of}, {at.size.images:,} images trained in tf32, measured in fp32")
    timed = found.add("measuring", interleave(made, at.size.rounds), "epoch")
    found.rows += rows(timed, [("every epoch", "epoch", 0.25), ("Hessian", "epoch", 1.05)])
    return found


def rows(found: Comparison, wanted: Sequence[tuple[str, str, float | None]]) -> list[Row]:
    """Of those contenders that there are."""
    return [found.row(*each) for each in wanted if {*each[:2]} <= found.values.keys()]


@dataclass(frozen=True)
class Case:
    """One process.

    Args:
        minutes: that it takes, estimated for an H100: with less it is not begun.
        part: with a `Run` and the words.
    """

    minutes: float
    part: Callable[..., Results]
    words: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return ", ".join((self.part.__name__, *self.words))


def _cases() -> Iterator[Case]:
    """By importance, and what compiles, which takes longest, at the end."""
    both, proofs = ("tf32", "bf16"), [*itertools.product(TRUE, ("3 steps", "8 steps"))]
    yield from (Case(0.5, roofline, (precision,)) for precision in both)
    yield from (Case(1.0, proof, words) for words in proofs)
    for precision in both:
        yield from (Case(1.0, steps, (precision,)), Case(3.5, epochs, (precision,)))
    yield from (Case(1.0, steps, words) for words in (("fp32",), ("fp32", "benchmark")))
    yield Case(1.0, streams, ("tf32",))
    yield from (Case(1.0, measuring, (kind,)) for kind in KINDS)
    for how, precision in itertools.product(("benchmark", "channels_last", "compiled"), both):
        yield Case(1.0, steps, (precision, how))
    yield from (Case(3.5, epochs, (precision, "compiled")) for precision in both)
    yield from (Case(1.0, proof, (*words, "compiled")) for words in proofs)


CASES = {case.name: case for case in _cases()}
PARTS = list(dict.fromkeys(case.part.__name__ for case in CASES.values()))


@dataclass(frozen=True)
class Run:
    """Where and on what a case is measured."""

    root: Path
    device: str
    size: Size

    @property
    def graphs(self) -> bool:
        return backends.captures(torch.device(self.device))

    @property
    def backend(self) -> str:
        return "graph" if self.graphs else "loop"

    def data(self) -> loops.Resident:
        made = loops.Resident(root=str(self.root), train_limit=self.size.images, batch_size=self.size.batch)
        made.device = torch.device(self.device)
        return made

    def microseconds(self, step: Step) -> Callable[[], float]:
        """For `interleave`: of a call, on average of as many, one after the other, as take 0.1 s."""

        def many(repeats: int) -> float:
            return 1e6 * harness.seconds(lambda: [step() for _ in range(repeats)])[0] / repeats

        step()
        return partial(many, max(1, math.ceil((1e3 if self.size is QUICK else 1e5) / many(1))))


class Replay:
    """Work in a graph. The work is kept with it: a graph keeps nothing alive of what it reads and writes."""

    def __init__(self, work: Callable[[], None], put_back: Callable[[], object] = lambda: None) -> None:
        self.work, self.graph = work, captured(work, None, put_back)

    def __call__(self) -> None:
        self.graph.replay()


def autocast(device: str, precision: str) -> torch.autocast:
    """Without its cache: what a graph captures must cast the weights in every replay."""
    return torch.autocast(device, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)


def eager_step(at: Run, precision: str) -> Step:
    """As a user would write it, on one batch."""
    net = SimplifiedNet(at.size.depth, residual=True).to(at.device)
    images = torch.randn(at.size.batch, 3, 32, 32, device=at.device)
    labels = torch.randint(10, (at.size.batch,), device=at.device)
    optimizer = sgd(net.parameters(), DECAY)

    def step() -> None:
        optimizer.zero_grad()
        with autocast(at.device, precision):
            risk = F.cross_entropy(net(images), labels)
        risk.backward()
        optimizer.step()

    return step


def bank_step(at: Run, nets: int, way: str, precision: str, how: str) -> Step:
    """A step of a bank as `ImageClassifier` does it, batch after batch."""
    whole, upcoming = whole_of(at, nets, how)
    following = itertools.cycle(upcoming)

    def looped() -> None:
        batches = [position.gather() for position in next(following).positions.values()]
        passes = [Pass(part.member.net, *batches[part.stream], seed=0) for part in whole.parts]
        whole.optimizer.zero_grad()
        with autocast(at.device, precision):
            answers = one_by_one(passes, torch.Tensor.backward)
        add_gradients(part.penalty for part in whole.parts)
        whole.optimizer.step()
        for part, each, (risk, logits) in zip(whole.parts, passes, answers):
            part.sums.update(risk, logits, each.labels)

    if way == "loop":
        return looped
    looped()  # the optimizer makes its momentum
    replay, following = replays(at, whole, precision), itertools.cycle(upcoming)
    return lambda: replay(next(following))


def replays(at: Run, whole: WholeStep, precision: str) -> Callable[[UngatheredBatches], None]:
    """One step each, by the graph; on a CPU by what would be in it."""
    batches, count = whole.batches, at.size.batch

    def work() -> None:
        with autocast(at.device, precision):
            whole(count)

    run = Replay(work, lambda: batches.position.zero_()) if at.graphs else work

    def replay(upcoming: UngatheredBatches) -> None:
        batches.move_to(upcoming)
        run()
        batches.moved(count)

    return replay


def whole_of(at: Run, nets: int, how: str) -> tuple[WholeStep, list[UngatheredBatches]]:
    """The step of a bank of residual nets, and the places of an epoch's batches, all of one size."""
    last = how in ("compiled", "channels_last")
    memory = torch.channels_last if last else torch.contiguous_format
    members = [Member(f"{n}", "net", n, SimplifiedNet(at.size.depth, residual=True)) for n in range(nets)]
    for _, net in members:
        net.to(at.device, memory_format=memory)
        if how == "compiled":
            net.compile(dynamic=False)
    data = at.data()
    data.setup()
    data.use_plan(BatchPlan(seeds=tuple(range(nets)), channels_last=last))
    loader = data.train_dataloader()
    loader.gathers = False
    upcoming = [each for each in loader if (rows := each.positions[0].rows).stop - rows.start == at.size.batch]
    parts = [Part(m, m.seed, Penalty(m.net, DECAY), RiskAndError().to(at.device)) for m in members]
    optimizer = sgd([w for _, net in members for w in net.parameters()])
    side = streams_for(nets) if at.graphs else []
    return WholeStep(parts, DeviceBatches(upcoming[0]), F.cross_entropy, optimizer, streams=side), upcoming


def bare_epoch(at: Run, nets: int, precision: str, how: str) -> Epoch:
    """An epoch of replays and nothing else."""
    whole, upcoming = whole_of(at, nets, how)
    whole(at.size.batch)  # the optimizer makes its momentum
    whole.batches.position.zero_()

    def epoch() -> float:
        # Anew each time: a Trainer that starts or ends frees the workspaces of cuBLAS that a graph points to.
        replay = replays(at, whole, precision)
        synchronize()
        return harness.processor_time(lambda: [replay(each) for each in upcoming])()

    return epoch


@contextlib.contextmanager
def leaving_out(name: str, left_out: dict[str, str]) -> Iterator[None]:
    """What fails in here is left out with its reason: no memory, no kernel or no capture is an answer too.

    Up to torch 2.11 a capture that breaks off leaves its stream the current one: here it is the one before again.
    """
    here = torch.cuda.current_stream() if torch.cuda.is_available() else None
    try:
        with torch.cuda.stream(here):
            yield
    except (RuntimeError, UserError) as error:
        reasons = []
        cause: BaseException | None = error
        while cause is not None:  # a broken capture's own error does not say what broke it
            reasons.append(first_line(cause))
            cause = cause.__cause__ or cause.__context__
        left_out[name] = ", after: ".join(dict.fromkeys(reasons))
        print(f"left out: {name}: {left_out[name]}", flush=True)


def main(argv: list[str] | None = None) -> int:
    """0: all is done; 75: the same command goes on; 1: a case failed; 2: a mistake in the command."""
    options = parser().parse_args(argv)
    words = ["python", "-m", "benchmarks.gpu", "--out", "FOLDER"]
    command = shlex.join([*words, *(["--device", "cpu", "--quick"] if options.quick else [])])
    if options.case:
        return measure_case(options, command)
    if not options.quick:
        try:  # else a process for each case finds it out, on a machine that costs
            load_cifar10(options.root, BATCH, BATCH)
        except UserError as error:
            parser().exit(2, f"error: {error}\n")
    until = time.monotonic() + 60 * options.minutes - GRACE
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    options.out.mkdir(parents=True, exist_ok=True)
    states = []
    for name, case in CASES.items():
        if case.part.__name__ in options.only:
            states.append(run_case(name, case.minutes, options, command, until))
            print(f"{name}: {states[-1]}", flush=True)
    failed, done = any(state.startswith("failed") for state in states), all(state == "done" for state in states)
    return 1 if failed else 0 if done else AGAIN


def run_case(name: str, minutes: float, options: argparse.Namespace, command: str, until: float) -> str:
    """In a process, if it is not done and there is time: "done", "left (...)" or "failed (...)"."""
    file = options.out / "gpu.json"
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if name in content and _same(made_by(command), content[name]):
        return "done"
    left = until - time.monotonic()
    if not options.quick and left < 60 * minutes:
        return f"left (wants {minutes:g} minutes, there were {max(left, 0) / 60:.1f})"
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "case.json"
        code = ended(words_of(name, options, result), left)
        if code is None:
            return "left (cut off)"
        if code:
            return f"failed (exit code {code})"
        content[name] = json.loads(result.read_text(encoding="utf-8"))
    write_atomically(file, (json.dumps(content, indent=1) + "\n").encode())
    return "done"


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether both are of one command, commit, GPU and version of PyTorch."""
    of_machine = all(one["machine"][key] == other["machine"][key] for key in ("gpu", "torch"))
    return of_machine and all(one[key] == other[key] for key in ("command", "commit"))


def words_of(name: str, options: argparse.Namespace, out: Path) -> list[str]:
    """The command of one case, which writes the file ``out``."""
    words = [sys.executable, "-m", "benchmarks.gpu", "--case", name, "--root", str(options.root)]
    return [*words, "--device", options.device, "--out", str(out), *(["--quick"] if options.quick else [])]


def measure_case(options: argparse.Namespace, command: str) -> int:
    """In this process, into the file ``--out``."""
    harness.quiet()
    torch.manual_seed(0)
    made, case, size = made_by(command), CASES[options.case], QUICK if options.quick else Size()
    use_float32(rounding(case.words[0]))  # but in proofs, whose nets say otherwise
    found = case.part(Run(options.root, options.device, size), *case.words)
    print(*found.rows, sep="\n", flush=True)
    options.out.write_text(json.dumps(found.content(made, size.rounds)), encoding="utf-8")
    return 0


def ended(words: list[str], seconds: float) -> int | None:
    """Exit code; None if it was cut off, with all the processes that it had started."""
    process = subprocess.Popen(words, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        for which, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, which)  # also those that live on when the first has ended
                process.wait(patience)


def present(device: str) -> str:
    """The device's name, if there is one: an argument's type."""
    if device not in ("cuda", "cpu"):
        raise argparse.ArgumentTypeError(f"expected cuda or cpu, got {device}")
    if device == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError("PyTorch sees no GPU here; --device cpu --quick tries the commands")
    return device


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--root", type=Path, default=Path("data"), help="folder with cifar10/train_images.npy")
    made.add_argument("--out", type=Path, required=True, help="folder of gpu.json")
    made.add_argument("--minutes", type=float, default=9.5, help="that all of it takes at most")
    made.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    made.add_argument("--device", type=present, default="cuda", help="cuda; cpu tries the commands")
    made.add_argument("--quick", action="store_true", help="tiny sizes: to see that it runs")
    made.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    return made


if __name__ == "__main__":
    sys.exit(main())
