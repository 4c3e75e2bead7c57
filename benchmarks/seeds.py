"""Many nets at once on a CPU: a training epoch of a bank against one net, eager, times their number.

    python -m benchmarks.seeds --root data [--nets 1 13] [--images 640] [--rounds 5]

"one net, eager" is a loop over resident batches, as a user would write it. A bank runs as `fit` runs it by default
(channels_last), on contiguous images, and compiled. "stacked" is the method that lost on a CPU and is not in the application:
all nets' weights in one tensor, torch.func.vmap (grouped convolutions). Each is in a process of its own. On a GPU:
`benchmarks.gpu`.
"""

import argparse
import itertools
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from benchmarks.apart import apart
from benchmarks.frame import Findings, Line, options_of, run
from benchmarks.peers import BATCH, DECAY, MOMENTUM, RATE, Epoch
from benchmarks.timing import Comparison, Ratio, interleave, ticks
from benchmarks.training import through_lightning
from lightning_app.datamodules import CIFAR10
from lightning_app.modules import Arm, ImageClassifier
from lightning_app.networks import SimplifiedNet

ONE = "one net, eager"
BANKS = {"": (False, None), ", contiguous": (False, False), ", compiled": (True, None)}  # compile, channels_last
GOALS = {"": 0.85, ", compiled": 0.80}  # of as many eager nets


def sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM)


def bank(nets: int, depth: int, backend: str, compile: bool, channels_last: bool | None) -> ImageClassifier:
    """Plain and residual nets in turn when there is an even number of them, else residual ones."""
    kinds = {"plain": False, "residual": True} if nets % 2 == 0 else {"residual": True}
    arms = {name: Arm(net=lambda kind=kind: SimplifiedNet(depth, residual=kind)) for name, kind in kinds.items()}
    options = {"seeds": nets // len(kinds), "backend": backend, "compile": compile, "channels_last": channels_last}
    return ImageClassifier(sgd, arms=arms, weight_decay=DECAY, **options)


class Resident(CIFAR10):
    """The data module without a trainer, which would say on which device the images lie."""

    device = torch.device("cpu")

    @property
    def _device(self) -> torch.device:
        return torch.empty(0, device=self.device).device  # with its number, as what lies there has it


def batches(data: Resident) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
    """Epochs of augmented batches on the device."""
    data.setup()
    loader = data.train_dataloader()
    for epoch in itertools.count():
        loader.set_epoch(epoch)
        yield iter(loader)


def by_hand(depth: int, data: Resident, device: str, bf16: bool) -> Epoch:
    """One net in eager PyTorch, on resident data."""
    net = SimplifiedNet(depth, residual=True).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    epochs = batches(data)

    def epoch() -> float:
        started = ticks()
        for images, labels in next(epochs):
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16, enabled=bf16):
                risk = F.cross_entropy(net(images), labels)
            risk.backward()
            optimizer.step()
        synchronise(device)
        return ticks() - started

    return epoch


def stacked(nets: int, depth: int, data: Resident, device: str, bf16: bool, compile: bool) -> Epoch:
    """All nets' weights in one tensor each; every net has its own batches, here shifted ones of one stream."""
    made = [SimplifiedNet(depth, residual=True) for _ in range(nets)]
    base = SimplifiedNet(depth, residual=True).to("meta")
    weights = {name: nn.Parameter(w.detach().to(device)) for name, w in stack_module_state(made)[0].items()}
    optimizer = torch.optim.SGD(weights.values(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    epochs = batches(data)

    def risk(own: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(base, own, images), labels)

    step = vmap(grad_and_value(risk))
    step = torch.compile(step, dynamic=False) if compile else step

    def epoch() -> float:
        started = ticks()
        for images, labels in next(epochs):
            many = torch.stack([images.roll(net, 0) for net in range(nets)])
            own = torch.stack([labels.roll(net, 0) for net in range(nets)])
            with torch.autocast(device, torch.bfloat16, enabled=bf16):
                gradients, _ = step({name: w.detach() for name, w in weights.items()}, many, own)
            for name, w in weights.items():
                w.grad = gradients[name]
            optimizer.step()
        synchronise(device)
        return ticks() - started

    return epoch


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def one(options: argparse.Namespace) -> Epoch:
    return by_hand(options.depth, resident(options), "cpu", False)


def many(options: argparse.Namespace, nets: int, compile: bool, channels_last: bool | None) -> Epoch:
    return through_lightning(bank(nets, options.depth, "loop", compile, channels_last), resident(options))


def in_one_tensor(options: argparse.Namespace, nets: int, compile: bool) -> Epoch:
    return stacked(nets, options.depth, resident(options), "cpu", False, compile)


def resident(options: argparse.Namespace) -> Resident:
    return Resident(root=str(options.root), train_limit=options.images, batch_size=BATCH)


def contenders(options: argparse.Namespace) -> dict[str, Epoch]:
    made = {ONE: apart(one, options)}
    for nets in options.nets:
        for name, switches in BANKS.items():
            made[f"{counted(nets)}{name}"] = apart(many, options, nets, *switches)
    for nets in options.stacked:
        for compile in (False, True):
            name = f"{counted(nets)}, stacked" + (", compiled" if compile else "")
            made[name] = apart(in_one_tensor, options, nets, compile)
    return made


def counted(nets: int) -> str:
    return "1 net" if nets == 1 else f"{nets} nets"


def against(found: Comparison, name: str) -> Line:
    """A bank in units of as many eager nets, one after the other."""
    nets = int(name.split()[0])
    ratio, goal = found.ratio(name, ONE), GOALS.get(name.split(" nets", 1)[1]) if nets > 1 else None
    by_net = Ratio(ratio.median / nets, ratio.lowest / nets, ratio.highest / nets)
    return Line(f"training epoch of {name}", f"{nets} x {ONE}", by_net, goal)


def parser() -> argparse.ArgumentParser:
    parser = options_of(__doc__, rounds=5, images=640)
    parser.add_argument("--nets", type=int, nargs="+", default=[1, 13])
    parser.add_argument("--stacked", type=int, nargs="*", default=[13], metavar="NETS", help="sizes to try stacked")
    parser.add_argument("--depth", type=int, default=20)
    return parser


def measure(options: argparse.Namespace) -> Findings:
    found = Findings(
        f"residual simplified nets of depth {options.depth}, {options.images:,} images in batches of {BATCH}; processor time"
    )
    timed = found.add("epochs", interleave(contenders(options), options.rounds), ONE)
    found.lines += [against(timed, name) for name in timed.values if name != ONE]
    return found


if __name__ == "__main__":
    run(measure, parser())
