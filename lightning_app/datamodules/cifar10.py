"""CIFAR-10 (Krizhevsky 2009): 50,000 training and 10,000 test images of 32 x 32 pixels in ten classes."""

from pathlib import Path

import torchvision

from lightning_app.datamodules.official import OfficialData
from lightning_app.datamodules.sources import Source

__all__ = ["CIFAR10"]

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class CIFAR10(OfficialData):
    """CIFAR-10, looked for in ``<root>/cifar10`` and, as torchvision left it, in ``<root>/cifar-10-batches-py``.

    Takes the arguments of `ImageData`.
    """

    MEAN = (0.4914, 0.4822, 0.4465)
    STD = (0.2470, 0.2435, 0.2616)
    SOURCE = Source(
        title="CIFAR-10",
        folder=Path("cifar10"),
        image_shape=(32, 32, 3),
        class_names=CLASSES,
        official=torchvision.datasets.CIFAR10,
        official_folder="cifar-10-batches-py",
    )
