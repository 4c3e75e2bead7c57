"""What becomes of the parts of a signal in each function of torch: a rule returns the parts of what the function returns.

`unravel` explains the principles. Every rule is given the function, its value for the sum, and its arguments; coefficients
that depend on the sum are held as they are (`Parts.frozen`). The parts of a value always add up to it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_app.measures.paths.unravel import (
    LEAVE,
    TWO_SIGNALS,
    CarriesNoPath,
    Last,
    NoPaths,
    Parts,
    Unravelled,
    on_sum,
    plain,
    rule,
    unravelled,
)

IN_TRAINING = "path lengths need the net in evaluation mode, but this one drops units at random: call net.eval()."


@rule(
    *(F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, F.linear),
    floor=Last.LAYER,
    resets=True,
)
def _layer(
    func: Any, total: Tensor, x: Any, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
) -> Parts:
    """A weight layer: its linear map makes every path longer, its bias starts one."""
    parts = x.parts.mapped(lambda part: func(part, weight, None, *args, **kwargs)).lengthened(1)
    return _with_constant(parts, bias, total, func is F.linear)


@rule(torch.addmm, Tensor.addmm, torch.baddbmm, Tensor.baddbmm, several=True)
def _added_product(
    func: Any, total: Tensor, add: Any, *factors: Any, beta: float = 1, alpha: float = 1, **named: Any
) -> Any:
    product: Any = torch.matmul(*factors, *named.values())
    if isinstance(add, Unravelled):
        return beta * add + alpha * product
    parts = product.parts.mapped(lambda part: alpha * part).with_constant((beta * add).expand(total.shape))
    return unravelled(total, parts, product.last)


@rule(torch.lerp, Tensor.lerp, several=True)
def _between(func: Any, total: Tensor, start: Any, end: Any, weight: Any) -> Any:
    return start + weight * (end - start)


@rule(torch.addcmul, Tensor.addcmul, several=True)
def _added_multiple(func: Any, total: Tensor, add: Any, x: Any, y: Any, *, value: float = 1) -> Any:
    return add + value * (x * y)


@rule(F.batch_norm, resets=True)
def _batch_norm(
    func: Any,
    total: Tensor,
    x: Any,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Parts:
    """lambda (x - mean) / sqrt(var + eps) + bias: a scale, and a constant that starts a path."""
    if training or mean is None or var is None:
        raise NoPaths(
            "path lengths need fixed statistics of normalisation, but a BatchNorm of this net has no "
            "running statistics or is in training mode: give it track_running_stats=True and call net.eval()."
        )
    scale = (var + eps).rsqrt() if weight is None else weight * (var + eps).rsqrt()
    shift = -mean * scale if bias is None else bias - mean * scale
    parts = x.parts.mapped(lambda part: part * _by_channel(scale, total, last=False))
    return _with_constant(parts, shift, total, last=False)


def _with_constant(parts: Parts, constant: Tensor | None, like: Tensor, last: bool) -> Parts:
    """With one number for each channel, the last dimension or the second."""
    return parts if constant is None else parts.with_constant(_by_channel(constant, like, last).expand(like.shape))


def _by_channel(numbers: Tensor, like: Tensor, last: bool) -> Tensor:
    return numbers.reshape((-1,) if last else (-1, *[1] * (like.ndim - 2)))


@rule(F.instance_norm, resets=True)
def _instance_norm(
    func: Any,
    total: Tensor,
    x: Any,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Parts:
    if not use_input_stats:
        return _batch_norm(func, total, x, running_mean, running_var, weight, bias, False, momentum, eps)
    return _group_norm(func, total, x, total.shape[1], weight, bias, eps)


@rule(F.group_norm, resets=True)
def _group_norm(
    func: Any,
    total: Tensor,
    x: Any,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Parts:
    scale = None if weight is None else _by_channel(weight, total, last=False)
    return _with_constant(_standardised(x, (len(total), groups, -1), eps, scale), bias, total, last=False)


@rule(F.layer_norm, resets=True)
def _layer_norm(
    func: Any,
    total: Tensor,
    x: Any,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Parts:
    parts = _standardised(x, (*total.shape[: -len(shape)], -1), eps, weight)
    return parts if bias is None else parts.with_constant(bias.expand(total.shape))


@rule(F.rms_norm, resets=True)
def _rms_norm(
    func: Any, total: Tensor, x: Any, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Parts:
    eps = torch.finfo(total.dtype).eps if eps is None else eps
    return _standardised(x, (*total.shape[: -len(shape)], -1), eps, weight, centred=False)


def _standardised(x: Any, rows: Sequence[int], eps: float, scale: Tensor | None, centred: bool = True) -> Parts:
    """Less the mean of each row, which is linear; over the root of the sum's variance; times a scale."""

    def centre(each: Tensor) -> Tensor:
        each = each.reshape(rows)
        return each - each.mean(-1, keepdim=True) if centred else each

    shape, factor = x.shape, (centre(plain(x)).square().mean(-1, keepdim=True) + eps).rsqrt()
    scale = factor.new_ones(()) if scale is None else scale
    return x.parts.frozen(lambda part: (centre(part) * factor).reshape(shape) * scale)


