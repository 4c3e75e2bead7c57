"""A mixture of Gaussians, the data of Littwin & Wolf's experiments (2016, Appendix C): vectors that need no file."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lightning_app.common.errors import UserError, at_least
from lightning_app.datamodules.base import Splits
from lightning_app.datamodules.vectors import VectorData

MEANS, TRAIN, TEST = range(3)  # independent streams of a seed


class GaussianMixture(VectorData):
    """K Gaussians N(mu_k, I) in d dimensions, one per class, with means mu_k drawn from separation * N(0, I).

    Batches are ``(vectors, labels)``: (B, dimensions) in the trainer's precision, and int64 (B,). Classes are balanced: their
    sizes differ by one at most. Everything is a pure function of ``seed``; fewer samples are the first of more. Two means
    are separation * sqrt(2 d) apart on average: at separation 1 the classes hardly overlap, at 0.35 they do.

    The paper's appendix says 10 Gaussians in 50 dimensions, the caption of its Fig. 1 says 50 Gaussians; nothing is said of
    their means. It has 10,000 training samples and batches of 50.

    Has the arguments of `ResidentData` too.

    Args:
        classes: K.
        dimensions: d.
        separation: standard deviation of a mean's coordinates, in units of that of a sample around it.
        samples: training samples.
        test_samples: test samples.
        seed: seed of means and samples.
        batch_size: samples of a training batch.

    Raises:
        UserError: for sizes and a separation that make no mixture.
    """

    def __init__(
        self,
        classes: int = 10,
        dimensions: int = 50,
        separation: float = 1.0,
        samples: int = 10_000,
        test_samples: int = 2_000,
        seed: int = 0,
        batch_size: int = 50,
        **of_data: Any,
    ) -> None:
        super().__init__(batch_size=batch_size, **of_data)
        who = type(self).__name__
        if not 0 <= separation < float("inf"):
            raise UserError(f"separation of {who} must be finite and not negative, got {separation}.")
        self.classes = at_least(2, who, classes=classes)
        self.dimensions = at_least(1, who, dimensions=dimensions)
        self.separation = separation
        self.samples = at_least(classes, who, samples=samples)  # one of each class
        self.test_samples = at_least(classes, who, test_samples=test_samples)
        self.seed = at_least(0, who, seed=seed)
        self.num_classes, self.sample_shape = classes, (dimensions,)

    @property
    def means(self) -> Tensor:
        """mu, (classes, dimensions) float64."""
        return self.separation * self._normal(MEANS, self.classes)

    @override
    def load(self) -> Splits:
        train, test = (self._draw(stream, size) for stream, size in ((TRAIN, self.samples), (TEST, self.test_samples)))
        return Splits(*train, *test, tuple(map(str, range(self.classes))))

    def _draw(self, stream: int, size: int) -> tuple[Tensor, Tensor]:
        """(size, dimensions) float64 and labels (size,) int64, 0, 1, ..., K - 1, 0, 1, ...: a batch's order is shuffled."""
        labels = torch.arange(size) % self.classes
        return self.means[labels] + self._normal(stream, size), labels

    def _normal(self, stream: int, rows: int) -> Tensor:
        """(rows, dimensions) float64; fewer rows are the beginning of more."""
        random = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(stream,)))
        return torch.from_numpy(random.standard_normal((rows, self.dimensions)))
