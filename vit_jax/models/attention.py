"""Multi-head attention: the attention proper is a plain function, chosen by name; the module only projects.

Shapes: B batch, N query tokens, M key tokens, D width, H heads, hd = D / H.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from vit_jax.errors import UsageError, known_names
from vit_jax.models.dropout import drop
from vit_jax.models.positions import relative_logits

# q [B, N, H, hd], k and v [B, M, H, hd] -> out [B, N, H, hd], and weights [B, H, N, M] or None.
AttentionFunction = Callable[..., tuple[jax.Array, jax.Array | None]]


def xla_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    softmax_dtype: jnp.dtype,
    dropout: float,
    dropout_key: jax.Array | None,
    return_weights: bool,
    bias: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """Softmax attention written as two einsums, which XLA compiles for any device.

    Args:
        q: queries, [B, N, H, hd], not yet scaled.
        k: keys, [B, M, H, hd].
        v: values, [B, M, H, hd].
        softmax_dtype: type of the logits and of the softmax; the matmuls read the type of q, k and v.
        dropout: rate at which attention weights are dropped.
        dropout_key: key for that, or None for no dropout.
        return_weights: also return the weights, before dropout.
        bias: [B, H, N, M] in softmax_dtype, added to the logits.

    Returns:
        The mixed values [B, N, H, hd] in the type of v;
        the weights [B, H, N, M] in softmax_dtype, or None.
    """
    q = q * (1.0 / math.sqrt(q.shape[-1]))  # on q, hd numbers a token, rather than on the N x M logits
    logits = jnp.einsum("bnhd,bmhd->bhnm", q, k, preferred_element_type=softmax_dtype)
    if bias is not None:
        logits = logits + bias
    weights = jax.nn.softmax(logits, axis=-1)
    kept = weights
    if dropout_key is not None and dropout > 0:
        kept = drop(weights, dropout, dropout_key)
    out = jnp.einsum("bhnm,bmhd->bnhd", kept.astype(v.dtype), v)
    return out, (weights if return_weights else None)


# "auto" is the fastest function that exists for the model at hand; so far there is only one.
ATTENTION: dict[str, AttentionFunction] = {"auto": xla_attention, "xla": xla_attention}
_PLANNED = ("cudnn", "pallas")


def attention_function(name: str) -> AttentionFunction:
    """The attention function of that name.

    Raises:
        UsageError: unknown name, or one that is reserved for a kernel which does not exist yet.
    """
    if name in _PLANNED:
        raise UsageError(f"attention {name!r} is not available yet", "use 'auto' or 'xla'")
    if name not in ATTENTION:
        raise UsageError(f"unknown attention {name!r}", known_names(name, ATTENTION))
    return ATTENTION[name]


class Projection(nn.Module):
    """Linear map between the last axes of x and `features`, with a kernel that keeps their shapes.

    Kernel [*inputs, *features], bias [*features]: [D] -> [H, hd] splits into heads, [H, hd] -> [D] merges.
    """

    features: tuple[int, ...]
    input_axes: int = 1
    use_bias: bool = True
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # [B, N, *inputs] -> [B, N, *features]
        inputs = x.shape[-self.input_axes :]
        kernel = self.param("kernel", _xavier_of_matrix(self.input_axes), (*inputs, *self.features))
        bias = self.param("bias", nn.initializers.zeros, self.features) if self.use_bias else None
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=self.dtype)
        y = jnp.tensordot(x, kernel, axes=self.input_axes)
        return y if bias is None else y + jnp.expand_dims(bias, range(y.ndim - bias.ndim))


class Attention(nn.Module):
    """Multi-head attention of the tokens of `queries` to the tokens of `keys`; `out` always has a bias.

    q, k and v are projected separately: one fused projection measured 8 % slower on TPU. With `qk_norm` each
    head's q and k pass a LayerNorm over their hd numbers, shared by the heads (ViT-22B, arXiv 2302.05442).
    """

    num_heads: int
    qkv_bias: bool = True
    qk_norm: bool = False
    ln_eps: float = 1e-6  # of q_norm and k_norm
    dropout: float = 0.0  # of the attention weights
    train: bool = False
    return_weights: bool = False
    dtype: jnp.dtype = jnp.float32
    softmax_dtype: jnp.dtype = jnp.float32
    attention: str = "auto"

    @nn.compact
    def __call__(
        self,
        queries: jax.Array,  # [B, N, D]
        keys: jax.Array,  # [B, M, D]
        relative: jax.Array | None = None,  # [2 n - 1, H, hd]: keys of the offsets between the last n tokens
    ) -> tuple[jax.Array, jax.Array | None]:  # [B, N, D] and weights [B, H, N, M] or None
        D = queries.shape[-1]
        heads = (self.num_heads, D // self.num_heads)
        dropping = self.train and self.dropout > 0
        project = functools.partial(Projection, heads, use_bias=self.qkv_bias, dtype=self.dtype)
        q, k, v = project(name="query")(queries), project(name="key")(keys), project(name="value")(keys)
        if self.qk_norm:
            q = nn.LayerNorm(self.ln_eps, dtype=self.dtype, name="q_norm")(q)
            k = nn.LayerNorm(self.ln_eps, dtype=self.dtype, name="k_norm")(k)
        bias = None
        if relative is not None:
            prefix = q.shape[1] - (relative.shape[0] + 1) // 2
            bias = relative_logits(q / math.sqrt(q.shape[-1]), relative, prefix, self.softmax_dtype)
        out, weights = attention_function(self.attention)(
            q,
            k,
            v,
            softmax_dtype=self.softmax_dtype,
            dropout=self.dropout,
            dropout_key=self.make_rng("dropout") if dropping else None,
            return_weights=self.return_weights,
            bias=bias,
        )
        return Projection((D,), input_axes=2, dtype=self.dtype, name="out")(out), weights


def _xavier_of_matrix(input_axes: int) -> nn.initializers.Initializer:
    """Xavier uniform with the fans of the whole matrix, all inputs x all features, not those of one head."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> jax.Array:
        matrix = (math.prod(shape[:input_axes]), math.prod(shape[input_axes:]))
        return nn.initializers.xavier_uniform()(key, matrix, dtype).reshape(shape)

    return init
