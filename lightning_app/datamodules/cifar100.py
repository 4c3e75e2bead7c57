"""CIFAR-100 (Krizhevsky 2009): 50,000 training and 10,000 test images of 32 x 32 pixels in a hundred classes."""

from pathlib import Path

import torchvision

from lightning_app.datamodules.official import OfficialData
from lightning_app.datamodules.sources import Source

__all__ = ["CIFAR100"]

FINE = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle caterpillar
cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl
hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road
rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CLASSES = tuple(FINE.split())


class CIFAR100(OfficialData):
    """CIFAR-100 with its fine labels, looked for in ``<root>/cifar100`` and, as torchvision left it, in
    ``<root>/cifar-100-python``.

    Takes the arguments of `ImageData`.
    """

    MEAN = (0.5071, 0.4867, 0.4408)
    STD = (0.2675, 0.2565, 0.2761)
    SOURCE = Source(
        title="CIFAR-100",
        folder=Path("cifar100"),
        image_shape=(32, 32, 3),
        class_names=CLASSES,
        official=torchvision.datasets.CIFAR100,
        official_folder="cifar-100-python",
    )
