"""Any pictures in folders of classes, in any size: what a net that was trained elsewhere is measured on."""

import os
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import torch
from typing_extensions import override

from lightning_app.common.errors import UserError
from lightning_app.common.files import with_home
from lightning_app.common.safe_io import read_text
from lightning_app.datamodules.base import TEST_SPLIT, Splits, stratified_mask
from lightning_app.datamodules.images import ImageData
from lightning_app.datamodules.pictures import Decoding, Pictures, class_folders, list_pictures
from lightning_app.datamodules.trained_on import digest

TESTS = ("test", "val")  # names of the folder beside train; the first that has classes is taken
ALSO = ("train", "training", "test", "testing", "val", "valid", "validation")  # what others call both, in any case
SHARE = 5  # one picture in five is for testing where no folder says which are
CROP = 0.875  # image_size over resize: 224 of 256, as torchvision's evaluation of most weights


class ImageFolder(ImageData):
    """Your own pictures: ``<root>/train/<class>/*`` and ``<root>/test/<class>/*`` (or ``val``), or ``<root>/<class>/*``.

    If there are both ``test`` and ``val``, ``test`` is used. With ``<root>/<class>/*`` a fifth of the pictures, or
    `test_size`, is set aside for testing, stratified by class and drawn by `split_seed`. Pictures may lie in folders below
    that of their class, as for torchvision's ImageFolder, and be JPEG, PNG, WebP, BMP, TIFF, PPM or PGM of any size and
    colours. They are turned upright as their EXIF data say (torchvision does not turn them); transparency is dropped; more
    than 8 bits per channel are refused.

    Batches equal those of torchvision's ``weights.transforms()`` up to 5e-7: it normalises in two steps, this class in one.

    Has the arguments of `ImageData` too. Pictures are decoded at their first use and stay in memory as bytes,
    ``image_size ** 2 * channels`` each, augmented ones twice. For large folders, `train_limit` and `test_limit` limit what
    is decoded.

    Args:
        root: folder of the pictures.
        image_size: height and width of the net's input.
        resize: pixels of the shorter side before the central square is cut out. None takes image_size / 0.875.
        interpolation: method of resizing (antialiased); use the one that pretrained weights expect.
        channels: 3, or 1 for grey levels (ITU-R 601), which need `mean` and `std`.
        class_names: all classes in the order of the net's outputs; there may be folders for only some. A list, or a text file
            with one name per line. None: the training folders' names, sorted.
        test_size: number of pictures set aside for testing if no folder has them. None: a fifth.
    """

    MEAN = (0.485, 0.456, 0.406)  # of ImageNet, as torchvision's weights expect
    STD = (0.229, 0.224, 0.225)

    def __init__(
        self,
        root: str = "data",
        image_size: int = 224,
        resize: int | None = None,
        interpolation: Literal["bilinear", "bicubic"] = "bilinear",
        channels: Literal[1, 3] = 3,
        class_names: list[str] | str | None = None,
        test_size: int | None = None,
        **of_images: Any,
    ) -> None:
        super().__init__(root=root, **of_images)
        resize = round(image_size / CROP) if resize is None else resize
        if channels == 1 and max(len(self.mean), len(self.std)) > 1:
            raise UserError(
                "data.channels 1 needs one mean and one std, got those of three channels: set data.mean and data.std to one "
                "value each, in units of [0, 1]."
            )
        if not 1 <= image_size <= resize:
            raise UserError(
                f"data.resize must be at least data.image_size, and data.image_size at least 1, got {resize} and {image_size}: a "
                "square cannot be cut out of a smaller picture."
            )
        self.decoding = Decoding(image_size, resize, interpolation, channels)
        self.sample_shape = (channels, image_size, image_size)
        self.test_size = test_size
        self._given_names = class_names

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """All classes in the order of the net's outputs, known without listing or decoding the pictures."""
        return (
            class_folders(_training_and_test(Path(self.root))[0])
            if self._given_names is None
            else _names(self._given_names)
        )

    @override
    def fingerprint(self) -> str:
        """16 hex digits of the SHA-256 of all files' names and sizes and of their labels: nothing is decoded for it."""
        found = self.splits
        files = [file for part in (found.train_images, found.test_images) for file in cast(Pictures, part).files]
        try:
            listed = "".join(f"{os.path.relpath(file, self.root)} {os.path.getsize(file)}\n" for file in files)
        except OSError as error:
            raise UserError(f"{error.filename} cannot be read ({error.strerror}): replace or remove it.") from error
        names = torch.frombuffer(bytearray(os.fsencode(listed)), dtype=torch.uint8)
        return digest(names, found.train_labels, found.test_labels)

    @override
    def load(self) -> Splits:
        """List the files; they are decoded as `Pictures` when rows are taken."""
        train, test = _training_and_test(Path(self.root))
        files, labels = list_pictures(train, self.class_names)
        if test is None:
            size = len(labels) // SHARE if self.test_size is None else self.test_size
            if not 0 < size < len(labels):
                raise UserError(
                    f"data.test_size must leave some of the {len(labels)} pictures for training and some for testing, got "
                    f"{size}: choose another number."
                )
            chosen = stratified_mask(labels, size, self.split_seed, TEST_SPLIT)
            test_files, test_labels = [files[row] for row in chosen.nonzero()], labels[chosen]
            files, labels = [files[row] for row in (~chosen).nonzero()], labels[~chosen]
        elif self.test_size is not None:
            raise UserError(
                f"data.test_size: expected none, as {test} has the pictures for testing, got {self.test_size}: leave it out, or "
                "remove that folder."
            )
        else:
            test_files, test_labels = list_pictures(test, self.class_names)
        train_images, test_images = Pictures(files, self.decoding), Pictures(test_files, self.decoding)
        return Splits(train_images, labels, test_images, test_labels, self.class_names)


def _training_and_test(root: Path) -> tuple[Path, Path | None]:
    """Their folders; None where no folder says which pictures are for testing.

    A folder without folders in it is a class, whatever its name: there are trains to be recognised.
    """
    there = [name for name in ("train", *TESTS) if class_folders(root / name)]
    if not there and (classes := class_folders(root)):
        if {name.lower() for name in classes} <= {*ALSO} and any(class_folders(root / name) for name in classes):
            raise UserError(
                f"expected pictures in {root}/train/<class>/ and {root}/test/<class>/ (or val), found {', '.join(classes)} with "
                "folders in them, which would be taken for classes: rename them to train and test."
            )
        return root, None
    if there[:1] == ["train"] and len(there) > 1:
        return root / "train", root / there[1]
    raise UserError(
        f"expected pictures in {root}/train/<class>/ and {root}/test/<class>/ (or val), or in {root}/<class>/, found "
        + (
            f"classes in {root / there[0]} only: set data.root to that folder, and a part is set aside for testing."
            if there
            else f"no {'folders there' if root.is_dir() else 'such folder'}: set data.root to the folder of the pictures."
        )
    )


def _names(given: list[str] | str) -> tuple[str, ...]:
    """Of classes, from a list or a file."""
    if isinstance(given, str):
        file = with_home(given)
        if not file.is_file():
            raise UserError(
                f"data.class_names: expected a list, or a text file with one name per line, found no file {given}."
            )
        given = read_text(file).removeprefix("\ufeff").split("\n")
    names = tuple(name.strip() for name in given if name.strip())
    if not names or len(set(names)) < len(names):
        twice = next((f"{name} twice" for name in names if names.count(name) > 1), "none")
        raise UserError(
            f"data.class_names: expected each class once, got {twice}: the n-th name is that of the net's n-th output."
        )
    return names
