"""The normalisation layers of any net, and what Littwin & Wolf (2016, section 4) read from them: lambda.

According to them, a residual net is an ensemble, whose depth depends on the factors lambda of batch normalisation (its
``weight``; others write gamma). To see them in any net, the net is run once on an image: hooks give the order in which layers
and normalisations run, and a `TorchFunctionMode` sees every call that takes a layer's output. A normalisation can be absorbed
into the layer (`absorption`) only if nothing else uses that output: not behind a sum, and not if a skip starts between the two.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.overrides import TorchFunctionMode

from lightning_app.common.calls import Inputs
from lightning_app.common.errors import UserError
from lightning_app.common.isolation import evaluating, tensors_in, unwrapped
from lightning_app.measures.core.hooks import nearly_same, shared_copy
from lightning_app.networks.layers import layers_of, named_at

_KNOWN = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)  # the first: BatchNorm and InstanceNorm of any dimension
_ABSORBING = {nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear}  # these very classes: a subclass may do more
_EPS = ("eps", "variance_epsilon")  # the second in the RMSNorms of transformers
_TOLERANCE = 1e-3  # of the largest entry, where a normalisation's output is compared with its formula
_FORM = {  # calls that ask how a tensor looks, not what is in it
    *(getattr(Tensor, name) for name in ("dim", "size", "stride", "numel", "nelement", "ndimension", "__len__")),
    *(getattr(Tensor, name) for name in ("is_contiguous", "is_floating_point", "is_complex", "get_device")),
    *(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "layout", "is_cuda")),
    *(getattr(Tensor, name).__get__ for name in ("requires_grad", "is_sparse", "is_quantized", "is_mkldnn")),
    *(torch.is_floating_point, torch.is_complex, torch.numel),
}


@dataclass(frozen=True, eq=False)
class Normalisation:
    """A normalisation layer of a net and its position."""

    name: str  # "layer07": the layer that ran last before it; "layer07_2" the second one there; else its own path
    path: str  # of the module in the net: "blocks.3.bn1"
    module: nn.Module
    into: str | None  # path of the convolution or linear map that can absorb it, None where none can
    offset: float = 0.0  # what the layer adds to its weight: 1 in the RMSNorms that multiply by 1 + w

    @property
    def has_lambda(self) -> bool:
        return getattr(self.module, "weight", None) is not None

    @property
    def lambdas(self) -> Tensor:
        """Its factors, flattened: (n,) float64 on the CPU; a single 1 if the layer has none (``affine=False``)."""
        weight = getattr(self.module, "weight", None)
        weight = torch.ones(1, device="cpu") if weight is None else weight.detach()
        return weight.to("cpu", torch.float64).flatten() + self.offset

    @property
    def has_statistics(self) -> bool:
        return getattr(self.module, "running_var", None) is not None

    @property
    def lacks_statistics(self) -> bool:
        """Whether it is a BatchNorm without running statistics; other kinds never have any."""
        return isinstance(self.module, _BatchNorm) and not self.has_statistics


@dataclass(frozen=True, eq=False)
class LambdaStatistics:
    """lambda of one normalisation layer; dimensionless. If an entry is NaN, so are all numbers but `absorbable`."""

    l2: float  # ||lambda||_2 (Fig. 3)
    mean_abs: float  # mean |lambda| (Fig. 1d)
    negative: float  # entries below 0
    sign_changes: float  # entries that have become negative or ceased to be since the last measurement, 0 at the first
    absorbable: bool  # whether the layer before can absorb this normalisation
    values: Tensor  # (n,) float64, lambda itself


@dataclass(frozen=True)
class LambdaTotals:
    """lambda of all normalisation layers of a net."""

    l2: float  # mean over layers
    mean_abs: float  # mean over layers
    negative: float  # sum over layers
    sign_changes: float  # sum over layers
    layers: int  # normalisation layers that have a lambda
    absorbable: int  # those of them that the layer before can absorb; in a pre-activation net not all


def is_normalisation(module: nn.Module) -> bool:
    """Whether a module is one of PyTorch's normalisations, or similar: with an ``eps`` and a ``weight`` or a ``running_var``."""
    looks = any(isinstance(getattr(module, name, None), Tensor) for name in ("weight", "running_var"))
    return isinstance(module, _KNOWN) or (looks and any(hasattr(module, name) for name in _EPS))


