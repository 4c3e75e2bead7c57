"""What a GPU makes of the application, in one command that stops in time and goes on where it stopped.

    python -m benchmarks.gpu --root data --out results-gpu               all that fits into 9.5 minutes; again for the rest
    python -m benchmarks.gpu --root data --out results-gpu --only steps --minutes 3
    python -m benchmarks.gpu --device cpu --quick --out /tmp/tried       tiny sizes, where there is no GPU

Needs CIFAR-10 as ``cifar10/train_images.npy`` (and its three sisters) below ``--root``, and a C compiler for torch.compile;
neither jsonargparse nor wandb nor curvlinops. Parts, by importance, each of one or more cases:

* ``proof``: is a member of a bank the net trained alone, by the loop and by our CUDA graph, compiled and not? The largest
  ||u_bank - u_alone|| / ||u_alone|| of the updates after 1 and 5 steps, in float32 without tf32 and in float64. Where
  float64 is much closer, it is the signs of ReLUs that differ and not the nets. Goal: 1e-4.
* ``steps``: a training step (the risk's gradient, the penalty's, SGD) on one batch that stays the same: eager, by the loop and
  in the graph, of 1, 13 and 26 nets.
* ``epochs``: the same through Lightning with data and metrics, and against the script that most public repositories have.
* ``measuring``: what is measured after an epoch, against the epoch.

Each case is a process of its own, since a capture that breaks can take later ones along, and it is cut off when the time is
up. ``gpu.json`` in ``--out`` has every finished case, with command, commit, machine and versions; a case of another commit, GPU
or torch is measured again. Reproductions at paper scale go on by themselves: ``timeout -s TERM 540 python main.py reproduce
yu-tomasi/table-1 --only depth20 --scale paper ... -- --trainer.accelerator gpu``, again for the rest.
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
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.harness import Comparison, Ratio, Results, Row, interleave, load_cifar10, made_by, quiet
from benchmarks.loops import BATCH, DECAY, KINDS, Epoch, Resident, bank, by_hand, public_script, sgd, through_lightning
from benchmarks.solo import differences
from lightning_app.common.errors import UserError
from lightning_app.common.isolation import Float32, use_float32
from lightning_app.measures import Hessian, cushions, interlayer_cushions, probe_forward, spectrum
from lightning_app.modules.backends import Graph, Loop, Pass
from lightning_app.modules.cost import Penalty, add_gradients
from lightning_app.networks import SimplifiedNet, blocks_of

AGAIN = 75  # exit code: there is more to do
GRACE = 5.0  # seconds between asking a case to end and ending it
DEPTH = 20
MANY = 26
EAGER, PUBLIC = "1 net, eager", "1 net, public script"
Step = Callable[[], object]


@dataclass(frozen=True)
class Size:
    """Of what a case works on."""

    nets: tuple[int, ...] = (1, 13, MANY)
    seeds: int = 13
    depth: int = DEPTH
    batch: int = BATCH
    images: int = 12_800  # of an epoch: a quarter of CIFAR-10, so that all of it fits into minutes
    measured: int = 12_800  # with loss, error and cushions
    probed: int = 1000  # images of interlayer cushions and the Hessian
    rounds: int = 5


QUICK = Size((1, 2), 1, 5, 4, 256, 256, 8, 1)


def proof(at: "Run", precision: str, steps: int, compiled: bool) -> Results:
    options = argparse.Namespace(
        root=at.root, device=at.device, net="simplified", depth=at.size.depth, seeds=at.size.seeds, precision=precision
    )
    backends = ("loop", "graph") if at.device == "cuda" else ("loop",)
    gaps = differences(options, steps, [(backend, compiled) for backend in backends])
    found = Results(f"simplified nets of depth {at.size.depth}, plain and residual, {at.size.seeds} seeds of each")
    found.more["updates"] = {backend: gap for (backend, _), gap in gaps.items()}
    for (backend, _), gap in gaps.items():
        found.rows.append(Row(f"largest gap in a bank, {backend}", "the update alone", Ratio.of(gap["largest"]), 1e-4))
    return found


def steps(at: "Run", precision: str, compiled: bool) -> Results:
    use_float32(arithmetic(precision))
    found = Results(f"a step of residual simplified nets of depth {at.size.depth}, batch {at.size.batch}")
    found.more["left out"] = left_out = {}
    made = {EAGER: at.microseconds(eager_step(at, precision))}
    for nets in at.size.nets:
        own, passes = f"{nets} net{'s' * (nets > 1)}", partial(passes_of, at, nets, compiled)
        ways: dict[str, Callable[[], Step]] = {
            "loop": lambda passes=passes: step_of(passes(), Loop(torch.Tensor.backward), precision)
        }
        if at.device == "cuda":
            ways["graph"] = lambda passes=passes: step_of(passes(), Graph(), precision)
        for way, make in ways.items():
            with leaving_out(f"{own}, {way}", left_out):
                made[f"{own}, {way}"] = at.microseconds(make())
    timed = found.add("steps", interleave(made, at.size.rounds, "us"), EAGER)
    found.rows += rows(
        timed, ((name, EAGER, None) for name in made if name not in (EAGER, "1 net, graph", "13 nets, graph"))
    )
    goals = [("1 net, graph", EAGER, 0.2), ("13 nets, graph", EAGER, 1.0), ("13 nets, graph", "1 net, graph", 6)]
    found.rows += rows(timed, goals)
    return found


def epochs(at: "Run", precision: str, compiled: bool) -> Results:
    """Goals: 13 nets at most one eager net; 26 nets 20 times faster than 26 runs of the public script."""
    use_float32(arithmetic(precision))
    backend, bf16 = "graph" if at.device == "cuda" else "loop", precision == "bf16"
    depth, lightning = at.size.depth, "bf16-mixed" if bf16 else "32-true"
    made: dict[str, Epoch] = {EAGER: by_hand(depth, at.data(), at.device, bf16)}
    if not compiled:
        made[PUBLIC] = public_script(depth, at.data(), at.device, bf16)
    for nets in at.size.nets:
        own = {"backend": backend, "compile": compiled, "channels_last": compiled, "float32": arithmetic(precision)}
        module = bank(nets, depth, **own)
        made[f"{nets} net{'s' * (nets > 1)}, {backend}"] = through_lightning(module, at.data(), lightning, at.device)
    found = Results(f"an epoch of {at.size.images:,} images, simplified nets of depth {depth}, batch {BATCH}")
    timed = found.add("epochs", interleave(made, at.size.rounds), EAGER)
    found.rows += rows(timed, [("1 net, graph", EAGER, 0.2), ("13 nets, graph", EAGER, 1.0)])
    found.rows += rows(timed, [("13 nets, graph", "1 net, graph", 6)])
    if {PUBLIC, many := f"{MANY} nets, {backend}"} <= timed.values.keys():
        found.rows.append(Row(f"{MANY} runs of the public script", many, timed.ratio(PUBLIC, many) * MANY, 20, "more"))
    return found


def measuring(at: "Run", kind: str) -> Results:
    """ "every epoch": loss, error and layer cushions, and interlayer cushions of all blocks with 4 probes. "Hessian": the five
    largest eigenvalues from 20 products; 1.05 of an epoch are 5 % at one in 20 epochs."""
    use_float32("tf32")
    net = KINDS[kind](at.size.depth, residual=True).to(at.device).eval()
    images = load_cifar10(at.root, at.size.measured, min(1000, at.size.measured), at.device)
    probed = load_cifar10(at.root, at.size.probed, min(250, at.size.probed), at.device)
    images, probed = ([(x.contiguous(), y) for x, y in batches] for batches in (images, probed))

    def every_epoch() -> None:
        with torch.no_grad():
            cushions(net.layers(), probe_forward(net, net.layers(), images).layers)
            interlayer_cushions(net, blocks_of(net), [x for x, _ in probed], probes=4)

    module = bank(1, at.size.depth, kind, backend="graph" if at.device == "cuda" else "loop")
    made: dict[str, Callable[[], float | None]] = {
        "epoch": through_lightning(module, at.data(), "32-true", at.device),
        "every epoch": every_epoch,
        "Hessian": lambda: spectrum(Hessian(net, probed), k=5, steps=20) and None,
    }
    found = Results(f"residual {kind} net of depth {at.size.depth}, {at.size.images:,} images trained, tf32")
    timed = found.add("measuring", interleave(made, at.size.rounds), "epoch")
    found.rows += rows(timed, [("every epoch", "epoch", 0.25), ("Hessian", "epoch", 1.05)])
    return found


def rows(found: Comparison, wanted: Sequence[tuple[str, str, float | None]] | Iterator) -> list[Row]:
    """Of those contenders that there are."""
    present = [each for each in wanted if {each[0], each[1]} <= found.values.keys()]
    return [Row(what, against, found.ratio(what, against), goal) for what, against, goal in present]


@dataclass(frozen=True)
class Case:
    """One process.

    Args:
        minutes: that it takes, estimated for an H100: with less it is not begun.
        measure: with a `Run`.
    """

    name: str
    minutes: float
    measure: Callable[["Run"], Results]

    @property
    def part(self) -> str:
        return self.name.split(",")[0]


def _cases() -> Iterator[Case]:
    for precision, number, compiled in itertools.product(("32-true", "64-true"), (1, 5), (False, True)):
        name = f"proof, {precision}, {number} step{'s' * (number > 1)}{', compiled' * compiled}"
        yield Case(name, 1.0, partial(proof, precision=precision, steps=number, compiled=compiled))
    variants = [*itertools.product(("tf32", "bf16", "fp32"), (False, True))]
    for part, minutes, measure in (("steps", 1.0, steps), ("epochs", 2.0, epochs)):
        for precision, compiled in variants:
            case = partial(measure, precision=precision, compiled=compiled)
            yield Case(f"{part}, {precision}{', compiled' * compiled}", minutes, case)
    for kind in KINDS:
        yield Case(f"measuring, {kind}", 1.0, partial(measuring, kind=kind))


CASES = {case.name: case for case in _cases()}
PARTS = list(dict.fromkeys(case.part for case in CASES.values()))


@dataclass(frozen=True)
class Run:
    """Where and on what a case is measured."""

    root: Path
    device: str
    size: Size

    def data(self) -> Resident:
        made = Resident(root=str(self.root), train_limit=self.size.images, batch_size=BATCH)
        made.device = torch.device(self.device)
        return made

    def microseconds(self, step: Step) -> Callable[[], float]:
        """For `interleave`: of a call, by the GPU's own events, on average of as many as take 0.1 s."""
        step()
        repeats = max(1, math.ceil((1e-3 if self.size is QUICK else 0.1) / self._seconds(step, 1)))
        return lambda: 1e6 * self._seconds(step, repeats)

    def _seconds(self, step: Step, repeats: int) -> float:
        if self.device == "cpu":
            started = time.perf_counter()
            for _ in range(repeats):
                step()
            return (time.perf_counter() - started) / repeats
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats):
            step()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000 / repeats


