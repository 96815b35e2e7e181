"""Model architectures in flax.linen, one a file; they know no config, no mesh and no file."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from vit_jax.errors import UsageError, known_names
from vit_jax.models.variants import list_models, variant_fields

if TYPE_CHECKING:
    from flax import linen as nn

__all__ = ["create_model", "list_models"]


def create_model(
    name: str, *, num_classes: int, image_size: int | tuple[int, int], **fields: Any
) -> nn.Module:
    """The named model; parameters come from its `init` and outputs from its `apply`.

    Args:
        name: a variant and a patch size such as "B/16"; `list_models` shows the usual ones.
        num_classes: width of the classifier; 0 for a model that returns its pre-logits.
        image_size: one side in pixels, or (height, width).
        **fields: any other field of the model, such as `pool`, `dropout` or `scan`; also overrides the
            variant's own `width`, `depth`, `mlp_dim`, `num_heads` and `patch_size`.

    Raises:
        UsageError: unknown name or field, or values that don't go together.
    """
    # Here rather than above, so that listing names doesn't load jax.
    from vit_jax.models.check import check_model, size_of
    from vit_jax.models.vit import ViT

    known = {f.name for f in dataclasses.fields(ViT)} - {"parent", "name"}
    for field in fields.keys() - known:
        raise UsageError(f"unknown model field {field!r}", known_names(field, sorted(known)))
    shape = {**variant_fields(name), **fields}
    model = ViT(num_classes=num_classes, image_size=size_of(image_size), **shape)
    check_model(model)
    return model
