"""Small models with parameters of which every one matters, and what it means that an export is the same."""

import jax
import numpy as np

from vit_jax import create_model
from vit_jax.export import parity

SIZE = (32, 48)
NAMES = ["cat", "dog", "Übergröße"]
NORMALIZATION = ([127.5, 127.5, 127.5], [127.5, 127.5, 120.0])


def images(model, batch):
    height, width = model.image_size
    shape = (8, height, width, model.channels)
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)[:batch]


def tiny(num_classes=3, depth=2, **fields):
    """A small model, and parameters far from initial values, such as zeros, that would hide a mistake."""
    model = create_model("mu/16", num_classes=num_classes, image_size=SIZE, depth=depth, **fields)
    return model, random_params(model, images(model, 1))


def random_params(model, pixels):
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(model.init, jax.random.key(0), pixels)["params"]
    return jax.tree.map(lambda leaf: (0.3 * rng.normal(size=leaf.shape)).astype(np.float32), shapes)


def logits_of(model, params, batch):
    return np.asarray(jax.jit(model.apply)({"params": params}, images(model, batch))[0])


def assert_same(reference, other):
    assert other.dtype == np.float32
    largest, _ = parity(reference, other)
    assert largest <= 1e-5 and np.ptp(reference) > 0.1
