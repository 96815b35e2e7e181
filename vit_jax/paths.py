"""Names of the leaves of a tree: `params/head/kernel`, there and back."""

from typing import Any

import jax


def named_leaves(tree: Any) -> dict[str, Any]:
    """Path -> leaf of any pytree, in its own order: `params/head/kernel`, `opt_state/0/mu/head/kernel`.

    Raises:
      ValueError: two leaves with the same path, as when a key holds a slash.
    """
    leaves = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name in leaves:
            raise ValueError(f"two leaves of the tree have the path {name!r}")
        leaves[name] = leaf
    return leaves


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Nested dicts from `a/b/c` paths; the inverse of named_leaves for trees of dicts."""
    tree: dict[str, Any] = {}
    for name, leaf in flat.items():
        *parents, last = name.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree
