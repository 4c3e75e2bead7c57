"""Looking into any net's forward pass from outside, without leaving anything in it: hooks, ReLUs, copies that share weights.

Hooks see modules, but a ReLU is a function call in most nets. A `TorchFunctionMode` sees the calls of both kinds.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, Dataset

from lightning_app.common.calls import call, outputs_of, sample_tensors
from lightning_app.common.errors import UserError
from lightning_app.common.isolation import (
    changes_by_mode,
    is_of_device,
    tensors_in,
    trained_weights,
    uncompiled,
    unwrapped,
)

_IN_PLACE = {torch.relu_, Tensor.relu_}
RELUS = {F.relu, torch.relu, Tensor.relu} | _IN_PLACE  # nn.ReLU calls F.relu; F.relu_ is torch.relu_

HALF = (torch.bfloat16, torch.float16)
SAME_EACH_TIME = (
    "a net that returns the same outputs each time, but this one draws random numbers in evaluation mode (as variational "
    "autoencoders do, and F.dropout without training=self.training), or remembers earlier samples: let it do so only if "
    "self.training is true."
)
_MOVING = (_DropoutNd, nn.RReLU)  # compute something else in training mode; normalisations: see `check_evaluating`
_RATES = ("p", "dropout", "drop_prob")  # also of attention, LSTMs, StochasticDepth of torchvision, DropPath of timm


@contextmanager
def hooked(
    modules: Iterable[nn.Module],
    before: Callable[[Any, tuple], Any] | None = None,
    after: Callable[[Any, tuple, Any], Any] | None = None,
) -> Iterator[None]:
    """Within it, the modules call ``before(module, inputs)`` and ``after(module, inputs, output)``.

    Their return values, unless None, replace the inputs and the output.

    >>> norm = nn.BatchNorm1d(1).eval()
    >>> with hooked([norm], before=lambda module, inputs: print(type(module).__name__, *inputs[0].shape)):
    ...     _ = norm(torch.ones(2, 1))
    BatchNorm1d 2 1
    """
    with ExitStack() as hooks:
        for module in modules:
            if before:
                hooks.enter_context(module.register_forward_pre_hook(before))
            if after:
                hooks.enter_context(module.register_forward_hook(after))
        yield


class WatchRelus(TorchFunctionMode):
    """Within this context, ``seen(x, relu(x))`` is called after every ReLU, in the order of the forward pass.

    This covers every relu function of torch, also in place (then x is a copy), but neither ``clamp(min=0)`` nor ReLUs in a
    compiled or scripted graph. ``relu(x)`` is the same tensor that the net continues with.

    >>> with WatchRelus(lambda x, out: print(x.tolist(), out.tolist())):
    ...     _ = nn.ReLU(inplace=True)(torch.tensor([1.0, -1.0]))
    [1.0, -1.0] [1.0, 0.0]
    """

    def __init__(self, seen: Callable[[Tensor, Tensor], None]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func not in RELUS:
            return func(*args, **kwargs)
        x = args[0] if args else kwargs["input"]
        in_place = func in _IN_PLACE or kwargs.get("inplace") or args[1:] == (True,)
        before = x.clone() if in_place else x
        out = func(*args, **kwargs)
        self._seen(before, out)
        return out


def shared_copy(net: nn.Module) -> nn.Module:
    """A copy of the net that shares its parameters and buffers. It is never compiled, and hooks on it do not affect the net."""
    return _copy(net, (*net.parameters(), *net.buffers()))


def own_copy(net: nn.Module) -> nn.Module:
    """A copy of the net with parameters and buffers of its own, never compiled."""
    return _copy(net, ())


@torch.no_grad()
def in_float32(net: nn.Module, samples: Sequence[Any]) -> tuple[nn.Module, list[Any]]:
    """If the net has weights in half precision, where small changes are lost in rounding: a copy in float32, and samples for it.

    Other nets are returned unchanged, and so are nets whose ``forward`` itself casts to half precision.
    """
    if not any(weights.dtype in HALF for weights in net.parameters()) or not samples:
        return net, [*samples]
    copied = own_copy(net)
    for values in (*copied.parameters(), *copied.buffers()):
        values.data = values.data.float() if values.dtype in HALF else values.data
    half = [any(each.dtype in HALF for each in sample_tensors(inputs)) for inputs in samples]
    wide = [inputs.to(dtype=torch.float32) if each else inputs for inputs, each in zip(samples, half)]
    try:
        call(copied, wide[0])
    except RuntimeError as error:
        if is_of_device(error):
            raise
        return net, [*samples]
    return copied, wide


def _copy(net: nn.Module, shared: Iterable[Tensor]) -> nn.Module:
    net = unwrapped(net)
    # What has a graph cannot be copied: a weight that a hook computes in each pass (`torch.nn.utils.weight_norm`), and the
    # losses of an epoch that a module keeps in a list.
    computed = (value for module in net.modules() for value in tensors_in(vars(module)) if value.grad_fn is not None)
    # Data that a LightningModule keeps are no part of what it computes.
    data = (
        value for module in net.modules() for value in vars(module).values() if isinstance(value, Dataset | DataLoader)
    )
    try:
        copied = copy.deepcopy(net, {id(each): each for each in (*shared, *computed, *data)})
    except TypeError as error:  # of what cannot be copied, such as a lock
        raise UserError(
            f"{type(net).__name__} is measured on a copy, but cannot be copied ({error}): keep such an attribute outside of "
            "the module, or give its class a __deepcopy__."
        ) from error
    for own, other in zip(net.modules(), copied.modules()):
        if "_trainer" in vars(own):  # a LightningModule's, which its copies do not have: without, `current_epoch` is 0
            vars(other)["_trainer"] = vars(own)["_trainer"]
        if isinstance(other, nn.Embedding | nn.EmbeddingBag):
            other.sparse = False  # of gradients: the same numbers, which can be put one after the other
    return copied


def with_plain_weights(net: nn.Module) -> nn.Module:
    """A `shared_copy` whose parametrized weights (``torch.nn.utils.parametrize``) are parameters with their present values.

    Assigning another weight to a parametrized one would change the parameters it is computed from, in the net itself.
    """
    copied = shared_copy(net)
    for module in [each for each in copied.modules() if is_parametrized(each)]:
        parametrizations: Any = module.parametrizations
        values = {name: getattr(module, name).detach() for name in parametrizations}
        del module.parametrizations
        # Not by `remove_parametrizations`, which changes the class, and the net has the same one.
        module.__class__ = type(module).__bases__[0]
        for name, value in values.items():
            setattr(module, name, nn.Parameter(value, requires_grad=False))
    return copied


def call_with(
    net: nn.Module, weights: Mapping[str, Tensor], inputs: Sequence[Any], named: Mapping[str, Any] | None = None
) -> Any:
    """``net(*inputs, **named)`` with these tensors, by state-dict name, instead of its own; tied weights are replaced everywhere.

    `functional_call` alone is not enough: in a module that is registered under two names it leaves the replacement behind.

    Raises:
        UserError: for a name that is not the name of a parameter.
    """
    own = dict(net.named_parameters(remove_duplicate=False))
    if missing := [name for name in weights if name not in own]:
        raise UserError(
            f"expected weights that are parameters, but '{missing[0]}' of this {type(net).__name__} is computed from "
            "others: use torch.nn.utils.parametrizations instead of weight_norm and spectral_norm of torch.nn.utils, and "
            "call prune.remove after pruning."
        )
    new = {id(own[name]): tensor for name, tensor in weights.items()}
    everywhere = {
        f"{path}.{name}" if path else name: new[id(old)]
        for path, module in net.named_modules()  # each once
        for name, old in module.named_parameters(recurse=False, remove_duplicate=False)
        if id(old) in new
    }
    return functional_call(net, everywhere, tuple(inputs), dict(named or {}), tie_weights=False)


def check_evaluating(net: nn.Module, measure: str) -> None:
    """Raise an error if a part of the net is in training mode that mixes samples, updates statistics or draws random numbers.

    Raises:
        UserError: with the name of that part.
    """
    for name, module in net.named_modules():
        moving = isinstance(module, _MOVING) or (hasattr(module, "running_var") and hasattr(module, "momentum"))
        if module.training and (moving or any(_drops(module, rate) for rate in _RATES)):
            raise UserError(
                f"{measure} needs the net in evaluation mode, but '{name or type(module).__name__}' is in training mode: call "
                "net.eval()."
            )


def _drops(module: nn.Module, name: str) -> bool:
    """Whether it drops something, at a rate of this name."""
    rate = getattr(module, name, 0.0)
    return isinstance(rate, (int, float)) and 0 < rate <= 1


def nearly_same(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Equal up to ``tolerance`` times the largest finite entry, to allow for other batch sizes and devices.

    In half precision, where rounding may exceed that, up to 8 times its resolution. NaN equals NaN and infinity equals infinity,
    so that a net that diverged is the same as itself.

    >>> nearly_same(torch.tensor([1.0, torch.nan]), torch.tensor([1.001, torch.nan]), 1e-2)
    True
    >>> nearly_same(torch.tensor([0.9, 0.0, 100.0]), torch.tensor([0.0, 0.0, 100.0]), 1e-2)
    True
    """
    tolerance = max(tolerance, 8 * torch.finfo(other.dtype).eps) if other.is_floating_point() else tolerance
    finite = other[other.isfinite()]
    atol = tolerance * float(finite.abs().max()) if finite.numel() else 0.0
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=atol, equal_nan=True)


