"""The two-layer perceptron of a Transformer block, also used by the attention-pooling head."""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn

from vit_jax.models.dropout import Dropout

# The published Google checkpoints use the tanh form, timm and Hugging Face erf: up to 5e-4 apart.
GELU = {
    "tanh": functools.partial(nn.gelu, approximate=True),
    "erf": functools.partial(nn.gelu, approximate=False),
}


class Mlp(nn.Module):
    """[B, N, D] -> fc1 -> GELU -> fc2 -> [B, N, D]; dropout after each dense layer.

    With `swiglu` the hidden units are silu(gate(x)) * fc1(x) instead (arXiv 2002.05202).
    """

    mlp_dim: int
    gelu: str = "tanh"
    swiglu: bool = False
    dropout: float = 0.0
    train: bool = False
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        D = x.shape[-1]
        drop = Dropout(self.dropout, deterministic=not self.train)
        init = {"kernel_init": nn.initializers.xavier_uniform(), "bias_init": nn.initializers.normal(1e-6)}
        hidden = nn.Dense(self.mlp_dim, dtype=self.dtype, name="fc1", **init)(x)
        if self.swiglu:
            hidden = nn.silu(nn.Dense(self.mlp_dim, dtype=self.dtype, name="gate", **init)(x)) * hidden
        else:
            hidden = GELU[self.gelu](hidden)
        return drop(nn.Dense(D, dtype=self.dtype, name="fc2", **init)(drop(hidden)))
