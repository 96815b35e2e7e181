"""Preprocessing against TensorFlow's results (golden/preprocess), and the strings' parser."""

import pickle

import numpy as np
import pytest

from tests.data.odd_files import expected, read
from vit_jax.data.decode import BadImage, decode_image
from vit_jax.data.preprocess import parse, with_range_of
from vit_jax.errors import UsageError

_IMAGES = [f"img{i}.npz" for i in range(6)]


@pytest.fixture(params=_IMAGES)
def picture(golden, request):
    with np.load(golden / "preprocess" / request.param) as z:
        yield z


def _host(text: str, image, rng=None) -> np.ndarray:
    out = parse(text).host(image, rng)
    assert out.dtype == np.uint8
    assert out.flags.c_contiguous
    return out


def _assert_near(got: np.ndarray, want: np.ndarray) -> None:
    """At most one level apart, on up to 10 % of values: sums that end on the edge of truncation."""
    difference = np.abs(got.astype(int) - want)
    assert difference.max() <= 1
    assert (difference > 0).mean() <= 0.1


def test_decode_is_the_accurate_dct_without_exif(picture):
    image = _host("decode", picture["jpeg"].tobytes())
    assert np.array_equal(image, picture["decoded_integer_accurate"])


def test_decode_is_near_the_fast_dct(golden):
    """TensorFlow's default decoder: mean abs difference 1 over all pixels, at most 13 of 255."""
    differences = []
    for name in _IMAGES:
        with np.load(golden / "preprocess" / name) as z:
            differences.append(
                np.abs(_host("decode", z["jpeg"].tobytes()).astype(int) - z["decoded"]).ravel()
            )
    pooled = np.concatenate(differences)
    assert pooled.max() <= 13
    assert pooled.mean() <= 1


def test_resize_without_antialias_is_exact(picture):
    assert np.array_equal(_host("resize(32)", picture["decoded"]), picture["resize32_uint8"])


def test_crop_then_resize_is_exact(picture):
    for j, (y, x, h, w) in enumerate(picture["boxes_yxhw"]):
        crop = picture["decoded"][y : y + h, x : x + w]
        assert np.array_equal(_host("resize((32,32))", crop), picture[f"crop{j}_resize32_uint8"])


def test_antialias(picture):
    _assert_near(_host("resize(32,antialias=true)", picture["decoded"]), picture["resize32_antialias_uint8"])
    got = _host("resize_small(36,'bilinear',antialias=true)", picture["decoded"])
    _assert_near(got, picture["resize_small36_bilinear_antialias_uint8"])


def test_resize_small_by_area(picture):
    _assert_near(_host("resize_small(36)", picture["decoded"]), picture["resize_small36_area_uint8"])
    got = _host("resize_small(36)|central_crop(32)", picture["decoded"])
    _assert_near(got, picture["resize_small36_central32_uint8"])


def test_value_range(picture):
    mean, std = parse("decode|value_range(-1,1)").normalize
    got = (picture["resize_small36_central32_uint8"].astype(np.float32) - mean) / std
    np.testing.assert_allclose(got, picture["value_range_of_central32"], rtol=0, atol=1e-5)


def test_window_of_an_enlarged_image_is_a_part_of_the_whole():
    # Enlarged so much that only the window is computed.
    image = np.random.default_rng(1).integers(0, 256, (3, 70, 3), dtype=np.uint8)
    for method in ("area", "nearest", "bilinear"):
        got = _host(f"resize_small(40,'{method}')|central_crop(24)", image)
        small = _host(f"resize_small(40,'{method}')", image)
        assert small.shape == (40, 933, 3)
        want = small[8:32, (933 - 24) // 2 :][:, :24]
        # OpenCV and the window add up in another order.
        assert np.abs(got.astype(int) - want).max() <= 1
        assert (got != want).mean() < 0.01


def test_enlarging_repeats_by_area_and_nearest():
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3) * 20
    for method in ("area", "nearest"):
        got = _host(f"resize(6,'{method}')", image)
        assert np.array_equal(got, image.repeat(3, 0).repeat(3, 1))


