"""Which parameters train, and at which share of the learning rate: by regex of their path, and by depth.

A path is the whole name, such as `encoder/block_0/mlp/fc1/kernel`, and a regex must match all of it. Under
`model.scan` all layers share one path, `encoder/blocks/...`: layer-wise decay reaches each, a regex only all.
"""

import difflib
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from vit_jax.errors import UsageError

PyTree = Any
Multiplier = float | np.ndarray  # of one parameter; [L] for a parameter with a leading layer axis
Pairs = Sequence[tuple[str, float]]

_BLOCK = re.compile(r"(?:encoder/)?block_(\d+)/")
_STACKED = "encoder/blocks/"
# What comes before the first block: layer 0. What isn't here and in no block comes after the last one.
_STEM = re.compile(r"(?:patch_embed|cls_token|mask_token|posemb\w*|registers|pre_norm|backbone)(?:/|$)")


@dataclass(frozen=True)
class ParamGroups:
    """How the parameters of a model are trained.

    Attributes:
      frozen: paths of those that aren't: no gradient, no update, no decay, no optimizer state.
      multipliers: path -> factor on the learning rate, where it isn't 1; [L] for a parameter of all layers.
    """

    frozen: frozenset[str] = frozenset()
    multipliers: Mapping[str, Multiplier] = field(default_factory=dict)


def make_groups(params: PyTree, *, frozen: str, lr_mults: Pairs, layer_decay: float | None) -> ParamGroups:
    """Resolves the regexes of a config against a model's parameters.

    Args:
      params: nested dicts; leaves with a `shape`.
      frozen: regex of the parameters that stay as they are; "": none.
      lr_mults: (regex, multiplier) pairs, the first match counts; no match: 1.
      layer_decay: factor per layer between a parameter and the head, on top of `lr_mults`; None: none. With
        blocks 0 to L-1, block i is layer i+1, what comes before is layer 0, what comes after L+1, and the
        multiplier is layer_decay ** (L+1 - layer) (BEiT, MAE).

    Raises:
      UsageError: a malformed regex, one that matches no parameter that trains, nothing left to train, a
        multiplier that isn't positive, a factor outside (0, 1], a model without blocks.
    """
    paths = list(paths_of(params))
    still = frozenset(matching(frozen, paths, "optim.frozen", kind="parameter") if frozen else ())
    trained = [path for path in paths if path not in still]
    if not trained:
        raise UsageError(
            f"optim.frozen {frozen!r} matches every parameter", "to train the head alone give '(?!head/).*'"
        )
    multipliers: dict[str, Multiplier] = first_match(lr_mults, trained, "optim.lr_mults")
    if any(multiplier == 0 for multiplier in multipliers.values()):
        raise UsageError("optim.lr_mults has a multiplier of 0", "freeze by optim.frozen instead")
    if layer_decay is not None:
        for path, multiplier in _by_layer(params, layer_decay).items():
            if path not in still:
                multipliers[path] = multipliers.get(path, 1.0) * multiplier
    return ParamGroups(still, {path: m for path, m in multipliers.items() if np.any(np.asarray(m) != 1)})


def split(tree: PyTree, frozen: Collection[str]) -> tuple[PyTree, PyTree]:
    """Nested dicts -> (what trains, what is frozen), two smaller nested dicts; `merge` puts them together."""

    def part(node: dict[str, Any], prefix: str, wanted: bool) -> dict[str, Any]:
        kept = {}
        for name, child in node.items():
            if not isinstance(child, dict):
                if (prefix + name in frozen) is wanted:
                    kept[name] = child
            elif below := part(child, f"{prefix}{name}/", wanted):
                kept[name] = below
        return kept

    return part(tree, "", False), part(tree, "", True)


def merge(left: PyTree, right: PyTree) -> PyTree:
    """Nested dicts without a path in common -> one with the paths of both."""
    both = {name: merge(left[name], right[name]) for name in left.keys() & right.keys()}
    return {**left, **right, **both}


def paths_of(tree: PyTree) -> dict[str, Any]:
    """Path -> leaf."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def path_name(path: tuple[Any, ...]) -> str:
    """jax's path of a leaf as a name: "head/kernel"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def matching(
    pattern: str, paths: Iterable[str], key: str, *, kind: str = "parameter that trains", otherwise: str = ""
) -> list[str]:
    """The paths that the regex matches as a whole.

    Args:
      pattern: of the config key `key`.
      kind: what the paths are, and `otherwise`: another remedy, both for the message.

    Raises:
      UsageError: the regex is malformed, or matches nothing; names the nearest paths.
    """
    try:
        regex = re.compile(pattern)
    except re.error as e:
        raise UsageError(f"{key} {pattern!r} is no regular expression: {e}", "mend the pattern") from e
    paths = list(paths)
    found = [path for path in paths if regex.fullmatch(path)]
    if not found:
        literal = re.sub(r"\\.|[^\w/]", "", pattern)
        near = difflib.get_close_matches(literal, paths, n=3, cutoff=0.0)
        raise UsageError(
            f"{key} {pattern!r} matches no {kind}",
            "it must match whole paths, such as " + ", ".join(map(repr, near)) + otherwise,
        )
    return found


