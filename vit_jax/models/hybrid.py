"""The convolutional backbone of the ViT paper's hybrids (arXiv 2010.11929, section 3.1 and appendix B).

The ViT takes its patches from the backbone's feature map instead of from the image.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from vit_jax.models.resnet import root_and_stages


class Backbone(nn.Module):
    """Root and stages of a post-norm ResNet ("v1"): [B, H, W, C] -> [B, H/s, W/s, C'].

    s is `check.backbone_stride(depths)`; without stages (R+Ti/16) the root alone gives H/4 x W/4.
    """

    depths: tuple[int, ...]
    width_factor: float
    dtype: jnp.dtype
    constrain: Callable[[jax.Array], jax.Array]

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        return root_and_stages(
            images,
            depths=self.depths,
            width_factor=self.width_factor,
            generation="v1",
            dtype=self.dtype,
            constrain=self.constrain,
        )[0]