@rule(F.relu, torch.relu, Tensor.relu, floor=Last.ACTIVATION)
def _relu(func: Any, total: Tensor, x: Any) -> Parts:
    """The gates are the sum's."""
    gates = (plain(x) > 0).to(total.dtype)
    return x.parts.mapped(lambda part: part * gates)


@rule(F.leaky_relu, F.rrelu, torch.abs, Tensor.abs, floor=Last.ACTIVATION)
def _two_slopes(func: Any, total: Tensor, x: Any, *args: Any, **kwargs: Any) -> Parts:
    """Gates that do not change nearby."""
    gates, _ = _gates(func, total, x, *args, **kwargs)
    return x.parts.mapped(lambda part: part * gates)


@rule(F.prelu, torch.prelu, Tensor.prelu, floor=Last.ACTIVATION)
def _prelu(func: Any, total: Tensor, x: Any, weight: Tensor) -> Parts:
    gates = torch.where(plain(x) > 0, 1, _by_channel(weight, total, last=False))
    return x.parts.mapped(lambda part: part * gates)


@rule(
    *(F.gelu, F.silu, F.mish, F.hardswish, F.elu, F.celu, F.selu, F.softplus, F.softsign, F.tanhshrink, F.logsigmoid),
    *(F.hardtanh, F.relu6, F.softshrink, F.hardshrink, F.tanh, torch.tanh, Tensor.tanh, torch.erf, Tensor.erf),
    *(torch.pow, Tensor.pow, Tensor.__pow__, torch.square, Tensor.square),
    *(torch.sin, Tensor.sin, torch.exp, Tensor.exp),
    floor=Last.ACTIVATION,
)
@rule(F.sigmoid, torch.sigmoid, Tensor.sigmoid, F.hardsigmoid, floor=Last.GATE)
def _activation(func: Any, total: Tensor, x: Any, *args: Any, **kwargs: Any) -> Parts:
    """phi(0), which starts a path, and x times the gate (phi(x) - phi(0)) / x; its limit phi'(0) at x = 0."""
    gates, at_0 = _gates(func, total, x, *args, **kwargs)
    parts = x.parts.frozen(lambda part: part * gates)
    return parts.with_constant(at_0.expand(total.shape)) if at_0 else parts


