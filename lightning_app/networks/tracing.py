"""Which of a net's weights can be measured, found by following one sample through it, and why the others cannot.

`layers_of` says what a net has; only a forward pass shows what it does with it. A layer that the net calls twice, or
whose weight it multiplies by without calling the layer (PyTorch's attention), has no input of its own, so that it has no
cushion: it is named with its reason, never left out in silence.
"""

from collections import Counter
from dataclasses import dataclass

from torch import Tensor, nn

from lightning_app.common.calls import Inputs, call
from lightning_app.common.errors import UserError
from lightning_app.common.isolation import evaluating, unwrapped
from lightning_app.networks.layers import Layer, layers_of


@dataclass(frozen=True)
class Surveyed:
    """One weight of two or more dimensions."""

    path: str  # "layer1.0.conv1": of the module that holds it, or of the parameter; "" for the net itself
    kind: str  # "Conv2d", "Parameter"
    shape: tuple[int, ...]
    layer: Layer | None  # what measures know it as; None for what is no convolution or linear map
    reason: str  # why it has no cushion; "" where it has one


def survey(net: nn.Module, sample: Tensor | Inputs) -> tuple[Surveyed, ...]:
    """All weights of two or more dimensions, in the order in which the net uses them; what it never calls comes last.

    Args:
        net: followed in evaluation mode, without gradients; modes and random state are as they were afterwards.
        sample: a batch of any size.

    Raises:
        UserError: if the net cannot take the sample.

    >>> import torch
    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 2), nn.Embedding(3, 2))
    >>> twice = nn.Sequential(*net[:3], net[2])
    >>> [(found.path, found.reason) for found in survey(twice, torch.zeros(1, 1, 3, 3))]
    [('0', ''), ('2', 'the net calls it 2 times, and a cushion is of one call')]
    """
    net = unwrapped(net)
    weights = [(path, module, getattr(module, "weight", None)) for path, module in net.named_modules()]
    holders = {module: (path, w) for path, module, w in weights if isinstance(w, Tensor) and w.ndim > 1}
    calls = _calls(net, list(holders), sample)
    known: dict[nn.Module, Layer] = {layer.module: layer for layer in layers_of(net)}
    ordered = sorted(holders, key=lambda module: list(calls).index(module) if module in calls else len(calls))
    listed = {id(weight) for _, weight in holders.values()}
    loose = [(n, p) for n, p in net.named_parameters() if p.ndim > 1 and id(p) not in listed and MADE_OF not in n]
    held = []
    for module in ordered:
        (path, weight), kind, layer = holders[module], type(module).__name__, known.get(module)
        held.append(Surveyed(path, kind, tuple(weight.shape), layer, _reason(module, kind, layer, calls[module])))
    return (*held, *(Surveyed(name, "Parameter", tuple(p.shape), None, LOOSE) for name, p in loose))


MADE_OF = "parametrizations."  # what a parametrised weight is made of: the weight itself is listed
LOOSE = "a weight that no convolution or linear layer holds: the net uses it as it likes"


def measurable(surveyed: tuple[Surveyed, ...]) -> tuple[Layer, ...]:
    """The layers that have cushions, by number."""
    layers = [found.layer for found in surveyed if found.layer is not None and not found.reason]
    return tuple(sorted(layers, key=lambda layer: layer.name))


def _reason(module: nn.Module, kind: str, layer: Layer | None, calls: int) -> str:
    if layer is None:
        return f"a cushion is of a Conv2d or Linear layer, this is a {kind}"
    if calls == 0:
        return "the net never calls it: it is not used, or its weight is without it"
    if calls > 1:
        return f"the net calls it {calls} times, and a cushion is of one call"
    if layer.is_conv and module.padding_mode != "zeros":
        return f"its norm as an operator is known for zero padding, this pads by '{module.padding_mode}'"
    return ""


def _calls(net: nn.Module, modules: list[nn.Module], sample: Tensor | Inputs) -> Counter[nn.Module]:
    """How often each module is called, in the order of first calls."""
    calls: Counter[nn.Module] = Counter()

    def count(module: nn.Module, inputs: tuple) -> None:
        calls[module] += 1

    handles = [module.register_forward_pre_hook(count) for module in modules]
    try:
        with evaluating(net):
            calls[net] += net in modules  # below, its own hook is passed by
            call(net.forward, sample)  # of a compiled net the plain forward pass: its graph may pass by hooks
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"this {type(net).__name__} cannot take samples of shape {tuple(sample.shape[1:])}: {reason}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return calls
