"""Two images through every net before training: what cannot work is a sentence now, not a traceback later."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.modules.members import Member

__all__ = ["check_outputs", "lay_out"]

IMAGES = 2  # in one alone a `view` that merges samples and channels would pass, whatever the memory format


def check_outputs(members: Sequence[Member], shape: Sequence[int], classes: int) -> None:
    """Do all nets map images of this shape to so many logits?

    Raises:
        UserError: naming the first that does not.
    """
    for name, net in members:
        try:
            got = tuple(_answer(net, shape).shape)
        except Exception as error:  # whatever a foreign net raises on an image that it cannot take
            raise UserError(
                f"member '{name}' cannot take images of shape {tuple(shape)} (channels, height, width) and return "
                f"logits: {_reason(error)}"
            ) from error
        if got != (IMAGES, classes):
            raise UserError(
                f"member '{name}' has outputs {got[1:]} an image, the data has {classes} classes: set the net's "
                f"num_classes (of a net with as many outputs as inputs, its width and data.components) to {classes}."
            )


def lay_out(members: Sequence[Member], shape: Sequence[int] | None, asked: bool | None, device: torch.device) -> bool:
    """Put all weights into channels_last memory format, or leave them all as they are. Returns which.

    Args:
        members: the nets.
        shape: (C, H, W) of the images, where it is known.
        asked: True or False decide. None is channels_last for images on a CPU, unless a net cannot take it: one that
            flattens by ``view`` what is not contiguous then, or has weights of five dimensions. Members share batches, so
            one such net decides for all.
        device: where the nets will be trained or evaluated; until then they are on the CPU.

    Raises:
        UserError: where it was asked for, and the data are vectors or a net cannot take it.
    """
    images = shape is not None and len(shape) == 3
    if asked and shape is not None and not images:
        raise UserError(
            f"channels_last is a memory format of images, (channels, height, width), and the data have shape {tuple(shape)}: "
            "leave it out."
        )
    if asked is False or (asked is None and not (images and device.type == "cpu")):
        return False
    refused = _refusal(members, shape if images else None)
    if refused is None:
        return True
    if asked:
        name, reason = refused
        raise UserError(
            f"member '{name}' cannot take images in channels_last memory format ({reason}): leave channels_last out, "
            "or flatten with x.flatten(1) instead of x.view(...)."
        )
    for _, net in members:
        net.to(memory_format=torch.contiguous_format)
    return False


def _refusal(members: Sequence[Member], shape: Sequence[int] | None) -> tuple[str, str] | None:
    """Put weights into channels_last until a net raises, or raises on an image that is: which one, and why."""
    for name, net in members:
        try:
            net.to(memory_format=torch.channels_last)
            if shape is not None:
                _answer(net, shape, torch.channels_last)
        except Exception as error:  # an assertion of the net's own, too
            return name, _reason(error)
    return None


def _answer(net: nn.Module, shape: Sequence[int], layout: torch.memory_format = torch.contiguous_format) -> Tensor:
    """The net's output for black images, in evaluation mode; the net and the random state stay as they are."""
    images = next(net.parameters()).new_zeros(IMAGES, *shape).contiguous(memory_format=layout)
    modes = {module: module.training for module in net.modules()}
    try:
        with torch.random.fork_rng([images.device] if images.is_cuda else []), torch.no_grad():
            return net.eval().forward(images)  # not net(image), which may be compiled
    finally:
        for module, mode in modes.items():
            module.training = mode


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
