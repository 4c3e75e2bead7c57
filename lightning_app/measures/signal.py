"""The size of signals in each layer of a net, forwards and backwards, from the passes that training makes anyway.

Glorot & Bengio (2010) want the variance of activations and of gradients to be about the same in all layers, since a factor per
layer is exponential in the depth. In a net without normalisation whose layers draw
independent weights of mean 0, this is a recursion in expectation over the weights (He et al. 2015; Schoenholz et al. 2017),
which `expected` computes. For a chain z_l = W_l relu(z_{l-1}), with sigma_l^2 the mean square of the weights, C and D the
channels in and out, and the sum over the positions p that a kernel sees from q (zero padding adds nothing),

    E z_l(q)^2 = C sigma_l^2 sum_p E z_{l-1}(p)^2 / 2            forwards: z_{l-1} and -z_{l-1} are equally likely
    E dz_{l-1}(p)^2 = D sigma_l^2 sum_q E dz_l(q)^2 / 2          backwards, dz = dL/dz, if gates and gradients are independent

Both are expectations over the weights. A single net deviates in each layer of n independent units by about sqrt(5 / n) of the
mean square, so that its profile is a random walk around the line.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from lightning_app.common.calls import sample_tensors
from lightning_app.common.errors import UserError
from lightning_app.common.isolation import device_of, evaluating, tensors_in, trained_weights, unwrapped, with_float64
from lightning_app.measures.core.channels import Channels
from lightning_app.measures.core.hooks import RELUS, hooked
from lightning_app.measures.weights.normalisation import is_normalisation
from lightning_app.networks.blocks import blocks_of
from lightning_app.networks.layers import ROLES, Layer, is_ordinary, layers_of

__all__ = ["SignalWatch", "Sums", "expected", "gathered", "profile"]

# "layer05/activation" -> sums over what was seen, to be added to those of other ranks
Sums = dict[str, tuple[float, ...]]
_ADDITIONS = {torch.add, Tensor.add, Tensor.add_}  # also x + y and x += y


def _guarded(look: Callable[..., None]) -> Callable[..., None]:
    """Within a training step: no graph, no autocast, unseen by itself, and what it raises is kept and not raised."""

    @wraps(look)
    def safe(self: "SignalWatch", *args: Any) -> None:
        if self.error is None:
            try:
                with torch.no_grad(), torch.autocast(self._device.type, enabled=False), torch._C.DisableTorchFunction():
                    look(self, *args)
            except Exception as error:  # of a foreign net's layers and tensors
                self.error = error

    return safe


class _Hook:
    """A hook of a module, without the module, or of a tensor; that of a net which is copied or pickled meanwhile does nothing."""

    def __init__(self, look: Callable[..., Any], *known: Any) -> None:
        self._look, self._known = look, known

    def __call__(self, *args: Any) -> None:
        if not torch.compiler.is_compiling():  # torch.compile would make what is done here a part of its graph
            self._look(*self._known, *args[1:] if isinstance(args[0], nn.Module) else args)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, (_nothing,)


def _nothing(*_: Any) -> None:
    pass


class SignalWatch(TorchFunctionMode):
    """Watches a net's forward and backward passes from now on, until `stop` returns what was seen.

    Numbers are reduced on the net's device, and `stop` transfers them at once. Watching changes neither the passes nor the
    step, bit for bit: hooks only read. Each call of a layer in a pass has its own numbers, "layer05_2/activation"; a weight
    that several layers share counts in each. The query, key and value maps inside an `nn.MultiheadAttention` have activations,
    weights and updates, but no gradients of their outputs, which never leave it.

    Args:
        net: the net, not compiled, since compiled graphs do not run hooks.
        passes: whether to watch passes; otherwise only the weights are read, now and at the end.
        samples: number of samples in the mean loss, if they come in several batches; None: those of each batch.
        scale: returns the factor of the loss. It is called in each pass, since a GradScaler changes it from step to step.

    Attributes:
        error: the error raised while watching, if any; nothing is recorded from then on.
        shape: shape of a sample, once one has been seen.
        missed: whether it has not seen a training pass although it should have.

    >>> net = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(net.weight, 3.0)
    >>> watch = SignalWatch(net)
    >>> net(torch.tensor([[1.0], [-1.0]])).square().mean().backward()  # dL/dz of each sample: 2 z = 6
    >>> {key.partition("/")[2]: round(each, 9) for key, each in profile(watch.stop()).items()}
    {'activation': 3.0, 'gradient': 6.0, 'gradient_correlation': 1.0, 'weight': 3.0, 'weight_gradient': 6.0, 'update': 0.0}
    """

    def __init__(
        self, net: nn.Module, passes: bool = True, samples: int | None = None, scale: Callable[[], float] | None = None
    ) -> None:
        super().__init__()
        net = unwrapped(net)
        self.error: Exception | None = None
        self.shape: tuple[int, ...] = ()
        self.missed = passes
        made_of: list[Any] = [each.parametrizations for each in net.modules() if is_parametrized(each)]
        self._made_of = nn.ModuleList(made_of)
        self._net = net
        with self._reading():
            self._layers = layers_of(net)
            self._before = [layer.weight.detach().clone() for layer in self._layers]
        self._device = device_of(net)
        self._wide = torch.float64 if with_float64(self._device) == self._device else torch.float32
        self._samples = samples
        self._scale_now, self._scale = scale, 1.0  # of the present pass
        self._sums: dict[str, Tensor] = {}  # (k,) each
        self._of_graphs: dict[str, Tensor] = {}  # the same of passes back that can be differentiated themselves
        self._gradients: dict[str, Tensor] = {}  # of weights, by layer: their square, as the optimizer gets them
        modules = {layer.module for layer in self._layers}
        self._trained = {module: {*map(id, trained_weights(module).values())} for module in modules}  # weights
        self._closed: set[nn.Module] = set()  # layers whose weights make their step
        self._way: WeakIdKeyDictionary = WeakIdKeyDictionary()  # tensor -> layers on its longest way, and the last one
        self._batch = 0  # samples in the present pass
        self._channels: dict[str, Channels] = {}  # by layer and call
        self._called = Counter[str]()  # by layer, in the present pass
        self._looking = False  # only within a pass with gradients: another one is somebody's evaluation
        self._outer: list[bool] = []  # `_looking` of the calls of the net that enclose the present one
        self._entered = False  # the mode
        self._training = net.training  # then a pass in evaluation mode is somebody's measurement
        self._handles: list[RemovableHandle] = []
        try:
            if passes:
                self._watch(net)
        except BaseException:  # of a module that takes no hooks
            self.close()
            raise

    def stop(self) -> Sums:
        """Remove the hooks, read the weights and their gradients, and return all sums.

        Raises:
            Exception: the error raised while watching.
        """
        self.close()
        if not any(key.endswith("/gradient") for key in self._sums):  # an optimizer differentiates the gradient again
            self._sums |= self._of_graphs
        self._weights()
        if self.error is not None:
            raise self.error
        sizes = [len(sums) for sums in self._sums.values()]
        numbers = iter(torch.cat([*self._sums.values()]).tolist() if sizes else [])  # the one transfer
        return {key: tuple(islice(numbers, size)) for key, size in zip(self._sums, sizes)}

    def close(self, stepping: Collection[int] | None = None) -> None:
        """Remove the hooks, even in the middle of a pass. What passes back from now on is none of the loss's gradient.

        Args:
            stepping: ids of weights that make their step now; None: all do. Layers with others may still get their gradient,
                as the generator of a GAN behind the step of its discriminator.
        """
        for module, weights in self._trained.items():
            if stepping is None or not weights or not weights.isdisjoint(stepping):
                self._closed.add(module)
        for handle in self._handles:
            handle.remove()
        self._exit()
        self.keep_gradients(stepping)

    def _watch(self, net: nn.Module) -> None:
        self._handles.append(net.register_forward_pre_hook(_Hook(self._enter), prepend=True, with_kwargs=True))
        for module in dict.fromkeys(layer.module for layer in self._layers):
            own = [layer for layer in self._layers if layer.module is module]
            self._handles.append(module.register_forward_hook(_Hook(self._module, own), with_kwargs=True))
        self._handles.append(net.register_forward_hook(_Hook(self._leave), always_call=True))

    # -- in the passes ------------------------------------------------------------------------------------------------

    def _enter(self, inputs: tuple, named: Mapping[str, Any]) -> None:
        self._outer.append(self._looking)
        self._looking = torch.is_grad_enabled() and (self._net.training or not self._training)
        if self._looking:
            self.missed, self._batch = False, 0
            self._called.clear()
            for x in tensors_in(([sample_tensors(each) for each in inputs], named)):
                self._way[x], self.shape = (0, ""), tuple(x.shape[1:])
                self._batch = self._batch or (len(x) if x.ndim else 0)
            if not self._entered:  # a net may call itself: under DDP, Lightning's training step is a call of its module
                self._entered = True
                self.__enter__()  # sees what the pass calls
            self._ask_scale()

    @_guarded
    def _ask_scale(self) -> None:
        self._scale = 1.0 if self._scale_now is None else float(self._scale_now())

    def _leave(self, inputs: tuple, out: Any) -> None:
        looked, self._looking = self._looking, self._outer.pop()
        if looked:  # what an enclosing call does behind this one is no part of the pass, as a loss is not
            self._looking, self._outer = False, [False] * len(self._outer)
            self._exit()

    def _exit(self) -> None:
        if self._entered:
            self.__exit__(None, None, None)
        self._entered = False
        self._way.clear()

    @_guarded
    def _module(self, layers: Sequence[Layer], inputs: tuple, named: Mapping[str, Any], out: Any) -> None:
        if not self._looking:
            return
        self._called[layers[0].name] += 1
        layers = [layer.at_call(self._called[layers[0].name]) for layer in layers]
        for layer, role in zip(layers, ROLES[:-1] if layers[0].role else ()):  # inside attention: seen once more
            given: Any = {**dict(zip(ROLES, inputs)), **named}
            with self._reading():
                seen = F.linear(given[role], layer.weight, layer.bias)
            self._add(f"{layer.name}/activation", self._square(seen), seen.numel())
        self._layer(layers[-1], inputs or tuple(named.values()), out[0] if layers[0].role else out)

    def _layer(self, layer: Layer, inputs: tuple, out: Tensor) -> None:
        if not isinstance(out, Tensor):
            raise UserError(f"expected {layer.name} to return a tensor, got a {type(out).__name__}: leave Signal out.")
        passed = max((self._way.get(x, (0, ""))[0] for x in tensors_in(inputs[:1])), default=0)  # positions get a shape
        self._way[out] = (passed + 1, layer.name)
        self._channels[layer.name] = Channels.of(layer.module, out)
        self._add(f"{layer.name}/activation", self._square(out), out.numel())
        if out.requires_grad:
            known = layer.module, layer.name, self._batch or len(out), self._scale
            out.register_hook(_Hook(self._passed_back, *known))

    def _passed_back(self, module: nn.Module, *seen: Any) -> None:
        """With a graph it is a derivative within the loss, as of a physics-informed net, and not that of the loss."""
        if module not in self._closed:
            self._gradient(self._of_graphs if torch.is_grad_enabled() else self._sums, *seen)

    @_guarded
    def _gradient(self, into: dict[str, Tensor], name: str, batch: int, scale: float, gradient: Tensor) -> None:
        whole = (self._samples or batch) / scale
        self._add(f"{name}/gradient", self._square(gradient) * whole**2, gradient.numel(), into=into)
        # A row a sample, not a token or a place, nor one vector for all samples.
        if len(gradient) == batch > 1 and gradient.ndim > 1 and gradient.numel():
            cosines = _neighbours(gradient)
            squares = cosines.square().nansum(dtype=self._wide)
            self._add(f"{name}/gradient_correlation", squares, cosines.isfinite().sum(), into=into)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """What a pass calls beside its layers: additions, ReLUs, and what leads from one tensor to the next."""
        kwargs = kwargs or {}
        if func in _ADDITIONS and torch.is_grad_enabled():  # else a hook of somebody who looks on
            added = args[1] if args[1:] else kwargs.get("other")
            self._before_adding(args[0] if args else kwargs["input"], added, kwargs.get("alpha", 1))
        out = func(*args, **kwargs)
        self._after(func, args, kwargs, out)
        return out

    @_guarded
    def _before_adding(self, x: Any, y: Any, alpha: float) -> None:
        """x + alpha y: the branch is what has passed more layers."""
        if not (isinstance(x, Tensor) and isinstance(y, Tensor) and x.ndim > 1 and x.shape == y.shape):
            return
        (passed_x, name_x), (passed_y, name_y) = (self._way.get(each, (-1, "")) for each in (x, y))
        if min(passed_x, passed_y) < 0 or passed_x == passed_y:
            return
        size_x, size_y = self._square(x), alpha**2 * self._square(y)
        name, branch, stream = (name_x, size_x, size_y) if passed_x > passed_y else (name_y, size_y, size_x)
        self._add(f"{name}/branch_ratio", branch, stream)
        of_products = torch.promote_types(x.dtype, torch.float32)  # in float16 they are soon 0 or infinite
        along = (x.detach().to(of_products) * y.detach()).sum(dtype=self._wide)
        self._add(f"{name}/branch_cosine", alpha * along, branch, stream)

    @_guarded
    def _after(self, func: Any, args: tuple, kwargs: Mapping[str, Any], out: Any) -> None:
        made = [*tensors_in(out)]
        if not made:
            return
        ways = [way for x in tensors_in((args, kwargs)) if (way := self._way.get(x)) is not None]
        if ways:
            passed = max(ways, key=lambda way: way[0])
            for each in made:
                self._way[each] = passed
            if func in RELUS and passed[1]:
                self._rectified(passed[1], out)

    def _rectified(self, name: str, out: Tensor) -> None:
        unit = self._channels[name].axis(out) if out.ndim > 1 else None  # one number a sample is one unit
        over = [axis for axis in range(out.ndim) if axis != unit]
        if not all(out.shape[axis] for axis in over):  # no sample came, as to an expert that a gate left out
            return
        alive = out.amax(over) != 0
        key, units = f"{name}/dead", alive.reshape(-1).to(self._wide)
        if key not in self._sums or len(self._sums[key]) == len(units):  # else there are others, as behind a torch.cat
            self._put(key, units, self._sums)

    # -- after the step -----------------------------------------------------------------------------------------------

    @_guarded
    def keep_gradients(self, stepping: Collection[int] | None = None, factor: Tensor | None = None) -> None:
        """Note the size of the weights' gradients as they are now: a step may drop them, or work on them in place.

        Args:
            stepping: ids of weights that make their step now; None: all whose gradient was not noted.
            factor: of a scaler's, which the step itself divides by.
        """
        with self._reading():
            wholes = [layer.parameter for layer in self._layers]
        for layer, whole in zip(self._layers, wholes):
            asked = layer.name not in self._gradients if stepping is None else id(whole) in stepping
            if asked and whole.is_leaf and whole.grad is not None:
                square = self._square(whole.grad.to_dense()[layer.rows])  # that of an embedding may be sparse
                self._gradients[layer.name] = square if factor is None else square / factor.to(self._wide).square()

    @_guarded
    def _weights(self) -> None:
        with self._reading():
            there = {layer.module for layer in layers_of(self._net)}
        for layer, before in zip(self._layers, self._before):
            if layer.module not in there:  # replaced since
                continue
            with self._reading():
                weight = layer.weight.detach()
            size = self._square(before)
            self._add(f"{layer.name}/weight", size, before.numel())
            if layer.name in self._gradients:
                self._add(f"{layer.name}/weight_gradient", self._gradients[layer.name], before.numel())
            self._add(f"{layer.name}/update", self._square(weight - before), size)

    def _reading(self) -> AbstractContextManager[None]:
        """Weights may be read: in training mode `spectral_norm` would take a step of its power iteration each time."""
        return evaluating(self._made_of)

    def _square(self, x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x.detach(), dtype=self._wide).square()

    def _add(self, key: str, *parts: Tensor | float, into: dict[str, Tensor] | None = None) -> None:
        made = [part.to(self._wide) if isinstance(part, Tensor) else self._number(part) for part in parts]
        self._put(key, torch.stack(made), self._sums if into is None else into)

    def _put(self, key: str, sums: Tensor, into: dict[str, Tensor]) -> None:
        into[key] = into[key] + sums if key in into else sums

    def _number(self, value: float) -> Tensor:
        return torch.full((), value, dtype=self._wide, device=self._device)  # filled there: nothing is transferred


def _neighbours(gradients: Tensor) -> Tensor:
    """Cosines (B,) of each sample's gradient with the one's before, of the first with the last; NaN where one is 0.

    >>> _neighbours(torch.tensor([[0.0, 2.0], [1e-30, 1e-30], [1.0, 0.0]]))
    tensor([0.0000, 0.7071, 0.7071])
    """
    flat = gradients.flatten(1)
    flat = flat.to(torch.promote_types(flat.dtype, torch.float32))
    largest = flat.abs().amax(dim=1, keepdim=True)
    unit = F.normalize(flat / largest, dim=1)  # squares of small gradients are 0 in float32
    return (unit * unit.roll(1, 0)).sum(dim=1)


def gathered(parts: Sequence[Mapping[str, tuple[float, ...]]]) -> Sums:
    """The sums of several ranks added up; a key need not be present on all of them.

    >>> gathered([{"a": (1.0, 2.0)}, {"a": (3.0, 4.0), "b": (5.0,)}])
    {'a': (4.0, 6.0), 'b': (5.0,)}
    """
    found: Sums = {}
    for part in parts:
        for key, numbers in part.items():
            found[key] = tuple(map(sum, zip(found.get(key, (0.0,) * len(numbers)), numbers)))
    return found


def profile(sums: Mapping[str, tuple[float, ...]]) -> dict[str, float]:
    """The numbers of a layer, such as "layer05/activation", from sums; NaN if a denominator is 0.

    ``activation``: RMS of the layer's output, over samples, units and positions. ``gradient``: RMS of dL/d output, with L the
    loss of each sample, which is B times the gradient of the mean over B samples. ``gradient_correlation``: RMS over pairs of
    samples, neighbours in the batch, of the cosine of their gradients as vectors over units and positions. ``weight``,
    ``weight_gradient``: RMS of the weights before the step and of the gradient that the optimizer gets. ``update``:
    ||change of the weights|| / ||weights||. ``dead``: share of the units behind the layer whose ReLUs are 0 for all samples
    and positions; only ReLUs with as many units as the first one count, so not those behind a ``torch.cat``.
    ``branch_ratio``, ``branch_cosine``: at the addition of a branch that ends with the layer, ||branch|| / ||stream|| and their
    cosine, all samples as one vector.
    """
    return {key: _NUMBERS.get(key.rpartition("/")[2], _root)(*numbers) for key, numbers in sums.items()}


def _root(square: float, count: float) -> float:
    return math.sqrt(square / count) if count else math.nan


def _cosine(along: float, one: float, other: float) -> float:
    return along / math.sqrt(one * other) if one * other else math.nan


_NUMBERS: dict[str, Callable[..., float]] = {
    "dead": lambda *alive: alive.count(0) / len(alive) if alive else math.nan,
    "branch_cosine": _cosine,
}


def expected(net: nn.Module, found: Mapping[str, float], shape: Sequence[int]) -> dict[str, float]:
    """The closed forms at initialisation: what `profile` finds on average over random weights.

    Forwards from the first layer's ``activation``, and in a plain chain backwards from the last convolution's ``gradient``; under
    ``layer05/activation_expected`` and ``layer05/gradient_expected``. In a residual net of one convolution a block the stream x
    has E x_l^2 = E x_{l-1}^2 + E z_l^2. This is an upper bound, too large by at most E z_l^2 / 2 per block: a few per cent in
    total for small branches.

    Args:
        net: a first convolution and blocks of one convolution each (`is_ordinary`), without normalisation, and without pooling
            before, between or in them, such as a `SimplifiedNet`. For any other net the result is empty.
        found: `profile` of this net before training.
        shape: shape of a sample, (C, H, W).
    """
    blocks, layers = blocks_of(net), layers_of(net)
    parts = [part for block in blocks for part in block.parts or ()]
    alone = [part.stages[0][0] for part in parts if len(part.stages) == 1 and part.stages[0][1] is None]
    convs = [layer for layer in layers if layer.is_conv]
    if len(alone) != len(blocks) or not blocks or [layer.module for layer in convs[1:]] != alone or len(shape) != 3:
        return {}
    if f"{convs[0].name}/activation" not in found or not _is_chain(net, convs, shape):
        return {}
    weights = [found[f"{layer.name}/weight"] ** 2 for layer in convs]
    skips = [part.skip for part in parts]
    squares = _squares_forward(convs, weights, skips, found[f"{convs[0].name}/activation"], shape)
    lines = {f"{layer.name}/activation_expected": math.sqrt(square.mean()) for layer, square in zip(convs, squares)}
    if not any(skips) and (last := found.get(f"{convs[-1].name}/gradient")) is not None:
        backward = _squares_backward(convs, weights, squares, last)
        lines |= {
            f"{layer.name}/gradient_expected": math.sqrt(back.mean()) for layer, back in zip(convs[::-1], backward)
        }
    return lines


def _squares_forward(
    convs: Sequence[Layer], weights: Sequence[float], skips: Sequence[bool], first: float, shape: Sequence[int]
) -> list[Tensor]:
    """The mean square of each convolution's output, (1, 1, H, W): by position, as a kernel sees less at the border.

    Args:
        convs: the first one, then one for each block.
        weights: their mean squares.
        skips: of each block, whether it has one.
        first: RMS of the first convolution's output.
        shape: of a sample, (C, H, W).
    """
    square = torch.ones(1, 1, *shape[1:], dtype=torch.float64, device="cpu")
    squares = [torch.ones_like(_spread(square, convs[0])) * first**2]
    stream = squares[0] / 2  # behind the first ReLU, which lets half of a mean square through
    for layer, weight, skip in zip(convs[1:], weights[1:], skips):
        conv: Any = layer.module
        branch = weight * conv.in_channels * _spread(stream, layer)
        squares.append(branch)
        kept = min(conv.in_channels, conv.out_channels) / conv.out_channels  # channels that the identity fills
        passed = stream[:, :, :: layer.stride, :: layer.stride]
        stream = kept * (passed + branch) + (1 - kept) * branch / 2 if skip else branch / 2
    return squares


def _squares_backward(
    convs: Sequence[Layer], weights: Sequence[float], squares: Sequence[Tensor], last: float
) -> list[Tensor]:
    """The mean square of dL/d of each convolution's output in a plain chain, from the last one's RMS back to the first's."""
    backward = [torch.ones_like(squares[-1]) * last**2]
    for layer, weight, size in zip(convs[:0:-1], weights[:0:-1], squares[-2::-1]):
        conv: Any = layer.module
        backward.append(
            weight * conv.out_channels * _spread(backward[-1], layer, size) / 2
        )  # half of the gates are open
    return backward


