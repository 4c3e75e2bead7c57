"""What a piece of work asks of a machine: floating-point operations, and bytes read and written, counted exactly."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

__all__ = ["Work", "work_of"]

NOTHING = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")  # memory that nobody writes


@dataclass(frozen=True)
class Work:
    """FLOPs (a multiplication and an addition are two), bytes that pass between memory and kernels, and kernels.

    Bytes are those of every operation by itself, each tensor once: no fusing, no cache.
    """

    flops: int
    bytes: int
    operations: int  # that move bytes: an eager run's kernels, or nearly


class _Traffic(TorchDispatchMode):
    """Adds up what each operation reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        read = _tensors((args, kwargs))
        written = _tensors(out) | {id(t): t for t in _mutated(func, args, kwargs or {})}
        if func.overloadpacket.__name__ not in NOTHING and not _is_view(func, read, written):
            self.operations += 1
            self.bytes += sum(map(_size, read.values())) + sum(map(_size, written.values()))
        return out


def work_of(run: Callable[[], object]) -> Work:
    """Count while `run` runs, on any device."""
    with FlopCounterMode(display=False) as flops:
        run()
    with _Traffic() as traffic:
        run()
    return Work(flops.get_total_flops(), traffic.bytes, traffic.operations)


def _tensors(tree: object) -> dict[int, Tensor]:
    return {id(leaf): leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}


def _mutated(func, args: tuple, kwargs: dict) -> list[Tensor]:
    """Arguments that the operation's schema marks as written, like the whole list of a foreach."""
    given = dict(zip((argument.name for argument in func._schema.arguments), args)) | kwargs
    marked = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return [tensor for name in marked for tensor in _tensors(given.get(name)).values()]


def _is_view(func, read: dict[int, Tensor], written: dict[int, Tensor]) -> bool:
    """Does all that comes out lie where something came in, unchanged?"""
    places = {t.untyped_storage()._cdata for t in read.values()}
    return not func._schema.is_mutable and all(t.untyped_storage()._cdata in places for t in written.values())


def _size(tensor: Tensor) -> int:
    """In bytes; of an expanded tensor what is there."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
