"""The baseline of `bench step`: a ViT and a training step as one writes them from flax's own parts.

Same task, shapes and optimizer as the project's step, nothing of its code: the ratio of the two says what our
abstractions cost, or gain, on any machine.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

PyTree = Any


class PlainViT(nn.Module):
    """Pre-norm ViT with a class token: [B, H, W, C] -> [B, K]."""

    patch_size: int
    width: int
    depth: int
    mlp_dim: int
    num_heads: int
    num_classes: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        patch, B, D = (self.patch_size, self.patch_size), images.shape[0], self.width
        x = nn.Conv(D, patch, patch, padding="VALID", dtype=self.dtype)(images).reshape(B, -1, D)
        token = self.param("cls", nn.initializers.zeros, (1, 1, D)).astype(x.dtype)
        x = jnp.concatenate([jnp.broadcast_to(token, (B, 1, D)), x], axis=1)
        positions = self.param("posemb", nn.initializers.normal(0.02), (1, x.shape[1], D))
        x = x + positions.astype(x.dtype)
        for _ in range(self.depth):
            y = nn.LayerNorm(1e-6, dtype=self.dtype)(x)
            x = x + nn.MultiHeadDotProductAttention(self.num_heads, dtype=self.dtype)(y, y)
            y = nn.LayerNorm(1e-6, dtype=self.dtype)(x)
            x = x + nn.Dense(D, dtype=self.dtype)(nn.gelu(nn.Dense(self.mlp_dim, dtype=self.dtype)(y)))
        return nn.Dense(self.num_classes)(nn.LayerNorm(1e-6, dtype=self.dtype)(x)[:, 0].astype(jnp.float32))


def plain_steps(
    model: PlainViT, *, image_size: int, learning_rate: float
) -> tuple[PyTree, Callable[..., Any], Callable[..., Any]]:
    """(state, train, forward): train(state, images, labels) -> (state, loss); forward(state, images, labels).

    Adam in float32 without clipping or decay; the state is donated. Images are uint8 [B, H, W, 3] and mapped to
    [-1, 1] on the device; labels int32 [B]; forward gives the loss and the number of correct rows.
    """
    optimizer = optax.adam(learning_rate)

    def init() -> PyTree:
        params = model.init(jax.random.key(0), jnp.zeros((1, image_size, image_size, 3)))["params"]
        return params, optimizer.init(params)

    def loss_fn(params: PyTree, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = model.apply({"params": params}, images.astype(jnp.float32) / 127.5 - 1)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), logits

    def train(state: PyTree, images: jax.Array, labels: jax.Array) -> tuple[PyTree, jax.Array]:
        params, opt_state = state
        (loss, _), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, images, labels)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    def forward(state: PyTree, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, logits = loss_fn(state[0], images, labels)
        return loss, (logits.argmax(-1) == labels).sum()

    return jax.jit(init)(), jax.jit(train, donate_argnums=0), jax.jit(forward)
