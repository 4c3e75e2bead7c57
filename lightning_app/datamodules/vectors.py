"""The datamodule under all sets of vectors: an image set in all but what a batch holds and where it comes from."""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_app.datamodules.images import ImageData
from lightning_app.datamodules.trained_on import digest

__all__ = ["VectorData"]


class ResidentVectors:
    """One split's vectors on one device, as loaders ask for them (see `ResidentImages`); they are never augmented."""

    channels_last = False

    def __init__(self, vectors: Tensor, labels: Tensor) -> None:
        self.vectors = vectors  # (N, d)
        self.labels = labels  # (N,) int64

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        return self.labels.device

    def starts(self, rows: Tensor, draws: None = None) -> Tensor:
        """A row is found by its number."""
        return rows

    def batch(self, starts: Tensor) -> Tensor:
        return self.vectors.index_select(0, starts)


class VectorData(ImageData):
    """Batches ``(vectors, labels)``: (B, d) in the trainer's precision, and int64 (B,).

    A subclass implements `load` and `vectors`, says d as ``image_shape``, and passes on what `ImageData` takes.
    """

    # Not an argument: a configuration that names vectors on top of images would carry the images' over (see
    # `ImageData`), which on a CPU is 1,400 batches an evaluation.
    EVAL_BATCH: ClassVar[int] = 10_000

    def __init__(self, **of_images) -> None:
        super().__init__(eval_batch_size=self.EVAL_BATCH, augment=False, **of_images)

    @abstractmethod
    def vectors(self, split: str = "train") -> tuple[Tensor, Tensor]:
        """All of a split, "train", "val" or "test": (m, d) float64 and labels (m,) int64."""

    @override
    def setup(self, stage: str | None = None) -> None:
        super().setup(stage)
        self._resident.clear()  # another trainer may have another precision

    @property
    @override
    def _layout(self) -> bool:
        return False

    @override
    def _put_on_device(self, split: str) -> ResidentVectors:
        double = self.trainer is not None and self.trainer.precision == "64-true"
        self._digests[split] = digest(self.of_split(split)[0])
        vectors, labels = self.vectors(split)
        return ResidentVectors(vectors.to(self._device, None if double else torch.float32), labels.to(self._device))
