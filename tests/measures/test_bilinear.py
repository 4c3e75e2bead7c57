"""Convolutions within BilinearConvolutions against PyTorch's own, up to second derivatives."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from lightning_app.measures.curvature.bilinear import BilinearConvolutions

FORMS = {
    "plain": {},
    "padded": {"padding": 1},
    "strided": {"stride": 2, "padding": 1},
    "oblong": {"stride": (1, 2), "padding": (0, 1)},
    "dilated": {"dilation": 2, "padding": 2},
    "in groups": {"groups": 2},
    "by name": {"padding": "same"},
}


def tensors(groups: int = 1) -> tuple[torch.Tensor, ...]:
    """Input, weights and bias of a convolution of 4 to 6 channels, float64."""
    made = torch.Generator().manual_seed(0)
    shapes = (2, 4, 6, 7), (6, 4 // groups, 3, 3), (6,)
    return tuple(torch.randn(shape, generator=made, dtype=torch.float64).requires_grad_() for shape in shapes)


def second(args: tuple, form: dict, of: list[torch.Tensor]) -> list[torch.Tensor]:
    """Output, gradients, and the gradients of a random combination of these, of a sum of cubes of the output."""
    made = torch.Generator().manual_seed(1)
    out = F.conv2d(*args, **form)
    first = torch.autograd.grad(out.pow(3).sum(), of, create_graph=True)
    turned = sum((g * torch.randn(g.shape, generator=made, dtype=g.dtype)).sum() for g in first)
    return [out, *first, *torch.autograd.grad(turned, of)]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_output_and_derivatives_are_those_of_pytorch(form):
    args = tensors(form.get("groups", 1))
    plain = second(args, form, list(args))
    with BilinearConvolutions():
        ours = second(args, form, list(args))
        assert ("_Convolution" in F.conv2d(*args, **form).grad_fn.name()) == (form != FORMS["by name"])
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)  # float64, sums of 54 products, in another order


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_derivatives_are_those_of_finite_differences(form):
    """Also with respect to the gradient that comes in."""
    with BilinearConvolutions():
        args = tensors(form.get("groups", 1))
        assert torch.autograd.gradgradcheck(lambda *parts: F.conv2d(*parts, **form), args)


@pytest.mark.parametrize("chosen", [c for n in (1, 2) for c in itertools.combinations(range(3), n)], ids=str)
def test_what_is_not_differentiated_in_may_be_frozen(chosen):
    """Images, frozen weights, a bias."""
    args = tuple(t.requires_grad_(i in chosen) for i, t in enumerate(tensors()))
    of = [args[i] for i in chosen]
    plain = second(args, {}, of)
    with BilinearConvolutions():
        for one, other in zip(second(args, {}, of), plain, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", ["complex", "under autocast"])
def test_other_kinds_are_pytorchs_own(kind):
    x, w, bias = (t.detach().to(torch.complex64 if kind == "complex" else torch.float32) for t in tensors())
    with BilinearConvolutions(), torch.autocast("cpu", torch.bfloat16, enabled=kind != "complex"):
        out = F.conv2d(x, w.requires_grad_(), bias)
    assert out.dtype == (torch.complex64 if kind == "complex" else torch.bfloat16)
    assert "_Convolution" not in out.grad_fn.name()


def test_without_directions_of_weights_and_input_that_of_the_bias_is_left():
    x, w, bias = tensors()
    with BilinearConvolutions():
        (g,) = torch.autograd.grad(F.conv2d(x, w, bias).square().sum(), bias, create_graph=True)
        assert torch.autograd.grad(g.sum(), bias)[0].tolist() == [2.0 * 2 * 4 * 5] * 6  # of 2 (w x + b), all outputs


@pytest.mark.parametrize("how", ["mapped", "differentiated inside", "checkpointed"])
def test_nets_may_transform_their_own_convolutions(how):
    """A forward pass that maps over stacked weights, takes a gradient, or is computed anew in the backward pass."""
    x, w, _ = tensors()

    def net(w: torch.Tensor) -> torch.Tensor:
        if how == "mapped":
            return torch.func.vmap(lambda one: F.conv2d(x, one))(torch.stack([w, 2 * w]))
        if how == "differentiated inside":
            return torch.func.grad(lambda one: F.conv2d(one, w).pow(3).sum())(x)
        return checkpoint(lambda one: F.conv2d(F.conv2d(x, one, padding=1)[:, :4].relu(), one), w, use_reentrant=False)

    def gradient() -> torch.Tensor:
        return torch.autograd.grad(net(w).pow(3).sum(), w, create_graph=True)[0]

    with BilinearConvolutions():
        g = gradient()
    ours, plain = (torch.autograd.grad(each.square().sum(), w)[0] for each in (g, gradient()))
    torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-10)
