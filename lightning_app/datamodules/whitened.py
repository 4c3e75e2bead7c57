"""Whitened digits for nets that map R^d to R^d: the data of Li et al. (2016, appendix B).

Images are centred, projected on their leading principal components and divided by each component's standard deviation,
so that the samples trained on have mean 0 and covariance I exactly. A net of d x d matrices then sees d numbers a sample,
and one batch of all samples is one step of gradient descent.

The paper does not say which sign or order its components have, and the Hessian at zero depends on both (M = I - Sigma_YX):
here the largest eigenvalue is first and each component's largest loading is positive. Moments are divided by m.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torchvision
from torch import Tensor
from typing_extensions import override

from lightning_app.common.errors import UserError
from lightning_app.datamodules.digits import TEST_SIZE
from lightning_app.datamodules.images import Splits, stratified_rows
from lightning_app.datamodules.official import OfficialData
from lightning_app.datamodules.sources import Source
from lightning_app.datamodules.vectors import VectorData

__all__ = ["WhitenedDigits", "WhitenedImages", "WhitenedMNIST", "Whitening", "whitened"]

DIGITS = tuple("0123456789")
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
            UserError: if the samples do not vary in so many directions.

        >>> samples = torch.tensor([[5.0, 0.0], [-1.0, 0.0], [5.0, 2.0], [-1.0, 2.0]])  # 2 +- 3 and 1 +- 1
        >>> Whitening.of(samples, 2)(samples)[0].tolist()
        [1.0, -1.0]
        """
        mean, covariance = _mean_and_covariance(samples)
        values, directions = (found.flip(-1)[..., :components] for found in torch.linalg.eigh(covariance))
        _check_rank(samples, components, int((values > RANK * values[0]).sum()))
        largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
        return cls(mean, (directions * largest.sign() / values.sqrt()).T)

    def __call__(self, samples: Tensor) -> Tensor:
        """(m, p) of any type -> (m, components) float64."""
        return torch.cat([(piece.double() - self.mean) @ self.scale.T for piece in samples.split(PIECE)])


def _mean_and_covariance(samples: Tensor) -> tuple[Tensor, Tensor]:
    """(p,) and (p, p), divided by m. Exact sums where the samples are bytes."""
    m = len(samples)
    total, products = 0, 0
    for piece in samples.split(PIECE):
        piece = piece.double()
        total, products = total + piece.sum(0), products + piece.T @ piece
    mean = total / m
    return mean, products / m - mean.outer(mean)


def _check_rank(samples: Tensor, components: int, rank: int) -> None:
    m, p = samples.shape
    if m < components:
        raise UserError(
            f"{components} components cannot be whitened with {m} samples: fewer samples than dimensions. Use more samples "
            "or fewer components."
        )
    if rank < components:
        raise UserError(
            f"{components} components cannot be whitened: the covariance of these {m} samples of {p} pixels is singular beyond "
            f"{rank}, where nothing varies that could be divided to variance 1. Set components to at most {rank}."
        )