def arithmetic(precision: str) -> Float32:
    """What `fit` does with float32 numbers at this precision of ours."""
    return "fp32" if precision == "fp32" else "tf32"


def autocast(device: str, precision: str) -> torch.autocast:
    """Without its cache: what a graph captures must cast the weights in every replay."""
    return torch.autocast(device, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)


def passes_of(at: Run, nets: int, compiled: bool) -> list[Pass]:
    """Nets of their own, each with a batch of its own; channels_last where compiled."""
    made = []
    memory = torch.channels_last if compiled else torch.contiguous_format
    for seed in range(nets):
        net = SimplifiedNet(at.size.depth, residual=True).to(at.device, memory_format=memory)
        if compiled:
            net.compile(dynamic=False)
        images, labels = torch.randn(at.size.batch, 3, 32, 32), torch.randint(10, (at.size.batch,))
        made.append(Pass(net, images.to(at.device, memory_format=memory), labels.to(at.device), seed))
    return made


def eager_step(at: Run, precision: str) -> Step:
    """As a user would write it."""
    (own,) = passes_of(at, 1, compiled=False)
    optimizer = torch.optim.SGD(own.net.parameters(), lr=0.01, momentum=0.9, weight_decay=DECAY)

    def step() -> None:
        optimizer.zero_grad()
        with autocast(at.device, precision):
            risk = F.cross_entropy(own.net(own.images), own.labels)
        risk.backward()
        optimizer.step()

    return step


