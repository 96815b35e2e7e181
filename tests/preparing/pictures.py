"""Small synthetic image sets on disk."""

from pathlib import Path

import cv2
import numpy as np

from vit_jax import prepare
from vit_jax.data.source import Source
from vit_jax.data.sources import open_source


def picture(seed: int, size: tuple[int, int] = (12, 10)) -> bytes:
    """A JPEG of noise, (height, width)."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    return cv2.imencode(".jpg", pixels)[1].tobytes()


def write_folder(
    root: Path, splits=("train", "test"), classes=("cat", "dog", "owl"), per_class: int = 4
) -> Path:
    """ROOT/SPLIT/CLASS/N.jpg; the second class has its images one folder deeper."""
    seed = 0
    for split in splits:
        for k, name in enumerate(classes):
            folder = root / split / name / ("deep" if k == 1 else "")
            folder.mkdir(parents=True)
            for i in range(per_class):
                (folder / f"{i}.jpg").write_bytes(picture(seed))
                seed += 1
    return root


def run(*words) -> int:
    """The command, in this process."""
    return prepare.main([str(word) for word in words])


def read(root: Path, split: str = "train") -> Source:
    """What training reads."""
    return open_source(f"arrayrecord:{root}@{split}", default_split="train")


def contents(root: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
