"""Whitened digits for nets that map R^d to R^d: the data of Li et al. (2016, appendix B).

Images are centred, projected on their leading principal components and divided by each component's standard deviation,
so that the samples trained on have mean 0 and covariance I exactly. A net of d x d matrices then gets d numbers per sample,
and one batch of all samples is one step of gradient descent.

The paper does not say which sign or order its components have, and the Hessian at zero depends on both (M = I - Sigma_YX):
here the largest eigenvalue is first and each component's largest loading is positive. Moments are divided by m.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision import datasets
from typing_extensions import override

from lightning_app.common.errors import UserError, at_least
from lightning_app.datamodules.base import Splits
from lightning_app.datamodules.digits import split_digits
from lightning_app.datamodules.torchvision_data import DIGITS, FromSource, Source
from lightning_app.datamodules.vectors import VectorData

RANK = 1e-10  # of the largest eigenvalue: below, a component's variance is rounding
PIECE = 4096  # images widened to float64 at a time


@dataclass(frozen=True)
class Whitening:
    """The map x -> scale (x - mean) that gives the samples it was made of mean 0 and covariance I (moments over m)."""

    mean: Tensor  # (p,) float64
    scale: Tensor  # (components, p) float64, principal directions over the square roots of their eigenvalues

    @classmethod
    def of(cls, samples: Tensor, components: int) -> "Whitening":
        """By the leading principal components of samples (m, p), largest eigenvalue first, largest loading positive.

        Raises:
            UserError: if the samples vary in fewer directions than ``components``.

        >>> samples = torch.tensor([[5.0, 0.0], [-1.0, 0.0], [5.0, 2.0], [-1.0, 2.0]])  # 2 +- 3 and 1 +- 1
        >>> Whitening.of(samples, 2)(samples)[0].tolist()
        [1.0, -1.0]
        """
        mean, covariance = _mean_and_covariance(samples)
        values, directions = (found.flip(-1)[..., :components] for found in torch.linalg.eigh(covariance))
        if (rank := int((values > RANK * values[0]).sum())) < components:
            m, p = samples.shape
            raise UserError(
                f"expected at most {rank} components to whiten, got {components}: these {m} samples of {p} pixels vary in "
                f"{rank} directions, and only these can be scaled to variance 1. Use more samples, or set data.components to at "
                f"most {rank}."
            )
        largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
        return cls(mean, (directions * largest.sign() / values.sqrt()).T)

    def __call__(self, samples: Tensor) -> Tensor:
        """(m, p) of any type -> (m, components) float64."""
        return torch.cat([(piece.double() - self.mean) @ self.scale.T for piece in samples.split(PIECE)])


def _mean_and_covariance(samples: Tensor) -> tuple[Tensor, Tensor]:
    """(p,) and (p, p), divided by m. Exact sums where the samples are bytes."""
    m, p = samples.shape
    total, products = torch.zeros(p, dtype=torch.float64), torch.zeros(p, p, dtype=torch.float64)
    for piece in samples.split(PIECE):
        piece = piece.double()
        total, products = total + piece.sum(0), products + piece.T @ piece
    mean = total / m
    return mean, products / m - mean.outer(mean)


class WhitenedImages(VectorData):
    """Batches ``(vectors, labels)`` of whitened images: (B, components) in the trainer's precision, and int64 (B,).

    The map is that of the samples trained on; validation and test samples go through it too. Has the arguments of
    `ResidentData` too.

    Args:
        root: folder of all datasets.
        components: number of leading principal components that are kept, d.
        batch_size: samples in a training batch. None: all of them, so that an epoch is one step of gradient descent.
    """

    def __init__(self, root: str = "data", components: int = 10, batch_size: int | None = None, **of_data: Any) -> None:
        self._full_batch = batch_size is None
        super().__init__(root=root, batch_size=1 if batch_size is None else batch_size, **of_data)
        self.components = at_least(1, type(self).__name__, components=components)
        self.sample_shape = (components,)

    @property
    def batch_size(self) -> int:
        """Samples of a training batch; of the full batch, all that are trained on."""
        return len(self._rows["train"]) if self._full_batch else self._batch_size

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        self._batch_size = size

    @cached_property
    def whitening(self) -> Whitening:
        """The map that whitens what is trained on."""
        return Whitening.of(self.of_split("train")[0].flatten(1), self.components)

    @override
    def embed(self, samples: Tensor) -> Tensor:
        """Images (m, ...) -> (m, components) float64."""
        return self.whitening(samples.flatten(1))

    @override
    def setup(self, stage: str | None = None) -> None:
        """As `ResidentData.setup`, and refuse what cannot be whitened before anything is trained."""
        super().setup(stage)
        _ = self.whitening


class WhitenedMNIST(WhitenedImages, FromSource):
    """Whitened MNIST (LeCun et al. 1998), 60,000 training and 10,000 test digits of 28 x 28 pixels.

    Looked for in ``<root>/mnist`` and, as torchvision has it, in ``<root>/MNIST/raw``, downloaded when there is none. Has
    the arguments of `WhitenedImages`.
    """

    SOURCE = Source(datasets.MNIST, "MNIST", "mnist", (28, 28, 1), DIGITS, ("MNIST/raw",))


class WhitenedDigits(WhitenedImages):
    """Scikit-learn's 8 x 8 digits by the same protocol, for trying things out: no file and no network.

    The split is that of `Digits`. Has the arguments of `WhitenedImages`; `root` is not used.
    """

    @override
    def load(self) -> Splits:
        # Levels 0..16 as they are.
        return split_digits(lambda grey: torch.from_numpy(grey.astype(np.uint8)).unsqueeze(-1))
