"""Dry run: two samples through every net, so that shape errors are reported before training starts."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy

from lightning_app.common.calls import outputs_of
from lightning_app.common.errors import UserError, first_line
from lightning_app.common.isolation import evaluating, unrounded
from lightning_app.modules.members import Member, twin

ROUNDING = 1e4  # times eps of the largest output: twins are within 100 in float32, other functions about 1e6 apart
SAMPLES = 2  # with one alone a `view` that merges samples and channels would pass, whatever the memory format


def check_outputs(
    members: Sequence[Member], shape: Sequence[int] | None, classes: int | None, dtype: torch.dtype | None = None
) -> set[str]:
    """Check that all nets map samples to logits. If shape or number of classes is unknown (None), nothing is checked.

    Args:
        members: the nets.
        shape: of one sample.
        classes: number of logits per sample.
        dtype: of the samples; None: that of the weights.

    Returns:
        Names of the nets that return something other than a tensor of logits; of all nets if nothing was checked.

    Raises:
        UserError: naming the first net that does not, and what to set.
    """
    if shape is None or classes is None:
        if lazy := [name for name, net in members if any(map(is_lazy, (*net.parameters(), *net.buffers())))]:
            raise UserError(
                f"member '{lazy[0]}' has lazy layers, which take their sizes from a sample: give them their sizes, or give "
                "the datamodule the attributes sample_shape and num_classes."
            )
        return {name for name, _ in members}
    found: set[str] = set()
    for member in members:
        name, net = member
        try:
            with torch.random.fork_rng(devices=[]):
                # Of the weights that lazy layers make now; those made before have the stream of the seed itself.
                torch.default_generator.manual_seed(hash((member.seed, -1)) % 2**63)
                returned = _output(net, shape, dtype=dtype)
            got = tuple(outputs_of(returned, type(net).__name__).shape)
        except Exception as error:  # whatever a foreign net raises on a sample that it cannot take
            dimensions = " (channels, height, width)" if len(shape) == 3 else ""
            raise UserError(
                f"member '{name}' cannot take samples of shape {tuple(shape)}{dimensions} and "
                f"return logits: {first_line(error)}{_inputs(net, shape, dtype)}"
            ) from error
        if got != (SAMPLES, classes):
            raise UserError(
                f"member '{name}' has outputs {got[1:]} for a sample, but the data have {classes} classes: set the net's number "
                f"of outputs to {classes} (num_classes; for ResidualMLP classes, for GPT vocabulary; if it has as many outputs "
                "as inputs, its width and data.components)."
            )
        if not isinstance(returned, Tensor):
            found.add(name)
    _check_twins(members, shape, dtype)
    return found


def _check_twins(members: Sequence[Member], shape: Sequence[int], dtype: torch.dtype | None) -> None:
    """T is right only where a layer computes W x + S x: with something in between the twin would be another function.

    Twins are made anew: after training the two are not one function any more.
    """
    nets = {name: net for name, net in members}
    for member in members:
        if member.twin_of is None:
            continue
        both = nets[member.twin_of], twin(nets[member.twin_of])
        with unrounded():
            original, again = (outputs_of(_output(net, shape, dtype=dtype, noise=True)) for net in both)
        apart, size = (again - original).abs().max(), original.abs().max()
        if apart > min(0.1, ROUNDING * torch.finfo(again.dtype).eps) * size:
            raise UserError(
                f"member '{member.name}' is not a twin of '{member.twin_of}': on the same samples their outputs (of up to "
                f"{float(size):.3g}) differ by up to {float(apart):.3g}. T adds 1 to the ID entries of layers that compute "
                "W x + S x; it is wrong if a normalisation or a ReLU lies between W x and the sum. Correct the net's "
                "`id_weights()`, or leave the twin out."
            )


def _inputs(net: nn.Module, shape: Sequence[int], dtype: torch.dtype | None) -> str:
    """What to set where the first layer takes another number of channels than images have, or inputs than vectors."""
    if len(shape) == 1 and (dtype is None or dtype.is_floating_point):
        first = next((module for module in net.modules() if isinstance(module, (nn.Linear, _ConvNd))), None)
        embedding = any(isinstance(module, nn.Embedding) for module in net.modules())
        if embedding or not isinstance(first, nn.Linear) or first.in_features == shape[0]:
            return ""
        return f" (set the net's number of inputs, `inputs` of ResidualMLP, here {first.in_features}, to {shape[0]})"
    conv = next((module for module in net.modules() if isinstance(module, nn.Conv2d)), None)
    if conv is None or len(shape) != 3 or conv.in_channels == shape[0]:
        return ""
    return f" (set the net's in_channels, here {conv.in_channels}, to {shape[0]}, as the images have)"


def choose_memory_format(
    members: Sequence[Member], shape: Sequence[int] | None, wanted: bool | None, device: torch.device
) -> bool:
    """Put all weights into channels_last memory format, or leave them all as they are. Returns which.

    Args:
        members: the nets.
        shape: of a sample, (C, H, W) of images, where it is known.
        wanted: True: channels_last, False: not. None: channels_last for images on a CPU, if every net can use it. A net
            cannot if it flattens with ``view`` (its tensors are not contiguous then) or has weights of five dimensions.
            Members share batches, so one such net decides for all.
        device: where the nets will be trained or evaluated; until then they are on the CPU.

    Raises:
        UserError: if ``wanted`` is True and the data are vectors or a net cannot use it.
    """
    images = shape is not None and len(shape) == 3
    if wanted and shape is not None and not images:
        raise UserError(
            f"channels_last is a memory format for images (channels, height, width), but samples have shape {tuple(shape)}: "
            "leave channels_last out."
        )
    if wanted is False or (wanted is None and not (images and device.type == "cpu")):
        return False
    for name, net in members:
        try:
            net.to(memory_format=torch.channels_last)
            if shape is not None and images:
                _output(net, shape, torch.channels_last)
        except Exception as error:  # an assertion of the net's own, too
            if wanted:
                raise UserError(
                    f"member '{name}' cannot take images in channels_last memory format ({first_line(error)}): leave "
                    "channels_last out, or flatten with x.flatten(1) instead of x.view(...)."
                ) from error
            for _, other in members:
                other.to(memory_format=torch.contiguous_format)
            return False
    return True


def _output(
    net: nn.Module,
    shape: Sequence[int],
    layout: torch.memory_format = torch.contiguous_format,
    dtype: torch.dtype | None = None,
    noise: bool = False,
) -> Any:
    """The net's output for samples of zeros, or of noise, in evaluation mode; the net and the random state stay as they are."""
    weights = next((weight for weight in net.parameters() if not is_lazy(weight)), torch.empty(0))
    samples = weights.new_zeros(SAMPLES, *shape, dtype=dtype).contiguous(memory_format=layout)
    if noise and samples.is_floating_point():
        samples += torch.randn(samples.shape, generator=torch.Generator().manual_seed(0)).to(samples)
    with evaluating(net):
        return net.forward(samples)  # not net(samples), which may be compiled