def test_constant_images_stay_constant():
    # Truncation turns a rounding error of 1e-5 into a whole level.
    for level in (1, 100, 200, 255):
        image = np.full((37, 53, 3), level, np.uint8)
        for text in ("resize(224)", "resize(224,antialias=true)", "resize(19,'area')", "resize(224,'area')"):
            assert (_host(text, image) == level).all(), text


@pytest.mark.parametrize("name", ["px_1x1.png", "px_1x3000.png"])
@pytest.mark.parametrize(
    "text",
    [
        "decode|inception_crop(224)|flip_lr",
        "decode|inception_crop(224,antialias=true)",
        "decode|resize(224)",
        "decode|central_crop(224)",
        "decode|random_crop(224)",
        "decode|resize_small(256)|central_crop(224)",
        "decode|resize_small(256,'bilinear',antialias=true)|central_crop(224)",
    ],
)
def test_tiny_and_thin(name, text):
    want = expected("tiny-and-thin")[name]
    size = tuple(want) if isinstance(want, list) else (want["height"], want["width"])
    assert decode_image(read(name)).shape == (*size, 3)
    for seed in range(5):
        assert _host(text, read(name), np.random.default_rng(seed)).shape == (224, 224, 3)


def test_too_thin_to_enlarge_whole_is_named():
    with pytest.raises(BadImage, match=r"strip\.png: too thin"):
        parse("decode|resize_small(512)").host(read("px_1x3000.png"), None, "strip.png")


def test_crops_of_small_images_are_padded_in_the_middle():
    image = np.full((2, 4, 3), 9, np.uint8)
    got = _host("central_crop(4)", image)
    assert got[..., 0].tolist() == [[0] * 4, [9] * 4, [9] * 4, [0] * 4]
    assert _host("central_crop", image).shape == (2, 2, 3)


def test_randomness_comes_from_the_generator_alone(picture):
    preprocess = parse("inception_crop(16)|flip_lr")
    assert preprocess.random
    image = picture["decoded"]
    np.random.seed(0)
    first = [preprocess.host(image, np.random.default_rng([7, i])) for i in range(8)]
    np.random.seed(1)
    again = [preprocess.host(image, np.random.default_rng([7, i])) for i in range(8)]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(first[0], other) for other in first[1:])


def test_flip_mirrors_half_of_the_time():
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    rng = np.random.default_rng(3)
    flipped = 0
    for _ in range(400):
        got = _host("flip_lr", image, rng)
        flipped += np.array_equal(got, image[:, ::-1])
        assert np.array_equal(got, image) or np.array_equal(got, image[:, ::-1])
    assert 150 < flipped < 250
    assert _host("flip_lr", image[..., :1], np.random.default_rng(0)).shape == (2, 4, 1)


def test_random_crop_reaches_every_place():
    image = np.arange(9, dtype=np.uint8).reshape(3, 3, 1).repeat(3, 2)
    rng = np.random.default_rng(3)
    seen = {int(_host("random_crop(2)", image, rng)[0, 0, 0]) for _ in range(100)}
    assert seen == {0, 1, 3, 4}
    assert _host("pad(1)|random_crop(5)", image, rng).shape == (5, 5, 3)


