"""Which of a net's weights can be measured, found by following one sample through the net, and why the others cannot.

`layers_of` lists the layers of a net; only a forward pass shows how it uses them. A layer that the net calls twice has a row for
each call. If the net uses a weight without calling its layer, the layer has no input, and so no cushion: it is listed with that
reason, never silently left out.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from lightning_app.common.calls import Inputs, call, sample_tensors
from lightning_app.common.errors import UserError, first_line
from lightning_app.common.isolation import evaluating, is_of_device, tensors_in, unwrapped
from lightning_app.networks.layers import MAPS, Layer, layers_of


@dataclass(frozen=True)
class Surveyed:
    """One weight of two or more dimensions."""

    path: str  # "layer1.0.conv1": of the module that holds it, or of the parameter; "" for the net itself
    kind: str  # "Conv2d", "MultiheadAttention query", "Parameter"
    shape: tuple[int, ...]
    layer: Layer | None  # what measures know it as, at this call; None for what is no linear map
    reason: str  # why it has no cushion; "" where it has one


def survey(net: nn.Module, sample: Tensor | Inputs) -> tuple[Surveyed, ...]:
    """All weights of two or more dimensions, in the order in which the net uses them; those that it never calls come last.

    Args:
        net: run in evaluation mode, without gradients; its modes and the random state are restored.
        sample: a batch of any size.

    Raises:
        UserError: if the net cannot take the sample.

    >>> import torch
    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 2), nn.Embedding(3, 2))
    >>> twice = nn.Sequential(*net[:3], net[2])
    >>> [(found.path, found.layer.name, found.reason) for found in survey(twice, torch.zeros(1, 1, 3, 3))]
    [('0', 'layer01', ''), ('2', 'layer02', ''), ('2', 'layer02_2', '')]
    """
    net = unwrapped(net)
    known = defaultdict[Any, list[Layer]](list)
    for layer in layers_of(net):
        known[layer.module].append(layer)
    parts = {part for module in known if isinstance(module, nn.MultiheadAttention) for part in module.modules()}
    paths = {module: path for path, module in net.named_modules()}
    holders = [
        module for module in paths if module in known or (module not in parts and _weight_of(module) is not None)
    ]
    calls = _calls(net, holders, sample)
    held = []
    for module in sorted(holders, key=lambda module: list(calls).index(module) if module in calls else len(calls)):
        kind = type(module).__name__
        if module not in known:
            why = NO_MAP.format(_class_of(module))
            held.append(Surveyed(paths[module], kind, tuple(_weight_of(module).shape), None, why))
        for layer in known.get(module, ()):
            of_role, reason = f"{kind} {layer.role}".rstrip(), _reason(layer, calls[module], len(sample))
            for number in range(1, max(1, len(calls[module])) + 1):
                at_call = layer.at_call(number)
                held.append(Surveyed(paths[module], of_role, tuple(layer.weight.shape), at_call, reason))
    listed = {id(weight) for module in holders if (weight := _weight_of(module)) is not None}
    listed |= {id(layer.parameter) for of_module in known.values() for layer in of_module}
    others = [(name, p) for name, p in net.named_parameters() if p.ndim > 1 and id(p) not in listed]
    loose = [(name, p) for name, p in others if not _makes_a_weight(net, name)]
    return (*held, *(Surveyed(name, "Parameter", tuple(p.shape), None, LOOSE) for name, p in loose))


def _makes_a_weight(net: nn.Module, name: str) -> bool:
    """Is it what a weight is computed from, which is listed itself? A part of a parametrization, or of the older
    ``weight_norm``, ``spectral_norm`` and pruning.
    """
    path, _, own = name.rpartition(".")
    weight, _, part = own.rpartition("_")
    made = getattr(net.get_submodule(path), weight, None) if part in ("orig", "g", "v") else None
    return "parametrizations." in name or (isinstance(made, Tensor) and not isinstance(made, nn.Parameter))


def _weight_of(module: nn.Module) -> Any:
    """Its weight of two or more dimensions, if it has one."""
    weight = getattr(module, "weight", None)
    return weight if isinstance(weight, Tensor) and weight.ndim > 1 else None


NEVER_CALLED = (
    "the net never calls it on the first sample: it is unused, or for other samples only (an expert), or the net uses its weight "
    "directly"
)
LOOSE = "it is a parameter that no layer holds as its weight, so how the net uses it is not known"
REPLACED = "the net calls it with another weight in place of its own, as a hypernetwork does (functional_call)"
NO_TENSOR, OTHER_MAP, OTHER_WEIGHT = -1, -2, -3  # in place of a number of rows
NO_MAP = "cushions are defined for convolutions, linear layers, embeddings and attention, but this is a {}"


def by_reason(surveyed: Iterable[Surveyed]) -> dict[str, str]:
    """The paths of weights without cushions, by reason."""
    paths = defaultdict(list)
    for found in surveyed:
        if found.reason:
            paths[found.reason].append(found.path or "the net itself")
    return {reason: ", ".join(dict.fromkeys(of_reason)) for reason, of_reason in paths.items()}


def measurable(surveyed: tuple[Surveyed, ...]) -> tuple[Layer, ...]:
    """The layers that have cushions, by number, then by call."""
    layers = [found.layer for found in surveyed if found.layer is not None and not found.reason]
    return tuple(sorted(layers, key=lambda layer: (layer.name.removesuffix(f"_{layer.call}"), layer.call)))


def _reason(layer: Layer, calls: list[int], samples: int) -> str:
    """Why it has no cushion; ``calls``: of each call, the rows of its input."""
    if not calls:
        return NEVER_CALLED
    if NO_TENSOR in calls:  # embeddings of positions that are given a shape
        return "its input is not a tensor"
    if OTHER_WEIGHT in calls:
        return REPLACED
    if OTHER_MAP in calls:
        return f"its class {_class_of(layer.module)} uses the weight in another way than {_kind(layer.module).__name__}"
    if any(rows not in (1, samples) for rows in calls):
        return f"its input has {max(calls)} rows for {samples} samples, but a cushion is defined per sample"
    if layer.is_conv and layer.module.padding_mode != "zeros":
        return f"the norm of its matrix is known only for zero padding, but it pads by '{layer.module.padding_mode}'"
    return ""


def _calls(net: nn.Module, modules: Collection[nn.Module], sample: Tensor | Inputs) -> dict[nn.Module, list[int]]:
    """The rows of each module's input at each of its calls, in the order of first calls."""
    calls = defaultdict[nn.Module, list[int]](list)
    own = {module: _weights(module) for module in modules}

    def note(module: Any, inputs: tuple, named: dict[str, Any]) -> None:
        if not all(map(_same, own[module], _weights(module))):
            calls[module].append(OTHER_WEIGHT)
            return
        x = next(tensors_in((inputs, named)), None)
        time_first = (
            isinstance(module, nn.MultiheadAttention) and not module.batch_first and x is not None and x.ndim == 3
        )
        calls[module].append(NO_TENSOR if x is None else x.shape[1 if time_first else 0])

    def compare(module: Any, inputs: tuple, named: dict[str, Any], out: Any) -> None:
        if calls[module][-1] not in (NO_TENSOR, OTHER_WEIGHT) and not _is_its_map(module, inputs, named, out):
            calls[module][-1] = OTHER_MAP

    handles = [module.register_forward_pre_hook(note, with_kwargs=True) for module in modules]
    handles += [
        module.register_forward_hook(compare, with_kwargs=True) for module in modules if _has_own_forward(module)
    ]
    try:
        with evaluating(net):
            if net in modules:  # below, its own hook is passed by
                calls[net].append(len(sample))
            call(net.forward, sample)  # of a compiled net the plain forward pass: its graph may pass by hooks
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        if is_of_device(error):
            raise
        shapes = " and ".join(str(tuple(each.shape[1:])) for each in sample_tensors(sample))  # of each input
        what = f"this {type(net).__name__} cannot take samples of shape {shapes}"
        raise UserError(f"{what}: {first_line(error)}") from error
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _weights(module: nn.Module) -> list[Tensor]:
    """Those that are parameters of its own, or what is in their places during a call."""
    return [weight for name, weight in module._parameters.items() if "weight" in name and weight is not None]


