"""How far two programs for the same model are apart."""

import numpy as np

from vit_jax.errors import UsageError


def parity(reference_logits: np.ndarray, other_logits: np.ndarray) -> tuple[float, float]:
    """The largest difference of two arrays of logits, and the same relative to the largest reference logit.

    Both are infinite if either array holds a value that isn't finite: such logits can't vouch for a program.

    Args:
        reference_logits: of the model itself, [N, K] or any other shape.
        other_logits: of the exported program on the same images, of the same shape.

    Raises:
        UsageError: the shapes differ, or there is nothing to compare.
    """
    reference = np.asarray(reference_logits, np.float64)
    other = np.asarray(other_logits, np.float64)
    if reference.shape != other.shape or not reference.size:
        raise UsageError(
            f"logits of shape {other.shape} against {reference.shape} of the model",
            "compare logits of the same images and classes, at least one",
        )
    if not (np.isfinite(reference).all() and np.isfinite(other).all()):
        return np.inf, np.inf
    difference = float(np.abs(reference - other).max())
    largest = float(np.abs(reference).max())
    if not difference:
        return 0.0, 0.0
    return difference, difference / largest if largest else np.inf
