"""Vision Transformer, "An Image is Worth 16x16 Words" (arXiv 2010.11929).

Shapes: B batch, H x W image, C channels, P patch, N tokens, D width, L depth, K classes.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from vit_jax.models import heads, posemb
from vit_jax.models.attention import Attention
from vit_jax.models.check import check_images, check_model, grid_of
from vit_jax.models.mlp import Mlp

# What a rematerialised block keeps for the backward pass besides its input.
REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # the dense layers, not the attention
    "full": jax.checkpoint_policies.nothing_saveable,
}


def _identity(x: jax.Array) -> jax.Array:
    return x


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
    """Pre-norm Transformer block: x + attn(norm(x)), then x + mlp(norm(x))."""

    mlp_dim: int
    num_heads: int
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

    @nn.compact
    def __call__(
        self,
        x: jax.Array,  # [B, N, D]
        drop_rate: jax.Array,  # [], the rate at which this block's branches are dropped
    ) -> tuple[jax.Array, jax.Array | None]:  # [B, N, D] and attention weights [B, heads, N, N] or None
        x = self.constrain(x)
        y = nn.LayerNorm(self.ln_eps, dtype=self.dtype, name="norm1")(x)
        y, weights = Attention(
            num_heads=self.num_heads,
            dropout=self.attn_dropout,
            train=self.train,
            return_weights=self.capture_attention,
            dtype=self.dtype,
            softmax_dtype=self.softmax_dtype,
            attention=self.attention,
            name="attn",
        )(y, y)
        y = nn.Dropout(self.dropout, deterministic=not self.train)(y)
        x = x + self._drop_branch(y, drop_rate)

        y = nn.LayerNorm(self.ln_eps, dtype=self.dtype, name="norm2")(x)
        y = Mlp(self.mlp_dim, self.gelu, self.dropout, self.train, self.dtype, name="mlp")(y)
        x = x + self._drop_branch(y, drop_rate)
        return x, weights

    def _drop_branch(self, y: jax.Array, rate: jax.Array) -> jax.Array:
        return drop_branch(y, rate, self.make_rng("dropout")) if self.train and self.stochastic else y


class Encoder(nn.Module):
    """L blocks and a last LayerNorm, [B, N, D] -> [B, N, D].

    With `scan`, one compiled block runs L times over parameters that have a leading layer axis.
    """

    depth: int
    stoch_depth: float
    scan: bool
    remat: str
    block: dict  # the fields of Block

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        rates = block_rates(self.depth, self.stoch_depth)
        block_class = Block
        if self.remat != "none":
            # In a scan the loop itself keeps XLA from undoing the rematerialisation.
            block_class = nn.remat(Block, policy=REMAT_POLICIES[self.remat], prevent_cse=not self.scan)
        if self.scan:
            scanned = nn.scan(
                block_class,
                variable_axes={"params": 0},
                split_rngs={"params": True, "dropout": True},
                length=self.depth,
            )
            x, weights = scanned(**self.block, name="blocks")(x, rates)
        else:
            weights = []
            for i in range(self.depth):
                x, layer_weights = block_class(**self.block, name=f"block_{i}")(x, rates[i])
                weights.append(layer_weights)
            weights = jnp.stack(weights) if self.block["capture_attention"] else None
        x = nn.LayerNorm(self.block["ln_eps"], dtype=self.block["dtype"], name="norm")(x)
        return x, weights  # [B, N, D]; [L, B, heads, N, N] or None


class PatchEmbed(nn.Module):
    """Linear embedding of non-overlapping patches, [B, H, W, C] -> [B, H/P * W/P, D]."""

    patch_size: int
    width: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        B, H, W, C = images.shape
        P, D = self.patch_size, self.width
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (P, P, C, D))
        bias = self.param("bias", nn.initializers.zeros, (D,))
        images, kernel, bias = nn.dtypes.promote_dtype(images, kernel, bias, dtype=self.dtype)
        # The strided convolution of the paper, written as the matmul it is: as fast, and simple to shard.
        patches = images.reshape(B, H // P, P, W // P, P, C).transpose(0, 1, 3, 2, 4, 5)
        x = patches.reshape(B, -1, P * P * C) @ kernel.reshape(P * P * C, D)
        return x + bias[None, None]


class ViT(nn.Module):
    """Vision Transformer: images [B, H, W, C] float, already normalised -> logits [B, K] float32, aux.

    `vit_jax.create_model` fills the fields from a name such as "B/16". Parameters are float32; `dtype` is the
    type of activations and matmuls. LayerNorm statistics, pooled features and logits are float32 in any case.
    """

    patch_size: int
    width: int
    depth: int
    mlp_dim: int
    num_heads: int
    num_classes: int  # 0: no classifier, logits are the pre-logits
    image_size: int | tuple[int, int]  # (height, width) the learned position table is made for
    channels: int = 3
    pool: str = "tok"  # tok | gap | map | tok_gap | none (logits of every patch)
    posemb: str = "learn"  # learn | sincos2d | none
    posemb_cls: bool = False  # the class token has a row of its own in the learned table
    rep_size: int = 0  # width of the dense + tanh layer before the classifier; 0: none
    dropout: float = 0.0  # after the position embedding and every dense layer but q, k, v
    attn_dropout: float = 0.0  # of the attention weights
    stoch_depth: float = 0.0  # rate at which the last block's branches are dropped; linear in depth
    head_bias_init: float = 0.0
    gelu: str = "tanh"  # tanh | erf
    ln_eps: float = 1e-6
    scan: bool = False
    remat: str = "none"  # none | dots | full
    dtype: jnp.dtype | str = jnp.float32
    softmax_dtype: jnp.dtype | str = jnp.float32
    attention: str = "auto"  # auto | xla
    constrain: Callable[[jax.Array], jax.Array] = _identity  # on [B, N, D] activations at every block

    @nn.compact
    def __call__(
        self,
        images: jax.Array,
        *,
        train: bool = False,
        capture_attention: bool = False,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Runs the model; `rngs={"dropout": key}` serves dropout and stochastic depth in training.

        Returns:
            logits: [B, K] float32; [B, N, K] with pool "none"; the pre-logits when there are no classes.
            aux: "patch_embed" [B, N, D], "with_posemb" [B, N, D] (input of the encoder, before dropout),
                "encoded" [B, N, D] after the last norm, class token first where there is one,
                "pre_logits" [B, D] float32, and with `capture_attention` "attention" [L, B, heads, N, N].

        Raises:
            UsageError: fields that don't go together, or images the model isn't made for.
        """
        check_model(self)
        check_images(self, images.shape, images.dtype)
        dtype, softmax_dtype = jnp.dtype(self.dtype), jnp.dtype(self.softmax_dtype)
        aux = {}

        x = PatchEmbed(self.patch_size, self.width, dtype, name="patch_embed")(images)
        aux["patch_embed"] = x
        x = self._add_tokens_and_positions(x, grid_of(images.shape[1:3], self.patch_size))
        aux["with_posemb"] = x
        x = nn.Dropout(self.dropout, deterministic=not train)(x)

        shared = {
            "mlp_dim": self.mlp_dim,
            "num_heads": self.num_heads,
            "gelu": self.gelu,
            "ln_eps": self.ln_eps,
            "dtype": dtype,
            "softmax_dtype": softmax_dtype,
            "attention": self.attention,
        }
        block = {
            **shared,
            "dropout": self.dropout,
            "attn_dropout": self.attn_dropout,
            "stochastic": self.stoch_depth > 0,
            "constrain": self.constrain,
            "train": train,
            "capture_attention": capture_attention,
        }
        encoder = Encoder(self.depth, self.stoch_depth, self.scan, self.remat, block, name="encoder")
        x, attention = encoder(x)
        aux["encoded"] = x
        if capture_attention:
            aux["attention"] = attention

        x = (
            heads.MapHead(**shared, name="map_head")(x)
            if self.pool == "map"
            else heads.pool_tokens(x, self.pool)
        )
        if self.rep_size:
            x = jnp.tanh(heads.representation(self.rep_size)(x))
        aux["pre_logits"] = x
        if self.num_classes:
            x = heads.classifier(self.num_classes, self.head_bias_init)(x)
        return x, aux

    def _add_tokens_and_positions(self, x: jax.Array, grid: tuple[int, int]) -> jax.Array:
        """Patches [B, N, D] -> [B, N (+ 1), D]: adds the position embedding, prepends the class token."""
        B, N, D = x.shape
        class_token = None
        if heads.has_class_token(self.pool):
            class_token = self.param("cls_token", nn.initializers.zeros, (1, 1, D))
            class_token = jnp.broadcast_to(class_token.astype(x.dtype), (B, 1, D))
        row_for_class = self.posemb_cls and class_token is not None
        if row_for_class:
            x = jnp.concatenate([class_token, x], axis=1)
        if self.posemb == "learn":
            table = self.param("posemb", nn.initializers.normal(0.02), (1, N + row_for_class, D))
            x = x + table.astype(x.dtype)
        elif self.posemb == "sincos2d":
            x = x + jnp.asarray(posemb.sincos2d(*grid, D), x.dtype)
        if class_token is not None and not row_for_class:
            x = jnp.concatenate([class_token, x], axis=1)
        return x