def step_of(passes: list[Pass], backend: Callable[[Sequence[Pass], float], object], precision: str) -> Step:
    """As `ImageClassifier` does it, but for the metrics."""
    optimizer, penalties = _updates(passes)

    def step() -> None:
        optimizer.zero_grad()
        with autocast(passes[0].images.device.type, precision):
            backend(passes, 1.0)
        add_gradients(penalties)
        optimizer.step()

    return step


def _updates(passes: list[Pass]) -> tuple[torch.optim.Optimizer, list[Penalty]]:
    return sgd([w for own in passes for w in own.net.parameters()]), [Penalty(own.net, DECAY) for own in passes]


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
            reasons.append((str(cause).splitlines() or [type(cause).__name__])[0])
            cause = cause.__cause__ or cause.__context__
        left_out[name] = ", after: ".join(dict.fromkeys(reasons))
        print(f"left out: {name}: {left_out[name]}", flush=True)


def main(argv: list[str] | None = None) -> int:
    """0: all is done; 75: the same command goes on; 1: a case failed; 2: a mistake in the command."""
    options = parser().parse_args(argv)
    command = shlex.join(["python", "-m", "benchmarks.gpu", *(["--device", "cpu", "--quick"] if options.quick else [])])
    if options.case:
        measure_case(options, command)
        return 0
    until = time.monotonic() + 60 * options.minutes - GRACE
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    options.out.mkdir(parents=True, exist_ok=True)
    states = {}
    for case in (case for case in CASES.values() if case.part in options.only):
        states[case.name] = state = run_case(case, options, command, until)
        print(f"{case.name}: {state}", flush=True)
    if any(state.startswith("failed") for state in states.values()):
        return 1
    return 0 if all(state == "done" for state in states.values()) else AGAIN


