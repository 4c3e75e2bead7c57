"""Weights of anybody's net, from a file that anybody wrote: only tensors are read, nothing in the file is executed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lightning_app.common.errors import UserError
from lightning_app.common.safe_io import read_torch
from lightning_app.runs.checkpoints import holds_weights_alone, read_safetensors

NESTS = ("state_dict", "model_state_dict", "model", "net", "module", "ema")  # under which programs keep a net's weights
SHOWN = 3  # names in an error


def load_weights(net: nn.Module, file: Path) -> None:
    """Put a file's weights into a net: all of them, and nothing else.

    A prefix that all names have in common beyond the net's own (``module.``, ``model.``, ``_orig_mod.``, ``nets.net.``) is
    taken off.

    Raises:
        UserError: if the file cannot be read, or its names and shapes are not the net's, saying which.
    """
    own = net.state_dict()
    every = (*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False))
    # Tied weights have several names, of which .safetensors files keep one.
    tensors = {name: id(tensor) for name, tensor in every}
    counters = {name for name in own if name.endswith("num_batches_tracked")}  # files from before 2018 have none
    times = Counter(tensors.values())
    alone = [name for name in own if name not in counters and times[tensors.get(name, 0)] < 2]
    weights = read_weights(file)
    found = _without_prefix(weights, [name for name in own if name not in counters])
    found = _without_prefix(weights, alone) if found is weights else found
    given = {tensors[name] for name in found if name in tensors}
    missing = [name for name in own.keys() - found.keys() - counters if tensors.get(name) not in given]
    unexpected = [*(found.keys() - own.keys())]
    if missing or unexpected:
        raise UserError(
            f"{file} holds the weights of another net than this {type(net).__name__}: {_some(missing, 'missing')}, "
            f"{_some(unexpected, 'too many')}. Give the class and the arguments of the net that was saved."
        )
    for name, value in found.items():
        if not is_lazy(own[name]) and value.shape != own[name].shape:
            raise UserError(
                f"{name} is {tuple(value.shape)} in {file} and {tuple(own[name].shape)} in this {type(net).__name__}: give "
                "the net the arguments it was saved with (such as its number of classes)."
            )
    net.load_state_dict(dict(found), strict=False)  # what is missing has another name, or is a counter


def read_weights(file: Path) -> dict[str, Tensor]:
    """Name -> tensor of a PyTorch file (a state dict, or one within a checkpoint) or of a .safetensors file.

    Raises:
        UserError: if there is no such file, it cannot be read without executing it, or holds no tensors by name.
    """
    if not file.is_file():
        raise UserError(f"expected weights at {file}, found no such file.")
    content = read_safetensors(file)[0] if holds_weights_alone(file) else read_torch(file)
    if not isinstance(content, Mapping):
        raise UserError(f"{file} holds a {type(content).__name__}, expected a state dict.")
    nested = next((content[name] for name in NESTS if isinstance(content.get(name), Mapping)), content)
    weights = {name: value for name, value in nested.items() if isinstance(value, Tensor)}
    if not weights:
        raise UserError(f"{file} holds no weights by name: expected a state dict, or a checkpoint with one in it.")
    return weights


def _without_prefix(found: Mapping[str, Tensor], own: Sequence[str]) -> Mapping[str, Tensor]:
    """With the prefix off that makes every one of the net's own names appear, if one does.

    Raises:
        UserError: if several do, as of a file with several nets.

    >>> import torch
    >>> tensor = torch.zeros(1)
    >>> list(_without_prefix({"module.fc.weight": tensor}, ["fc.weight"]))
    ['fc.weight']
    """
    some = next(iter(own), "")
    prefixes = [name.removesuffix(some) for name in found if name.endswith(f".{some}")]
    stripped = {
        prefix: {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
        for prefix in prefixes
    }
    nets = {prefix: weights for prefix, weights in {"": found, **stripped}.items() if weights.keys() >= {*own}}
    if any(prefix.startswith("nets.") for prefix in nets):  # a run's own, beside which it may keep averages of them
        nets = {prefix: weights for prefix, weights in nets.items() if not prefix.startswith("averages.")}
    if len(nets) > 1:
        raise UserError(
            f"expected the weights of one net, the file has {len(nets)} such nets, with the prefixes "
            f"{', '.join(repr(each) for each in sorted(nets)[:SHOWN])}: save the one you mean in a file of its own (`extract` "
            "does so with a checkpoint of SkipScope)."
        )
    return next(iter(nets.values()), found)


def _some(names: list[str], what: str) -> str:
    more = ", ..." if len(names) > SHOWN else ""
    return f"{len(names)} {what}" + (f" ({', '.join(sorted(names)[:SHOWN])}{more})" if names else "")
