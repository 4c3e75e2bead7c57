"""Running a net without leaving a trace in it: behind ``torch.compile``, in evaluation mode, where there is float64."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

__all__ = ["evaluating", "unwrapped", "with_float64"]

WITHOUT_FLOAT64 = ("mps",)  # device types: Apple's GPU


def with_float64(device: torch.device) -> torch.device:
    """The device itself, or the CPU in place of one without float64, in which measures sum norms, risks and spectra.

    >>> with_float64(torch.device("mps")), with_float64(torch.device("cuda", 1))
    (device(type='cpu'), device(type='cuda', index=1))
    """
    return torch.device("cpu") if device.type in WITHOUT_FLOAT64 else device


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
