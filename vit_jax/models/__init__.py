"""Model architectures in flax.linen, one a file; they know no config, no mesh and no file."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from vit_jax.errors import UsageError, known_names
from vit_jax.models.variants import list_models, model_family, variant_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from flax import linen as nn

__all__ = ["create_model", "list_models", "model_fields"]


def create_model(
    name: str, *, num_classes: int, image_size: int | tuple[int, int], **fields: Any
) -> nn.Module:
    """The named model; parameters come from its `init` and outputs from its `apply`.

    Args:
        name: such as "B/16", "R50+B/16", "R50x1" or "Mixer-B/16"; `list_models` shows the usual ones.
        num_classes: width of the classifier; 0 for a model that returns its pre-logits.
        image_size: one side in pixels, or (height, width).
        **fields: any other field of the model, such as `pool`, `dropout` or `scan` of a ViT; they also override
            what the name says, such as `width` and `patch_size`.

    Raises:
        UsageError: unknown name or field, or values that don't go together.
    """
    # Here rather than above, so that listing names doesn't load jax.
    from vit_jax.models.check import size_of

    known = model_fields(name)
    for field in fields.keys() - known:
        raise UsageError(f"{name} has no field {field!r}", known_names(field, sorted(known)))
    model_class, check = _architecture(name)
    shape = {**variant_fields(name), **fields}
    model = model_class(num_classes=num_classes, image_size=size_of(image_size), **shape)
    check(model)
    return model


def model_fields(name: str) -> frozenset[str]:
    """Names of the fields that the named model has, for `create_model`.

    Raises:
        UsageError: unknown name.
    """
    return frozenset(f.name for f in dataclasses.fields(_architecture(name)[0])) - {"parent", "name"}


def _architecture(name: str) -> tuple[type[nn.Module], Callable[[nn.Module], None]]:
    """The class of the named model, and the check of its fields."""
    from vit_jax.models import check
    from vit_jax.models.mixer import Mixer
    from vit_jax.models.resnet import ResNet
    from vit_jax.models.vit import ViT

    return {
        "vit": (ViT, check.check_vit),
        "resnet": (ResNet, check.check_resnet),
        "mixer": (Mixer, check.check_mixer),
    }[model_family(name)]
