"""CIFAR-10 (Krizhevsky 2009): 50,000 training and 10,000 test images of 32 x 32 pixels in ten classes."""

from pathlib import Path

import torchvision
from typing_extensions import override

from lightning_app.datamodules.images import ImageData, Splits
from lightning_app.datamodules.sources import Source

__all__ = ["CIFAR10"]

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class CIFAR10(ImageData):
    """CIFAR-10 from .npy arrays, an image tree or torchvision (see `sources`), downloaded when there is none.

    Looked for in ``<root>/cifar10`` and, as torchvision left it, in ``<root>/cifar-10-batches-py``. Takes the arguments of
    `ImageData`.
    """

    MEAN = (0.4914, 0.4822, 0.4465)
    STD = (0.2470, 0.2435, 0.2616)

    @override
    def prepare_data(self) -> None:
        self._source.prepare()

    @override
    def load(self) -> Splits:
        return self._source.read()

    # Known before anything is downloaded, so that a config can link a model's arguments to them.

    @property
    @override
    def num_classes(self) -> int:
        return len(CLASSES)

    @property
    @override
    def image_shape(self) -> tuple[int, int, int]:
        return 3, 32, 32

    @property
    def _source(self) -> Source:
        return Source(
            title="CIFAR-10",
            folder=Path(self.root) / "cifar10",
            image_shape=(32, 32, 3),
            class_names=CLASSES,
            official=torchvision.datasets.CIFAR10,
            official_folder="cifar-10-batches-py",
        )
