"""Running a net without leaving a trace in it: the net behind ``torch.compile``, and evaluation mode for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

__all__ = ["evaluating", "unwrapped"]


def unwrapped(net: nn.Module) -> nn.Module:
    """The net that ``torch.compile(net)`` wraps, or the net itself. A compiled graph passes hooks by, and so does its copy."""
    return getattr(net, "_orig_mod", net)


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; the modes of all modules and the random state are put back as they were."""
    modes = {module: module.training for module in net.modules()}
    device = next((parameter.device for parameter in net.parameters()), torch.device("cpu"))
    net.eval()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
