"""The Transformer encoder: pre-norm blocks, as a loop or a scan, with or without rematerialisation.

Shapes: B batch, N tokens, D width, L depth.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from vit_jax.models.attention import Attention
from vit_jax.models.axial import LINES, from_lines, to_lines
from vit_jax.models.dropout import Dropout
from vit_jax.models.mlp import Mlp
from vit_jax.models.positions import Layout, Positions, layer_table

# What a rematerialised block keeps for the backward pass besides its input.
REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # the dense layers, not the attention
    "full": jax.checkpoint_policies.nothing_saveable,
}


def drop_branch(y: jax.Array, rate: jax.Array, key: jax.Array) -> jax.Array:
    """Stochastic depth (arXiv 1603.09382): zeroes the branch y [B, N, D] of some examples, scales up others.

    The expected value stays y; `rate` is the share of examples whose branch is dropped, a scalar below 1.
    """
    keep = jax.random.bernoulli(key, 1 - rate, (y.shape[0], 1, 1))
    return y * (keep / (1 - rate)).astype(y.dtype)


def block_rates(depth: int, last: float) -> jax.Array:
    """Rates of stochastic depth, [L] float32, linear in depth: 0 for the first block, `last` for the last."""
    return jnp.linspace(0.0, last, depth, dtype=jnp.float32)


class Block(nn.Module):
    """Pre-norm Transformer block: x + attn(norm(x)), then x + mlp(norm(x)).

    With `layer_scale` (arXiv 2103.17239) each branch is multiplied by a learned vector, of that initial value.
    Positions of a layer, its own (`positions`) or those it is given, act before or in the attention. With `line`
    tokens attend along their row or column of `grid` alone.
    """

    mlp_dim: int
    num_heads: int
    qkv_bias: bool
    qk_norm: bool
    layer_scale: float  # 0: none
    swiglu: bool
    dropout: float
    attn_dropout: float
    stochastic: bool  # whether branches are dropped at all
    gelu: str
    ln_eps: float
    dtype: jnp.dtype
    softmax_dtype: jnp.dtype
    attention: str
    constrain: Callable[[jax.Array], jax.Array]
    train: bool
    capture_attention: bool
    positions: Layout | None = None  # of a table of the block's own
    line: str | None = None  # row | column; None: all tokens attend to all
    grid: tuple[int, int] | None = None  # (rows, columns), for `line`

    @nn.compact
    def __call__(
        self,
        x: jax.Array,  # [B, N, D]
        drop_rate: jax.Array,  # [], the rate at which this block's branches are dropped
        shared: Positions = Positions(),  # noqa: B008, of a table that all layers share
    ) -> tuple[jax.Array, jax.Array | None]:  # [B, N, D] and attention weights [B, heads, N, N] or None
        x = self.constrain(x)
        positions = shared
        if self.positions is not None:
            positions = layer_table(self, self.positions, x.shape[-1], self.num_heads)
        if positions.added is not None:
            x = x + positions.added.astype(x.dtype)
        y = nn.LayerNorm(self.ln_eps, dtype=self.dtype, name="norm1")(x)
        if self.line is not None:
            y = to_lines(y, self.grid, self.line)
        y, weights = Attention(
            num_heads=self.num_heads,
            qkv_bias=self.qkv_bias,
            qk_norm=self.qk_norm,
            ln_eps=self.ln_eps,
            dropout=self.attn_dropout,
            train=self.train,
            return_weights=self.capture_attention,
            dtype=self.dtype,
            softmax_dtype=self.softmax_dtype,
            attention=self.attention,
            name="attn",
        )(y, y, positions.relative)
        if self.line is not None:
            y = from_lines(y, self.grid, self.line)
        y = Dropout(self.dropout, deterministic=not self.train)(y)
        x = x + self._branch(y, drop_rate, "layer_scale1")

        y = nn.LayerNorm(self.ln_eps, dtype=self.dtype, name="norm2")(x)
        y = Mlp(
            self.mlp_dim,
            gelu=self.gelu,
            swiglu=self.swiglu,
            dropout=self.dropout,
            train=self.train,
            dtype=self.dtype,
            name="mlp",
        )(y)
        x = x + self._branch(y, drop_rate, "layer_scale2")
        return x, weights

    def _branch(self, y: jax.Array, rate: jax.Array, scale_name: str) -> jax.Array:
        """What is added to the stream: y [B, N, D], scaled and in training sometimes dropped."""
        if self.layer_scale:
            init = nn.initializers.constant(self.layer_scale)
            y = y * self.param(scale_name, init, y.shape[-1:])[None, None].astype(y.dtype)
        return drop_branch(y, rate, self.make_rng("dropout")) if self.train and self.stochastic else y


class AxialBlock(nn.Module):
    """A block whose tokens attend along their row, then one along their column, each with its MLP."""

    block: Mapping[str, Any]  # the fields of Block

    @nn.compact
    def __call__(self, x: jax.Array, drop_rate: jax.Array, _shared: Positions) -> tuple[jax.Array, None]:
        for line in LINES:
            x, _ = Block(**self.block, line=line, name=line)(x, drop_rate)
        return x, None


class Encoder(nn.Module):
    """L blocks and, unless `last_norm` is false, a last LayerNorm: [B, N, D] -> [B, N, D].

    With `scan`, one compiled block runs L times over parameters that have a leading layer axis.
    """

    depth: int
    stoch_depth: float
    scan: bool
    remat: str
    last_norm: bool
    gather: Callable[[Any], Any] | None  # on a block's parameters, where it uses them
    block: dict[str, Any]  # the fields of Block
    axial: bool = False  # every layer is an AxialBlock

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        shared: Positions = Positions(),  # noqa: B008, of all layers
    ) -> tuple[jax.Array, jax.Array | None]:
        rates = block_rates(self.depth, self.stoch_depth)
        block_class, fields = (AxialBlock, {"block": self.block}) if self.axial else (Block, self.block)
        if self.gather is not None and not self.is_initializing():
            # Inside the rematerialisation: gathered weights aren't kept, but gathered again going backward.
            block_class = nn.map_variables(block_class, "params", trans_in_fn=self.gather)
        if self.remat != "none":
            # In a scan the loop itself keeps XLA from undoing the rematerialisation.
            block_class = nn.remat(block_class, policy=REMAT_POLICIES[self.remat], prevent_cse=not self.scan)
        if self.scan:
            scanned = nn.scan(
                block_class,
                variable_axes={"params": 0},
                split_rngs={"params": True, "dropout": True},
                in_axes=(0, nn.broadcast),
                length=self.depth,
            )
            x, weights = scanned(**fields, name="blocks")(x, rates, shared)
        else:
            weights = []
            for i in range(self.depth):
                x, layer_weights = block_class(**fields, name=f"block_{i}")(x, rates[i], shared)
                weights.append(layer_weights)
            weights = jnp.stack(weights) if self.block["capture_attention"] else None
        if self.last_norm:
            x = nn.LayerNorm(self.block["ln_eps"], dtype=self.block["dtype"], name="norm")(x)
        return x, weights  # [B, N, D]; [L, B, heads, N, N] or None
