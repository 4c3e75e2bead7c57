"""The map T between residual and plain parameters (Yu & Tomasi 2019, section 3, Eq. 1).

A residual layer computes ``conv(x; r) + S x``, where S is the identity shortcut: spatial subsampling and zero channels
appended *at the end*. The same function is a plain convolution with weights ``T(r) = r + rho``, where rho is 1 at the
*ID entries* -- the centre taps ``(c, c, 0, 0)`` for ``c < min(C, D)`` -- and 0 elsewhere. So residual nets are plain
nets that start somewhere else, and everything that differs between them differs because of that.

Rounding: ``T^-1(T(r))`` equals r at an ID entry only up to ``u (1 + |r|)`` (u = 2^-53 in float64, 2^-24 in float32)
and exactly elsewhere. In bfloat16 an r of 1e-3 next to 1 is lost: transfer in float32 or float64.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.common.isolation import unwrapped

__all__ = ["IdentityNet", "id_entries", "shortcut", "transfer", "untransfer"]


class IdentityNet(Protocol):
    """What a net tells about itself so that T can act on it."""

    residual: bool

    def id_weights(self) -> list[str]:
        """State-dict names of the weights that have ID entries; the same for the plain and the residual net."""
        ...

    def counterpart(self) -> nn.Module:
        """A copy with ``residual`` flipped and the same weights."""
        ...

    def state_dict(self) -> dict[str, Tensor]: ...


Net = TypeVar("Net", bound=nn.Module)


def id_entries(weight: Tensor) -> Tensor:
    """Mask of the ID entries of a kernel (D, C, U, V), U and V odd: True at ``(c, c, centre, centre)``, ``c < min(C, D)``.

    >>> id_entries(torch.zeros(2, 3, 1, 1)).flatten(1).int().tolist()
    [[1, 0, 0], [0, 1, 0]]

    Returns:
        bool, with the shape and on the device of ``weight``.

    Raises:
        UserError: for a weight of another shape.

    Source:
        Yu & Tomasi (2019), section 3, Eq. 1.
    """
    if weight.ndim != 4 or weight.shape[2] % 2 == 0 or weight.shape[3] % 2 == 0:
        raise UserError(
            "ID entries are defined for kernels (D, C, U, V) of 2-d convolutions with odd U and V, got "
            f"{tuple(weight.shape)}: describe the layer without a skip (skip=False, has_id=False), and leave it out of "
            "id_weights()."
        )
    mask = torch.zeros(weight.shape, dtype=torch.bool, device=weight.device)
    channel = torch.arange(min(weight.shape[:2]), device=weight.device)
    mask[channel, channel, weight.shape[2] // 2, weight.shape[3] // 2] = True
    return mask


def shortcut(x: Tensor, channels: int, stride: int = 1) -> Tensor:
    """S x: the identity shortcut between maps of different size (option A of He et al. 2016), x itself when nothing changes.

    (B, C, H, W) -> (B, D, ceil(H / s), ceil(W / s)): missing channels are zeros appended at the end, surplus ones are
    dropped, and rows and columns 0, s, 2s, ... are kept (subsampling, not pooling), so that S x is exactly the convolution
    of x with rho at that stride.
    """
    if stride != 1:
        x = x[:, :, ::stride, ::stride]
    missing = channels - x.shape[1]
    if missing > 0:
        return F.pad(x, (0, 0, 0, 0, 0, missing))
    return x[:, :channels] if missing < 0 else x


@overload
def transfer(of: Net, names: None = None) -> Net: ...
@overload
def transfer(of: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]: ...
def transfer(of: Any, names: Iterable[str] | None = None) -> Any:
    """T: the plain net, or plain state dict, that computes the same function as a residual one.

    Args:
        of: a residual net (see `IdentityNet`), or a state dict together with ``names``.
        names: state-dict names of the weights that have ID entries (``net.id_weights()``).

    Returns:
        A new net or dict; the argument is untouched. Everything but the ID entries is bit-identical.

    Raises:
        UserError: for a net without `id_weights` (see `IdentityNet`) or one that is plain already, and for a state dict that
            lacks one of the names, or without names.

    Source:
        Yu & Tomasi (2019), section 3, Eq. 1.
    """
    return _shifted(of, names, +1)


@overload
def untransfer(of: Net, names: None = None) -> Net: ...
@overload
def untransfer(of: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]: ...
def untransfer(of: Any, names: Iterable[str] | None = None) -> Any:
    """T^-1: the residual net, or state dict, that computes the same function as a plain one. See `transfer`."""
    return _shifted(of, names, -1)


def _shifted(of: Any, names: Iterable[str] | None, sign: int) -> Any:
    return _shift_net(of, sign) if isinstance(of, nn.Module) else _shift_state(of, names, sign)


def _shift_state(state: Mapping[str, Tensor], names: Iterable[str] | None, sign: int) -> dict[str, Tensor]:
    names = set(names or ())
    if not names or not names <= state.keys():
        raise UserError(
            "transfer of a state dict needs the names of the weights that have ID entries, all of them in the dict; "
            f"got {sorted(names - state.keys()) or 'none'}. Use net.id_weights()."
        )
    return {
        key: value + sign * id_entries(value).to(value.dtype) if key in names else value.clone()
        for key, value in state.items()
    }


def _shift_net(net: Any, sign: int) -> nn.Module:
    net = unwrapped(net)
    expected = sign > 0  # T starts from a residual net, T^-1 from a plain one
    if not hasattr(net, "id_weights"):
        raise UserError(
            f"{type(net).__name__} does not say which of its weights have ID entries, so it has no twin. "
            "Give it `residual`, `id_weights()` and `counterpart()` (see lightning_app.identity.IdentityNet)."
        )
    if net.residual is not expected:
        kind, name = ("residual", "transfer") if expected else ("plain", "untransfer")
        raise UserError(f"{name} expects a {kind} net, got residual={net.residual}.")
    twin = net.counterpart()
    twin.load_state_dict(_shift_state(net.state_dict(), net.id_weights(), sign))
    return twin
