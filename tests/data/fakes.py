"""A source and a preprocessing of known content for the pipeline's tests; workers import them."""

import errno
import os
from dataclasses import dataclass

import numpy as np

from vit_jax.data.decode import BadImage


@dataclass(frozen=True)
class Example:
    image: np.ndarray
    label: int | np.ndarray
    name: str


class FakeSource:
    """Example i: a 4x4x3 image of value i % 256, label i % 10, path img/i.png; some are unreadable."""

    def __init__(self, n, *, bad=(), missing=(), odd=(), multi_hot=False, labels=10):
        self.n, self.bad, self.missing, self.odd = n, set(bad), set(missing), set(odd)
        self.multi_hot, self.labels = multi_hot, labels

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i in self.missing:
            raise FileNotFoundError(errno.ENOENT, "No such file", f"img/{i}.png")
        shape = (5, 4, 3) if i in self.odd else (4, 4, 3)
        label = i % self.labels
        if self.multi_hot:
            label = np.eye(self.labels, dtype=np.float32)[label]
        image = None if i in self.bad else np.full(shape, i % 256, np.uint8)
        return Example(image, label, f"img/{i}.png")


@dataclass(frozen=True)
class FakePreprocess:
    """Adds noise that differs with each draw of random numbers."""

    random: bool = True

    def host(self, image, rng, name):
        if image is None:
            raise BadImage(name, "truncated")
        if self.random:
            image = image + rng.integers(0, 256, image.shape, dtype=np.uint8)
        return image


class DeadlySource(FakeSource):
    """Ends any process but the first that reads example 20, as the kernel does when memory runs out."""

    def __init__(self, n):
        super().__init__(n)
        self.home = os.getpid()

    def __getitem__(self, i):
        if i == 20 and os.getpid() != self.home:
            os._exit(9)
        return super().__getitem__(i)


PLAIN = FakePreprocess(random=False)
NOISY = FakePreprocess(random=True)
