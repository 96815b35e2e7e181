"""MLP-Mixer (arXiv 2105.01601): perceptrons across tokens and across channels in turn, no attention.

Shapes: B batch, H x W image, C channels, P patch, N tokens, D width, K classes.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from vit_jax.models import heads
from vit_jax.models.block import block_rates, drop_branch
from vit_jax.models.check import check_grid, check_images, check_mixer, check_no_attention, grid_of
from vit_jax.models.embed import PatchEmbed
from vit_jax.models.mlp import Mlp

_LN_EPS = 1e-6


def _identity(x: jax.Array) -> jax.Array:
    return x


class MixerBlock(nn.Module):
    """x + token_mlp(norm(x) transposed), then x + channel_mlp(norm(x)); [B, N, D]."""

    tokens_mlp_dim: int
    channels_mlp_dim: int
    drop_rate: jax.Array | None  # [], the rate at which branches are dropped; None: they aren't
    dtype: jnp.dtype
    constrain: Callable[[jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.constrain(x)
        y = nn.LayerNorm(_LN_EPS, dtype=self.dtype, name="norm1")(x).swapaxes(1, 2)  # [B, D, N]
        y = Mlp(self.tokens_mlp_dim, dtype=self.dtype, name="token_mlp")(y)
        x = x + self._drop_branch(y.swapaxes(1, 2))
        y = nn.LayerNorm(_LN_EPS, dtype=self.dtype, name="norm2")(x)
        return x + self._drop_branch(Mlp(self.channels_mlp_dim, dtype=self.dtype, name="channel_mlp")(y))

    def _drop_branch(self, y: jax.Array) -> jax.Array:
        return y if self.drop_rate is None else drop_branch(y, self.drop_rate, self.make_rng("dropout"))


class Mixer(nn.Module):
    """MLP-Mixer: images [B, H, W, C] float, already normalised -> logits [B, K] float32, aux.

    `vit_jax.create_model` fills the fields from a name such as "Mixer-B/16". Parameters are float32; `dtype` is the
    type of activations and matmuls. LayerNorm statistics, pooled features and logits are float32 in any case.
    """

    patch_size: int
    width: int
    depth: int
    tokens_mlp_dim: int
    channels_mlp_dim: int
    num_classes: int  # 0: no classifier, logits are the pre-logits
    image_size: int | tuple[int, int]  # (height, width): the token perceptrons are made for its patches
    channels: int = 3
    stoch_depth: float = 0.0  # rate at which the last block's branches are dropped; linear in depth
    head_bias_init: float = 0.0
    dtype: jnp.dtype | str = jnp.float32
    constrain: Callable[[jax.Array], jax.Array] = _identity  # on [B, N, D] activations at every block

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patches at `image_size`."""
        return grid_of(self.image_size, self.patch_size)

    @nn.compact
    def __call__(
        self, images: jax.Array, *, train: bool = False, capture_attention: bool = False
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Runs the model; `rngs={"dropout": key}` serves stochastic depth in training.

        Returns:
            logits: [B, K] float32; the pre-logits when there are no classes.
            aux: "patch_embed" [B, N, D], "encoded" [B, N, D] after the last norm, "pre_logits" [B, D] float32 its
                mean over the tokens.

        Raises:
            UsageError: fields that don't go together, images the model isn't made for, or `capture_attention`.
        """
        check_mixer(self)
        check_no_attention(self, capture_attention)
        check_images(self, images.shape, images.dtype)
        grid = grid_of(images.shape[1:3], self.patch_size)
        check_grid(images.shape, grid, self.grid, "token perceptrons are")
        dtype = jnp.dtype(self.dtype)

        x = PatchEmbed(self.patch_size, self.width, dtype, name="patch_embed")(images)
        aux = {"patch_embed": x}
        rates = block_rates(self.depth, self.stoch_depth)
        for i in range(self.depth):
            rate = rates[i] if train and self.stoch_depth > 0 else None
            x = MixerBlock(
                self.tokens_mlp_dim, self.channels_mlp_dim, rate, dtype, self.constrain, name=f"block_{i}"
            )(x)
        x = aux["encoded"] = nn.LayerNorm(_LN_EPS, dtype=dtype, name="norm")(x)
        x = aux["pre_logits"] = heads.pool_tokens(x, "gap", prefix=0)
        if self.num_classes:
            x = heads.classifier(self.num_classes, self.head_bias_init)(x)
        return x, aux
