"""A GPU that is not there: tensors of a CPU that say that they lie on it, and errors where a GPU's would lie in the wrong place.

Memory lies there when a tensor was made or moved there, and so do its views and what is computed from it. Everything is computed
on the CPU, with a CPU's numbers. An error is, as on a GPU, an operation on tensors of both places (but for a CPU's single numbers
and indices), an array of what lies there, a generator of the other place and, after ``torch.cuda.set_sync_debug_mode("error")``,
whatever the host would have to wait for. What it cannot show: autocast, what CUDA's own kernels refuse, and times.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from pytorch_lightning.accelerators import CPUAccelerator
from pytorch_lightning.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils import clip_grad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.gpu.stand_in import READS

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
MOVES = {"to", "cpu", "cuda", "type_as"}
FROM_HOST = {"tensor", "as_tensor", "new_tensor"}
ARRAYS = {"numpy", "__array__"}
VALUES = {"tolist", "item", "__bool__", "__int__", "__float__", "__index__"}
COPIES = {"copy_", "_to_copy", "set_", "_local_scalar_dense"}
INDEXED = {"index", "index_put", "index_put_"}
# Elsewhere a CPU's single number goes with what lies on a GPU.
STRICT = {"cat", "stack", "equal", "index_select", "gather", "embedding"}
STRICT |= {"mm", "addmm", "bmm", "mv", "dot", "convolution"}


class Anywhere(CPUAccelerator):
    """Lightning's, of any device."""

    def setup_device(self, device: torch.device) -> None:
        pass


def strategy() -> SingleDeviceStrategy:
    """Lightning's, which trains there."""
    return SingleDeviceStrategy(device=GPU, accelerator=Anywhere())


class PretendedGpu(TorchFunctionMode):
    """What lies there, and what Python is told of it."""

    def __init__(self) -> None:
        super().__init__()
        self._there: dict[int, StorageWeakRef] = {}  # referred to, so that no other memory gets the address
        self.waiting_is_an_error = False
        self.inside = False  # a function of something there, whose own new tensors lie there too

    def has(self, tensor: Any) -> bool:
        memory = _memory(tensor)
        return memory is not None and memory._cdata in self._there

    def place_of(self, *tensors: Any) -> torch.device:
        return GPU if any(map(self.has, tensors)) else CPU

    def put(self, tensor: Tensor, place: torch.device) -> Tensor:
        """Say that its memory lies there, or here."""
        if (memory := _memory(tensor)) is not None:
            self._there.pop(memory._cdata, None)
            if place.type == "cuda":
                self._there[memory._cdata] = StorageWeakRef(memory)
        return tensor

    def copied(self, tensor: Tensor, place: torch.device) -> Tensor:
        """The tensor itself, or a copy in the other place."""
        if place.type == self.place_of(tensor).type:
            return tensor
        self.wait(f"a copy to {place.type}")
        return self.put(tensor.clone(), place)

    def wait(self, what: str) -> None:
        if self.waiting_is_an_error:
            raise RuntimeError(f"the host waits for the device: {what}")

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        for kind in types:
            if not kind.__module__.startswith("torch"):  # a subclass with functions of its own
                with self:
                    return kind.__torch_function__(func, types, args, kwargs)
        kwargs, name, one = dict(kwargs or {}), getattr(func, "__name__", ""), args[0] if args else None
        name = getattr(func.__self__, "__name__", "") if name == "__get__" else name
        if name in ("device", "is_cuda", "is_cpu") and isinstance(one, Tensor):
            there = self.has(one)
            return {"device": GPU if there else func(one), "is_cuda": there, "is_cpu": not there}[name]
        if name in ARRAYS | VALUES and self.has(one):
            if name in ARRAYS and not (kwargs.get("force") or args[1:] == (True,)):
                raise TypeError("can't convert cuda:0 device type tensor to numpy")
            self.wait(name)
        if name in MOVES and isinstance(one, Tensor):
            return self._moved(name, one, [*args[1:], *kwargs.values()], kwargs)
        place = kwargs.get("device")
        if name in FROM_HOST:
            kwargs.pop("device", None)
            return self.copied(func(*args, **kwargs), torch.device(place or self.place_of(one)))
        place = self.place_of(*tree_leaves((args, kwargs))) if place is None else torch.device(place)
        if isinstance(drawn := kwargs.get("generator"), torch.Generator) and drawn.place != place.type:
            raise RuntimeError(f"Expected a '{place.type}' device type for generator but found '{drawn.place}'")
        if name == "__deepcopy__" and self.has(one):  # which copies the memory itself
            return self.put(func(*args, **kwargs), GPU)
        before, self.inside = self.inside, place.type == "cuda"
        try:
            return func(*args, **kwargs)
        finally:
            self.inside = before

    def _moved(self, name: str, tensor: Tensor, given: list[Any], kwargs: dict[str, Any]) -> Tensor:
        """By `Tensor.to` and the like, to which the place is a CPU in any case."""
        like = [each for each in given if isinstance(each, Tensor)]
        places = [
            torch.device(each) for each in (name, *given) if isinstance(each, torch.device) or each in ("cpu", "cuda")
        ]
        kinds = [each for each in (*given, *(each.dtype for each in like)) if isinstance(each, torch.dtype)]
        options: dict[str, Any] = {key: kwargs[key] for key in ("memory_format", "copy") if key in kwargs}
        made = tensor.to(*kinds[:1], **options) if kinds or options else tensor
        return self.copied(made, places[0] if places else self.place_of(*like or [tensor]))


