"""What can go wrong while a measure looks at a net, and which of it training survives.

Measuring leaves no trace in training, so a measure that fails costs its numbers and nothing else. Two things are not
survived: a GPU that takes no more work, and a run folder that cannot be written.
"""

import gc
import re

import torch

from lightning_app.common.errors import MachineError, UserError

__all__ = ["free_memory", "is_fatal", "ran_out_of_memory", "reason"]

NO_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory|_ALLOC_FAILED", re.IGNORECASE)
LONGEST = 300  # characters of a reason: some libraries' messages are pages


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether there was not enough memory, in any of the spellings of PyTorch, CUDA and Python.

    >>> ran_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 8 bytes"))
    True
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and bool(NO_MEMORY.search(str(error)))


def is_fatal(error: Exception) -> bool:
    """Whether nothing that follows would work either.

    >>> is_fatal(RuntimeError("CUDA error: device-side assert triggered")), is_fatal(RuntimeError("CUDA error: out of memory"))
    (True, False)
    """
    device = isinstance(error, torch.AcceleratorError) or (
        isinstance(error, RuntimeError) and "CUDA error" in str(error)
    )
    return isinstance(error, MachineError) or (device and not ran_out_of_memory(error))


def reason(error: Exception) -> str:
    """A user's mistake in its own words, anything else as its type and first line.

    >>> reason(ValueError("expected 3 channels\\n  at conv1")), reason(AssertionError())
    ('ValueError: expected 3 channels', 'AssertionError')
    """
    if isinstance(error, UserError):
        return " ".join(str(error).split())
    first = str(error).strip().partition("\n")[0][:LONGEST]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def free_memory() -> None:
    """Free what a failed attempt used, also in reference cycles, and what PyTorch keeps of it on the GPU."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
