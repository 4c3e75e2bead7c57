"""The datamodule under all sets that torchvision downloads: a subclass is one `Source`."""

from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from lightning_app.datamodules.images import ImageData, Splits
from lightning_app.datamodules.sources import Source

__all__ = ["OfficialData"]


class OfficialData(ImageData):
    """A known set from .npy arrays, an image tree or torchvision (see `sources`), downloaded when there is none.

    A subclass says its ``SOURCE``; classes and shape are known before anything is downloaded, so that a config can link
    a model's arguments to them. Takes the arguments of `ImageData`.
    """

    SOURCE: ClassVar[Source]

    @override
    def prepare_data(self) -> None:
        self._source.prepare()

    @override
    def load(self) -> Splits:
        return self._source.read()

    @property
    @override
    def num_classes(self) -> int:
        return len(self.SOURCE.class_names)

    @property
    @override
    def image_shape(self) -> tuple[int, ...]:
        height, width, channels = self.SOURCE.image_shape
        return channels, height, width

    @property
    def _source(self) -> Source:
        return self.SOURCE.below(Path(self.root))