@pytest.mark.parametrize(
    ("text", "size", "random", "channels"),
    [
        ("decode", None, False, 3),
        ("decode|inception_crop(224)|flip_lr", (224, 224), True, 3),
        ("decode(channels=1)|resize_small(256)|central_crop((224,192))", (224, 192), False, 1),
        ("decode|resize_small(256)", None, False, 3),
        ("decode|resize(32)|pad(4)|random_crop(32)", (32, 32), True, 3),
        ("decode|resize((20,40))|resize_small(10)", (10, 20), False, 3),
        ("decode|inception_crop", None, True, 3),
    ],
)
def test_properties(text, size, random, channels):
    preprocess = parse(text)
    assert (preprocess.output_size, preprocess.random, preprocess.channels) == (size, random, channels)
    assert pickle.loads(pickle.dumps(preprocess)) == preprocess


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("decode", (-1, -1, -1), (1, 1, 1)),
        ("decode|value_range(0, 1)", (0, 0, 0), (1, 1, 1)),
        ("decode|value_range(-0.5, vmax=2)", (-0.5,) * 3, (2,) * 3),
        ("decode(channels=1)|value_range", (-1,), (1,)),
        ("decode|normalize((0.5,0.5,0.5),(0.5,0.25,0.125))", (-1, -2, -4), (1, 2, 4)),
        ("decode|normalize", (-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225), (2.2489083, 2.4285714, 2.64)),
        (
            "decode|vgg_value_range",
            (-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225),
            (2.2489083, 2.4285714, 2.64),
        ),
        ("decode(channels=1)|normalize(0.5, 0.5)", (-1,), (1,)),
    ],
)
def test_normalize(text, low, high):
    mean, std = parse(text).normalize
    assert mean.dtype == std.dtype == np.float32
    assert mean.shape == std.shape == (len(low),)
    np.testing.assert_allclose((0 - mean) / std, np.float32(low), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose((255 - mean) / std, np.float32(high), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("decode|inception_crp(224)", r"unknown step 'inception_crp'.*did you mean 'inception_crop'"),
        ("decode|zzz", r"unknown step 'zzz'.*known: decode, resize, .*value_range"),
        (
            "decode|resize",
            r"step 'resize': missing .*its arguments: size, method='bilinear', antialias=false",
        ),
        ("decode|resize(8, mode='area')", r"step 'resize': .*'mode'.*its arguments: size"),
        ("decode|flip_lr(1)", r"step 'flip_lr': .*its arguments: none"),
        ("decode|resize(1.5)", r"resize: size is 1\.5"),
        ("decode|resize((8,0))", r"resize: size is \(8, 0\)"),
        ("decode|resize(true)", "resize: size is True"),
        ("decode|resize(8,'cubic')", "unknown method 'cubic'.*known: bilinear, area, nearest"),
        ("decode|resize(8,antialias=1)", "antialias is 1"),
        ("decode|resize_small((8,8))", "smaller_size is a pair"),
        ("decode|inception_crop(8,area_min=0)", "area_min=0, area_max=100"),
        ("decode|inception_crop(8,'big')", "area_min='big'"),
        ("decode(channels=2)", "channels is 2"),
        ("decode(exif=1)", "exif is 1"),
        ("resize(8)|decode", "'decode' isn't the first step"),
        ("decode|value_range|flip_lr", "'value_range' isn't the last step"),
        ("decode|value_range(1,-1)", "isn't a range"),
        ("decode|normalize((1,2),(3,4))", "mean has 2 numbers for 3 channels"),
        ("decode|normalize(0.5,0)", "std is 0"),
        ("", "can't be parsed"),
        ("decode|", "can't be parsed"),
        ("decode||resize(8)", "can't be parsed"),
        ("decode & resize(8)", "isn't a step"),
        ("decode|resize(2**3)", r"'2 \*\* 3' isn't a value"),
        ("decode|resize(__import__('os'))", "isn't a value"),
        ("decode|resize(**x)", "isn't a step"),
        ("decode|os.system('x')", "isn't a step"),
    ],
)
def test_refused(text, message):
    with pytest.raises(UsageError, match=message):
        parse(text)


def test_bytes_need_decode():
    with pytest.raises(UsageError, match=r"doesn't decode, but a\.png is an encoded image"):
        parse("resize(8)").host(read("gray_L.png"), None, "a.png")


def test_array_images_are_decoded_to_the_wanted_channels():
    digit = np.arange(64, dtype=np.uint8).reshape(8, 8, 1)
    assert np.array_equal(_host("decode", digit), digit.repeat(3, axis=2))
    assert np.array_equal(_host("decode(channels=1)", digit), digit)


@pytest.mark.parametrize(
    ("own", "text", "result"),
    [
        ("decode|normalize()", "decode|resize(8)", "decode|resize(8)|normalize()"),
        ("decode|vgg_value_range((1, 2, 3), 4.5)", "decode", "decode|vgg_value_range((1, 2, 3), 4.5)"),
        ("decode|normalize()", "decode|value_range(0, 1)", "decode|value_range(0, 1)"),
        ("decode|resize(8)", "decode", "decode"),
    ],
)
def test_another_program_keeps_the_normalisation_unless_it_says_one(own, text, result):
    assert with_range_of(own, text) == result
