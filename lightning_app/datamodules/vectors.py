"""The datamodule under all sets of vectors, which are served in the trainer's precision and never augmented."""

import torch
from torch import Tensor
from typing_extensions import override

from lightning_app.datamodules.base import ResidentData
from lightning_app.datamodules.loaders import Resident


class VectorData(ResidentData):
    """Batches ``(vectors, labels)``: (B, d), or (B, T, d), in the trainer's precision, and int64 (B,).

    A subclass implements `load` and, if its samples are not vectors yet, `embed`, and sets `sample_shape`. Has the
    arguments of `ResidentData`.
    """

    # Not an option: a configuration that names vectors on top of images would carry the images' over (see `ImageData`),
    # which on a CPU is 1,400 batches an evaluation.
    eval_batch_size = 10_000

    def embed(self, samples: Tensor) -> Tensor:
        """Samples (m, ...) as the source gave them -> vectors (m, d) float64. Here they are vectors already."""
        return samples

    def vectors(self, split: str = "train") -> tuple[Tensor, Tensor]:
        """All of a split, "train", "val" or "test": (m, d) float64 and labels (m,) int64."""
        samples, labels = self.of_split(split)
        return self.embed(samples), labels

    @override
    def setup(self, stage: str | None = None) -> None:
        """As `ResidentData.setup`. What was put on the device is put there again: another trainer, another precision."""
        super().setup(stage)
        self._resident.clear()

    @property
    @override
    def _channels_last(self) -> bool:
        return False

    @override
    def to_device(self, samples: Tensor, labels: Tensor, training: bool) -> Resident:
        """In float64 where the trainer computes in it, else in float32."""
        double = self.trainer is not None and self.trainer.precision == "64-true"
        vectors = self.embed(samples).detach().to(self._device, torch.float64 if double else torch.float32)
        return Resident(vectors, labels.to(self._device))
