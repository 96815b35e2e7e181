"""The Inception crop has the distribution of TensorFlow's (golden/crop_stats)."""

import numpy as np
import pytest
from scipy import stats

from vit_jax.data.crop import inception_box

_DRAWS = 4000
_SIZES = [(224, 224), (300, 500), (500, 375), (64, 64), (37, 211), (375, 1242)]


def _quantities(draws: np.ndarray, height: int, width: int) -> dict[str, np.ndarray]:
    """Draws [n, 4] as y, x, h, w -> the quantities of the reference, [n] each."""
    y, x, h, w = draws.astype(np.float64).T
    return {
        "area_fraction": h * w / (height * width),
        "aspect_w_over_h": w / h,
        "height": h,
        "width": w,
        "y": y,
        "x": x,
    }


@pytest.mark.parametrize("size", _SIZES)
def test_distribution(golden, size):
    height, width = size
    rng = np.random.default_rng(11)
    ours = np.array([inception_box(rng, height, width, (0.05, 1.0)) for _ in range(_DRAWS)])
    with np.load(golden / "crop_stats.npz") as z:
        key = f"{height}x{width}"
        reference = _quantities(z[f"{key}/draws_yxhw"], height, width)
        for name, values in _quantities(ours, height, width).items():
            assert stats.ks_2samp(values, reference[name]).pvalue > 1e-4, name
            mean, std = z[f"{key}/{name}_mean_std"]
            # The reference's own mean is of 20 000 draws.
            error = std * np.sqrt(1 / _DRAWS + 1 / 20_000)
            assert abs(values.mean() - mean) < 4 * error, name
        whole = (ours[:, 2] == height) & (ours[:, 3] == width)
        p = float(z[f"{key}/full_image_fraction"])
        assert abs(whole.mean() - p) < 4 * np.sqrt(max(p * (1 - p), 1e-4) / _DRAWS)
    y, x, h, w = ours.T
    assert (h >= 1).all() and (w >= 1).all() and (y + h <= height).all() and (x + w <= width).all()
    # The last possible offset is never drawn.
    assert (y < np.maximum(height - h, 1)).all() and (x < np.maximum(width - w, 1)).all()


def test_area_range_is_kept():
    rng = np.random.default_rng(0)
    boxes = np.array([inception_box(rng, 100, 120, (0.3, 0.4)) for _ in range(500)])
    areas = boxes[:, 2] * boxes[:, 3] / 12_000
    assert areas.min() >= 0.3
    assert areas.max() <= 0.4
    assert len(np.unique(boxes, axis=0)) > 300


@pytest.mark.parametrize("size", [(1, 1), (3000, 1), (1, 3000), (2, 1), (1, 2)])
def test_tiny_images_never_give_an_empty_box(size):
    rng = np.random.default_rng(0)
    for _ in range(50):
        y, x, h, w = inception_box(rng, *size, (0.05, 1.0))
        assert 1 <= h <= size[0] - y
        assert 1 <= w <= size[1] - x


def test_aspect_range_is_tensorflows_own():
    """(0.75, 1.33), not (3/4, 4/3); on an image so large that rounding to pixels can't hide it."""
    rng = np.random.default_rng(2)
    boxes = np.array([inception_box(rng, 9000, 9000, (0.2, 0.4)) for _ in range(4000)])
    aspects = boxes[:, 3] / boxes[:, 2]
    rounding = 0.5 / boxes[:, 2].min()
    assert 0.75 - rounding <= aspects.min() < 0.751
    assert 1.329 < aspects.max() <= 1.33 + rounding
