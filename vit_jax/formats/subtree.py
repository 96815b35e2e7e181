"""Which part of a file holds the image model: files of training states hold several, under prefixes."""

import re

from vit_jax.errors import UsageError, known_names
from vit_jax.formats.weights import Arrays

# The first layer of every architecture that the .npz layouts have, by name; its prefix is a candidate.
# The longest name that fits counts: BiT's root_block/conv_root is no model called root_block.
_FIRST_LAYERS = ("resnet/root_block/standardized_conv2d/kernel", "root_block/conv_root/kernel", "conv_root/kernel",
                 "embedding/kernel", "stem/kernel")  # fmt: skip
# Copies of the parameters that an optimizer keeps.
_OPTIMIZER = re.compile(r"(.*/)?(opt/(?!target(/|$))|opt_state/|opt$).*")
_DEFAULT = "params"


def select(arrays: Arrays, subtree: str | None, origin: str) -> tuple[Arrays, tuple[str, ...]]:
    """The arrays of one model without their prefix, and notes of what else there is.

    Args:
      subtree: a prefix such as "params/img" or its last part ("img", "ema"); None: the only model, or
        "params" where there are several.

    Raises:
      UsageError: no such subtree, no image model in it, or several models and none called params.
    """
    towers = _towers(arrays)
    if subtree is not None:
        return _prefixed(arrays, _named(arrays, towers, subtree, origin)), ()
    if not towers:
        known = sorted({name.split("/")[0] for name in arrays})
        raise UsageError(
            f"{origin} holds no image model that is known: its names start with {', '.join(known[:8]) or '-'}",
            "give weights of vision_transformer, big_vision, BiT, timm or Hugging Face, or a run directory",
        )
    if len(towers) == 1:
        return _prefixed(arrays, towers[0]), ()
    default = [prefix for prefix in towers if _DEFAULT in prefix.split("/")]
    if len(default) != 1:
        raise UsageError(
            f"{origin} holds several models: {', '.join(map(_shown, towers))}", "choose with subtree="
        )
    others = ", ".join(_shown(prefix) for prefix in towers if prefix != default[0])
    return _prefixed(arrays, default[0]), (
        f"taking {_shown(default[0])} of {origin}, which also has {others}",
    )


def _towers(arrays: Arrays) -> list[str]:
    """Prefixes under which an image model lies, in order of name; "" for the top."""
    found = set()
    for name in arrays:
        first = next((f for f in _FIRST_LAYERS if name == f or name.endswith("/" + f)), None)
        if first is not None and arrays[name].ndim == 4:
            prefix = name.removesuffix(first).rstrip("/")
            if not _OPTIMIZER.fullmatch(prefix + "/"):
                found.add(prefix)
    return sorted(found)


def _named(arrays: Arrays, towers: list[str], subtree: str, origin: str) -> str:
    wanted = subtree.strip("/")
    exact = [prefix for prefix in towers if prefix == wanted]
    ending = [prefix for prefix in towers if prefix.endswith("/" + wanted)]
    inside = [prefix for prefix in towers if prefix.startswith(wanted + "/")]
    for found in (exact, ending, inside):
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(f"subtree {subtree!r} of {origin} holds several models", ", ".join(found))
    if towers == [""] and wanted == _DEFAULT:
        return ""  # bare parameters are the parameters
    listed = ", ".join(map(_shown, towers)) or "none"
    if any(name.startswith(wanted + "/") or f"/{wanted}/" in name for name in arrays):
        raise UsageError(
            f"subtree {subtree!r} of {origin} is no image model (a text tower, or an optimizer's copy?)",
            f"image models there: {listed}",
        )
    raise UsageError(
        f"{origin} has no subtree {subtree!r}", known_names(wanted, [t or _DEFAULT for t in towers])
    )


def _prefixed(arrays: Arrays, prefix: str) -> Arrays:
    start = prefix + "/" if prefix else ""
    return {
        name.removeprefix(start): array
        for name, array in arrays.items()
        if name.startswith(start) and not (prefix == "" and _is_state(name))
    }


def _is_state(name: str) -> bool:
    """Entries of a training state beside bare parameters."""
    return bool(_OPTIMIZER.fullmatch(name)) or name.split("/")[0] in ("chrono", "step")


def _shown(prefix: str) -> str:
    return repr(prefix or "the top level")
