"""n-shortcut nets of Li et al. (2016), Definitions 1 and 2: square layers, an identity around every n of them."""

from typing import Literal

import torch
from torch import Tensor, nn

from lightning_app.common.errors import UserError, at_least
from lightning_app.networks.layers import Layer, number_layers

Activation = Literal["identity", "relu", "tanh"]
Draw = Literal["xavier", "orthogonal", "zero"]

ACTIVATIONS = {"identity": nn.Identity, "relu": nn.ReLU, "tanh": nn.Tanh}


class Unit(nn.Module):
    """``x + post(W^n mid(... mid(W^1 pre(x) + b)))``, or without the ``x +``. (B, d) -> (B, d)."""

    def __init__(self, width: int, n: int, shortcut: bool, pre: str, mid: str, post: str, bias: bool) -> None:
        super().__init__()
        self.path = nn.ModuleList(nn.Linear(width, width, bias=bias and index == 0) for index in range(n))
        self.pre, self.mid, self.post = (ACTIVATIONS[name]() for name in (pre, mid, post))
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        out = self.pre(x)
        for index, layer in enumerate(self.path):
            out = layer(self.mid(out) if index else out)
        out = self.post(out)
        return x + out if self.shortcut else out


class ShortcutNet(nn.Module):
    """An n-shortcut net: R units of n square matrices, L = R n layers. Input (B, d), output (B, d).

    A unit maps x to ``x + post(W^n mid(... W^2 mid(W^1 pre(x))))`` (Definition 2): *pre* acts before the first matrix of
    the transformation path, *mid* between two matrices, *post* after the last one. If all three are the
    identity, it is an n-shortcut linear net (Definition 1, Eq. 2). There are no layers before the first or after the last unit.

    Args:
        width: d, the size of inputs, layers and outputs. A classifier needs as many inputs as classes.
        units: R, number of units.
        n: number of matrices per unit, the depth of a shortcut.
        shortcut: False gives a plain net, without identities: with n = 2 and a ReLU at mid it has ReLUs after odd layers, as many
            as the 2-shortcut net (Li et al., Appendix B).
        pre, mid, post: "identity", "relu" or "tanh".
        init: "zero" (small, a fraction of Xavier), "xavier" or "orthogonal", see `draw`.
        scale: the fraction for "zero"; with 0 all weights are exactly zero.
        bias: add a vector b, which starts at 0, after the first matrix of each unit. ``ShortcutNet(mid="relu", bias=True)`` is
            ``x + V relu(U x + b)`` (Eq. 3).

    Raises:
        UserError: for a size below 1 or an unknown name.

    >>> net = ShortcutNet(width=2, units=3, n=2, mid="relu")
    >>> [layer.name for layer in net.layers()]
    ['layer01', 'layer02', 'layer03', 'layer04', 'layer05', 'layer06']
    >>> x = torch.tensor([[1.0, -2.0]])
    >>> (net(x) - x).abs().max().item() < 0.1  # near zero weights it is near the identity
    True
    """

    def __init__(
        self,
        width: int = 10,
        units: int = 4,
        n: int = 2,
        shortcut: bool = True,
        pre: Activation = "identity",
        mid: Activation = "identity",
        post: Activation = "identity",
        init: Draw = "zero",
        scale: float = 0.01,
        bias: bool = False,
    ) -> None:
        super().__init__()
        at_least(1, type(self).__name__, width=width, units=units, n=n)
        for place, activation in {"pre": pre, "mid": mid, "post": post}.items():
            if activation not in ACTIVATIONS:
                names = ", ".join(ACTIVATIONS)
                raise UserError(f"{place} of a shortcut net must be one of {names}, got {activation!r}.")
        self.residual = self.shortcut = shortcut
        self.n = n
        self.units = nn.Sequential(*(Unit(width, n, shortcut, pre, mid, post, bias) for _ in range(units)))
        # As a linear map of its own, a layer with an identity right around it, n = 1, is W x + x.
        self._skips = shortcut and n == 1 and (pre, post) == ("identity", "identity")
        with torch.no_grad():
            for layer in self.layers():
                layer.weight.copy_(draw(tuple(layer.weight.shape), init, scale))
                if layer.module.bias is not None:
                    layer.module.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.units(x)

    def layers(self) -> tuple[Layer, ...]:
        """The R n matrices, unit by unit, as layers 1 to L."""
        names = [f"units.{r}.path.{k}" for r in range(len(self.units)) for k in range(self.n)]
        return number_layers(self, names, skips=names if self._skips else ())

    def block_list(self) -> list[nn.Module]:
        """The R units in forward order."""
        return list(self.units)

    def weights(self) -> Tensor:
        """A copy of all matrices, (R, n, d, d), as `theory.linear` expects them, without biases."""
        return torch.stack([layer.weight.detach() for layer in self.layers()]).unflatten(0, (-1, self.n))


def draw(
    shape: tuple[int, ...], init: Draw = "xavier", scale: float = 0.01, generator: torch.Generator | None = None
) -> Tensor:
    """Random square matrices, (..., d, d) in float64, drawn independently.

    Args:
        shape: the last two sizes are equal.
        init: "xavier", entries N(0, 2 / (d + d)) (Glorot & Bengio 2010); "orthogonal", uniform over the orthogonal
            matrices (Saxe et al. 2013: Q of a QR decomposition, its columns signed as the diagonal of R); "zero", ``scale``
            times Xavier, the small random perturbation of zero that a saddle point needs (Li et al., section 4.1).
        scale: used by "zero" only. The paper does not state its value.
        generator: random generator; None uses the global random state.

    Raises:
        UserError: for matrices that are not square, and for an unknown init.
    """
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise UserError(f"expected a shape of square matrices, (..., d, d), got {tuple(shape)}.")
    device = None if generator is None else generator.device
    normal = torch.randn(shape, generator=generator, dtype=torch.float64, device=device)
    if init == "orthogonal":
        Q, R = torch.linalg.qr(normal)
        return Q * R.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
    if init in ("xavier", "zero"):
        return normal / shape[-1] ** 0.5 if init == "xavier" else normal * (scale / shape[-1] ** 0.5)
    raise UserError(f"init of a shortcut net must be 'zero', 'xavier' or 'orthogonal', got {init!r}.")
