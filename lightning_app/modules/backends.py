"""How the members' gradients are computed: one net after the other. `in_graphs` has the same in CUDA graphs.

`one_by_one` is called with a step's `Pass` for each member. It leaves d(weight * risk)/dw in every parameter's ``.grad`` and
returns each member's risk and logits. Whether the nets are compiled is another matter: nets of one architecture share one
compiled graph, whatever their seed.
"""

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_app.common.calls import described
from lightning_app.common.errors import UserError
from lightning_app.modules.cost import Loss

BackendName = Literal["auto", "loop", "graph"]

log = logging.getLogger(__name__)


def captures(device: torch.device) -> bool:
    """Whether this device has CUDA graphs. Tests and benchmarks replace this function to try graphs on a CPU."""
    return device.type == "cuda"


def possible(backend: BackendName, device: torch.device, processes: int) -> bool:
    """Whether this device and number of processes allow steps in CUDA graphs, and ``backend`` asks for them.

    Raises:
        UserError: for "graph" if they do not.
    """
    needs = "" if captures(device) else f"a CUDA GPU, got {device.type}"
    if not needs and processes > 1:
        needs = f"one process, got {processes}"
        if backend == "auto":
            log.warning("back end: loop (a graph needs %s)", needs)
    if needs and backend == "graph":
        raise UserError(f"model.backend graph needs {needs}: set it to loop or auto.")
    return backend != "loop" and not needs


@dataclass(frozen=True)
class Pass:
    """One member's forward and backward pass of a step."""

    net: nn.Module
    images: Any  # (B, C, H, W), or `Inputs`
    labels: Tensor  # (B,), of tokens (B, T)
    seed: int  # of the net's own draws in this step
    loss: Loss = F.cross_entropy
    weight: float = 1.0  # of the risk in the backward pass


Answer = tuple[Tensor, Tensor]  # risk () and logits (B, classes), both without a graph


def one_by_one(passes: Sequence[Pass], backward: Callable[[Tensor], None], at_once: bool = False) -> list[Answer]:
    """One net after the other, without graphs: each net gets, bit for bit, what it would get if trained alone.

    The CPU's random state is left unchanged: a loader of another project may draw its next samples from it.

    Args:
        passes: one for each member.
        backward: called with a cost; Lightning's ``manual_backward``.
        at_once: do one backward pass over the sum of all costs, as DistributedDataParallel needs. Otherwise each net's
            backward pass follows its forward pass, so that only one net's activations are in memory.
    """
    answers, costs = [], []
    with torch.random.fork_rng(devices=[]):
        for each in passes:
            seed_draws(each.seed, each.images.device)
            logits = each.net(each.images)
            if not isinstance(logits, Tensor):
                raise UserError(
                    f"{type(each.net).__name__} returns {described(logits)} in training mode and a tensor in evaluation mode: "
                    "let it return a tensor in both (aux_logits: false), or its own loss (docs/training.md)."
                )
            risk = each.loss(logits, each.labels)
            known = risk.detach() if each.weight else torch.zeros_like(risk)  # of a rank none of whose labels count
            answers.append((known, logits.detach()))
            if at_once:
                costs.append(risk * each.weight)
            else:
                backward(risk * each.weight)
        if at_once:
            backward(torch.stack(costs).sum())
    return answers


def side_by_side(passes: Sequence[Callable[[], None]], streams: Sequence[torch.cuda.Stream]) -> None:
    """Each in a stream, all together between what comes before and after; without streams one after the other."""
    if not streams:
        for each in passes:
            each()
        return
    here = torch.cuda.current_stream()
    for stream in streams:
        stream.wait_stream(here)
    for each, stream in zip(passes, itertools.cycle(streams)):
        with torch.cuda.stream(stream):
            each()
    for stream in streams:
        here.wait_stream(stream)


def seed_draws(seed: int, device: torch.device) -> None:
    """As `torch.manual_seed`, but of this device alone: torch's takes 1 ms a call for each kind of device that is absent."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type != "cpu":
        torch.manual_seed(seed)
