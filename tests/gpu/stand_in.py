"""The part of torch.cuda that graphs use, on a CPU: a capture computes nothing, a replay computes what was captured.

A graph records every operation between the begin and the end of its capture, leaves memory as it was before, and runs them
again in a replay, on the same memory. Within a capture it is an error, as on a device, to read a value on the host, to copy from
there, and to use a stream that was not forked from the capturing one and joined again. A graph keeps alive what was made in it
and nothing else: a replay on memory that has been freed is an error, where a device would read whatever lies there now. What it
cannot show: two devices (see `pretended`), kernels that compete, an allocator. Compiled nets run past it.
"""

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from lightning_app.modules import backends

READS = {"_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "is_nonzero", "unique_consecutive"}
TRANSFERS = {"cpu", "tolist", "numpy", "tensor", "as_tensor", "from_numpy"}  # on a CPU no operation of torch's
WRITTEN = {"running_mean", "running_var"}  # native_batch_norm's schema does not say so


class Stream:
    """A queue; here everything runs at once, and only forks and joins are looked at."""

    current: "Stream"
    capture: "Recording | None" = None
    # Of CUDA's random numbers: made with the first graph, and written at each capture.
    seeds: ClassVar[list[Tensor]] = []

    def wait_stream(self, other: "Stream") -> None:
        if (capture := Stream.capture) is not None:
            if other in capture.forked:
                capture.forked.add(self)
            capture.unjoined.discard(other)


class NoHostReads(TorchFunctionMode):
    """Of a capture, and of ``set_sync_debug_mode("error")``."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if getattr(func, "__name__", "") in TRANSFERS:
            raise RuntimeError(f"host read: {func.__name__}: operation not permitted when stream is capturing")
        return func(*args, **(kwargs or {}))


class NoWaiting(TorchDispatchMode):
    """Every operation passes here; those that a device would have to be waited for are refused."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in READS or (name in ("index", "index_put_") and any(_is_mask(t) for t in tree_leaves(args[1]))):
            raise RuntimeError(f"host read: {name}: operation not permitted when stream is capturing")
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple, kwargs: dict) -> Any:
        return func(*args, **kwargs)


class Recording(NoWaiting):
    def __init__(self, origin: Stream) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple, dict, list[Tensor]]] = []
        self.forked, self.unjoined, self.origin = {origin}, set[Stream](), origin
        self._before: dict[int, tuple[Any, Any]] = {}

    def run(self, func: Any, args: tuple, kwargs: dict) -> Any:
        if Stream.current not in self.forked:
            raise RuntimeError(f"{func}: in a stream that was not forked from the capturing one")
        if Stream.current is not self.origin:
            self.unjoined.add(Stream.current)
        named = zip(func._schema.arguments, args)
        named = [*named, *((a, kwargs[a.name]) for a in func._schema.arguments if a.name in kwargs)]
        written = [v for a, v in named if (a.alias_info and a.alias_info.is_write) or a.name in WRITTEN]
        for tensor in (each for each in tree_leaves(written) if isinstance(each, Tensor)):
            storage = tensor.untyped_storage()
            self._before.setdefault(storage.data_ptr(), (storage, storage.clone()))
        out = func(*args, **kwargs)
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        made = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        fresh = [t for t in made if t.untyped_storage().data_ptr() not in given]
        if written or fresh:  # else a view, which stays one
            self.calls.append((func, args, kwargs, [t if t in _those(fresh) else None for t in made]))
        return out

    def end(self) -> None:
        """Put memory back, and know by its address what was not made here."""
        for storage, before in self._before.values():
            storage.copy_(before)
        self._before.clear()
        own = {t.untyped_storage().data_ptr() for *_, fresh in self.calls for t in fresh if t is not None}

        def by_address(value: Any) -> Any:
            outside = isinstance(value, Tensor) and value.untyped_storage().data_ptr() not in own
            return Address(value) if outside else value

        self.calls = [(func, *tree_map(by_address, (args, kwargs)), fresh) for func, args, kwargs, fresh in self.calls]

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, fresh in self.calls:
                args, kwargs = tree_map(
                    lambda each: each.tensor() if isinstance(each, Address) else each, (args, kwargs)
                )
                out = [t for t in tree_leaves(func(*args, **kwargs)) if isinstance(t, Tensor)]
                for old, new in zip(fresh, out):
                    if old is not None:
                        old.copy_(new)


class Address:
    """Where a tensor is, which does not keep it there."""

    def __init__(self, tensor: Tensor) -> None:
        self._storage = tensor.untyped_storage()._weak_ref()
        self._layout = tensor.storage_offset(), tensor.shape, tensor.stride()
        self._kind = tensor.dtype

    def tensor(self) -> Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(self._storage)
        if storage is None:
            raise RuntimeError(f"a graph's memory was freed: {self._kind} {tuple(self._layout[1])}")
        return torch.empty(0, dtype=self._kind).set_(storage, *self._layout)


class _those:
    """Membership by identity."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._ids = {id(tensor) for tensor in tensors}

    def __contains__(self, tensor: Tensor) -> bool:
        return id(tensor) in self._ids


class CUDAGraph:
    def __deepcopy__(self, memo: Any) -> None:
        raise TypeError("a graph cannot be copied")

    def replay(self) -> None:
        assert Stream.capture is None, "a replay within a capture"
        self.recording.replay()


def _is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bool


@contextmanager
def _stream(stream: Stream | None) -> Iterator[None]:
    before, Stream.current = Stream.current, stream or Stream.current
    try:
        yield
    finally:
        Stream.current = before


@contextmanager
def _graph(graph: CUDAGraph, pool: Any = None, **options: Any) -> Iterator[None]:
    graph.recording = recording = Recording(Stream())
    Stream.seeds = Stream.seeds or [torch.empty(1)]
    Stream.seeds[0].fill_(0)
    Stream.capture = recording
    try:
        with _stream(recording.origin), NoHostReads(), recording:
            yield
    finally:
        Stream.capture = None
        recording.end()
    if recording.unjoined:
        raise RuntimeError("capturing stream has unjoined work")


@contextmanager
def stand_in() -> Iterator[list[CUDAGraph]]:
    """torch.cuda as above; every graph that was made.

    What there is already is garbage for none of the captures, each of which collects: that takes 0.4 s within many tests.
    """
    gc.freeze()
    Stream.current, Stream.seeds, modes, graphs = Stream(), [], ExitStack(), []

    def made() -> CUDAGraph:
        graphs.append(CUDAGraph())
        return graphs[-1]

    def set_mode(mode: str | int) -> None:
        modes.close()
        if mode == "error":
            modes.enter_context(NoHostReads())
            modes.enter_context(NoWaiting())

    parts = {"Stream": Stream, "stream": _stream, "CUDAGraph": made, "graph": _graph, "synchronize": lambda *_: None}
    parts |= {"current_stream": lambda: Stream.current, "graph_pool_handle": lambda: (0, 0)}
    parts |= {
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": set_mode,
    }
    with (
        modes,
        mock.patch.multiple(torch.cuda, **parts),
        mock.patch.object(backends, "captures", lambda device: True),
    ):
        yield graphs
    gc.unfreeze()
