"""What to take out of a model's intermediates: one vector per image, or one per patch.

Shapes: B batch, h x w grid of patches, N tokens, D width.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from vit_jax.errors import UsageError, known_names
from vit_jax.models.check import grid_of, size_of, token_grid

# pre_logits: the classifier's input, [B, D] after the pooling and the representation layer. logits: [B, K].
# cls: the class token; patches: the mean of the patch tokens; cls_patches: both, one after the other, [B, 2 D].
REPRESENTATIONS = ("pre_logits", "logits", "cls", "patches", "cls_patches")


def dense_features(
    model: nn.Module, aux: dict[str, jax.Array], image_size: int | tuple[int, int] | None = None
) -> jax.Array:
    """Patch tokens as a map [B, h, w, D]: row y, column x of the map is the patch at that place of the image.

    Class token and registers are left out. The tokens are those of `aux["encoded"]`: after the last norm, or
    after the last block where the norm follows the pooling.

    Args:
      model: a ViT, with or without a ResNet before it, or a Mixer.
      aux: as `model.apply` returned it.
      image_size: of the images, where it isn't `model.image_size` (fixed or no position embedding).

    Raises:
      UsageError: a model without patch tokens, or images of another size.
    """
    if "encoded" not in aux:
        raise UsageError(f"a {type(model).__name__} has no patch tokens", "take a ViT, a hybrid or a Mixer")
    tokens = aux["encoded"][:, prefix_tokens(model) :]
    height, width = _grid(model, image_size)
    if height * width != tokens.shape[1]:
        raise UsageError(
            f"{tokens.shape[1]} patch tokens are no grid of {height}x{width}",
            "give image_size= of the images",
        )
    return tokens.reshape(tokens.shape[0], height, width, tokens.shape[2])


def prefix_tokens(model: nn.Module) -> int:
    """Number of tokens before the patches: the class token, if there is one, and the registers."""
    if not hasattr(model, "has_class_token"):
        return 0
    return int(model.has_class_token) + model.num_registers


def _grid(model: nn.Module, image_size: int | tuple[int, int] | None) -> tuple[int, int]:
    size = size_of(model.image_size if image_size is None else image_size)
    return token_grid(model, size) if hasattr(model, "backbone") else grid_of(size, model.patch_size)


def check_representation(model: nn.Module, name: str) -> None:
    """Raises UsageError unless the model has the representation `name`."""
    if name not in REPRESENTATIONS:
        raise UsageError(f"representation {name!r} is unknown", known_names(name, REPRESENTATIONS))
    if name in ("cls", "cls_patches") and not getattr(model, "has_class_token", False):
        raise UsageError(f"representation {name!r}: the model has no class token", "take pre_logits")
    if name == "patches" and not hasattr(model, "patch_size"):
        raise UsageError("representation 'patches': the model has no patch tokens", "take pre_logits")
    if name in ("pre_logits", "logits") and getattr(model, "pool", "") == "none":
        raise UsageError(
            f"representation {name!r}: the model predicts something of every patch", "take cls or patches"
        )
    if name == "logits" and not model.num_classes:
        raise UsageError("representation 'logits': the model has no classes", "take pre_logits")


def represent(model: nn.Module, logits: jax.Array, aux: dict[str, jax.Array], name: str) -> jax.Array:
    """The representation `name`, float32 [B, D], of what `model.apply` returned."""
    if name == "logits":
        return logits
    if name == "pre_logits":
        return aux["pre_logits"].astype(jnp.float32)
    tokens = aux["encoded"].astype(jnp.float32)
    parts = {"cls": [tokens[:, 0]], "patches": [tokens[:, prefix_tokens(model) :].mean(axis=1)]}
    return jnp.concatenate(parts["cls"] + parts["patches"] if name == "cls_patches" else parts[name], axis=-1)