def _is_chain(net: nn.Module, convs: Sequence[Layer], shape: Sequence[int]) -> bool:
    """Whether there is nothing but ordinary convolutions that changes the size of maps, or normalises them."""
    if not all(is_ordinary(layer.module) for layer in convs) or any(map(is_normalisation, net.modules())):
        return False
    sizes: list[tuple[int, ...]] = []
    modules = [layer.module for layer in convs]
    like = next(net.parameters())
    with evaluating(net), hooked(modules, after=lambda conv, _, out: sizes.append(tuple(out.shape[2:]))):
        unwrapped(net)(torch.zeros(1, *shape, dtype=like.dtype, device=like.device))
    square = torch.zeros(1, 1, *shape[1:], dtype=torch.float64, device="cpu")
    return sizes == [tuple((square := _spread(square, layer)).shape[2:]) for layer in convs]


def _spread(square: Tensor, layer: Layer, back_to: Tensor | None = None) -> Tensor:
    """The sum over what a kernel sees at each position; or backwards, over the positions that see one of ``back_to``."""
    conv: Any = layer.module
    ones = square.new_ones(1, 1, *conv.kernel_size)
    if back_to is None:
        return F.conv2d(square, ones, None, conv.stride, conv.padding)
    return conv2d_input(list(back_to.shape), ones, square, conv.stride, conv.padding)
