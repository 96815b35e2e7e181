"""A folder of JPEGs of ImageNet's usual size and weight, so that `bench input` needs no data set."""

from pathlib import Path

import cv2
import numpy as np
from sklearn.datasets import load_sample_images

# Median of ImageNet's training images.
HEIGHT, WIDTH = 375, 500
# Gives its usual 110 kB from scikit-learn's two photographs.
_QUALITY = 96


def make_jpegs(folder: Path, count: int, seed: int = 0) -> None:
    """Writes FOLDER/photo/00000.jpg ...: random parts of the photographs that come with scikit-learn."""
    photos = load_sample_images().images
    target = folder / "photo"
    target.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for i in range(count):
        photo = photos[i % len(photos)]
        scale = rng.uniform(0.8, 1.0)
        h, w = round(scale * HEIGHT), round(scale * WIDTH)
        y, x = rng.integers(photo.shape[0] - h), rng.integers(photo.shape[1] - w)
        part = cv2.resize(photo[y : y + h, x : x + w], (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
        ok, data = cv2.imencode(".jpg", part[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
        assert ok
        (target / f"{i:05d}.jpg").write_bytes(data.tobytes())
