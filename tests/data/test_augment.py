"""Steps of other recipes: against Pillow and torchvision's definitions, and the distributions they promise."""

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter

from tests.data.test_randaug import photo
from vit_jax.data import pixels
from vit_jax.data.augment import ColorJitter, RandomErasing, SimpleRandomCrop, ThreeAugment
from vit_jax.data.order import example_rng
from vit_jax.data.preprocess import parse
from vit_jax.errors import UsageError

STEPS = (
    "simple_random_crop(24)|three_augment", "color_jitter", "three_augment(0)", "random_erasing(1)",
    "random_erasing(1, mode='noise')",
)  # fmt: skip


@pytest.mark.parametrize("steps", STEPS)
def test_an_image_is_a_function_of_seed_and_position(steps):
    program = parse(f"decode|{steps}")
    image = photo()
    before = image.copy()
    a, b, other = (program.host(image, example_rng(1, p)) for p in (4, 4, 5))
    assert a.dtype == np.uint8 and np.array_equal(a, b) and not np.array_equal(a, other)
    assert np.array_equal(image, before)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 3000, 3), (40, 20, 1)])
def test_any_shape(steps, shape):
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    program = parse(f"decode(channels={shape[2]})|{steps}")
    for position in range(12):
        out = program.host(image, example_rng(0, position))
        assert out.shape == (shape if program.output_size is None else (24, 24, shape[2]))


def test_simple_random_crop_cuts_from_a_mirrored_border():
    image = photo(40, 40)
    padded = np.pad(image, ((4, 4), (4, 4), (0, 0)), mode="reflect")
    places = set()
    for position in range(2000):
        out = SimpleRandomCrop(40)(image, example_rng(0, position))
        found = [
            (y, x)
            for y in range(9)
            for x in range(9)
            if padded[y, x, 0] == out[0, 0, 0] and np.array_equal(padded[y : y + 40, x : x + 40], out)
        ]
        assert found
        places.add(found[0])
    assert len(places) == 81


@pytest.mark.parametrize("channels", [1, 3])
def test_simple_random_crop_of_a_larger_image_is_torchvision_s(channels):
    """Resized whole by Pillow, then padded and cut: what is computed of the crop alone is within a level of it."""
    image = photo(50, 83)[..., :channels]
    whole = Image.fromarray(image.squeeze()).resize((33, 20), Image.Resampling.BICUBIC)  # int(20 * 83 / 50)
    padded = np.pad(
        np.asarray(whole).reshape(20, 33, channels).astype(int), ((4, 4), (4, 4), (0, 0)), mode="reflect"
    )
    places = set()
    for position in range(1000):
        out = SimpleRandomCrop(20)(image, example_rng(0, position))
        apart = {
            (y, x): np.abs(padded[y : y + 20, x : x + 20] - out).max() for y in range(9) for x in range(22)
        }
        best = min(apart, key=apart.get)
        assert out.shape == (20, 20, channels) and apart[best] <= 1
        places.add(best)
    assert len(places) > 190  # of 198


def test_a_thin_image_is_never_enlarged_whole():
    image = np.random.default_rng(0).integers(0, 256, (3000, 1, 3), dtype=np.uint8)
    assert SimpleRandomCrop(224)(image, example_rng(0, 0)).shape == (224, 224, 3)


@pytest.mark.parametrize("factor", [0.0, 0.7, 1.0, 1.3])
def test_jitter_is_pillow_s(factor):
    """Exactly for brightness; grey levels may be one level off Pillow's, and what is blended with them."""
    image = photo()
    picture = Image.fromarray(image)
    assert np.abs(pixels.luma(image)[..., 0].astype(int) - np.asarray(picture.convert("L"))).max() <= 1
    brighter = np.asarray(ImageEnhance.Brightness(picture).enhance(factor))
    assert np.array_equal(pixels.brightness(image, factor), brighter)
    level = int(pixels.luma(image).mean() + 0.5)
    contrast = np.asarray(ImageEnhance.Contrast(picture).enhance(factor)).astype(int)
    assert np.abs(pixels.contrast(image, factor, level) - contrast).max() <= 1
    saturated = np.asarray(ImageEnhance.Color(picture).enhance(factor)).astype(int)
    assert np.abs(pixels.blend(pixels.luma(image), image, factor) - saturated).max() <= 1


