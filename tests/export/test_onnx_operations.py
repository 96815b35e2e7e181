"""ONNX forms of jax operations beyond those of a ViT, and the refusal of the rest."""

import os

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.export.tiny_models import assert_same, random_params
from vit_jax.errors import UsageError
from vit_jax.export import read_back_logits_onnx, write_onnx


class Zoo(nn.Module):
    """The operations of convolutional models, and forms of indexing, in no useful order."""

    extra: str = ""
    num_classes: int = 4
    image_size: int = 16
    channels: int = 3
    dtype: str = "float32"

    @nn.compact
    def __call__(self, images, *, train=False):
        x = nn.Conv(8, (7, 7), (2, 2), padding=[(3, 3), (2, 3)], use_bias=False)(images)
        x = nn.max_pool(jnp.pad(x, ((0, 0), (1, 0), (0, 1), (0, 0))), (3, 3), (2, 2), [(1, 1), (0, 1)])
        x = nn.Conv(8, (3, 3), feature_group_count=4, kernel_dilation=2, padding=[(2, 2), (2, 2)])(x)
        x = nn.relu(nn.GroupNorm(2)(x))
        kernel = self.param("kernel", nn.initializers.normal(), (8, 4))
        kernel = (kernel - kernel.mean(0, keepdims=True)) / jnp.sqrt(kernel.var(0, keepdims=True) + 1e-6)
        left, right = jnp.split(x @ kernel, 2, axis=-1)
        x = jnp.where(left > right, left**3, jax.nn.sigmoid(right) - jnp.minimum(left, 0.1))
        if self.extra == "cumsum":
            x = jnp.cumsum(x, axis=1)
        if self.extra == "across examples":
            x = x[::-1]
        x = jnp.concatenate([x[:, 1], jax.lax.slice_in_dim(x[:, -1], 0, 4, 2, axis=1), x[:, 0, 1:3]], axis=1)
        # A large epsilon: rows of four nearly equal numbers would blow float32 noise up beyond the tolerance.
        x = jax.nn.softmax(x, axis=1) + nn.LayerNorm(0.1, use_bias=False)(x) + jax.nn.softmax(x, axis=-1)
        x = jnp.einsum("bnd,bmd->bdnm", x, x).max((2, 3)) - jnp.abs(x).min(1)
        return nn.Dense(self.num_classes)(jnp.tanh(x)), {}


@pytest.mark.parametrize("opset", [17, 18])
def test_a_model_made_of_known_operations(opset, tmp_path):
    model = Zoo()
    pixels = np.random.default_rng(0).normal(size=(3, 16, 16, 3)).astype(np.float32)
    params = random_params(model, pixels)
    write_onnx(model, params, tmp_path / "model.onnx", opset=opset)
    for batch in (1, 3):
        reference = np.asarray(model.apply({"params": params}, pixels[:batch])[0])
        assert_same(reference, read_back_logits_onnx(tmp_path / "model.onnx", pixels[:batch]))


@pytest.mark.parametrize(("extra", "operation"), [("cumsum", "cumsum"), ("across examples", "dim_as_value")])
def test_an_operation_without_a_form_is_refused(extra, operation, tmp_path):
    model = Zoo(extra=extra)
    params = random_params(model, np.zeros((1, 16, 16, 3), np.float32))
    with pytest.raises(UsageError, match=rf"jax operation {operation} in .* no ONNX form.*stablehlo"):
        write_onnx(model, params, tmp_path / "model.onnx")
    assert not os.listdir(tmp_path)