def lambda_statistics(norm: Normalisation, before: Tensor | None = None) -> LambdaStatistics:
    """Statistics of a normalisation that has a lambda.

    ``before``: its lambda at the last measurement, if there was one. It is ignored if its length differs.

    >>> module = nn.BatchNorm1d(2)
    >>> _ = module.weight.data.copy_(torch.tensor([3.0, -4.0]))
    >>> found = lambda_statistics(Normalisation("layer01", "1", module, None), torch.tensor([1.0, 1.0]))
    >>> found.l2, found.mean_abs, found.negative, found.sign_changes
    (5.0, 3.5, 1.0, 1.0)
    """
    values = norm.lambdas
    before = values if before is None or before.shape != values.shape else before  # or of a layer that was pruned since
    below, was_below = (each.lt(0).double().masked_fill(each.isnan(), torch.nan) for each in (values, before))
    return LambdaStatistics(
        l2=float(values.norm()),
        mean_abs=float(values.abs().mean()),
        negative=float(below.sum()),
        sign_changes=float((below - was_below).abs().sum()),
        absorbable=norm.into is not None,
        values=values,
    )


def lambda_totals(layers: Sequence[LambdaStatistics]) -> LambdaTotals:
    """Totals of one or more layers."""
    sums = {name: sum(getattr(layer, name) for layer in layers) for name in ("negative", "sign_changes", "absorbable")}
    means: dict[str, Any] = {name: fmean(getattr(layer, name) for layer in layers) for name in ("l2", "mean_abs")}
    return LambdaTotals(**means, **sums, layers=len(layers))


