"""One policy for every kind of file: shapes, values and errors."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.data.odd_files import expected, path, read
from vit_jax.data.decode import BadImage, decode_image, to_channels

_CORNERS = {"top_left": (2, 2), "top_right": (2, -3), "bottom_left": (-3, 2), "bottom_right": (-3, -3)}


def _assert_corners(image: np.ndarray, want: dict, levels: int) -> None:
    assert image.shape == (want["height"], want["width"], 3)
    for corner, (y, x) in _CORNERS.items():
        assert np.abs(image[y, x].astype(int) - want[corner]).max() <= levels, corner


@pytest.mark.parametrize("name", ["gray_L.png", "la.png"])
def test_gray_has_three_equal_channels(name):
    want = expected("gray-2d")
    image = decode_image(read(name))
    assert image.shape == (want["height"], want["width"], 3)
    assert image.dtype == np.uint8
    assert (image == image[..., :1]).all()
    assert [image[0, 0, 0], image[0, -1, 0]] == want["row0_first_last"]


def test_gray_alpha_is_gray():
    assert expected("gray-alpha") == expected("gray-2d")
    assert np.array_equal(decode_image(read("la.png")), decode_image(read("gray_L.png")))


def test_one_channel():
    image = decode_image(read("gray_L.png"), channels=1)
    assert image.shape == (64, 96, 1)
    assert np.array_equal(image, decode_image(read("gray_L.png"))[..., :1])
    assert decode_image(read("cmyk.jpg"), channels=1).shape == (64, 96, 1)


def test_sixteen_bits_are_scaled_by_257():
    want = expected("png16")
    image = decode_image(read("ramp16.png"))
    assert image.shape == (want["height"], want["width"], 3)
    assert (image.min(), image.max()) == (want["min"], want["max"])
    assert want["mean_range"][0] <= image.mean() <= want["mean_range"][1]
    assert len(np.unique(image)) >= want["distinct_levels_min"]
    with Image.open(path("ramp16.png")) as original:
        values = np.asarray(original).astype(np.float64)
    assert np.array_equal(image[..., 0], np.rint(values / 257))


def test_animation_gives_its_first_frame():
    image = decode_image(read("animated.gif"))
    assert image.shape == (30, 40, 3)
    assert (image == expected("gif")["first_frame_rgb"]).all()


def test_cmyk():
    image = decode_image(read("cmyk.jpg"))
    _assert_corners(image, expected("cmyk"), levels=3)
    with Image.open(path("cmyk.jpg")) as original:
        reference = np.asarray(original.convert("RGB"))
    assert np.abs(image.astype(int) - reference).max() <= 3


def test_palette_gives_colours():
    _assert_corners(decode_image(read("palette.png")), expected("palette"), levels=0)


@pytest.mark.parametrize(("exif", "case"), [(False, "if_ignored"), (True, "if_applied")])
def test_exif_orientation(exif, case):
    _assert_corners(decode_image(read("exif6.jpg"), exif=exif), expected("exif-6")[case], levels=3)


def test_alpha_is_dropped():
    rgba = np.zeros((4, 4, 4), np.uint8)
    rgba[..., 0] = 200  # wholly transparent red
    data = io.BytesIO()
    Image.fromarray(rgba).save(data, "PNG")
    assert (decode_image(data.getvalue()) == [200, 0, 0]).all()


@pytest.mark.parametrize(
    ("mode", "file_format"), [("CMYK", "TIFF"), ("RGB", "BMP"), ("L", "TIFF"), ("RGB", "PPM")]
)
def test_rarer_formats(mode, file_format):
    data = io.BytesIO()
    picture = Image.new("RGB", (9, 7), (200, 30, 30))
    picture.convert(mode).save(data, file_format)
    image = decode_image(data.getvalue())
    assert image.shape == (7, 9, 3)
    assert np.abs(image.astype(int) - np.asarray(picture.convert(mode).convert("RGB"))).max() <= 1


def _jpeg(golden) -> bytes:
    with np.load(golden / "preprocess" / "img0.npz") as z:
        return z["jpeg"].tobytes()


@pytest.mark.parametrize(
    ("kept", "why"), [(0, "empty"), (0.5, "truncated"), (0.99, "truncated"), (10, "truncated")]
)
def test_broken_jpeg_is_named(golden, kept, why):
    data = _jpeg(golden)
    data = data[: int(kept * len(data))] if kept < 1 else data[:kept]
    with pytest.raises(BadImage, match=f"^a/b.jpg: .*{why}") as caught:
        decode_image(data, name="a/b.jpg")
    assert caught.value.name == "a/b.jpg"


def test_bytes_after_the_end_of_a_jpeg_do_no_harm(golden):
    data = _jpeg(golden)
    assert np.array_equal(decode_image(data + b"\0" * 500), decode_image(data))


@pytest.mark.parametrize("data", [b"not an image", b"\x89PNG\r\n\x1a\n", b"GIF89a"])
def test_undecodable(data):
    with pytest.raises(BadImage, match="image"):
        decode_image(data)


def test_arrays():
    with np.load(path("gray28.npz")) as z:
        gray = z["image"][3]
    assert list(gray.shape) == expected("gray-array")["image_shape"]
    three = to_channels(gray, 3)
    assert three.shape == (28, 28, 3)
    assert (three == gray).all()
    assert to_channels(three, 1).shape == (28, 28, 1)
    assert to_channels(gray[..., 0], 1).shape == (28, 28, 1)
    for bad in (np.zeros((4, 4, 2), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros(4, np.uint8)):
        with pytest.raises(BadImage, match=f"x: an array of {bad.dtype}"):
            to_channels(bad, 3, "x")


def test_a_damaged_image_is_reported_once_by_us(capfd):
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3)).astype(np.uint8)).save(file, "PNG")
    picture = file.getvalue()
    with pytest.raises(BadImage, match=r"cut\.png"):
        decode_image(picture[: len(picture) // 2], name="cut.png")
    assert capfd.readouterr() == ("", "")
