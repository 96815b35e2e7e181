"""The embedding of patches as tokens."""

import jax
import jax.numpy as jnp
from flax import linen as nn


class PatchEmbed(nn.Module):
    """Linear embedding of non-overlapping patches, [B, H, W, C] -> [B, H/P * W/P, D]."""

    patch_size: int
    width: int
    dtype: jnp.dtype
    use_bias: bool = True

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        B, H, W, C = images.shape
        P, D = self.patch_size, self.width
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (P, P, C, D))
        bias = self.param("bias", nn.initializers.zeros, (D,)) if self.use_bias else None
        images, kernel, bias = nn.dtypes.promote_dtype(images, kernel, bias, dtype=self.dtype)
        # The strided convolution of the paper, written as the matmul it is: as fast, and simple to shard.
        patches = images.reshape(B, H // P, P, W // P, P, C).transpose(0, 1, 3, 2, 4, 5)
        x = patches.reshape(B, -1, P * P * C) @ kernel.reshape(P * P * C, D)
        return x if bias is None else x + bias[None, None]
