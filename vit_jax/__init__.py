"""Vision Transformers in JAX/Flax: pretraining, fine-tuning and evaluation."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vit_jax.models import create_model, list_models
    from vit_jax.models.features import dense_features
    from vit_jax.predictor import Predictor
    from vit_jax.pretrained import load

# Public name -> module that has it.
_HOMES = {
    "Predictor": "vit_jax.predictor",
    "create_model": "vit_jax.models",
    "dense_features": "vit_jax.models.features",
    "list_models": "vit_jax.models",
    "load": "vit_jax.pretrained",
}
__all__ = ["Predictor", "create_model", "dense_features", "list_models", "load"]


def __getattr__(name: str) -> Any:
    """Loads the public functions when they are first asked for: `import vit_jax` alone loads no jax."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
