"""Vision Transformer, "An Image is Worth 16x16 Words" (arXiv 2010.11929), with or without a ResNet before it.

Shapes: B batch, H x W image, C channels, P patch, N tokens, R registers, D width, L depth, K classes.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from vit_jax.errors import UsageError
from vit_jax.models import heads, posemb, positions
from vit_jax.models.block import Encoder
from vit_jax.models.check import check_grid, check_images, check_no_attention, check_vit, token_grid
from vit_jax.models.dropout import Dropout
from vit_jax.models.embed import PatchEmbed
from vit_jax.models.hybrid import Backbone


def _identity(x: jax.Array) -> jax.Array:
    return x


class ViT(nn.Module):
    """Vision Transformer: images [B, H, W, C] float, already normalised -> logits [B, K] float32, aux.

    `vit_jax.create_model` fills the fields from a name such as "B/16" or "R50+B/16". Parameters are float32;
    `dtype` is the type of activations and matmuls. Statistics of norms, pooled features and logits are float32 in
    any case. Tokens are the class token where there is one, then registers, then patches in reading order.
    """

    patch_size: int  # of the image, or of the backbone's feature map
    width: int
    depth: int
    mlp_dim: int
    num_heads: int
    num_classes: int  # 0: no classifier, logits are the pre-logits
    image_size: int | tuple[int, int]  # (height, width) the learned position table is made for
    channels: int = 3
    backbone: tuple[int, ...] | None = None  # hybrid: units of each ResNet stage; () is the root alone
    backbone_width: float = 1.0
    patch_bias: bool = True
    class_token: bool | None = (
        None  # None: if the pooling reads it. True with gap: it attends, but isn't pooled
    )
    num_registers: int = 0  # further learned tokens, without positions and never pooled (arXiv 2309.16588)
    mask_token: bool = False  # a learned embedding that stands for the patches of `masked`
    posemb: str = "learn"  # learn | learn2d | relative | sincos2d | none
    # stem: before the first layer | every: a table of its own in every layer | shared: one table, in all layers;
    # None: stem, but every for relative
    posemb_at: str | None = None
    posemb_cls: bool = False  # the class token has a row of its own in the table of "learn"
    axial: bool = False  # every layer attends along rows, then along columns, with an MLP each
    pre_norm: bool = False  # LayerNorm between positions and blocks, as in CLIP
    qkv_bias: bool = True
    qk_norm: bool = False  # LayerNorm of each head's queries and keys
    layer_scale: float = 0.0  # initial value of the learned scale of every branch; 0: none
    swiglu: bool = False  # MLP units silu(gate) * fc1 instead of GELU(fc1)
    pool: str = "tok"  # tok | gap | map | tok_gap | none (logits of every patch)
    norm_after_pool: bool = False  # the last LayerNorm follows the pooling, as timm's fc_norm
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
    constrain: Callable[[jax.Array], jax.Array] = _identity  # on [B, ...] activations at every block or unit
    gather: Callable[[Any], Any] | None = None  # on a block's parameters, where it uses them

    @property
    def has_class_token(self) -> bool:
        """Whether there is a class token."""
        return heads.pools_class_token(self.pool) if self.class_token is None else self.class_token

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patch tokens at `image_size`: the grid of the learned position table."""
        return token_grid(self, self.image_size)

    @nn.compact
    def __call__(
        self,
        images: jax.Array,
        *,
        train: bool = False,
        capture_attention: bool = False,
        masked: jax.Array | None = None,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Runs the model; `rngs={"dropout": key}` serves dropout and stochastic depth in training.

        Args:
            masked: bool [B, N], the patches whose embedding the mask token replaces, positions aside; None: none.

        Returns:
            logits: [B, K] float32; [B, N, K] of the patches with pool "none"; the pre-logits when there are no
                classes.
            aux: "patch_embed" [B, N, D] (patches only, none masked), "with_posemb" [B, N, D] (all tokens, before
                dropout), "encoded" [B, N, D] (all tokens) after the last norm, or after the last block with
                `norm_after_pool`; "pre_logits" [B, D] float32, the classifier's input; and with
                `capture_attention` "attention" [L, B, heads, N, N].

        Raises:
            UsageError: fields that don't go together, or images the model isn't made for.
        """
        check_vit(self)
        check_images(self, images.shape, images.dtype)
        if masked is not None and not self.mask_token:
            raise UsageError(
                "masked patches for a model without a mask token", "create it with mask_token=True"
            )
        if self.axial:
            check_no_attention(self, capture_attention)
        grid = token_grid(self, images.shape[1:3])
        if self.posemb in positions.LEARNED:
            check_grid(images.shape, grid, self.grid, "position table is")
        dtype, softmax_dtype = jnp.dtype(self.dtype), jnp.dtype(self.softmax_dtype)
        aux = {}

        x = images
        if self.backbone is not None:
            x = Backbone(self.backbone, self.backbone_width, dtype, self.constrain, name="backbone")(x)
        x = PatchEmbed(self.patch_size, self.width, dtype, self.patch_bias, name="patch_embed")(x)
        aux["patch_embed"] = x
        if self.mask_token:
            token = self.param("mask_token", nn.initializers.zeros, (1, 1, self.width)).astype(dtype)
            x = x if masked is None else jnp.where(masked[..., None], token, x)
        x = self._add_tokens_and_positions(x, grid)
        aux["with_posemb"] = x
        x = Dropout(self.dropout, deterministic=not train)(x)
        if self.pre_norm:
            x = nn.LayerNorm(self.ln_eps, dtype=dtype, name="pre_norm")(x)

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
            "qkv_bias": self.qkv_bias,
            "qk_norm": self.qk_norm,
            "layer_scale": self.layer_scale,
            "swiglu": self.swiglu,
            "dropout": self.dropout,
            "attn_dropout": self.attn_dropout,
            "stochastic": self.stoch_depth > 0,
            "constrain": self.constrain,
            "train": train,
            "capture_attention": capture_attention,
        }
        place = positions.place_of(self.posemb, self.posemb_at)
        layout = self._layout(grid)
        of_all = positions.Positions()
        if place == "every":
            block["positions"] = layout
        elif place == "shared":
            of_all = positions.layer_table(self, layout, self.width, self.num_heads)
        if self.axial:
            block["grid"] = grid
        encoder = Encoder(
            self.depth,
            self.stoch_depth,
            scan=self.scan,
            remat=self.remat,
            last_norm=not self.norm_after_pool,
            gather=self.gather,
            block=block,
            axial=self.axial,
            name="encoder",
        )
        x, attention = encoder(x, of_all)
        aux["encoded"] = x
        if capture_attention:
            aux["attention"] = attention

        prefix = self.has_class_token + self.num_registers
        if self.pool == "map":
            x = heads.MapHead(**shared, name="map_head")(x[:, prefix:])
        else:
            x = heads.pool_tokens(x, self.pool, prefix)
        if self.norm_after_pool:
            x = nn.LayerNorm(self.ln_eps, dtype=jnp.float32, name="pool_norm")(x)
        if self.rep_size:
            x = jnp.tanh(heads.representation(self.rep_size)(x))
        aux["pre_logits"] = x
        if self.num_classes:
            x = heads.classifier(self.num_classes, self.head_bias_init)(x)
        return x, aux

    def _layout(self, grid: tuple[int, int]) -> positions.Layout:
        """What the tables of learned positions are made for."""
        class_row = self.posemb == "learn" and self.posemb_cls and self.has_class_token
        return positions.Layout(self.posemb, grid, self.has_class_token + self.num_registers, class_row)

    def _add_tokens_and_positions(self, x: jax.Array, grid: tuple[int, int]) -> jax.Array:
        """Patches [B, N, D] -> all tokens: adds the position embedding, prepends class token and registers."""
        B, _, D = x.shape
        prefix = []
        if self.has_class_token:
            prefix.append(self.param("cls_token", nn.initializers.zeros, (1, 1, D)).astype(x.dtype))
        if self.num_registers:
            registers = self.param("registers", nn.initializers.normal(1e-6), (1, self.num_registers, D))
            prefix.append(registers.astype(x.dtype))
        in_stem = positions.place_of(self.posemb, self.posemb_at) == "stem"
        if self.posemb in positions.LEARNED and in_stem:
            layout = self._layout(grid)
            own_row = int(layout.class_row)
            table = positions.table(self, layout, D).astype(x.dtype)
            x = x + table[:, own_row:]
            if own_row:
                prefix[0] = prefix[0] + table[:, :1]
        elif self.posemb == "sincos2d":
            x = x + jnp.asarray(posemb.sincos2d(*grid, D), x.dtype)
        return jnp.concatenate([*(jnp.broadcast_to(t, (B, *t.shape[1:])) for t in prefix), x], axis=1)
