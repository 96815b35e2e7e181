"""Parameters of an unrolled encoder (`block_0`, `block_1`, …) to those of a scanned one (`blocks`), and back.

Plain nested dicts, with numpy or jax leaves. Both forms give the same outputs.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Params = dict[str, Any]


def stack_layers(params: Params) -> Params:
    """Replaces `encoder/block_{i}/...` by `encoder/blocks/...`, whose leaves have a leading layer axis.

    Parameters that are stacked already, or of a model without such layers, come back as they are.
    """
    if "encoder" not in params or "blocks" in params["encoder"]:
        return params
    encoder = dict(params["encoder"])
    depth = sum(name.startswith("block_") for name in encoder)
    blocks = [encoder.pop(f"block_{i}") for i in range(depth)]  # by number: block_10 comes after block_9
    encoder["blocks"] = jax.tree.map(_stack, *blocks)
    return {**params, "encoder": encoder}


def unstack_layers(params: Params) -> Params:
    """Replaces `encoder/blocks/...` by one `encoder/block_{i}/...` for each layer.

    Parameters that aren't stacked, or of a model without such layers, come back as they are.
    """
    if "encoder" not in params or "blocks" not in params["encoder"]:
        return params
    encoder = dict(params["encoder"])
    blocks = encoder.pop("blocks")
    depth = jax.tree.leaves(blocks)[0].shape[0]
    for i in range(depth):
        encoder[f"block_{i}"] = jax.tree.map(lambda leaf, i=i: leaf[i], blocks)
    return {**params, "encoder": encoder}


def _stack(*leaves: Any) -> Any:
    """[...] x L -> [L, ...]; host arrays stay on the host."""
    return (np if all(isinstance(leaf, np.ndarray) for leaf in leaves) else jnp).stack(leaves)