def test_jitter_draws_each_factor_and_the_order():
    bright, contrast, color = (photo() // 2 + 50 for _ in range(3))
    means = [ColorJitter(0.3, 0, 0)(bright, example_rng(0, p)).mean() / bright.mean() for p in range(1000)]
    assert 0.69 < min(means) < 0.71 and 1.28 < max(means) < 1.31
    np.testing.assert_allclose(np.mean(means), 1, atol=4 * 0.173 / np.sqrt(1000) + 0.005)
    spreads = [ColorJitter(0, 0.3, 0)(contrast, example_rng(0, p)).std() / contrast.std() for p in range(300)]
    assert 0.69 < min(spreads) < 0.72 and 1.27 < max(spreads) < 1.31
    hues = [
        np.ptp(ColorJitter(0, 0, 0.3)(color, example_rng(0, p)).astype(int), axis=2).mean()
        for p in range(300)
    ]
    ratios = np.array(hues) / np.ptp(color.astype(int), axis=2).mean()
    assert 0.68 < ratios.min() < 0.72 and 1.27 < ratios.max() < 1.32
    assert np.array_equal(ColorJitter(0, 0, 0)(bright, example_rng(0, 0)), bright)


def test_jitter_takes_all_orders():
    class Recorder:
        def __init__(self, rng):
            self.rng = rng

        def permutation(self, n):
            self.order = tuple(int(i) for i in self.rng.permutation(n))
            return np.array(self.order)

        def uniform(self, *args):
            return self.rng.uniform(*args)

    orders = {}
    for position in range(1200):
        rng = Recorder(example_rng(0, position))
        ColorJitter()(photo(4, 4), rng)
        orders[rng.order] = orders.get(rng.order, 0) + 1
    assert len(orders) == 6 and min(orders.values()) > 200 - 5 * 13


def test_three_augment_takes_each_in_a_third():
    image = photo() // 2 + 100
    kinds = {"grey": 0, "solarized": 0, "blurred": 0}
    for position in range(3000):
        out = ThreeAugment(color_jitter=0)(image, example_rng(0, position))
        if np.ptp(out, axis=2).max() == 0:
            kinds["grey"] += 1
            assert np.array_equal(out[..., :1], pixels.luma(image))
        elif np.array_equal(out, np.where(image < 128, image, 255 - image)):
            kinds["solarized"] += 1
        else:
            kinds["blurred"] += 1
            assert np.abs(out.astype(int) - image).max() < 60  # smooth as it is
    assert all(abs(n - 1000) < 4 * 25.8 for n in kinds.values()), kinds
    # The jitter comes on top.
    assert not np.array_equal(
        ThreeAugment()(image, example_rng(0, 1)), ThreeAugment(0)(image, example_rng(0, 1))
    )


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_blur_is_near_pillow_s(sigma):
    """Pillow approximates the Gaussian by three box filters."""
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    ours = pixels.gaussian_blur(image, sigma).astype(int)
    theirs = np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(sigma)))
    apart = np.abs(ours - theirs)
    assert apart.mean() < 0.05 * np.abs(ours - image).mean()
    impulse = np.zeros((31, 31, 1), np.uint8)
    impulse[15, 15] = 255
    expected = 255 / (2 * np.pi * sigma**2) if sigma >= 1 else None
    if expected is not None:
        assert abs(int(pixels.gaussian_blur(impulse, sigma)[15, 15, 0]) - expected) < 2


def test_erasing_has_the_promised_shares():
    image = np.full((100, 100, 3), 7, np.uint8)
    step = RandomErasing(1.0)
    areas, aspects, tops = [], [], []
    for position in range(2000):
        erased = (step(image, example_rng(0, position)) != 7).all(-1)
        ys, xs = np.flatnonzero(erased.any(1)), np.flatnonzero(erased.any(0))
        h, w = np.ptp(ys) + 1, np.ptp(xs) + 1
        assert erased.sum() == h * w  # one rectangle
        areas.append(h * w / 1e4)
        aspects.append(np.log(h / w))
        tops.append(ys[0] / (100 - h))
    assert 0.018 < min(areas) < 0.03 and 0.31 < max(areas) < 0.335
    assert np.exp(min(aspects)) > 0.28 and np.exp(max(aspects)) < 3.6
    assert abs(np.mean(aspects)) < 0.06 and abs(np.mean(areas) - 0.175) < 0.01
    assert min(tops) == 0 and max(tops) == 1 and abs(np.mean(tops) - 0.5) < 4 * 0.3 / np.sqrt(2000)


def test_erasing_modes_and_probability():
    image = np.full((64, 64, 3), 7, np.uint8)
    erased = [not np.array_equal(RandomErasing()(image, example_rng(0, p)), image) for p in range(2000)]
    assert abs(np.mean(erased) - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 2000)
    constant = RandomErasing(1)(image, example_rng(0, 0))
    assert set(np.unique(constant)) == {7, 128}
    noise = np.concatenate(
        [RandomErasing(1, mode="noise")(image, example_rng(0, p)).reshape(-1, 3) for p in range(50)]
    )
    noise = noise[(noise != 7).all(1)]
    assert abs(noise.mean() - 127.5) < 1 and abs(noise.std() - 73.9) < 1
    assert not np.array_equal(noise[:, 0], noise[:, 1])


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("simple_random_crop((8, 8))", r"size is \(8, 8\)"),
        ("simple_random_crop(8, 5)", "pixels is 5"),
        ("color_jitter(-0.1)", "brightness is -0.1"),
        ("color_jitter(0.1, true)", "contrast is True"),
        ("three_augment('x')", "color_jitter is 'x'"),
        ("random_erasing(1.5)", "probability is 1.5"),
        ("random_erasing(area=(0.5, 0.1))", r"area is \(0.5, 0.1\)"),
        ("random_erasing(area=(0.5, 1.1))", r"area is \(0.5, 1.1\)"),
        ("random_erasing(aspect=(0, 2))", r"aspect is \(0, 2\)"),
        ("random_erasing(mode='const')", "unknown mode 'const'"),
    ],
)
def test_refused(step, says):
    with pytest.raises(UsageError, match=says):
        parse(f"decode|{step}")
