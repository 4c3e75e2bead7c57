"""Many nets at once on a CPU: a training epoch of a bank against one net, eager, times their number.

    python -m benchmarks.seeds --root data [--nets 1 13] [--images 640] [--rounds 5]

"one net, eager" is a loop over resident batches, as a user would write it. A bank runs as `fit` runs it by default
(channels_last), on contiguous images, and compiled. "stacked" is the method that lost on a CPU and is not in the application:
all nets' weights in one tensor, torch.func.vmap (grouped convolutions). Each is in a process of its own. On a GPU:
`benchmarks.gpu`.
"""

import argparse
import itertools
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from benchmarks import loops
from benchmarks.harness import CLOCK, Results, Row, in_process, interleave, options_of, processor_time, run
from benchmarks.loops import BATCH, DECAY, Epoch, images_of, named
from lightning_app.networks import SimplifiedNet

ONE = "one net, eager"
BANKS = {"": (False, None), ", contiguous": (False, False), ", compiled": (True, None)}  # compile, channels_last
GOALS = {"": 0.85, ", compiled": 0.80}  # of as many eager nets
parser = partial(options_of, __doc__, rounds=5, images=640, nets=[1, 13], stacked=[13], depth=20)


def one(options: argparse.Namespace) -> Epoch:
    return loops.by_hand(options.depth, images_of(options))


def many(options: argparse.Namespace, nets: int, compile: bool, channels_last: bool | None) -> Epoch:
    switches = {"backend": "loop", "compile": compile, "channels_last": channels_last}
    return loops.through_lightning(loops.bank(nets, options.depth, **switches), images_of(options))


def stacked_step(nets: int, depth: int, device: str = "cpu", compile: bool = False) -> Callable[[Tensor, Tensor], None]:
    """Of images (nets, B, C, H, W) and labels (nets, B): all nets' weights in one tensor each, and grouped convolutions."""
    made = [SimplifiedNet(depth, residual=True).to(device) for _ in range(nets)]
    base = SimplifiedNet(depth, residual=True).to("meta")
    weights = {name: nn.Parameter(w.detach()) for name, w in stack_module_state(made)[0].items()}
    optimizer = loops.sgd(weights.values(), DECAY)

    def risk(own: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(base, own, images), labels)

    differentiate = vmap(grad_and_value(risk))
    differentiate = torch.compile(differentiate, dynamic=False) if compile else differentiate

    def step(images: Tensor, labels: Tensor) -> None:
        gradients, _ = differentiate({name: w.detach() for name, w in weights.items()}, images, labels)
        for name, w in weights.items():
            w.grad = gradients[name]
        optimizer.step()

    return step


def stacked(options: argparse.Namespace, nets: int, compile: bool) -> Epoch:
    """Every net has its own batches, here shifted ones of one stream."""
    step, epochs = stacked_step(nets, options.depth, compile=compile), loops.epochs_of(images_of(options))

    def epoch() -> None:
        for images, labels in next(epochs):
            step(*(torch.stack([each.roll(net, 0) for net in range(nets)]) for each in (images, labels)))

    return processor_time(epoch)


def contenders(options: argparse.Namespace) -> dict[str, Epoch]:
    made = {ONE: in_process(one, options)}
    for nets, (name, switches) in itertools.product(options.nets, BANKS.items()):
        made[f"{named(nets)}{name}"] = in_process(many, options, nets, *switches)
    for nets, compile in itertools.product(options.stacked, (False, True)):
        made[f"{named(nets)}, stacked{', compiled' * compile}"] = in_process(stacked, options, nets, compile)
    return made


def measure(options: argparse.Namespace) -> Results:
    nets = f"residual simplified nets of depth {options.depth}"
    found = Results(f"{nets}, {options.images:,} images in batches of {BATCH}; {CLOCK}")
    timed = found.add("epochs", interleave(contenders(options), options.rounds), ONE)
    for name in (name for name in timed.values if name != ONE):
        count = int(name.split()[0])  # a bank in units of as many eager nets, one after the other
        goal = GOALS.get(name.split(" nets", 1)[1]) if count > 1 else None
        ratio = timed.ratio(name, ONE) * (1 / count)
        found.rows.append(Row(f"training epoch of {name}", f"{count} x {ONE}", ratio, goal))
    return found


if __name__ == "__main__":
    run(measure, parser())