@torch.no_grad()
def is_random(net: nn.Module, inputs: Any) -> bool:
    """Whether it returns other outputs each time, as nets that draw random numbers also in evaluation mode.

    >>> is_random(nn.Linear(2, 2), torch.ones(3, 2)), is_random(nn.Dropout(), torch.ones(99))
    (False, True)
    """
    with uncompiled(net):
        return not nearly_same(call(net, inputs), call(net, inputs), 1e-3)


def check_not_merged(net: nn.Module, inputs: Any) -> None:
    """Check that no trained weight has been put into another one, as LoRA layers do in evaluation mode: its gradient would be 0.

    Raises:
        UserError: with the weight's name and what to do.
    """
    if not any(map(changes_by_mode, net.modules())):
        return
    weights = trained_weights(net)
    with torch.enable_grad():
        outputs = outputs_of(call(net, inputs))
        asked = [*weights.values()], torch.ones_like(outputs)  # not of their sum, which may be complex
        found = torch.autograd.grad(outputs, *asked, allow_unused=True) if outputs.requires_grad else ()
    unused = [name for name, gradient in zip_longest(weights, found) if gradient is None]
    for name in unused:
        owner = net.get_submodule(name.rpartition(".")[0])
        if changes_by_mode(owner) and _separates(owner):
            raise UserError(
                f"'{name}' has no gradient in evaluation mode, in which {type(owner).__name__} adds it to another weight: keep "
                "it apart (merge_weights=False of loralib). Otherwise leave HessianSpectrum, DrivingForce and EffectiveDepth out "
                "of trainer.callbacks (in Python: of `measures`)."
            )


@torch.no_grad()
def _separates(module: nn.Module) -> bool:
    """Whether its weights are others in training mode, tried with numbers that are not 0, as what is added is before training."""
    copied = own_copy(module)
    for weight in copied.parameters():
        weight.data = torch.linspace(1, 2, weight.numel(), device="cpu").view(weight.shape).to(weight)
    before = [weight.detach().clone() for weight in copied.parameters()]
    copied.train()
    return not all(map(torch.equal, before, copied.parameters()))


def sample_norms(x: Tensor) -> Tensor:
    """2-norm of every sample, over all but the batch dimension: (B, ...) -> (B,) float64; for (B,) the absolute values."""
    if x.ndim == 1:  # `vector_norm` over no dimensions is over all
        return x.abs().double()
    # Not flattened: on a compiled channels_last map that copies, and costs half an evaluation.
    return torch.linalg.vector_norm(x, dim=tuple(range(1, x.ndim)), dtype=torch.float64)
