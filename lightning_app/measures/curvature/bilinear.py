"""Convolutions that know that they are bilinear, for whoever differentiates twice.

A convolution C(x, w) is linear in x and in w. So is, in each of its arguments, everything that its derivatives are made of:
with the gradient g of its output, its gradients are ``C_x(g, w)`` and ``C_w(g, x)``, and the derivative of these two in
directions v_x and v_w is

    dg = C(v_x, w) + C(x, v_w),    dx = C_x(g, v_w),    dw = C_w(g, v_x):

four convolutions, each of a kind that libraries have kernels for. PyTorch writes the last one as a forward convolution
whose kernel is as large as the picture, which no library is made for.
"""

from collections.abc import Iterable
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_convolve, _backward = torch.ops.aten.convolution, torch.ops.aten.convolution_backward

Form = tuple[list[int], list[int], list[int], bool, list[int], int]  # aten's: stride, padding, dilation, ..., groups
Maybe = Tensor | None


class BilinearConvolutions(TorchFunctionMode):
    """Within it, ``torch.conv2d`` is the same map with a cheaper second derivative, up to rounding.

    Calls of another form (padding by name, pictures without batch dimension, complex numbers, under autocast) stay PyTorch's
    own. Of the others, forward-mode derivatives do not exist, nor gradients of parameters that are not among ``of``, if given.

    >>> x, w = torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2, requires_grad=True)
    >>> with BilinearConvolutions():
    ...     out = torch.conv2d(x, w)  # the sum of w
    >>> (g,) = torch.autograd.grad(out.square().sum(), w, create_graph=True)  # 2 out x
    >>> torch.autograd.grad(g.sum(), w)[0].flatten()  # 2 x x^T (1, 1, 1, 1)
    tensor([8., 8., 8., 8.])
    """

    def __init__(self, of: Iterable[Tensor] | None = None) -> None:
        super().__init__()
        self._of = None if of is None else {id(parameter) for parameter in of}

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return (self._conv2d if func is torch.conv2d else func)(*args, **(kwargs or {}))

    def _conv2d(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Maybe = None,
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
    ) -> Tensor:
        usual = input.ndim == weight.ndim and not input.is_complex()
        if isinstance(padding, str) or not usual or torch.is_autocast_enabled(input.device.type):
            return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
        form = (_pair(stride), _pair(padding), _pair(dilation), False, [0, 0], groups)
        return _Convolution.apply(input, self._wanted(weight), self._wanted(bias), form)

    def _wanted(self, parameter: Maybe) -> Maybe:
        """Detached where nobody asks for it: a Function is not told which gradients autograd goes on with."""
        if parameter is None or self._of is None or not parameter.is_leaf or id(parameter) in self._of:
            return parameter
        return parameter.detach()


def _pair(value: int | tuple[int, ...]) -> list[int]:
    return [value, value] if isinstance(value, int) else [*value]


class _Convolution(torch.autograd.Function):
    generate_vmap_rule = True  # nets may map over their own convolutions

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Maybe, form: Form) -> Tensor:
        return _convolve(x, w, bias, *form)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Maybe, Form], output: Tensor) -> None:
        x, w, _, ctx.form = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Maybe, Maybe, Maybe, None]:
        return *_Gradients.apply(g, *ctx.saved_tensors, ctx.form, ctx.needs_input_grad[:3]), None


class _Gradients(torch.autograd.Function):
    """(g, x, w) -> the gradients of x, of w and of the bias, those that are wanted."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, x: Tensor, w: Tensor, form: Form, wanted: tuple[bool, ...]) -> tuple[Maybe, Maybe, Maybe]:
        return _backward(g, x, w, [len(w)], *form, [*wanted])

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Form, tuple[bool, ...]], output: tuple[Maybe, ...]
    ) -> None:
        g, x, w, ctx.form, _ = inputs
        ctx.save_for_backward(g, x, w)
        ctx.set_materialize_grads(False)  # no convolution with zeros

    @staticmethod
    def backward(ctx: Any, v_x: Maybe, v_w: Maybe, v_bias: Maybe) -> tuple[Maybe, Maybe, Maybe, None, None]:
        g, x, w = ctx.saved_tensors
        for_g, for_x, for_w = ctx.needs_input_grad[:3]
        terms, dx, dw = [], None, None
        if v_x is not None:
            if for_g:
                terms.append(_convolve(v_x, w, None, *ctx.form))
            if for_w:
                dw = _backward(g, v_x, w, None, *ctx.form, [False, True, False])[1]
        if v_w is not None:
            if for_g:
                terms.append(_convolve(x, v_w, None, *ctx.form))
            if for_x:
                dx = _backward(g, x, v_w, None, *ctx.form, [True, False, False])[0]
        if v_bias is not None and for_g:
            terms.append(v_bias[:, None, None].expand_as(g))
        # In place: of several terms the first is a new tensor, mapped over (by vmap) if the others are.
        return (reduce(Tensor.add_, terms) if terms else None), dx, dw, None, None
