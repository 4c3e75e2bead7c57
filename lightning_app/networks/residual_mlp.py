"""The residual MLP of Littwin & Wolf (2016): p blocks of one matrix each, all but the first with an identity around them.

Their Eq. 8 without normalisation, Eq. 22 with the simple one that the analysis uses, and the net of the experiments
(Appendix C) with an ordinary BatchNorm, whose position relative to the ReLU the paper does not give.
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_app.common.errors import UserError, at_least
from lightning_app.networks.layers import Layer, number_layers

MlpNorm = Literal["eq22", "before_relu", "after_relu", "none"]
MlpStart = Literal["normal", "torch7"]


class MeanStdNorm(nn.Module):
    """``lambda x / sigma`` with one sigma for all units: the mean over units of their standard deviations (Eq. 22).

    No mean is subtracted and no bias added. In training mode the deviations are those of the batch; in evaluation mode
    sigma^2 = ``running_var``. As in a BatchNorm the scale is weight / sqrt(sigma^2 + eps).
    (B, features) -> (B, features).

    Args:
        features: number of units.
        scalar: one lambda per layer, as in Eq. 22; False: one per unit. They start at 1.
        centred: use standard deviations, as the text says; False: root mean squares, with which the 1 in the recursion
            E N_{l+1}^2 = 1 + E N_l^2 below Eq. 22 is right.
        eps: added to sigma^2.
        momentum: weight of the newest batch in the running sigma^2.

    >>> norm = MeanStdNorm(2, eps=0.0)
    >>> norm(torch.tensor([[0.0, 5.0], [2.0, 11.0]])).tolist()  # standard deviations 1 and 3: sigma is 2
    [[0.0, 2.5], [1.0, 5.5]]
    """

    running_var: Tensor  # (1,)

    def __init__(
        self, features: int, scalar: bool = True, centred: bool = True, eps: float = 1e-5, momentum: float = 0.1
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1 if scalar else features))
        self.register_buffer("running_var", torch.ones(1))
        self.centred = centred
        self.eps = eps
        self.momentum = momentum

    def forward(self, x: Tensor) -> Tensor:
        variance = self.running_var
        if self.training and len(x) == 1:  # as in PyTorch's BatchNorm
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}")
        if self.training:  # dead units have deviation 0, of derivative 0
            deviations = x.std(0, correction=0) if self.centred else torch.linalg.vector_norm(x, dim=0) / len(x) ** 0.5
            variance = deviations.mean(0, keepdim=True).square()
            with torch.no_grad():
                self.running_var.lerp_(variance.to(self.running_var.dtype), self.momentum)
        return x * (self.weight * (variance + self.eps).rsqrt())


class MlpBlock(nn.Module):
    """``branch(x)``, or ``branch(x) + x`` when residual, with a branch of one matrix, a ReLU and a norm. (B, d) -> (B, n).

    The branch is ``norm(relu(W x))``, or ``relu(norm(W x))`` when ``norm_first``, or ``relu(W x)``. There are no
    biases except a BatchNorm's own: Eqs. 8 and 22 have none.
    """

    def __init__(self, inputs: int, width: int, norm: nn.Module | None, norm_first: bool, residual: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, width, bias=False)
        self.norm = norm
        self.norm_first = norm_first
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        out, norm = self.linear(x), self.norm or (lambda out: out)
        out = F.relu(norm(out)) if self.norm_first else norm(F.relu(out))
        return out + x if self.residual else out


class ResidualMLP(nn.Module):
    """p blocks of one layer, identities around all but the first, and a linear readout. (B, inputs) -> logits (B, classes).

    The first block maps inputs to units and has no skip. So a path from input to readout has r = 1, ..., p layers, and there are
    binom(p - 1, r - 1) paths of length r. Defaults are those of Appendix C: 50 inputs, 10 blocks of 20 units.

    Matrices, including the readout's, are N(0, gain^2 / inputs of the layer). Gain 1 is the scheme that the paper names
    (C = 1/sqrt(n)), with which beta = rho. The readout alone has a bias, 0 at first.

    Args:
        inputs: d, number of inputs.
        width: n, number of units per block.
        blocks: p, number of blocks.
        classes: number of logits.
        norm: "eq22" (`MeanStdNorm` behind the ReLU), "before_relu" or "after_relu" (BatchNorm there), or "none".
        residual: add the identities.
        gain: gain of the initialisation.
        start: "normal", or "torch7" for the initialisation of nn.Linear and nn.BatchNormalization in Torch7, in which both
            repositories named by the paper are written: matrices and the readout's bias U(-1, 1) gain / sqrt(inputs), lambda
            from U(0, 1).
        scalar: with norm "eq22": one lambda per layer; False: one per unit.
        centred: with norm "eq22": divide by standard deviations; False: by root mean squares.

    Raises:
        UserError: for a size below 1, a gain that is not positive, or an unknown name.

    >>> net = ResidualMLP(blocks=3, norm="none")
    >>> [tuple(layer.weight.shape) for layer in net.layers()]
    [(20, 50), (20, 20), (20, 20), (10, 20)]
    """

    def __init__(
        self,
        inputs: int = 50,
        width: int = 20,
        blocks: int = 10,
        classes: int = 10,
        norm: MlpNorm = "eq22",
        residual: bool = True,
        gain: float = 1.0,
        start: MlpStart = "normal",
        scalar: bool = True,
        centred: bool = True,
    ) -> None:
        super().__init__()
        at_least(1, type(self).__name__, inputs=inputs, width=width, blocks=blocks, classes=classes)
        for name, value, known in (("norm", norm, MlpNorm), ("start", start, MlpStart)):
            if value not in get_args(known):
                raise UserError(f"{name} of a residual MLP must be one of {', '.join(get_args(known))}, got {value!r}.")
        if not gain > 0:
            raise UserError(f"gain of a residual MLP must be positive, got {gain}.")
        self.residual = residual
        first = norm == "before_relu"
        sizes = [inputs, *[width] * (blocks - 1)]
        self.blocks = nn.Sequential(
            *(
                MlpBlock(size, width, _norm(norm, width, scalar, centred), first, residual=residual and number > 0)
                for number, size in enumerate(sizes)
            )
        )
        self.readout = nn.Linear(width, classes)
        self._start(start, gain)

    @torch.no_grad()
    def _start(self, start: MlpStart, gain: float) -> None:
        for layer in self.layers():
            size = gain / layer.weight.shape[1] ** 0.5
            layer.weight.normal_(0.0, size) if start == "normal" else layer.weight.uniform_(-size, size)
        self.readout.bias.zero_()
        if start == "torch7":
            self.readout.bias.uniform_(-size, size)
            for norm in self.modules():
                if isinstance(norm, MeanStdNorm | nn.BatchNorm1d):
                    norm.weight.uniform_(0.0, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.blocks(x))

    def layers(self) -> tuple[Layer, ...]:
        """The p matrices and the readout as layers 1 to p + 1. ``skip`` is False for all, since skips also go around the ReLU."""
        return number_layers(self, (*(f"blocks.{i}.linear" for i in range(len(self.blocks))), "readout"))

    def block_list(self) -> list[nn.Module]:
        """The p blocks in forward order; block01 is the one without a skip."""
        return list(self.blocks)


def _norm(kind: MlpNorm, width: int, scalar: bool, centred: bool) -> nn.Module | None:
    if kind == "none":
        return None
    return MeanStdNorm(width, scalar, centred) if kind == "eq22" else nn.BatchNorm1d(width)