def run_case(case: Case, options: argparse.Namespace, command: str, until: float) -> str:
    """In a process, if it is not done and there is time: "done", "left (...)" or "failed (...)"."""
    file = options.out / "gpu.json"
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    made, done = made_by(command), [content[case.name]] if case.name in content else []
    keys = [(of["command"], of["commit"], of["machine"]["gpu"], of["machine"]["torch"]) for of in (made, *done)]
    if len(set(keys)) < len(keys):
        return "done"
    left = until - time.monotonic()
    if left < 60 * case.minutes * (not options.quick):
        return f"left (wants {case.minutes:g} minutes, there were {max(left, 0) / 60:.1f})"
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "case.json"
        code = ended(words_of(case, options, result), left)
        if code is None:
            return "left (cut off)"
        if code:
            return f"failed (exit code {code})"
        content[case.name] = json.loads(result.read_text(encoding="utf-8"))
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    beside.replace(file)
    return "done"


def words_of(case: Case, options: argparse.Namespace, out: Path) -> list[str]:
    """The command of one case, which writes the file ``out``."""
    words = [sys.executable, "-m", "benchmarks.gpu", "--case", case.name, "--root", str(options.root)]
    return [*words, "--device", options.device, "--out", str(out), *(["--quick"] if options.quick else [])]


def measure_case(options: argparse.Namespace, command: str) -> None:
    """In this process, into the file ``--out``."""
    quiet()
    torch.manual_seed(0)
    made = made_by(command)
    found = CASES[options.case].measure(Run(options.root, options.device, QUICK if options.quick else Size()))
    print(*found.rows, sep="\n", flush=True)
    values = {name: {"unit": of.unit, **of.values} for name, of in found.values.items()}
    content = made | {"setting": found.setting, "lines": [asdict(row) for row in found.rows], "values": values}
    options.out.write_text(json.dumps(content | found.more), encoding="utf-8")


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