def affine(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """s and t of the map x -> s x + t that a normalisation applies to each channel in evaluation mode.

    ``s = lambda / sqrt(var + eps)`` and ``t = beta - mean s`` with the running statistics; a layer without lambda, beta or mean
    has lambda = 1, beta = 0, mean = 0. Both are (n,), or (1,) if one number applies to all channels.

    Raises:
        UserError: without running statistics.

    >>> module = nn.BatchNorm1d(1, eps=0.0)
    >>> _ = module.running_var.fill_(4.0), module.running_mean.fill_(6.0)
    >>> affine(module)
    (tensor([0.5000]), tensor([-3.]))
    """
    variance = getattr(norm, "running_var", None)
    if variance is None:
        raise UserError(
            f"the scale of a {type(norm).__name__} in evaluation mode is lambda / sqrt(running_var + eps), but this one "
            "keeps no running statistics: create it with track_running_stats=True."
        )
    dtype = torch.promote_types(variance.dtype, torch.float32)  # bfloat16 knows 1 + eps as 1
    found = (getattr(norm, name, None) for name in ("weight", "bias", "running_mean"))
    weight, bias, mean = (None if each is None else each.detach().to(dtype) for each in found)
    scale = (variance.to(dtype) + norm.eps).rsqrt() * (1 if weight is None else weight)
    shift = (0 if bias is None else bias) - (0 if mean is None else mean) * scale
    return torch.atleast_1d(scale), torch.atleast_1d(shift.expand_as(scale))


def effective_scale(norm: Normalisation) -> float:
    """Mean over channels of |lambda| / sqrt(var + eps), what the layer multiplies by in evaluation mode; raises as `affine`."""
    return float(affine(norm.module)[0].double().abs().mean())


@torch.no_grad()
def normalisations_of(net: nn.Module, image: Tensor | Inputs) -> tuple[Normalisation, ...]:
    """Every normalisation layer that the net's forward pass calls, in its order.

    These are PyTorch's (BatchNorm, SyncBatchNorm, InstanceNorm, GroupNorm, LayerNorm, RMSNorm) and any module that
    looks like one: with an ``eps`` (``variance_epsilon`` in transformers), and a ``weight`` or a ``running_var``. Cost: one
    forward pass on an image (1, ...), in evaluation mode, of a copy that shares the net's parameters.
    """
    net = unwrapped(net)
    with evaluating(net):
        watched = shared_copy(net)
        paths = {module: path for path, module in watched.named_modules()}
        with _Watch(watched) as watch:
            watch.take(watched(image), watch)  # what the net returns is also taken by whoever called it
    found, seen, into = [], Counter[str](), [paths.get(watch.absorbing(norm)) for norm in watch.before]
    for (norm, layer), absorbing in zip(watch.before.items(), into):
        path = paths[norm]
        name = layer or path
        seen[name] += 1
        offset = _offset(norm, *watch.given[norm])
        found.append(Normalisation(named_at(name, seen[name]), path, net.get_submodule(path), absorbing, offset))
    return tuple(found)


def _offset(norm: Any, inputs: tuple, named: dict[str, Any]) -> float:
    """c of a layer that multiplies by its weight + c: its answers to weights of 0 and of 1 tell; 0 where they do not."""
    if type(norm).__module__.startswith("torch.nn.") or not isinstance(getattr(norm, "weight", None), Tensor):
        return 0.0
    bias = {"bias": torch.zeros_like(norm.bias)} if isinstance(getattr(norm, "bias", None), Tensor) else {}
    answers = [
        functional_call(norm, {"weight": make(norm.weight), **bias}, inputs, named)
        for make in (torch.zeros_like, torch.ones_like)
    ]
    at_0, at_1 = (next(tensors_in(answer)).double() for answer in answers)
    slope = at_1 - at_0
    offset = round(float((at_0 * slope).sum() / slope.square().sum()), 3)
    return offset if nearly_same(offset * slope, at_0, _TOLERANCE) else 0.0


class _Watch(TorchFunctionMode):
    """Within it, one forward pass: what runs in which order, and who takes the outputs of layers."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.before: dict[nn.Module, str | None] = {}  # normalisation -> name of the layer that ran last before it
        self.given: dict[nn.Module, tuple[tuple, dict[str, Any]]] = {}  # what it was first called with
        self._calls: Counter[nn.Module] = Counter()
        self._uses: Counter[int] = Counter()  # of parameters, by id
        self._outputs: dict[int, tuple[nn.Module, Tensor]] = {}  # by id; held, so that no id is used again
        self._takers: defaultdict[nn.Module, set] = defaultdict(set)  # layer -> who takes its output
        # Normalisation that is its formula -> layer whose output it takes.
        self._sources: dict[nn.Module, nn.Module] = {}
        self._inside: nn.Module | None = None  # the normalisation that is running
        self._last: str | None = None  # name of the last layer that ran
        self._names: dict[nn.Module, str] = {layer.module: layer.name for layer in layers_of(net)}
        for module in net.modules():
            if is_normalisation(module):
                module.register_forward_pre_hook(self._enter, with_kwargs=True)
                module.register_forward_hook(self._leave)
            elif module in self._names or type(module) in _ABSORBING:
                module.register_forward_hook(self._layer)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func not in _FORM:
            self.take((args, kwargs), self._inside or object())
            self._uses.update(id(each) for each in tensors_in((args, kwargs)) if isinstance(each, nn.Parameter))
        return func(*args, **kwargs)

    def absorbing(self, norm: nn.Module) -> nn.Module | None:
        """The layer whose output goes into this normalisation and nowhere else, and whose weights nobody else uses."""
        layer = self._sources.get(norm)
        if layer is None or not self._calls[norm] == self._calls[layer] == self._uses[id(layer.weight)] == 1:
            return None
        return layer if self._takers[layer] == {norm} else None

    def take(self, values: Any, taker: object) -> None:
        """Note who takes the outputs of layers among these values."""
        for tensor in tensors_in(values):
            if id(tensor) in self._outputs:
                self._takers[self._outputs[id(tensor)][0]].add(taker)

    def _layer(self, layer: nn.Module, inputs: tuple, out: Any) -> None:
        self._calls[layer] += 1
        self._last = self._names.get(layer, self._last)
        self._outputs |= {id(tensor): (layer, tensor) for tensor in tensors_in(out)}

    def _enter(self, norm: nn.Module, inputs: tuple, named: dict[str, Any]) -> None:
        self._calls[norm] += 1
        self.before.setdefault(norm, self._last)
        self.given.setdefault(norm, (inputs, named))
        self._inside = norm

    def _leave(self, norm: nn.Module, inputs: tuple, out: Any) -> None:
        if inputs and id(inputs[0]) in self._outputs:
            layer, x = self._outputs[id(inputs[0])]
            # An ordinary layer with weights of its own, whose output has its channels where a normalisation expects them.
            ordinary = type(layer) in _ABSORBING and "weight" in layer._parameters and x.ndim == layer.weight.ndim
            if ordinary and _is_affine(norm, x, out):
                self._sources[norm] = layer
        self._inside = None  # not before: what this hook computes is seen too


def _is_affine(norm: nn.Module, x: Tensor, out: Any) -> bool:
    """Whether a normalisation is what `affine` says: it uses its running statistics, and does nothing else."""
    if getattr(norm, "running_var", None) is None or not isinstance(out, Tensor):
        return False
    scale, shift = (part.view(-1, *(1,) * (x.ndim - 2)) for part in affine(norm))
    return nearly_same(out, (scale * x + shift).to(out), _TOLERANCE)
