"""Looks into a Vision Transformer: what its parameters show, and what it attends to in an image.

Shapes: L layers, H heads, N tokens, an image [height, width, C], its grid of h x w patches.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh

from vit_jax import sharding, step, views
from vit_jax.errors import UsageError
from vit_jax.models.block import Block
from vit_jax.models.check import check_no_attention, token_grid, token_stride
from vit_jax.models.features import prefix_tokens
from vit_jax.models.heads import pools_class_token
from vit_jax.models.vit import ViT

# What a figure is called, in files and pages.
FILTERS, POSITIONS, DISTANCE, ROLLOUT = "filters", "positions", "attention_distance", "rollout"


@dataclass(frozen=True)
class Learned:
    """What the parameters show.

    Attributes:
      filters: of the patch embedding; None: see `left_out`.
      similarity: of position embeddings, float64 [h, w, h, w]; None: see `left_out`.
      left_out: FILTERS or POSITIONS -> why there is nothing to show.
    """

    filters: views.Filters | None
    similarity: np.ndarray | None
    left_out: dict[str, str]


@dataclass(frozen=True)
class Look:
    """What the model attends to in an image.

    Attributes:
      rollout: float64 [h, w], see `views.attended`.
      distance: float32 [L, H] pixels, of the attention that goes to patches.
      distance_raw: float32 [L, H], attention to class token and registers counting as no distance.
    """

    rollout: np.ndarray
    distance: np.ndarray
    distance_raw: np.ndarray


def check_inspectable(model: nn.Module) -> None:
    """Raises UsageError for a model without attention among all tokens."""
    if not isinstance(model, ViT):
        raise UsageError(
            f"a {type(model).__name__} has no attention and no position embeddings: there is no rollout, "
            "attention distance or similarity of positions to show",
            "give the checkpoint of a ViT or a hybrid",
        )
    check_no_attention(model, model.axial)


class Inspector:
    """Looks into one model; what it computes for images is compiled once.

    Attributes:
      grid: (h, w) of patches.
      reads: what the rollout follows back from the last layer, for captions.
    """

    def __init__(self, model: nn.Module, params: Any, mesh: Mesh, scale: step.Scale) -> None:
        """Takes a model with its parameters on the mesh, and the normalisation of its images.

        Raises:
          UsageError: a model without attention.
        """
        check_inspectable(model)
        # One image can't be shared out over the devices.
        self._model = model.clone(constrain=lambda x: x)
        self._params, self._mesh, self._scale = params, mesh, scale
        self.grid = token_grid(model, model.image_size)
        self._class_token = pools_class_token(model.pool)
        self.reads = "class token" if self._class_token else "mean of the patches, which the head reads"

    def learned(self) -> Learned:
        """What the parameters show. Collective: to be called on every process."""
        model, left_out = self._model, {}
        filters = similarity = None
        if model.backbone is None:
            kernel = self._whole("patch_embed", "kernel")
            if np.isfinite(kernel).all():
                filters = views.embedding_filters(kernel)
            else:
                left_out[FILTERS] = "the patch embedding holds numbers that aren't finite"
        else:
            left_out[FILTERS] = "patches are taken from the ResNet's feature map, not from the image"
        if model.posemb == "learn" and model.posemb_at != "every":
            own_row = int(model.posemb_cls and model.has_class_token)
            similarity = views.position_similarity(self._whole("posemb")[0, own_row:], self.grid)
        else:
            kinds = {
                "learn": "every layer has a position table of its own",
                "learn2d": "its positions are two tables, of rows and of columns",
                "relative": "its positions are relative: there's no table of places",
                "sincos2d": "its positions are fixed sines and cosines, not learned",
            }
            left_out[POSITIONS] = kinds.get(model.posemb, "the model has no position embedding")
        return Learned(filters, similarity, left_out)

    def look(self, image: np.ndarray) -> Look:
        """What is attended to in an image uint8 [height, width, C], preprocessed. Collective.

        Of the weights those of a layer or two are in memory at a time, and their mean over the heads of all layers.
        """
        batch = jax.device_put(image[None], sharding.replicated(self._mesh))
        mean, distance, raw = jax.device_get(self._capture(self._params, batch))
        read = views.readout(mean.shape[-1], prefix_tokens(self._model), class_token=self._class_token)
        return Look(views.attended(mean, read, self.grid), distance, raw)

    def _whole(self, *path: str) -> np.ndarray:
        """A parameter, gathered on every process."""
        leaf = functools.reduce(lambda tree, name: tree[name], path, self._params)
        return jax.device_get(jax.jit(lambda x: x, out_shardings=sharding.replicated(self._mesh))(leaf))

    @functools.cached_property
    def _capture(self) -> Any:
        """(params, images [1, height, width, C]) -> mean attention [L, N, N], distances [L, H], raw ones [L, H]."""
        model, grid, heads = self._model, self.grid, self._model.num_heads
        stride = token_stride(model)
        tokens = prefix_tokens(model) + grid[0] * grid[1]

        def summary(attention: jax.Array) -> jax.Array:
            """[1, H, N, N] -> [N * N + 2 H]"""
            attention = attention[0].astype(jnp.float32)
            distances = [
                views.mean_distance(attention, grid, stride, renormalise=only_patches)
                for only_patches in (True, False)
            ]
            return jnp.concatenate([attention.mean(axis=0).ravel(), *distances])

        def summarised(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
            out = call(*args, **kwargs)
            if isinstance(context.module, Block) and context.method_name == "__call__":
                return out[0], summary(out[1])
            return out

        def capture(params: Any, images: jax.Array) -> tuple[jax.Array, ...]:
            pixels = step.normalize(images, self._scale)
            # Summed up block by block: the weights of all layers and heads together are gigabytes.
            with nn.intercept_methods(summarised):
                _, aux = model.apply({"params": params}, pixels, train=False, capture_attention=True)
            mean, distance, raw = jnp.split(aux["attention"], (tokens**2, tokens**2 + heads), axis=1)
            return mean.reshape(-1, tokens, tokens), distance, raw

        return jax.jit(capture, out_shardings=sharding.replicated(self._mesh))
