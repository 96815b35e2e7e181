"""From encoded tokens to logits: pooling, the optional representation layer, the classifier.

Shapes: B batch, N tokens, D width, R size of the representation (D without such a layer), K classes.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from vit_jax.models.attention import Attention
from vit_jax.models.mlp import Mlp

POOLS = ("tok", "gap", "map", "tok_gap", "none")


def pools_class_token(pool: str) -> bool:
    """Whether this pooling reads a class token."""
    return pool in ("tok", "tok_gap")


def pool_tokens(tokens: jax.Array, pool: str, prefix: int) -> jax.Array:
    """[B, N, D] -> [B, D] float32 by the class token ("tok") or the mean of the patches ("gap").

    "tok_gap" concatenates both, [B, 2 D]; "none" keeps the patches, [B, N - prefix, D].

    Args:
        tokens: the class token if there is one, then registers, then patches.
        pool: one of `POOLS` but "map".
        prefix: the number of tokens before the patches.
    """
    tokens = tokens.astype(jnp.float32)
    patches = tokens[:, prefix:]
    if pool == "tok":
        return tokens[:, 0]
    if pool == "gap":
        return patches.mean(axis=1)
    if pool == "tok_gap":
        return jnp.concatenate([tokens[:, 0], patches.mean(axis=1)], axis=-1)
    if pool == "none":
        return patches
    raise ValueError(f"{pool!r} is not a pooling without parameters")


class MapHead(nn.Module):
    """Multi-head attention pooling: a learned probe attends to the tokens, then x + mlp(norm(x)).

    As in Scaling ViT (arXiv 2106.04560): as many heads as the encoder, no norm before the attention;
    no dropout, as in big_vision. Biases, GELU and plain queries and keys whatever the encoder's blocks have, as in
    timm.
    """

    num_heads: int
    mlp_dim: int
    gelu: str
    ln_eps: float
    dtype: jnp.dtype
    softmax_dtype: jnp.dtype
    attention: str

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:  # [B, N, D], patches only -> [B, D] float32
        B, _, D = tokens.shape
        probe = self.param("probe", nn.initializers.xavier_uniform(), (1, 1, D))
        x, _ = Attention(
            num_heads=self.num_heads,
            dtype=self.dtype,
            softmax_dtype=self.softmax_dtype,
            attention=self.attention,
            name="attn",
        )(jnp.broadcast_to(probe, (B, 1, D)), tokens)
        y = nn.LayerNorm(self.ln_eps, dtype=self.dtype, name="norm")(x)
        x = x + Mlp(self.mlp_dim, gelu=self.gelu, dtype=self.dtype, name="mlp")(y)
        return x[:, 0].astype(jnp.float32)


def representation(size: int) -> nn.Dense:
    """The dense layer of pre-training, [..., D] -> [..., R], float32; a tanh follows it."""
    return nn.Dense(size, dtype=jnp.float32, name="pre_logits")


def classifier(num_classes: int, bias_init: float) -> nn.Dense:
    """The last layer, [..., R] -> [..., K], float32: zero kernel and a constant bias.

    A bias of -10 makes every class improbable at the start, as sigmoid losses over thousands of classes want.
    """
    return nn.Dense(
        num_classes,
        dtype=jnp.float32,
        kernel_init=nn.initializers.zeros,
        bias_init=nn.initializers.constant(bias_init),
        name="head",
    )
