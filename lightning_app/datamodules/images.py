"""The datamodule under all image sets: augmentation, normalisation and memory format; a subclass gives the pixels."""

from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from lightning_app.common.errors import UserError
from lightning_app.datamodules.base import ResidentData, at_least
from lightning_app.datamodules.resident import Resident, ResidentImages

__all__ = ["ImageData"]


class ImageData(ResidentData):
    """Batches ``(images, labels)``: float32 (B, C, H, W), normalised as ``(x / 255 - mean) / std``, and int64 (B,).

    A subclass implements `load` (see `ResidentData`).

    Args:
        root: folder of all datasets.
        batch_size: samples in a global training batch, over all ranks.
        eval_batch_size: the same for evaluation and for the probe. None takes 50 a rank on a CPU, which stays in its cache
            (1.5 times as fast an image as 125, measured on two shared cores), and 125 elsewhere.
        augment: flip and crop training images at random.
        padding: zero pixels on each side before a random crop back to the image size.
        flip: mirror with probability 1/2 when augmenting. None takes what suits the dataset.
        val_size: images set aside from the training images for validation, stratified by class.
        split_seed: decides which images are set aside, kept by `train_limit`, and in the probe.
        probe_size: number of training images in the probe (at most all of them), stratified by class.
        drop_last: leave out the last, smaller training batch of an epoch.
        train_limit: train on only so many images, stratified by class; for trying things out.
        test_limit: evaluate on only so many test images, stratified by class; for trying things out.
        evaluate_train: evaluate on the un-augmented training images too.
        mean: of each channel (or one for all), in units of [0, 1]. None takes the training images' own.
        std: likewise, over all their pixels.
        channels_last: batches in that memory format. None as the model has it.
        compile: gather and normalise in one kernel of torch.compile; the same numbers, faster after some seconds.
    """

    # Facts of a dataset are attributes of its class: as defaults of arguments, a configuration that names one dataset on
    # top of another would carry the first one's over.
    FLIP: ClassVar[bool] = True  # does a mirror image still show the same class?
    MEAN: ClassVar[tuple[float, ...]] = (0.0,)  # of each channel, or one for all, over the training images in [0, 1]
    STD: ClassVar[tuple[float, ...]] = (1.0,)

    def __init__(
        self,
        root: str = "data",
        batch_size: int = 128,
        eval_batch_size: int | None = None,
        augment: bool = True,
        padding: int = 4,
        flip: bool | None = None,
        val_size: int = 0,
        split_seed: int = 0,
        probe_size: int = 1000,
        drop_last: bool = False,
        train_limit: int | None = None,
        test_limit: int | None = None,
        evaluate_train: bool = True,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        channels_last: bool | None = None,
        compile: bool = False,
    ) -> None:
        super().__init__(
            root, batch_size, val_size, split_seed, probe_size, train_limit, test_limit, evaluate_train=evaluate_train
        )
        self.eval_batch_size = None if eval_batch_size is None else at_least(1, eval_batch_size=eval_batch_size)
        self.augment = augment
        self.padding = at_least(0, padding=padding)
        self.flip = self.FLIP if flip is None else flip
        self.drop_last = drop_last
        self.mean, self.std = tuple(mean or self.MEAN), tuple(std or self.STD)
        self.channels_last = channels_last
        self.compile = compile

    @property
    @override
    def sample_shape(self) -> tuple[int, ...]:
        """(C, H, W) of a batch's images."""
        height, width, channels = self.splits.train_images.shape[1:]
        return channels, height, width

    @property
    @override
    def _normalisation(self) -> dict[str, tuple[float, ...]]:
        return {"mean": self.mean, "std": self.std}

    @property
    @override
    def _channels_last(self) -> bool:
        return self.channels_last if self.channels_last is not None else super()._channels_last

    @override
    def to_device(self, samples: Tensor, labels: Tensor, training: bool) -> Resident:
        """Bytes, and for training, where configured, their mirror images and the black around them."""
        augment = self.augment and training
        return ResidentImages(
            samples,
            labels,
            _per_channel(self.sample_shape[0], mean=self.mean),
            _per_channel(self.sample_shape[0], std=self.std),
            padding=self.padding if augment else 0,
            flip=self.flip and augment,
            channels_last=self._channels_last,
            compile=self.compile,
            device=self._device,
        )


def _per_channel(channels: int, **named: tuple[float, ...]) -> tuple[float, ...]:
    ((name, values),) = named.items()
    if len(values) not in (1, channels):
        raise UserError(
            f"{name} must have one value, or one for each of the {channels} channels of the images, got {len(values)}."
        )
    if name == "std" and min(values) <= 0:
        raise UserError(f"std must be positive, got {values}.")
    return values