class _Kernels(TorchDispatchMode):
    """Every operation passes here, also those of a backward pass."""

    def __init__(self, gpu: PretendedGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        gpu, kwargs, name = self._gpu, dict(kwargs or {}), func._schema.name.removeprefix("aten::")
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        there, place = any(map(gpu.has, given)), gpu.place_of(*given)
        if (asked := kwargs.get("device")) is not None:
            kwargs["device"], place = CPU, GPU if gpu.inside else asked
        if there:
            self._check(name, args, given)
        if name == "_to_copy" and there != (place.type == "cuda"):
            gpu.wait(name)
        old = {memory._cdata for each in given if (memory := _memory(each)) is not None}
        out = func(*args, **kwargs)
        for each in tree_leaves(out) if place.type == "cuda" else ():
            if isinstance(each, Tensor) and (memory := _memory(each)) is not None and memory._cdata not in old:
                gpu.put(each, place)
        return out

    def _check(self, name: str, args: tuple, given: list[Tensor]) -> None:
        has = self._gpu.has
        indices = [each for each in tree_leaves(args[1]) if isinstance(each, Tensor)] if name in INDEXED else []
        masks = any(each.dtype == torch.bool for each in indices)
        if name in READS or masks or (name == "copy_" and args[1].ndim and not all(map(has, given))):
            self._gpu.wait(name)
        if name in COPIES:
            return
        ignored = {id(each) for each in indices if not has(each) or has(args[0])}  # they may lie on a CPU
        if name not in STRICT:  # what is written to says where the outcome lies
            written = {id(each) for each in tree_leaves(args[0])} if name.endswith("_") else set()
            ignored |= {id(each) for each in given if not (each.ndim or has(each) or id(each) in written)}
        if len({has(each) for each in given if id(each) not in ignored}) > 1:
            places = ", ".join(f"{self._gpu.place_of(each).type} {tuple(each.shape)}" for each in given)
            raise RuntimeError(f"Expected all tensors to be on the same device, but got {places}, in {name}")


class _Generator(torch.Generator):
    """Of a CPU in any case, but it says where it was to be."""

    place: str

    def __new__(cls, device: Any = "cpu") -> "_Generator":
        made = super().__new__(cls, "cpu")
        made.place = torch.device(device).type
        return made


def _memory(tensor: Any) -> Any:
    while isinstance(tensor, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
        return None
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage()


@contextmanager
def pretended_gpu() -> Iterator[PretendedGpu]:
    """Within it there is a "cuda"."""
    gpu, grouped = PretendedGpu(), clip_grad._group_tensors_by_device_and_dtype

    def by_place(tensors: Any) -> dict:
        return {(gpu.place_of(*found[0]), kind): (found, of) for (_, kind), (found, of) in grouped(tensors).items()}

    def set_mode(mode: str | int) -> None:
        gpu.waiting_is_an_error = mode == "error"

    def nothing(*_: Any) -> None:
        pass

    parts: dict[str, Any] = dict.fromkeys(("_lazy_init", "manual_seed", "set_rng_state", "synchronize"), nothing)
    parts |= {"get_rng_state": lambda *_: torch.get_rng_state(), "set_sync_debug_mode": set_mode}
    with (
        mock.patch.multiple(torch.cuda, **parts),
        mock.patch.object(torch, "Generator", _Generator),
        mock.patch.object(clip_grad, "_group_tensors_by_device_and_dtype", by_place),
        _Kernels(gpu),
        gpu,
    ):
        yield gpu