def _gates(func: Any, total: Tensor, x: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """(phi(x) - phi(0)) / x, at x = 0 the slope there; and phi(0), ()."""
    if any(isinstance(each, Tensor) and each.ndim for each in (*args, *kwargs.values())):
        raise CarriesNoPath(
            f"no path leads through {func.__name__} with a tensor as its parameter: use one function for all units, or "
            f"{LEAVE}"
        )
    x = plain(x)
    slope, at_0 = torch.func.grad_and_value(lambda zero: func(zero, *args, **kwargs))(x.new_zeros(()))
    if not (slope + at_0).isfinite():
        raise CarriesNoPath(f"no path leads through the activation {func.__name__}, which has no slope at 0: {LEAVE}")
    return torch.where(x == 0, slope, (total - at_0) / torch.where(x == 0, 1, x)), at_0


@rule(
    *(torch.clamp, Tensor.clamp, torch.clamp_min, Tensor.clamp_min, torch.clamp_max, Tensor.clamp_max),
    floor=Last.ACTIVATION,
)
def _clamped(func: Any, total: Tensor, x: Any, *args: Any, **kwargs: Any) -> Parts:
    parts = _activation(func, total, x, *args, **kwargs)
    bounds = on_sum(func, total.new_tensor([-torch.inf, torch.inf]), *args, **kwargs).tolist()
    return _relu(func, total, x) if bounds == [0, torch.inf] else parts


@rule(F.softmax, torch.softmax, Tensor.softmax, F.log_softmax, torch.log_softmax, Tensor.log_softmax, floor=Last.GATE)
def _softmax(func: Any, total: Tensor, *args: Any, **kwargs: Any) -> Parts:
    """Its values depend on all of its inputs by exponentials: no share of one belongs to an input. They are gates."""
    raise CarriesNoPath(
        f"no path leads through a {func.__name__}: let the net return the logits that go into it, or {LEAVE}"
    )


@rule(F.glu)
def _glu(func: Any, total: Tensor, x: Any, dim: int = -1) -> Any:
    one, other = x.chunk(2, dim)
    return one * other.sigmoid()


@rule(F.normalize)
def _normalize(
    func: Any, total: Tensor, x: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None
) -> Any:
    return x / x.norm(p, dim, keepdim=True).clamp_min(eps)


@rule(
    *(F.max_pool2d, F.max_pool1d, F.max_pool3d, torch.max_pool2d, torch.max_pool1d, torch.max_pool3d),
    *(F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d),
)
def _max_pool(func: Any, total: Tensor, x: Any, *args: Any, **kwargs: Any) -> Parts:
    """Each output is one of the inputs: the one that is largest in the sum."""
    kwargs = {**kwargs, "return_indices": True}
    total, places = on_sum(WITH_PLACES["adaptive" in func.__name__][total.ndim], x, *args, **kwargs)

    def chosen(part: Tensor) -> Tensor:
        return part.flatten(2).gather(2, places.flatten(2)).reshape(total.shape)  # (B, C, places)

    return x.parts.mapped(chosen)


WITH_PLACES = (  # by dimensions of the maps
    {3: F.max_pool1d, 4: F.max_pool2d, 5: F.max_pool3d},
    {3: F.adaptive_max_pool1d, 4: F.adaptive_max_pool2d, 5: F.adaptive_max_pool3d},
)


@rule(
    *(torch.amax, Tensor.amax, torch.amin, Tensor.amin), *(torch.max, Tensor.max, torch.min, Tensor.min), several=True
)
def _extreme(func: Any, total: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The one that is largest, or smallest, in the sum."""
    if isinstance(dim, Tensor):
        return _larger(func, total, x, dim)
    dims = [dim] if isinstance(dim, int) else dim or [*range(x.ndim)]
    out = total[0] if isinstance(total, tuple) else total

    def in_rows(part: Tensor) -> Tensor:
        return part.movedim(tuple(dims), tuple(range(-len(dims), 0))).flatten(-len(dims))

    rows = in_rows(plain(x))
    places = (rows.argmin if "min" in func.__name__ else rows.argmax)(-1, keepdim=True)
    parts = x.parts.mapped(lambda part: in_rows(part).gather(-1, places).reshape(out.shape))
    return type(total)([unravelled(out, parts), total[1]]) if isinstance(total, tuple) else parts


@rule(torch.maximum, Tensor.maximum, torch.minimum, Tensor.minimum, several=True)
def _larger(func: Any, total: Tensor, x: Any, y: Any) -> Parts:
    first = plain(x) == total
    return _combined(total, x, y, lambda x, y: torch.where(first, x, y))


@rule(torch.add, Tensor.add, torch.sub, Tensor.sub, several=True)
def _sum(func: Any, total: Tensor, x: Any, other: Any, *, alpha: float = 1) -> Parts:
    sign = -1 if func.__name__.startswith("sub") else 1
    return _combined(total, x, other, lambda x, y: x + sign * alpha * y)


@rule(Tensor.__rsub__, torch.rsub, several=True)
def _reversed_difference(func: Any, total: Tensor, x: Any, y: Any) -> Parts:
    return _combined(total, y, x, lambda y, x: y - x)


@rule(torch.where, Tensor.where, several=True)
def _chosen(func: Any, total: Tensor, first: Any, second: Any, third: Any) -> Parts:
    where, x, y = (first, second, third) if func is torch.where else (second, first, third)
    return _combined(total, x, y, lambda x, y: torch.where(where, x, y))


@rule(torch.masked_fill, Tensor.masked_fill)
def _masked(func: Any, total: Tensor, x: Any, mask: Tensor, value: Any) -> Parts:
    return _combined(total, value, x, lambda value, x: torch.where(mask, value, x))


def _combined(total: Tensor, x: Any, y: Any, linear: Callable[[Tensor, Tensor], Tensor]) -> Parts:
    """A linear function of both. What has no parts is a constant."""
    like = next(each for each in (x, y) if isinstance(each, Unravelled)).parts

    def parts(x: Any) -> Parts:
        if isinstance(x, Unravelled):
            return x.parts.mapped(lambda part: part.expand(total.shape))
        return _constant(torch.as_tensor(x, dtype=total.dtype, device=total.device), like, total.shape)

    return parts(x).joined([parts(y)], linear)


def _constant(x: Tensor, like: Parts, shape: torch.Size) -> Parts:
    """A tensor without parts: a path starts here, unless it is zero and stays so. A trained one has a gradient at 0 too."""
    none = replace(like, stack=x.new_zeros(len(like.stack), *shape))
    return none.with_constant(x.expand(shape)) if x.requires_grad or x.any() else none


@rule(torch.mul, Tensor.mul, Tensor.__rmul__, several=True)
def _scaled(func: Any, total: Tensor, x: Any, other: Any) -> Any:
    """By something that does not depend on the inputs, or by a gate."""
    if isinstance(x, Unravelled) and isinstance(other, Unravelled):
        return _gated(torch.mul, total, x, other)
    signal, factor = (x, other) if isinstance(x, Unravelled) else (other, x)
    return signal.parts.mapped(lambda part: part * factor)


@rule(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.mm, Tensor.mm, several=True)
def _product(func: Any, total: Tensor, x: Any, other: Any) -> Any:
    return _multiplied(torch.matmul, total, x, other)


@rule(torch.einsum, several=True)
def _einsum(func: Any, total: Tensor, equation: str, *operands: Any) -> Any:
    operands = tuple(operands[0]) if isinstance(operands[0], (tuple, list)) else operands
    if len(operands) == 1:
        return operands[0].parts.mapped(lambda part: torch.einsum(equation, part))
    if len(operands) > 2:
        raise CarriesNoPath(
            f"no path leads through the einsum '{equation}', a product of more than two tensors: use products of two, or "
            f"{LEAVE}"
        )
    return _multiplied(lambda x, y: torch.einsum(equation, x, y), total, *operands)


def _multiplied(bilinear: Callable[[Any, Any], Tensor], total: Tensor, x: Any, y: Any) -> Unravelled:
    """With a gate, or with a tensor that does not depend on the inputs: a weight layer."""
    if isinstance(x, Unravelled) and isinstance(y, Unravelled):
        return _gated(bilinear, total, x, y)
    if isinstance(x, Unravelled):
        parts = x.parts.mapped(lambda part: bilinear(part, y))
    else:
        parts = y.parts.mapped(lambda part: bilinear(x, part))
    return unravelled(total, parts.lengthened(1), Last.LAYER)


def _gated(bilinear: Callable[[Any, Any], Tensor], total: Tensor, x: Unravelled, y: Unravelled) -> Unravelled:
    """Of two signals, the one that passed the later kind of function is the gate."""
    kind_of_x, kind_of_y = max(x.last, Last.LINEAR), max(y.last, Last.LINEAR)
    if kind_of_x == kind_of_y:
        raise CarriesNoPath(TWO_SIGNALS, Last.GATE if kind_of_x == Last.GATE else Last.LINEAR)
    if kind_of_x < kind_of_y:
        parts = x.parts.frozen(lambda part: bilinear(part, plain(y)))
    else:
        parts = y.parts.frozen(lambda part: bilinear(plain(x), part))
    return unravelled(total, parts, Last.ACTIVATION)


@rule(torch.div, Tensor.div, torch.true_divide, Tensor.true_divide, several=True)
def _divided(func: Any, total: Tensor, x: Any, other: Any, *, rounding_mode: str | None = None) -> Parts:
    """Any divisor is a gate."""
    if rounding_mode or not isinstance(x, Unravelled):
        raise CarriesNoPath(
            f"no path leads through {func.__name__} if it rounds, or if only the divisor depends on the inputs: {LEAVE}"
        )
    if isinstance(other, Unravelled):
        return x.parts.frozen(lambda part: part / plain(other))
    return x.parts.mapped(lambda part: part / other)


@rule(F.scaled_dot_product_attention, resets=True, several=True)
def _attention(
    func: Any,
    total: Tensor,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Parts:
    """Linear in the values, with the pattern of the sum."""
    if dropout_p:
        raise NoPaths(IN_TRAINING)
    like = next(each for each in (value, query, key) if isinstance(each, Unravelled)).like
    parts = value.parts if isinstance(value, Unravelled) else _constant(value, like, value.shape)
    positions = key.shape[-2]
    one_hot = torch.eye(positions, dtype=total.dtype, device=total.device).expand(*key.shape[:-1], positions)
    pattern = on_sum(func, query, key, one_hot, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
    of_each = query.shape[-3] // key.shape[-3] if enable_gqa else 1
    return parts.frozen(lambda part: pattern @ (part.repeat_interleave(of_each, -3) if enable_gqa else part))


@rule(F.multi_head_attention_forward, several=True)
def _multi_head_attention(func: Any, total: Any, *given: Any, training: bool = True, **options: Any) -> Any:
    """Two layers with the pattern of the sum between them, which is returned beside their value."""
    _, _, value, size, heads, in_weight, in_bias, _, bias_v, add_zero_attn, dropout_p, out_weight, out_bias = given
    if training and dropout_p:
        raise NoPaths(IN_TRAINING)
    if options.get("static_k") is not None or options.get("static_v") is not None:
        raise NoPaths(f"no path leads through attention with given keys or values (static_k, static_v): {LEAVE}")
    asked = {**options, "need_weights": True, "average_attn_weights": False}
    _, pattern = on_sum(func, *given, training=False, **asked)  # (B, heads, L, S)
    weight = options["v_proj_weight"] if in_weight is None else in_weight[-size:]
    values: Any = F.linear(value, weight, None if in_bias is None else in_bias[-size:])  # (S, B, size)
    if bias_v is not None:
        values = torch.cat([values, bias_v.expand(1, *values.shape[1:])])
    values = values.unflatten(-1, (heads, -1)).movedim(0, -2)  # (B, heads, S, size / heads)
    values = F.pad(values, (0, 0, 0, 1)) if add_zero_attn else values
    parts = values.parts.frozen(lambda part: pattern @ part)
    mixed = unravelled(pattern @ plain(values), parts).movedim(-2, 0).flatten(-2)
    weights = total[1] if total[1] is None else unravelled(total[1], parts, Last.GATE, why=TWO_SIGNALS)
    return F.linear(mixed, out_weight, out_bias), weights


@rule(torch.cat, torch.concat, torch.concatenate, torch.stack, several=True)
def _cat(func: Any, total: Tensor, tensors: Sequence[Any], dim: int = 0) -> Parts:
    like = next(x for x in tensors if isinstance(x, Unravelled)).parts
    # torch.cat ignores an empty tensor, of whatever dimension.
    some = [x for x in tensors if func is torch.stack or x.shape != (0,)]
    one, *others = (x.parts if isinstance(x, Unravelled) else _constant(x, like, x.shape) for x in some)
    return one.joined(others, lambda *each: func(each, dim))


@rule(F.pad)
def _pad(func: Any, total: Tensor, x: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Parts:
    if mode == "constant" and value:
        raise NoPaths(f"no path leads through padding with {value}: pad with zeros, or {LEAVE}")
    return _linear(func, total, x, pad, mode, value)


@rule(*(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout), floor=Last.LAYER)
def _dropout(func: Any, total: Tensor, x: Any, p: float = 0.5, training: bool = False) -> Parts:
    if training:
        raise NoPaths(IN_TRAINING)
    return x.parts


@rule(
    *(Tensor.neg, torch.neg, Tensor.mean, torch.mean, Tensor.sum, torch.sum, torch.cumsum, Tensor.cumsum),
    *(F.avg_pool1d, F.avg_pool2d, F.avg_pool3d, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d),
    *(F.interpolate, F.fold, Tensor.tril, torch.tril, Tensor.triu, torch.triu),
)
@rule(
    *(torch.flatten, Tensor.flatten, Tensor.unflatten, Tensor.view, Tensor.reshape, torch.reshape, Tensor.contiguous),
    *(Tensor.permute, torch.permute, Tensor.transpose, torch.transpose, Tensor.squeeze, torch.squeeze),
    *(Tensor.unsqueeze, torch.unsqueeze, Tensor.clone, torch.clone, Tensor.float, Tensor.double),
    *(Tensor.__getitem__, torch.narrow, Tensor.narrow, torch.select, Tensor.select),
    *(torch.index_select, Tensor.index_select),
    *(torch.gather, Tensor.gather, Tensor.expand, Tensor.repeat, Tensor.repeat_interleave, torch.repeat_interleave),
    *(torch.roll, Tensor.roll, torch.flip, Tensor.flip, torch.movedim, Tensor.movedim, torch.swapaxes, Tensor.swapaxes),
    *(Tensor.T.__get__, Tensor.mT.__get__, Tensor.t, F.unfold, F.pixel_shuffle, F.pixel_unshuffle, F.channel_shuffle),  # type: ignore[attr-defined]
    floor=Last.LAYER,
)
def _linear(func: Any, total: Tensor, x: Any, *args: Any, **kwargs: Any) -> Parts:
    """What the second list does changes the form alone: the outputs of a readout are still its outputs behind it."""
    return x.parts.mapped(lambda part: func(part, *args, **kwargs))


@rule(Tensor.expand_as, Tensor.view_as, Tensor.reshape_as, Tensor.type_as, Tensor.to, several=True)
def _form_of(func: Any, total: Tensor, x: Any, *other: Any, **named: Any) -> Any:
    """The form, or the type, of another tensor: what that has passed does not matter."""
    other, named = plain(other), plain(named)
    if not isinstance(x, Unravelled):  # a parameter or a mask: a constant still
        return func(x, *other, **named)
    if x.why:
        raise CarriesNoPath(x.why, x.last)
    return unravelled(total, x.parts.mapped(lambda part: func(part, *other, **named)), x.last)


@rule(
    *(torch.chunk, Tensor.chunk, torch.split, Tensor.split, torch.tensor_split, Tensor.tensor_split),
    *(torch.unbind, Tensor.unbind, torch.unsafe_chunk, Tensor.unsafe_chunk, torch.unsafe_split, Tensor.unsafe_split),
    floor=Last.LAYER,
)
def _pieces(func: Any, total: Any, x: Any, *args: Any, **kwargs: Any) -> list[Parts]:
    return x.parts.split(lambda part: func(part, *args, **kwargs))
