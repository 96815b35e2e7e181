"""RandAugment: `legacy` against the reference's results (golden/randaug.npz), `fixed` against what it promises."""

import json

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from vit_jax.data import pixels
from vit_jax.data.order import example_rng
from vit_jax.data.preprocess import parse
from vit_jax.data.randaug import FIXED, LEGACY, MODES, NAMES, Draw, RandAug
from vit_jax.errors import UsageError

# (greatest difference in levels, greatest share of values that differ); the others are exact. AutoContrast and
# Sharpness end on the edge of truncation, Rotate and Shear on ties between two pixels, in float32.
TOLERANCE = {
    "AutoContrast": (1, 0.03), "Sharpness": (3, 0.005), "Rotate": (255, 0.01), "ShearX": (255, 0.01),
    "ShearY": (255, 0.01),
}  # fmt: skip
CENTRE = Draw(1, 0.5, 0.5)


@pytest.fixture(scope="module")
def reference(golden):
    with np.load(golden / "randaug.npz") as z:
        return dict(z)


def cases():
    """Operation, magnitude, draw and key, as the keys of the file spell them."""
    for name in NAMES:
        if name in ("AutoContrast", "Equalize", "Invert"):
            yield name, 1, CENTRE, f"{name}/m1"
            continue
        for m in (1, 3, 10, 15, 20):
            if name == "Cutout":
                for y, x in ((5, 33), (20, 20), (39, 0)):
                    draw = Draw(1, (y + 0.5) / 40, (x + 0.5) / 40)
                    yield name, m, draw, f"{name}/m{m}_center{y}_{x}"
            elif name in ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"):
                yield name, m, CENTRE, f"{name}/m{m}_pos"
                yield name, m, Draw(-1, 0, 0), f"{name}/m{m}_neg"
            else:
                yield name, m, CENTRE, f"{name}/m{m}"


def test_legacy_equals_the_reference(reference):
    seen = set()
    for name, magnitude, draw, key in cases():
        for picture in ("photo", "low"):
            if f"{key}/{picture}" not in reference:
                continue
            seen.add(f"{key}/{picture}")
            image = reference[f"image/{picture}"]
            before = image.copy()
            out = LEGACY[name](image, magnitude, draw)
            assert out.dtype == np.uint8 and np.array_equal(image, before)
            apart = np.abs(out.astype(int) - reference[f"{key}/{picture}"])
            levels, share = TOLERANCE.get(name, (0, 0))
            assert apart.max() <= levels and (apart > 0).mean() <= share, (key, picture, apart.max())
    assert len(seen) == 141
    assert seen == {key for key in reference if not key.startswith(("info", "image"))}
    assert len(json.loads(str(reference["info"]))) > 16


def photo(height=64, width=96, seed=0):
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (8, 12, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def test_operations_are_drawn_alike():
    draws = RandAug(4, 10).draw
    got = [draw for position in range(8000) for draw in draws(example_rng(0, position))]
    counts = np.array([sum(name == n for n, _ in got) for name in NAMES])
    expected = len(got) / 16
    assert len(NAMES) == 16
    assert np.sum((counts - expected) ** 2 / expected) < 44.3  # chi squared, 15 degrees, p = 1e-4
    signs, y, x = (np.array(v) for v in zip(*(d for _, d in got), strict=True))
    assert abs((signs == 1).mean() - 0.5) < 4 * 0.5 / np.sqrt(len(got))
    for place in (y, x):
        assert place.min() >= 0 and place.max() < 1
        assert abs(place.mean() - 0.5) < 4 * 0.289 / np.sqrt(len(got))
    # Layers are independent: the second operation is the first one's in 1 of 16.
    same = np.mean([got[i][0] == got[i + 1][0] for i in range(0, len(got), 4)])
    assert abs(same - 1 / 16) < 4 * np.sqrt(1 / 16 * 15 / 16 / 8000)


def test_an_image_is_a_function_of_seed_and_position():
    program = parse("decode|randaug(2, 10)|randaug(2, 15, mode='fixed')")
    image = photo()
    a, b = (program.host(image, example_rng(3, 5)) for _ in range(2))
    assert np.array_equal(a, b) and a.shape == image.shape and a.flags.c_contiguous
    others = [program.host(image, example_rng(3, p)) for p in range(6, 12)]
    assert not all(np.array_equal(a, other) for other in others)
    assert program.random and parse("decode|randaug|resize(8)").output_size == (8, 8)
    assert parse("decode|randaug").ops == (RandAug(2, 10, "legacy"),)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 40, 3), (2, 2, 1), (33, 20, 1), (17, 300, 3)])
def test_any_shape_keeps_its_shape(mode, shape):
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    for name in NAMES:
        for magnitude in (0, 7.3, 20):
            for draw in (CENTRE, Draw(-1, 0, 0.999)):
                # A slice, as crops are.
                out = MODES[mode][name](np.pad(image, ((1, 1), (1, 1), (0, 0)))[1:-1, 1:-1], magnitude, draw)
                assert out.shape == shape and out.dtype == np.uint8, name


def test_fixed_does_nothing_at_magnitude_0():
    image = photo()
    for name in set(NAMES) - {"AutoContrast", "Equalize", "Invert"}:
        assert np.array_equal(FIXED[name](image, 0, CENTRE), image), name
    # Unlike the original.
    assert not np.array_equal(LEGACY["Solarize"](image, 0, CENTRE), image)
    assert not np.array_equal(LEGACY["Color"](image, 0, CENTRE), image)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("AutoContrast", "Equalize", "Invert")])
