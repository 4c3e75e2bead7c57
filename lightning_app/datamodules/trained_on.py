"""What a run was trained on, kept in its checkpoints: resumed on other data it would go on as if nothing had happened.

What is compared is the result of options and chance, not the options: the samples that are trained on, their labels, their
order and their normalisation. So another `root`, another spelling of the same numbers, or a `split_seed` that splits nothing
are the same data. If the samples are the same, the configuration may change how they are served: augmentation, batch sizes
(between two epochs), `drop_last`, memory format, compiling, what is evaluated (`test_limit`, `evaluate_train`) and the probe.
Like a change of the schedule, these affect the rest of the training, but move no sample from one split to another.

A description has ``class_names``, the ``shape`` of a sample, ``mean`` and ``std``, and for each split that was used its ``size``,
the number of samples that it was taken from (``of``), and the digests of its ``rows`` there, its ``labels`` and ``samples``.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_app.common.errors import UserError

Description = Mapping[str, Any]
PIECE = 65_536  # rows that are hashed together
SPLITS = {"train": "training", "val": "validation", "test": "test"}


def digest(*tensors: Tensor) -> str:
    """16 hex digits of the SHA-256 of tensors and their shapes. About 0.1 s for CIFAR-10's images.

    >>> digest(torch.tensor([1, 2])) == digest(torch.tensor([2, 1]))
    False
    """
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(str(tuple(tensor.shape)).encode())
        for piece in tensor.split(PIECE):  # of views, such as windows of a text, a copy is many times as large
            found.update(piece.detach().cpu().contiguous().view(torch.uint8).numpy().data)  # numpy lacks bfloat16
    return found.hexdigest()[:16]


def check_same_data(saved: Description, describe: Callable[[Iterable[str]], Description]) -> None:
    """Refuse to resume on other data than a checkpoint's.

    Args:
        saved: description in the checkpoint.
        describe: describes the present data, given names of splits.

    Raises:
        UserError: naming the first difference, or if ``saved`` is no description.
    """
    try:
        difference = next(_differences(saved, describe(saved["splits"])), None)
    except (TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"the checkpoint's description of its data cannot be read ({type(error).__name__}: {error}): it was written by "
            "another version of SkipScope. Resume it with that version."
        ) from error
    if difference:
        raise UserError(
            f"the checkpoint was trained on other data: {difference}. Resume it with the data and the data options it was "
            "trained with, or start a new run."
        )


def _differences(then: Description, now: Description) -> Iterator[str]:
    """In words, what says more first."""
    names, others = then["class_names"], now["class_names"]
    if len(names) != len(others):
        yield f"{len(names)} classes, here {len(others)}"
    for label, (name, other) in enumerate(zip(names, others)):
        if name != other:
            yield f"label {label} is the class '{name}', here '{other}'"
    if then["shape"] != now["shape"]:
        yield f"samples of shape {then['shape']}, here {now['shape']}"
    for key in ("mean", "std"):  # one number for all channels, or the same for each, is no difference
        before, here = (values[:1] if len(set(values)) == 1 else values for values in (then[key], now[key]))
        if before != here:
            yield f"normalised with {key} {before}, here {here}"
    for split in SPLITS:
        if split in then["splits"] and split in now["splits"]:
            yield from _of_split(split, then["splits"][split], now["splits"][split])


def _of_split(split: str, then: Description, now: Description) -> Iterator[str]:
    what, train = f"{SPLITS[split]} samples", split == "train"
    if then["of"] != now["of"] or (train and then["size"] != now["size"]):
        yield f"{then['size']:,} of {then['of']:,} {what}, here {now['size']:,} of {now['of']:,}"
    elif then["rows"] != now["rows"]:
        if train:  # else some more or fewer are evaluated
            yield f"{then['size']:,} of {then['of']:,} {what}, here as many, but not the same ones"
    elif then["labels"] != now["labels"]:
        yield f"the same number of {what}, but other labels"
    elif then["samples"] != now["samples"]:
        yield f"the same number of {what} with the same labels, but other values"