def first_match(pairs: Pairs, paths: Sequence[str], key: str) -> dict[str, float]:
    """Path -> number of the first pair whose regex matches; paths that none matches are left out.

    Raises:
      UsageError: no pairs of regex and finite number of at least 0, or a regex without a match.
    """
    if not isinstance(pairs, Sequence) or isinstance(pairs, str):
        raise UsageError(f"{key} is {pairs!r}", _PAIRS)
    found: dict[str, float] = {}
    for pair in pairs:
        if not (isinstance(pair, Sequence) and len(pair) == 2 and isinstance(pair[0], str)) or isinstance(
            pair, str
        ):
            raise UsageError(f"{key} holds {pair!r}, no pair of regex and number", _PAIRS)
        pattern, number = pair
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise UsageError(f"{key} gives {pattern!r} {number!r}", _PAIRS)
        if not 0 <= number < math.inf:
            raise UsageError(f"{key} gives {pattern!r} {number}", "give a finite number of at least 0")
        for path in matching(pattern, paths, key):
            found.setdefault(path, float(number))
    return found


_PAIRS = "give pairs such as (('head/.*', 10.0),)"


def _by_layer(params: PyTree, factor: float) -> dict[str, Multiplier]:
    """Path -> factor ** (L+1 - layer) of all parameters."""
    if not 0 < factor <= 1:
        raise UsageError(f"optim.layer_decay is {factor}", "give a factor above 0, at most 1, or None")
    leaves = paths_of(params)
    depth = max((int(match[1]) + 1 for path in leaves if (match := _BLOCK.match(path))), default=0)
    depth = max((x.shape[0] for path, x in leaves.items() if path.startswith(_STACKED)), default=depth)
    if not depth:
        raise UsageError(
            "optim.layer_decay is set for a model without transformer blocks",
            "leave it out; optim.lr_mults has multipliers by regex",
        )
    layers = np.array([factor ** (depth + 1 - layer) for layer in range(depth + 2)])  # [L+2], float64

    def multiplier(path: str) -> Multiplier:
        if path.startswith(_STACKED):
            return layers[1:-1]
        if block := _BLOCK.match(path):
            return float(layers[int(block[1]) + 1])
        return float(layers[0] if _STEM.match(path) else 1.0)

    return {path: multiplier(path) for path in leaves}


def groups_summary(params: PyTree, groups: ParamGroups) -> str:
    """Text for the start log: what is frozen, and the multipliers; "" where there is nothing to say.

    Subtrees that are treated alike share a name.
    """
    lines = []
    trained, frozen = split(params, groups.frozen)
    if groups.frozen:
        count, total = _count(frozen), _count(params)
        names = _subtrees(params, {path: path in groups.frozen for path in paths_of(params)})[True]
        lines.append(
            f"frozen: {count:,} of {total:,} parameters in {len(groups.frozen)} arrays: {', '.join(names)}"
        )
    if groups.multipliers:
        by_path = {path: _shown(groups.multipliers.get(path, 1.0)) for path in paths_of(trained)}
        for shown, names in _subtrees(trained, by_path).items():
            lines.append(f"learning rate x {shown}: {', '.join(names)}")
    return "\n".join(lines)


def _shown(multiplier: Multiplier) -> str:
    numbers = [f"{x:.4g}" for x in np.atleast_1d(multiplier)]
    return " ".join(numbers) + (" by layer" if isinstance(multiplier, np.ndarray) else "")


def _count(tree: PyTree) -> int:
    return sum(math.prod(x.shape) for x in jax.tree.leaves(tree))


def _subtrees(tree: PyTree, values: Mapping[str, Any]) -> dict[Any, list[str]]:
    """Value -> paths, with "a/*" for a subtree whose parameters all have it."""
    found: dict[Any, list[str]] = {}

    def visit(node: Any, prefix: str) -> None:
        inside = {values[path] for path in values if path == prefix or path.startswith(f"{prefix}/")}
        if len(inside) == 1:
            found.setdefault(inside.pop(), []).append(prefix + "/*" * isinstance(node, dict))
        else:
            for name, child in node.items():
                visit(child, f"{prefix}/{name}")

    for name, child in tree.items():
        visit(child, name)
    return {value: _blocks_together(names) for value, names in found.items()}


def _blocks_together(names: list[str]) -> list[str]:
    """Names that differ in the number of the block alone as one: "encoder/block_{0,1}/*"."""
    numbers: dict[str, list[str]] = {}
    for name in names:
        before, number, after = re.fullmatch(r"(.*?block_)(\d+)(/.*)|.*", name).groups()
        numbers.setdefault(name if number is None else f"{before}#{after}", []).append(number or "")
    return [
        name.replace("#", each[0] if len(each) == 1 else "{" + ",".join(sorted(each, key=int)) + "}")
        for name, each in numbers.items()
    ]
