"""Pictures and labels that somebody sent: what Pillow would execute or blow up, and official files that are none."""

import io
import zlib

import pytest
from PIL import Image

from lightning_app.common.errors import UserError
from lightning_app.datamodules.pictures import Decoding
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


def test_a_line_is_not_made_a_square_of_its_length(tmp_path):
    Image.new("L", (1, 60_000)).save(tmp_path / "a.png")
    with pytest.raises(UserError, match="too long to be resized"):
        Decoding(image_size=224, resize=256, interpolation="bilinear", channels=3)(str(tmp_path / "a.png"))


NONE = [png(60_000, 60_000), png(8, 8), POSTSCRIPT, b"", b"\x89PNG\r\n\x1a\n\0", bytes(range(256))]


@pytest.mark.parametrize("content", NONE, ids=range(len(NONE)))
def test_a_picture_that_is_none(tmp_path, content):
    (tmp_path / "1.png").write_bytes(content)
    with pytest.raises(UserError, match=r"1\.png"):
        DECODE(str(tmp_path / "1.png"))


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
