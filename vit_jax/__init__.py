"""Vision Transformers in JAX/Flax: pretraining, fine-tuning and evaluation."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vit_jax.models import create_model, list_models

__all__ = ["create_model", "list_models"]


def __getattr__(name: str) -> Any:
    """Loads the public functions when they are first asked for: `import vit_jax` alone loads no jax."""
    if name in __all__:
        from vit_jax import models

        return getattr(models, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