def _same(own: Tensor, other: Tensor) -> bool:
    """Whether a call has a layer's own weight or a copy of it, perhaps rounded to another dtype; NaN equals NaN."""
    if own is other:
        return True
    try:
        return own.shape == other.shape and torch.allclose(own.to(other), other, rtol=0, atol=0, equal_nan=True)
    except RuntimeError as error:  # numbers within `vmap` cannot be compared: they are the weights of several nets
        if is_of_device(error):
            raise
        return False


def _class_of(module: nn.Module) -> str:
    """Its name, with its module if it is a namesake of a layer of torch.nn, as in PEFT or quantisation-aware training."""
    own = type(module)
    return own.__name__ if getattr(nn, own.__name__, own) is own else f"{own.__module__}.{own.__name__}"


def _kind(module: nn.Module) -> Any:
    """The class of PyTorch that it is one of."""
    return next(each for each in type(module).__mro__ if each.__module__.startswith("torch.nn.modules."))


def _has_own_forward(module: nn.Module) -> bool:
    """Whether a subclass of a linear map says itself how it is called."""
    names = ("forward", "_conv_forward")
    own = any(getattr(type(module), name, None) is not getattr(_kind(module), name, None) for name in names)
    return isinstance(module, MAPS) and own


def _is_its_map(module: Any, inputs: tuple, named: dict[str, Any], out: Any) -> bool:
    """Whether it put out what its kind does: a subclass may standardise its weight, pad, or scale.

    An embedding's may take what is no row of its weight, which a GPU cannot look up without the end of all work on it.
    """
    kind = _kind(module)
    if issubclass(kind, nn.Embedding):
        return False
    try:
        if issubclass(kind, _ConvNd) and not issubclass(kind, _ConvTransposeNd):  # `forward` may call the subclass
            expected = kind._conv_forward(module, *inputs, **named, weight=module.weight, bias=module.bias)
        else:
            expected = kind.forward(module, *inputs, **named)
    except (RuntimeError, TypeError, ValueError) as error:
        if is_of_device(error):
            raise
        return False
    if not isinstance(out, Tensor) or out.shape != expected.shape:
        return False
    finite = expected.detach()[expected.isfinite()]  # of a net that has diverged, some
    near = 1e-2 * float(finite.abs().max()) if len(finite) else 0.0  # bfloat16 rounds by 4e-3
    return torch.allclose(out.to(expected.dtype), expected, rtol=0, atol=near, equal_nan=True)
