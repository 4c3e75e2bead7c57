"""Pictures of any kind in folders, against torchvision's evaluation of pretrained weights, and every way to get them wrong."""

import os
import re
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.models import ResNet18_Weights
from torchvision.transforms._presets import ImageClassification
from torchvision.transforms.functional import InterpolationMode

from lightning_app.cli import main
from lightning_app.common.errors import UserError
from lightning_app.datamodules import ImageFolder
from lightning_app.datamodules.pictures import Decoding, Pictures, list_pictures
from tests.helpers import ROOT, command
from tests.silence import SILENT

ROUNDING = 5e-7  # torchvision subtracts and divides, we multiply and add


def noise(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """A picture whose every pixel matters."""
    pixels = np.random.default_rng(seed).integers(256, size=(height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def save(picture: Image.Image, file: Path, **options) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    picture.save(file, **options)
    return file


def tree(root: Path, count: int = 10, classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    """`count` pictures of each class, all of them different."""
    for label, name in enumerate(classes):
        for number in range(count):
            save(noise(40, 30, seed=1000 * label + number), root / name / f"{number:02d}.png")
    return root


def small(root: Path, **more) -> ImageFolder:
    return ImageFolder(**({"root": str(root), "image_size": 16, "augment": False, "batch_size": 4} | more))


def samples(loader) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = zip(*loader)
    return torch.cat(images), torch.cat(labels)


def decoded(file: Path, **more) -> torch.Tensor:
    """One picture as the net would see it."""
    folder = file.parent / "root"
    for split in ("train", "test"):
        (folder / split / "one").mkdir(parents=True)
        (folder / split / "one" / file.name).symlink_to(file)
    data = ImageFolder(root=str(folder), augment=False, **more)
    return samples(data.test_dataloader())[0]


SAVED_AS = {"RGB": "png", "L": "jpg", "CMYK": "jpg", "P": "png", "1": "tif", "LA": "png", "RGBA": "webp"}
SAVED_AS["YCbCr"] = "jpeg"


@pytest.mark.parametrize("size", [(300, 200), (201, 517), (33, 20)])
def test_pretrained_weights_see_what_they_were_evaluated_on(size, tmp_path):
    file = save(noise(*size), tmp_path / "picture.png")
    with Image.open(file) as picture:
        expected = ResNet18_Weights.IMAGENET1K_V1.transforms()(picture.convert("RGB"))
    got = decoded(file)
    assert got.shape == (1, 3, 224, 224)
    assert (got[0] - expected).abs().max() <= ROUNDING


@pytest.mark.parametrize("mode", SAVED_AS)
def test_pictures_of_every_mode_and_format(mode, tmp_path):
    file = save(noise(90, 70, mode), tmp_path / f"picture.{SAVED_AS[mode]}")
    with Image.open(file) as picture:
        expected = ImageClassification(crop_size=32, resize_size=40)(picture.convert("RGB"))
    assert (decoded(file, image_size=32, resize=40)[0] - expected).abs().max() <= ROUNDING


def test_bicubic(tmp_path):
    file = save(noise(90, 70), tmp_path / "picture.png")
    preset = ImageClassification(crop_size=32, resize_size=37, interpolation=InterpolationMode.BICUBIC)
    expected = preset(noise(90, 70))
    got = decoded(file, image_size=32, interpolation="bicubic")[0]  # 32 / 0.875 = 36.6
    assert (got - expected).abs().max() <= ROUNDING
    assert (decoded(save(noise(90, 70), tmp_path / "b" / "p.png"), image_size=32)[0] - got).abs().max() > 0.1


def test_grey_levels(tmp_path):
    file = save(noise(90, 70), tmp_path / "picture.png")
    expected = ImageClassification(crop_size=32, resize_size=37, mean=(0.4,), std=(0.2,))(noise(90, 70).convert("L"))
    got = decoded(file, image_size=32, channels=1, mean=(0.4,), std=(0.2,))
    assert got.shape == (1, 1, 32, 32)
    assert (got[0] - expected).abs().max() <= ROUNDING


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_upright(orientation, tmp_path):
    """By what the eight values of EXIF's Orientation mean, not by Pillow's own function."""
    turns = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_90"}
    turns |= {7: "TRANSVERSE", 8: "ROTATE_270"}  # from upright to as the camera stored it
    upright = noise(60, 40)
    stored = upright.transpose(Image.Transpose[turns[orientation]]) if orientation > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = save(stored, tmp_path / "picture.png", exif=exif)
    expected = ImageClassification(crop_size=32, resize_size=37)(upright)
    assert (decoded(file, image_size=32)[0] - expected).abs().max() <= ROUNDING


@SILENT
def test_transparent_colours_of_a_palette_are_colours(tmp_path):
    picture = noise(40, 40).quantize(16)
    file = save(picture, tmp_path / "picture.png", transparency=bytes(range(0, 256, 16)))
    expected = ImageClassification(crop_size=40, resize_size=40)(picture.convert("RGB"))
    assert (decoded(file, image_size=40, resize=40)[0] - expected).abs().max() <= ROUNDING


def test_train_and_test_folders(tmp_path):
    for split, count in (("train", 5), ("val", 3), ("test", 2)):
        tree(tmp_path / split, count)
    data = small(tmp_path)
    assert (data.num_classes, data.class_names, data.sample_shape) == (2, ("cat", "dog"), (3, 16, 16))
    assert samples(data.test_dataloader())[1].tolist() == [0, 0, 1, 1]  # of test, not val
    train, labels = samples(data.val_dataloader()[0])
    assert labels.tolist() == [0] * 5 + [1] * 5
    assert len(train.flatten(1).unique(dim=0)) == 10
    assert data.eval_splits == ("train", "test")


def test_val_is_the_test_set_of_a_tree_whose_test_pictures_have_no_class(tmp_path):
    tree(tmp_path / "train", 5)
    tree(tmp_path / "val", 3)
    save(noise(20, 20), tmp_path / "test" / "who_knows.png")  # as ImageNet's
    assert samples(small(tmp_path).test_dataloader())[1].tolist() == [0, 0, 0, 1, 1, 1]


def test_a_fifth_is_set_aside_where_no_folder_says_which(tmp_path):
    data, again, other = (small(tree(tmp_path), split_seed=seed) for seed in (0, 0, 1))
    train, test = (loader.source for loader in data.val_dataloader())
    assert test.labels.tolist() == [0, 0, 1, 1] and train.labels.tolist() == [0] * 8 + [1] * 8
    files = set(data.splits.train_images.files), set(data.splits.test_images.files)
    assert not files[0] & files[1] and len(files[0] | files[1]) == 20
    assert data.splits.test_images.files == again.splits.test_images.files != other.splits.test_images.files
    assert len(small(tmp_path, test_size=7).splits.test_labels) == 7


def test_a_class_may_be_called_train(tmp_path):
    assert small(tree(tmp_path, classes=("bus", "train", "val"))).class_names == ("bus", "train", "val")


def test_pictures_below_subfolders_count_and_other_files_do_not(tmp_path):
    tree(tmp_path, 4)
    save(noise(20, 20), tmp_path / "dog" / "album" / "more.PNG")
    for other in ("notes.txt", "._00.png", ".DS_Store"):
        (tmp_path / "cat" / other).write_text("no picture")
    (tmp_path / ".git").mkdir()
    save(noise(20, 20), tmp_path / "cat" / ".thumbnails" / "00.png")
    data = small(tmp_path, test_size=1)
    assert len(data.splits.train_labels) + len(data.splits.test_labels) == 9
    assert data.class_names == ("cat", "dog")


def test_the_data_may_lie_in_a_hidden_folder(tmp_path, monkeypatch):
    tree(tmp_path / ".cache" / "pets", 4)
    monkeypatch.chdir(tmp_path / ".cache" / "pets")
    for root in (tmp_path / ".cache" / "pets", Path(), Path("..", "pets")):
        assert len(list_pictures(root, ["cat", "dog"])[0]) == 8


def test_listing_pictures_costs_little_beside_reading_folders(tmp_path, monkeypatch):
    """1.3 million of ImageNet: a `Path` of each took a hundred times as long."""
    tree(tmp_path, 4)
    made = []
    monkeypatch.setattr("lightning_app.datamodules.pictures.Path", lambda *parts: made.append(parts) or Path(*parts))
    assert len(list_pictures(tmp_path, ["cat", "dog"])[0]) == 8 and not made


@pytest.mark.parametrize("as_file", [True, False])
def test_folders_may_be_some_of_a_net_s_classes(as_file, tmp_path, monkeypatch):
    names = ["dog", "eel", "cat", "ant"]
    (tmp_path / "names.txt").write_text("\n".join(names) + "\n", encoding="utf-8-sig")  # as Windows' Notepad does
    monkeypatch.setenv("HOME", str(tmp_path))
    tree(tmp_path / "photos")
    data = small(tmp_path / "photos", class_names="~/names.txt" if as_file else names)
    assert (data.num_classes, data.class_names) == (4, tuple(names))
    assert samples(data.test_dataloader())[1].tolist() == [2, 2, 0, 0]  # cats first, as the folders are
    assert len(samples(data.probe_loader())[0]) == 16


def test_only_what_the_limits_leave_is_decoded(tmp_path, monkeypatch):
    for split in ("train", "test"):
        tree(tmp_path / split, 20)
    calls, whole = [], Decoding.__call__
    monkeypatch.setattr(Decoding, "__call__", lambda self, file: calls.append(file) or whole(self, file))
    data = small(tmp_path, train_limit=6, test_limit=4, val_size=8)
    data.setup()
    assert (data.num_classes, data.sample_shape, calls) == (2, (3, 16, 16), [])
    evaluated = [samples(loader)[1].bincount().tolist() for loader in data.val_dataloader()]
    assert evaluated == [[3, 3], [4, 4], [2, 2]]
    samples(data.train_dataloader()), samples(data.probe_loader())
    assert len(calls) == len(set(calls)) == 6 + 8 + 4
    assert set(small(tmp_path, train_limit=12, val_size=8)._rows["train"].tolist()) > set(data._rows["train"].tolist())


def test_pictures_are_decoded_in_threads_and_in_order(tmp_path, monkeypatch):
    waiting, whole = threading.Barrier(2, timeout=120), Decoding.__call__

    def two_at_a_time(self, file):
        waiting.wait()
        return whole(self, file)

    files = [str(save(Image.new("RGB", (8, 8), (number, 0, 0)), tmp_path / f"{number}.png")) for number in range(8)]
    monkeypatch.setattr(Decoding, "__call__", two_at_a_time)
    pictures = Pictures(files, Decoding(4, 4, "bilinear", 3))
    assert pictures.shape == (8, 4, 4, 3)
    assert pictures[:][:, 0, 0, 0].tolist() == list(range(8))
    assert pictures[torch.tensor([5, 2])][:, 3, 3, 0].tolist() == [5, 2]


def broken(file: Path, how: str) -> None:
    whole = file.read_bytes()
    {
        "half": lambda: file.write_bytes(whole[: len(whole) // 2]),
        "empty": lambda: file.write_bytes(b""),
        "text": lambda: file.write_text("a picture of a cat"),
        "deep": lambda: Image.fromarray(np.zeros((9, 9), np.uint16)).save(file),
        "deep colours": lambda: file.write_bytes(deep_colours()),
        "deep ppm": lambda: file.write_bytes(b"P6 9 9 65535\n" + bytes(range(243)) * 2),
        "deep plain ppm": lambda: file.write_bytes(b"P3 1 1 1023\n0 511 1023"),
        "deep planes": lambda: file.write_bytes(deep_planes()),
    }[how]()


def deep_colours() -> bytes:
    """A PNG of one pixel in RGB of 16 bits each, which Pillow reads and does not write."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(7))) + chunk(b"IEND", b"")


def deep_planes() -> bytes:
    """A TIFF of one pixel in RGB of 16 bits each, a plane for each colour, as microscopes write them."""
    starts = 134 + 2 * np.arange(3)
    entries = [(256, 3, 1, 1), (257, 3, 1, 1), (258, 3, 3, 128), (262, 3, 1, 2), (273, 4, 3, 140), (277, 3, 1, 3)]
    entries += [(278, 3, 1, 1), (279, 4, 3, 152), (284, 3, 1, 2)]
    head = b"II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return (head + bytes(4)).ljust(128, b"\0") + struct.pack("<6H6I", *[16] * 3, 1, 2, 3, *starts, *[2] * 3)


DEEP = ["deep", "deep colours", "deep ppm", "deep plain ppm", "deep planes"]


@pytest.mark.parametrize("how", ["half", "empty", "text", *DEEP])
def test_a_broken_picture_is_named(how, tmp_path):
    broken(tree(tmp_path) / "dog" / "03.png", how)
    reason = "more than 8 bits" if "deep" in how else ""
    found = small(tmp_path).splits
    with pytest.raises(
        UserError, match=rf"dog/03\.png cannot be read as a picture \(.*{reason}.*\): replace or remove"
    ):
        found.train_images[:], found.test_images[:]


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_anything_in_a_file_is_a_picture_or_an_error(tmp_path):
    random, decode = np.random.default_rng(0), Decoding(8, 8, "bilinear", 3)
    for ending in ("png", "jpg", "webp", "bmp", "tif", "ppm"):
        file = save(noise(20, 16), tmp_path / f"picture.{ending}")
        whole = np.frombuffer(file.read_bytes(), np.uint8)
        for _ in range(40):
            damaged = whole[: random.integers(1, len(whole) + 1)].copy()
            damaged[random.integers(min(60, len(damaged)), size=3)] = random.integers(256, size=3)
            file.write_bytes(damaged.tobytes())
            try:
                assert decode(str(file)).shape == (8, 8, 3)
            except UserError as error:
                assert str(file) in str(error)


@pytest.mark.parametrize(
    ("there", "arguments", "message"),
    [
        ((), {}, r"expected pictures in .*/train/<class>/ and .*, found no folders there: set data.root to the folder"),
        (("train",), {}, r"found classes in .*/train only: set data.root to that folder, and a part"),
        (("val",), {}, r"found classes in .*/val only"),
        (
            ("Train", "Test"),
            {},
            r"expected .*/train/<class>/ .*, found Test, Train with folders in them, .*: rename them to train and test",
        ),
        (("training", "validation"), {}, r"found training, validation with folders in them"),
        (("test", "val"), {}, r"found classes in .*/test only"),
        (
            ("train", "test"),
            {"test_size": 3},
            r"test_size: expected none, as .*/test has the pictures for testing, got 3",
        ),
        ((".",), {"test_size": 20}, "test_size must leave some of the 20 pictures .*, got 20"),
        ((".",), {"class_names": ["cat", "dogs"]}, r"of the 2 classes \(cat, dogs\), found .*/dog: did you mean dogs"),
        (
            (".",),
            {"class_names": [*"abcde"]},
            r"of the 5 classes \(a, b, c, ...\), found .*/cat: rename or remove it, or",
        ),
        ((".",), {"class_names": ["cat", "dog", "cat"]}, "each class once, got cat twice"),
        ((".",), {"class_names": []}, "each class once, got none"),
        ((".",), {"class_names": "nowhere.txt"}, "a text file with one name per line, found no file nowhere.txt"),
    ],
)
def test_a_wrong_tree_is_an_error(there, arguments, message, tmp_path):
    for folder in there:
        tree(tmp_path / folder)
    with pytest.raises(UserError, match=message):
        small(tmp_path, **arguments).setup()


def test_no_folder_at_all(tmp_path):
    with pytest.raises(UserError, match=r"found no such folder: set data\.root to the folder"):
        _ = small(tmp_path / "nowhere").num_classes


def test_a_class_of_the_test_folder_that_is_not_trained_on(tmp_path):
    tree(tmp_path / "train")
    tree(tmp_path / "test", classes=("cat", "dgo"))
    with pytest.raises(UserError, match=r"expected folders of the 2 classes .*test/dgo: did you mean dog\?"):
        small(tmp_path).setup()


def test_a_folder_without_pictures(tmp_path):
    (tree(tmp_path) / "checkpoints").mkdir()
    with pytest.raises(UserError, match=r"classes without a picture \(checkpoints\): remove them, or"):
        small(tmp_path).setup()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"image_size": 64, "resize": 63}, "resize must be at least data.image_size, .* got 63 and 64"),
        ({"image_size": 0}, "got 0 and 0"),
        ({"channels": 1}, "data.channels 1 needs one mean and one std"),
        ({"channels": 1, "mean": (0.5,)}, "data.channels 1 needs one mean and one std"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(UserError, match=message):
        ImageFolder(**arguments)


def test_more_pictures_than_memory():
    with pytest.raises(UserError, match=r"1,000 pictures of 100000 x 100000 pixels need 30,000 GB, and this machine"):
        Pictures(["a.png"] * 1000, Decoding(10**5, 10**5, "bilinear", 3))[:]


def test_a_fingerprint_is_of_names_sizes_and_labels_and_decodes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(Decoding, "__call__", None)
    tree(tmp_path / "one", 4)
    found = small(tmp_path / "one").fingerprint()
    (tmp_path / "one").rename(tmp_path / "größe zwei")
    assert small(tmp_path / "größe zwei").fingerprint() == found and re.fullmatch(r"[0-9a-f]{16}", found)
    picture = next((tmp_path / "größe zwei").rglob("*.png"))
    picture.write_bytes(picture.read_bytes() + b" ")
    assert small(tmp_path / "größe zwei").fingerprint() != found
    (tmp_path / "größe zwei" / "dog" / "gone.png").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"dog/gone\.png cannot be read \(No such file or directory\)"):
        small(tmp_path / "größe zwei").fingerprint()


@pytest.mark.parametrize("name", ["cats", "St. Bernard", "größe"])
def test_a_class_without_pictures_is_named(name, tmp_path):
    tree(tmp_path, 4)
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=rf"without a picture \({re.escape(name)}\)"):
        small(tmp_path).setup()


@pytest.mark.slow
def test_training_on_one_s_own_pictures(tmp_path):
    names = ("ant", "bee", "cat", "dog")
    tree(tmp_path / "photos", 5, names)
    words = ("fit", "--config", ROOT / "configs" / "photos.yaml", "--trainer.max_epochs", "1", "--trainer.logger", "[]")
    words += ("--trainer.callbacks", "[{class_path: TrainingMetrics}]", "--data.image_size", "16")
    done = command(*words, cwd=tmp_path)
    assert (
        done.returncode == 2
        and "the data have 4 classes: set the net's number of outputs to 4 (num_classes" in done.stderr
    )
    done = command(*words, "--model.net.init_args.num_classes", "4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "photos" / "photos" / "log.csv").exists()


@pytest.mark.slow
def test_a_run_takes_what_its_limits_leave_of_pictures_that_memory_does_not_hold(tmp_path, monkeypatch):
    for split in ("train", "test"):
        tree(tmp_path / "set" / split, 20)
    there = {"SC_PHYS_PAGES": 12 * 3 * 16 * 16, "SC_PAGE_SIZE": 1}
    calls, whole, asked = [], Decoding.__call__, os.sysconf
    monkeypatch.setattr(Decoding, "__call__", lambda self, file: calls.append(file) or whole(self, file))
    monkeypatch.setattr(os, "sysconf", lambda name: there.get(name) or asked(name))
    monkeypatch.chdir(tmp_path)
    words = ("fit", "--model.net", "SimplifiedNet", "--model.net.num_classes", "2", "--data", "ImageFolder")
    words += ("--data.root", "set", "--data.image_size", "16", "--data.train_limit", "6", "--data.test_limit", "4")
    words += (
        "--trainer.max_epochs",
        "1",
        "--trainer.callbacks",
        "[{class_path: TrainingMetrics}]",
        "--trainer.logger",
        "[]",
    )
    assert main(list(words)) == 0
    assert len(calls) == len(set(calls)) == 6 + 4
