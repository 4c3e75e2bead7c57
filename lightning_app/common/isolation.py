"""A net's device and trained weights, and running it without a trace: uncompiled, in evaluation mode, in which arithmetic.

And which errors are the device's, and tell nothing of the net.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy

Float32 = Literal["tf32", "fp32"]  # of convolutions; products of matrices are never rounded
WITHOUT_FLOAT64 = ("mps",)  # device types: Apple's GPU
NO_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory|_ALLOC_FAILED", re.IGNORECASE)


def with_float64(device: torch.device) -> torch.device:
    """The device itself, or the CPU in place of one without float64, in which measures sum norms, risks and spectra.

    >>> with_float64(torch.device("mps")), with_float64(torch.device("cuda", 1))
    (device(type='cpu'), device(type='cuda', index=1))
    """
    return torch.device("cpu") if device.type in WITHOUT_FLOAT64 else device


def unwrapped(net: nn.Module) -> nn.Module:
    """The net that ``torch.compile(net)`` wraps, or the net itself. A compiled graph, and a copy of it, does not run hooks."""
    return getattr(net, "_orig_mod", net)


def bare(net: nn.Module) -> nn.Module:
    """The net within what trains it in several processes or another precision: DDP, DataParallel, and what `Fabric` sets up.

    A pass of the wrapper would wait for other processes, or compute something else. A ``torch.compile`` around it stays.
    """
    inner = unwrapped(net)
    if isinstance(inner, nn.parallel.DistributedDataParallel | nn.DataParallel):
        return bare(inner.module)
    of_fabric = getattr(inner, "_original_module", None)
    return net if of_fabric is None else bare(of_fabric)


def is_compiled(net: nn.Module) -> bool:
    """Whether by ``torch.compile(net)``, which wraps it, or by ``net.compile()``, for which PyTorch has no public test."""
    return bool(getattr(net, "_compiled_call_impl", None)) or hasattr(net, "_orig_mod")


def compiled_parts(net: nn.Module) -> list[str]:
    """Names of the modules within a net that are compiled by themselves."""
    return [name for name, module in unwrapped(net).named_modules() if name and is_compiled(module)]


def uncompiled(net: nn.Module) -> AbstractContextManager[None]:
    """Within it the net and its parts are called as without ``torch.compile``, whose graph runs the hooks of an earlier pass."""
    compiled = is_compiled(net) or compiled_parts(net)
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def device_of(*nets: nn.Module) -> torch.device:
    """Where the first parameter lies; the CPU for nets without parameters."""
    return next((parameter.device for net in nets for parameter in net.parameters()), torch.device("cpu"))


def generators_of(loader: Any) -> set[torch.Generator]:
    """Random generators that a loader of data, or what chooses its samples, was given."""
    batches = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
    return {found for owner in owners if isinstance(found := getattr(owner, "generator", None), torch.Generator)}


def wait_for(device: torch.device) -> None:
    """Wait until CUDA has finished all launched work, so that a clock counts it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def trained_weights(net: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes, by name.

    >>> net = nn.Linear(1, 1)
    >>> _ = net.bias.requires_grad_(False)
    >>> list(trained_weights(net))
    ['weight']
    """
    return {name: weight for name, weight in net.named_parameters() if weight.requires_grad}


def tensors_in(values: Any, _within: frozenset[int] = frozenset()) -> Iterator[Tensor]:
    """Tensors in nested tuples, lists and mappings, which may contain themselves."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (tuple, list, Mapping)) and id(values) not in _within:
        for value in values.values() if isinstance(values, Mapping) else values:
            yield from tensors_in(value, _within | {id(values)})


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; modes, attributes and buffers of modules and the random state are put back as they were.

    A pass may write buffers in any mode: observers of quantisation-aware training, queues, counters. What a lazy module makes in
    its first pass, it keeps. Weights are put back only of embeddings with a ``max_norm``, as in any mode a pass shortens the rows
    that it looks up, and of modules whose own ``train`` changes weights: LoRA layers merge theirs in evaluation mode.
    """
    modes = {module: module.training for module in net.modules()}
    python = (each for each in modes if not isinstance(each, torch.jit.ScriptModule))  # whose attributes are its own
    held = [(each, _made_of(each), dict(vars(each)), dict(each._buffers)) for each in python]
    shortening = (
        each for each in modes if isinstance(each, nn.Embedding | nn.EmbeddingBag) and each.max_norm is not None
    )
    switching = [each for each in modes if changes_by_mode(each)] if any(modes.values()) else []
    written = (*net.buffers(), *(each.weight for each in shortening))
    kept = [_with_value(tensor) for tensor in written if not is_lazy(tensor)]
    weights = {id(weight): weight for each in switching for weight in each.parameters()}
    before = [_with_value(each) for each in weights.values() if each.layout == torch.strided and not is_lazy(each)]
    device = device_of(net)
    try:
        net.eval()
        kept += [each for each in before if not torch.equal(each[0], each[2])]
        del before  # else a second net, for as long as is measured
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad():
            yield
    finally:
        for module in switching:  # a module comes before those within it
            module.train(modes[module])
        for module, mode in modes.items():
            module.training = mode
        for module, made_of, attributes, buffers in held:
            if _made_of(module) == made_of:
                _put_back(vars(module), attributes)
                _put_back(module._buffers, buffers)
        with torch.inference_mode():  # in which tensors of either kind may be written
            for tensor, memory, value in kept:
                with suppress(RuntimeError):  # `expand` made it: no pass can write it, either
                    memory.copy_(value)
                tensor.data = memory


def _with_value(tensor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A tensor, its memory, and a copy of its values. Autograd, which may still need the tensor, counts no change of ``data``."""
    memory = tensor.data
    return tensor, memory, memory.clone()


def _made_of(module: nn.Module) -> list[tuple[int, type]]:
    """The module's parts with their classes: lazy ones get another class, and some nets make a layer in their first pass."""
    return [(id(each), type(each)) for each in (module, *module._modules.values(), *module._parameters.values())]


def _put_back(present: dict[str, Any], before: dict[str, Any]) -> None:
    for name in present.keys() - before.keys():
        del present[name]
    present.update(before)


def changes_by_mode(module: nn.Module) -> bool:
    """Whether its ``train`` is its own, and may change weights. Those of torch's and of transformers' modules do not."""
    return type(module).train.__module__.partition(".")[0] not in ("torch", "transformers")


@contextmanager
def without_weight_hooks(net: nn.Module) -> Iterator[None]:
    """Within it no hook of a weight runs: it may change the gradient, count it, or let an optimizer step once it is added."""
    of_each = [(weight._backward_hooks, weight._post_accumulate_grad_hooks) for weight in net.parameters()]
    every = [hooks for both in of_each for hooks in both if hooks]
    before = [dict(hooks) for hooks in every]
    for hooks in every:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, those in zip(every, before):
            hooks.update(those)


@contextmanager
def attention_written_out() -> Iterator[None]:
    """Within it attention is computed by its formula, as fused kernels lack forward-mode and second derivatives."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


# How a GPU multiplies float32 numbers: PyTorch's switches, in one place. By its default a convolution rounds its factors to tf32,
# which has 10 bits where float32 has 23, and a matrix product does not. A CPU never rounds. The older switch (``allow_tf32``) and
# the newer ones (``fp32_precision``) must say the same: reading the older one raises where they do not, which torch.compile and
# cuDNN's contexts do.


def use_float32(arithmetic: Float32) -> None:
    """Set the arithmetic of GPUs in this process from now on.

    Args:
        arithmetic: "tf32" rounds the factors of convolutions (a relative error of up to 5e-4 each), "fp32" nothing.
    """
    _set([{"tf32": "tf32", "fp32": "ieee"}[arithmetic]] * 2 + ["ieee"])


@contextmanager
def unrounded() -> Iterator[None]:
    """Within it nothing is rounded on a GPU; behind it everything is as it was. Without a GPU it does nothing."""
    if not torch.cuda.is_available():
        yield
        return
    before = [switch.fp32_precision for switch in _switches()]
    products = None
    with suppress(RuntimeError):  # where older and newer switches differ already
        products = torch.get_float32_matmul_precision()
    use_float32("fp32")
    try:
        yield
    finally:
        _set(before)
        if products == "medium":  # which is more than the switches say
            torch.set_float32_matmul_precision(products)


def _switches() -> tuple[Any, Any, Any]:
    cudnn: Any = torch.backends.cudnn  # its parts are missing in its types
    return cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul


def _set(values: list[str]) -> None:
    convolution, _, product = values
    torch.backends.cudnn.allow_tf32 = convolution == "tf32"  # the older ones first: they write into the newer ones
    torch.backends.cuda.matmul.allow_tf32 = product == "tf32"
    for switch, value in zip(_switches(), values):
        switch.fp32_precision = value


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, in any of the wordings of PyTorch, CUDA and Python.

    >>> ran_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 8 bytes"))
    True
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and bool(NO_MEMORY.search(str(error)))


def is_of_device(error: BaseException) -> bool:
    """Whether memory ran out, or a GPU failed: then nothing follows about what was computed, such as a net's form.

    >>> is_of_device(RuntimeError("CUDA error: device-side assert triggered"))
    True
    """
    failed = isinstance(error, torch.AcceleratorError) or (
        isinstance(error, RuntimeError) and "CUDA error" in str(error)
    )
    return failed or ran_out_of_memory(error)