class WhitenedImages(VectorData):
    """Batches ``(vectors, labels)`` of whitened images: (B, components) in the trainer's precision, and int64 (B,).

    Whitened by what is trained on: validation and test samples go through the same map.

    Args:
        root: folder of all datasets.
        components: leading principal components that are kept, d.
        batch_size: samples of a training batch. None takes all: an epoch is one step of gradient descent.
        val_size: samples set aside from the training samples for validation, stratified by class.
        split_seed: decides which samples are set aside, kept by `train_limit`, and in the probe.
        probe_size: number of training samples in the probe (at most all of them), stratified by class.
        train_limit: train on only so many samples, stratified by class.
        test_limit: evaluate on only so many test samples, stratified by class.
        evaluate_train: evaluate on the training samples too.
    """

    def __init__(
        self,
        root: str = "data",
        components: int = 10,
        batch_size: int | None = None,
        val_size: int = 0,
        split_seed: int = 0,
        probe_size: int = 1000,
        train_limit: int | None = None,
        test_limit: int | None = None,
        evaluate_train: bool = True,
    ) -> None:
        self._full_batch = batch_size is None
        super().__init__(
            root=root,
            batch_size=1 if batch_size is None else batch_size,
            val_size=val_size,
            split_seed=split_seed,
            probe_size=probe_size,
            train_limit=train_limit,
            test_limit=test_limit,
            evaluate_train=evaluate_train,
        )
        if components < 1:
            raise UserError(
                f"components must be at least 1, got {components}: they are the numbers a net sees of a sample."
            )
        self.components = components

    @property
    def batch_size(self) -> int:
        """Samples of a training batch; of the full batch, all that are trained on."""
        return len(self._rows["train"]) if self._full_batch else self._batch_size

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        self._batch_size = size

    @property
    @override
    def image_shape(self) -> tuple[int, ...]:
        """(components,): no image any more."""
        return (self.components,)

    @cached_property
    def whitening(self) -> Whitening:
        return Whitening.of(self._pixels("train")[0], self.components)

    @override
    def vectors(self, split: str = "train") -> tuple[Tensor, Tensor]:
        pixels, labels = self._pixels(split)
        return self.whitening(pixels), labels

    def _pixels(self, split: str) -> tuple[Tensor, Tensor]:
        """(m, p) uint8 and (m,) int64."""
        images, labels = self.of_split(split)
        return images.flatten(1), labels

    @override
    def setup(self, stage: str | None = None) -> None:
        super().setup(stage)
        _ = self.whitening


class WhitenedMNIST(WhitenedImages, OfficialData):
    """Whitened MNIST (LeCun et al. 1998), 60,000 training and 10,000 test digits of 28 x 28 pixels.

    Looked for in ``<root>/mnist`` and, as torchvision has it, in ``<root>/MNIST/raw`` (see `sources`), downloaded when there
    is none. Takes the arguments of `WhitenedImages`.
    """

    SOURCE = Source(
        title="MNIST",
        folder=Path("mnist"),
        image_shape=(28, 28, 1),
        class_names=DIGITS,
        official=torchvision.datasets.MNIST,
        official_folder="MNIST/raw",
    )


class WhitenedDigits(WhitenedImages):
    """Scikit-learn's 8 x 8 digits by the same protocol, for trying things out: no file and no network.

    The split is that of `Digits`. Takes the arguments of `WhitenedImages`; `root` is not used.
    """

    @override
    def load(self) -> Splits:
        from sklearn.datasets import load_digits  # slow to import, and only the digits need it

        digits = load_digits()
        images = torch.from_numpy(digits.images.astype(np.uint8)).unsqueeze(-1)  # grey levels 0..16
        labels = torch.from_numpy(digits.target.astype(np.int64))
        test = torch.zeros(len(labels), dtype=torch.bool)
        test[stratified_rows(labels, TEST_SIZE, seed=0)] = True
        return Splits(images[~test], labels[~test], images[test], labels[test], DIGITS)


_KINDS = {"mnist": WhitenedMNIST, "digits": WhitenedDigits}


def whitened(
    root: str = "data", components: int = 10, limit: int | None = None, source: Literal["mnist", "digits"] = "mnist"
) -> tuple[Tensor, Tensor]:
    """Whitened training samples without a trainer: (m, components) float64 and labels (m,) int64.

    Nothing is downloaded: ``WhitenedMNIST(root).prepare_data()`` does that.

    Args:
        root: folder of all datasets.
        components: leading principal components that are kept.
        limit: only so many samples, stratified by class; the same ones as those of a datamodule's `train_limit`.
        source: whose digits.

    Raises:
        UserError: if there is no such data below root, or the samples do not vary in so many directions.
    """
    return _KINDS[source](root, components, train_limit=limit).vectors()
