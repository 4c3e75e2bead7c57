"""What a run was trained on, kept in its checkpoints: resumed on other data it would go on as if nothing had happened.

Compared is what options and chance came to, not the options: the images that are trained on, their labels, their order
and their normalisation. So another `root`, another spelling of the same numbers, or a `split_seed` that splits nothing
are the same data. Where the images are the same, the configuration may serve them in another way: augmentation, batch
sizes (between two epochs), `drop_last`, memory format, compiling, which images are evaluated (`test_limit`,
`evaluate_train`) and the probe. A schedule may be changed on resume too, and like it these say what the rest of the
training shall be; they do not move an image from one side of a split to the other.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lightning_app.common.errors import UserError

__all__ = ["Share", "TrainedOn", "digest"]

SHOWN = 3  # classes in an error
WORDS = {"train": "training", "val": "validation", "test": "test"}


def digest(*tensors: Tensor) -> str:
    """16 hex digits of the SHA-256 of tensors and their shapes. About 0.1 s for CIFAR-10's images.

    >>> import torch
    >>> digest(torch.tensor([1, 2])) == digest(torch.tensor([2, 1]))
    False
    """
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(str(tuple(tensor.shape)).encode())
        found.update(tensor.contiguous().numpy())
    return found.hexdigest()[:16]


@dataclass(frozen=True)
class Share:
    """What one split has of its source."""

    size: int
    of: int  # samples in the source; training and validation share one
    counts: tuple[int, ...]  # of the split, by class
    rows: str  # digest: which ones they are
    labels: str  # digest
    samples: str  # digest of what the source gave, before any normalisation

    def __str__(self) -> str:
        return f"{self.size:,}" if self.size == self.of else f"{self.size:,} of {self.of:,}"


@dataclass(frozen=True)
class TrainedOn:
    """A dataset as it was split and normalised."""

    class_names: tuple[str, ...]  # in the order of their labels
    shape: tuple[int, ...]  # of a sample, (H, W, C) or (d,)
    mean: tuple[float, ...]  # that was subtracted, one for all channels or one for each
    std: tuple[float, ...]
    splits: dict[str, Share]  # "train", "val", "test": those that were looked at

    @classmethod
    def read(cls, saved: Mapping[str, Any]) -> "TrainedOn":
        """From the plain values of a checkpoint, as `dataclasses.asdict` made them.

        Raises:
            UserError: if they are something else.
        """
        try:
            splits = {name: Share(**share) for name, share in saved["splits"].items()}
            return cls(**{**saved, "splits": splits})
        except (TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"what the checkpoint says about its data cannot be read ({type(error).__name__}: {error}): it was written "
                "by another version of this program. Resume it with that one."
            ) from error

    def check(self, here: "TrainedOn") -> None:
        """Refuse to go on with other data than these, naming the first difference."""
        if difference := next(self.differences(here), None):
            raise UserError(
                f"the checkpoint was trained on other data: {difference}. Resume it with the data and the data options it "
                "was trained with, or start a new run."
            )

    def differences(self, here: "TrainedOn") -> Iterator[str]:
        """In words, what tells more first."""
        if self.class_names != here.class_names:
            yield _other_classes(self.class_names, here.class_names)
        for what, (then, now) in self._facts(here).items():
            if then != now:
                yield f"{what} {_spelt(then)}, here {_spelt(now)}"
        for split in WORDS:
            if split in self.splits and split in here.splits:
                yield from self._of_split(split, here.splits[split])

    def _facts(self, here: "TrainedOn") -> dict[str, tuple[tuple, tuple]]:
        return {
            f"{self._plural} of shape": (self.shape, here.shape),
            "normalised with mean": (_short(self.mean), _short(here.mean)),
            "normalised with std": (_short(self.std), _short(here.std)),
        }

    @property
    def _plural(self) -> str:
        return "images" if len(self.shape) == 3 else "samples"

    def _of_split(self, split: str, here: Share) -> Iterator[str]:
        then, what = self.splits[split], f"{WORDS[split]} {self._plural}"
        if then.of != here.of or (split == "train" and then.size != here.size):
            yield f"{then} {what}, here are {here}{self._consequence(split, here)}"
        elif then.rows != here.rows:
            if split == "train":
                yield f"{then} {what}, here as many, but not the same ones"
        elif then.labels != here.labels:
            moved = self._moved(then, here) or ": as many of each class, but other ones"
            yield f"the same number of {what}, but other labels{moved}"
        elif then.samples != here.samples:
            yield f"the same number of {what} with the same labels, but other {self._values}"

    @property
    def _values(self) -> str:
        return "pixels" if len(self.shape) == 3 else "values"

    def _consequence(self, split: str, here: Share) -> str:
        """Why it matters, or which classes it comes from."""
        then = self.splits[split]
        if then.of == here.of and "val" in self.splits and here.size > then.size:
            return f": {self._plural} set aside for validation would be trained on"
        return self._moved(then, here)

    def _moved(self, then: Share, here: Share) -> str:
        pairs = zip(self.class_names, then.counts, here.counts, strict=True)
        changed = [f"{name} {was:,} -> {now:,}" for name, was, now in pairs if was != now]
        more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
        return f": {', '.join(changed[:SHOWN])}{more}" if changed else ""


def _other_classes(then: tuple[str, ...], now: tuple[str, ...]) -> str:
    if len(then) != len(now):
        return f"{len(then)} classes ({_first(then)}), here {len(now)} ({_first(now)})"
    label = next(label for label, (one, other) in enumerate(zip(then, now)) if one != other)
    order = "the same classes in another order" if sorted(then) == sorted(now) else "other classes"
    return f"{order}, label {label} was '{then[label]}' and is '{now[label]}' here"


def _first(names: tuple[str, ...]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _short(values: tuple[float, ...]) -> tuple[float, ...]:
    """One number for all channels where they are equal: both spellings mean the same."""
    return values[:1] if len(set(values)) == 1 else values


def _spelt(values: tuple) -> str:
    return f"({', '.join(map(str, values))})" if len(values) > 1 else str(*values)
