"""Pictures and labels that somebody sent: what Pillow would execute or blow up, and official files that are none."""

import io
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lightning_app.common.errors import UserError
from lightning_app.datamodules.pictures import Decoding
from lightning_app.datamodules.sources import Source
from lightning_app.datamodules.whitened import WhitenedMNIST

DECODE = Decoding(image_size=8, resize=8, interpolation="bilinear", channels=3)
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(executed) (w) file closefile\n%%EOF\n"


def png(width: int, height: int, rows: bytes = b"") -> bytes:
    """A picture of any size on paper, and of few bytes."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x00\x00\x00\x00"
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_postscript_in_the_name_of_a_jpeg_is_not_handed_to_a_program(tmp_path):
    (tmp_path / "a.jpg").write_bytes(POSTSCRIPT)
    assert Image.open(tmp_path / "a.jpg").format == "EPS"  # Pillow would run Ghostscript on it
    with pytest.raises(UserError, match="cannot identify"):
        DECODE(str(tmp_path / "a.jpg"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cannot be read as a picture"),
        (png(60_000, 60_000), "cannot be read as a picture"),
        (png(1, 60_000_000, bytes(2 * 1000)), "cannot be read as a picture"),
        (png(8, 8), "cannot be read as a picture"),
        (np.random.default_rng(0).bytes(1000), "cannot be read as a picture"),
    ],
    ids=range(5),
)
def test_pictures_that_are_none(tmp_path, content, reason):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(UserError, match=reason):
        DECODE(str(tmp_path / "a.png"))


def test_a_line_is_not_made_a_square_of_its_length(tmp_path):
    Image.new("L", (1, 60_000)).save(tmp_path / "a.png")
    with pytest.raises(UserError, match="too long to be resized"):
        Decoding(image_size=224, resize=256, interpolation="bilinear", channels=3)(str(tmp_path / "a.png"))


@pytest.fixture
def source(tmp_path) -> Source:
    def nothing(*_, **__):
        raise RuntimeError("Dataset not found")

    for split in ("train", "test"):
        (tmp_path / "set" / split / "a").mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "set" / split / "a" / "0.png")
    return Source("set", tmp_path / "set", (8, 8, 1), ("a",), nothing, ("raw",))


@pytest.mark.parametrize(
    "content", [png(60_000, 60_000), png(9, 8), png(8, 8), POSTSCRIPT, b"", b"\x89PNG\r\n\x1a\n\0"]
)
def test_a_tree_with_one_picture_that_is_none(source, content):
    (source.folder / "train" / "a" / "1.png").write_bytes(content)
    with pytest.raises(UserError, match=r"1\.png"):
        source.read()


def test_a_picture_of_another_size_is_not_unpacked(source):
    (source.folder / "train" / "a" / "1.png").write_bytes(png(9000, 9000))  # within Pillow's own limit
    with pytest.raises(UserError, match="8 x 8 pixels, got 9000 x 9000"):
        source.read()


def save_arrays(folder: Path, **changed: np.ndarray) -> None:
    arrays = {"images": np.zeros((3, 8, 8, 1), np.uint8), "labels": np.zeros(3, np.int64)}
    for split in ("train", "test"):
        for name, array in (arrays | changed).items():
            np.save(folder / f"{split}_{name}.npy", array, allow_pickle=True)


@pytest.mark.parametrize(
    "changed",
    [
        {"labels": np.array([0.0, np.nan, 0.0])},
        {"labels": np.array([0, 0, 1])},
        {"labels": np.array([0, -1, 0])},
        {"labels": np.zeros(2, np.int64)},
        {"labels": np.array([{}, 0, 0], dtype=object)},
        {"images": np.zeros((3, 8, 8, 1), ">u2")},
        {"images": np.zeros((3, 8, 9, 1), np.uint8)},
        {"images": np.zeros((3, 8, 8, 1), [("r", "u1")])},
    ],
)
def test_arrays_that_are_no_data(source, changed):
    save_arrays(source.folder)
    assert len(source.read().train_images) == 3
    save_arrays(source.folder, **changed)
    with pytest.raises(UserError, match=r"set/|of set in"):
        source.read()


@pytest.mark.parametrize("content", [b"", b"\0\0\x08\x03" + b"\xff" * 12, bytes(16), bytes(range(256))])
def test_official_files_that_are_none(tmp_path, content):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for split in ("train", "t10k"):
        for name in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            (raw / f"{split}-{name}").write_bytes(content)
    with pytest.raises(UserError, match="MNIST/raw cannot be read"):
        WhitenedMNIST(str(tmp_path)).load()


def test_pictures_that_are_some(tmp_path):
    for form in ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "PPM"):
        buffer = io.BytesIO()
        Image.new("RGB", (9, 12), (255, 0, 0)).save(buffer, form)
        (tmp_path / "a.jpg").write_bytes(buffer.getvalue())  # whatever the name
        assert DECODE(str(tmp_path / "a.jpg")).shape == (8, 8, 3)