def test_fixed_grows_with_the_magnitude(name):
    noise = np.random.default_rng(0).integers(0, 128, (224, 224, 1), dtype=np.uint8)
    image = photo(224, 224) // 2 + noise
    changed = [
        np.abs(FIXED[name](image, m, CENTRE).astype(int) - image).mean() for m in (0, 3, 6, 10, 15, 20)
    ]
    # Moved by enough, an unrelated part of the picture shows: how different it is no longer grows.
    up_to = 2 if name in ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY") else 6
    assert np.all(np.diff(changed[:up_to]) > 0), changed


def test_fixed_solarize_does_not_wrap():
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    inverted = [int((FIXED["Solarize"](ramp, m, CENTRE) != ramp).sum()) for m in (0, 5, 10, 15, 20)]
    assert inverted == [0, 64, 128, 192, 256]
    legacy = [int((LEGACY["Solarize"](ramp, m, CENTRE) != ramp).sum()) for m in (0, 5, 10, 15, 20)]
    assert legacy == [256, 128, 256, 128, 256]


def test_fixed_posterize_leaves_fewer_levels_at_higher_magnitudes():
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    levels = [len(np.unique(FIXED["Posterize"](ramp, m, CENTRE))) for m in (0, 5, 10, 15, 20)]
    assert levels == [256, 64, 16, 4, 2]
    assert [len(np.unique(LEGACY["Posterize"](ramp, m, CENTRE))) for m in (0, 10, 20)] == [2, 16, 256]


@pytest.mark.parametrize("sign", [1, -1])
def test_fixed_contrast_keeps_the_mean_grey_level(sign):
    image = photo() // 2 + 64  # no clipping at this magnitude
    out = FIXED["Contrast"](image, 5, Draw(sign, 0, 0))
    grey = pixels.grey(image).mean()
    assert abs(pixels.grey(out).mean() - grey) < 1.5
    assert (out.std() > image.std()) == (sign == 1)
    dark = photo(224, 224) // 3
    assert LEGACY["Contrast"](dark, 10, CENTRE).max() == 0  # pushed away from 196, which goes with its size


@pytest.mark.parametrize("name", ["TranslateX", "TranslateY", "Cutout"])
def test_fixed_lengths_go_with_the_size(name):
    large = np.full((224, 224, 3), 7, np.uint8)
    np.testing.assert_array_equal(FIXED[name](large, 10, CENTRE), LEGACY[name](large, 10, CENTRE))
    filled = [
        (FIXED[name](np.full((side, side, 3), 7, np.uint8), 10, CENTRE) == 128).mean() for side in (56, 448)
    ]
    np.testing.assert_allclose(filled, (FIXED[name](large, 10, CENTRE) == 128).mean(), atol=0.01)
    small = np.full((56, 56, 3), 7, np.uint8)
    assert (LEGACY[name](small, 10, CENTRE) == 128).all()  # nothing is left of the picture


def test_fixed_enhances_either_way():
    image = photo() // 2 + 64
    for name, value in (("Brightness", np.mean), ("Color", lambda x: np.std(x, -1).mean())):
        up, down = (FIXED[name](image, 3, Draw(sign, 0, 0)) for sign in (1, -1))
        assert value(up) > value(image) > value(down), name
        # At least a tenth of it stays, so 20 is no blank picture.
        assert np.array_equal(FIXED[name](image, 20, Draw(-1, 0, 0)), FIXED[name](image, 10, Draw(-1, 0, 0)))
    brighter = LEGACY["Brightness"](image, 10, CENTRE)
    assert np.array_equal(brighter, LEGACY["Brightness"](image, 10, Draw(-1, 0, 0)))  # the original: one way


def test_the_shared_operations_are_pillow_s():
    """Pillow computes the same definitions; its grey level and Gaussian rounding differ by one level."""
    image = photo()
    picture = Image.fromarray(image)
    assert np.array_equal(pixels.equalize(image), np.asarray(ImageOps.equalize(picture)))
    assert np.array_equal(pixels.invert(image), np.asarray(ImageOps.invert(picture)))
    assert np.array_equal(pixels.solarize(image, 100), np.asarray(ImageOps.solarize(picture, 100)))
    assert np.array_equal(pixels.posterize(image, 3), np.asarray(ImageOps.posterize(picture, 3)))
    assert np.array_equal(
        pixels.brightness(image, 1.4), np.asarray(ImageEnhance.Brightness(picture).enhance(1.4))
    )
    apart = pixels.autocontrast(image).astype(int) - np.asarray(ImageOps.autocontrast(picture))
    assert np.abs(apart).max() <= 1
    apart = pixels.color(image, 0.5).astype(int) - np.asarray(ImageEnhance.Color(picture).enhance(0.5))
    assert np.abs(apart).max() <= 1


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("randaug(-1, 10)", "layers is -1"),
        ("randaug(2, 21)", "magnitude is 21"),
        ("randaug(2, '10')", "magnitude is '10'"),
        ("randaug(2.5)", "layers is 2.5"),
        ("randaug(2, 10, 'fix')", "unknown mode 'fix'"),
        ("randaug(2, 10, level=3)", "unexpected keyword argument"),
        ("randaugment(2)", "unknown step 'randaugment'"),
    ],
)
def test_refused(step, says):
    with pytest.raises(UsageError, match=says):
        parse(f"decode|{step}")
