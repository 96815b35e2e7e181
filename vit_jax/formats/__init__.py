"""Published checkpoint layouts, both ways: a table of names for each, chosen by what a file holds."""

import dataclasses
from pathlib import Path
from typing import Any

from vit_jax.errors import UsageError
from vit_jax.formats import bit, google, hf, mixer, timm
from vit_jax.formats.container import read_arrays, read_json
from vit_jax.formats.subtree import select
from vit_jax.formats.weights import Arrays, Weights

__all__ = ["read"]

_INDEX = "model.safetensors.index.json"
_FLAX = (google, mixer, bit)


def read(path: Path, hints: dict[str, Any], subtree: str | None = None) -> Weights:
    """Weights of a file, or of a folder that holds one file of weights and perhaps configs.

    Args:
      hints: model fields that the caller gives; needed only where the file can't tell.
      subtree: which part of a training state; None: the parameters.

    Raises:
      UsageError: nothing that can be read, an unknown layout, or arrays that aren't one model's.
    """
    arrays, folder = _arrays(path)
    origin = str(path)
    if timm.matches(arrays) or hf.matches(arrays):
        if subtree not in (None, "params"):
            raise UsageError(
                f"{origin} has no subtree {subtree!r}", "leave it out: PyTorch files hold one model"
            )
        config = _json(folder / "config.json")
        if timm.matches(arrays):
            timms = config if config is not None and "model_type" not in config else None
            return _named(timm.read(arrays, hints, origin, timms))
        return _named(hf.read(arrays, hints, origin, config, _json(folder / "preprocessor_config.json")))
    selected, notes = select(arrays, subtree, origin)
    for layout in _FLAX:
        if layout.matches(selected):
            weights = layout.read(selected, hints, origin)
            return dataclasses.replace(weights, notes=weights.notes + notes)
    shown = ", ".join(sorted(selected)[:4])
    raise UsageError(f"{origin} has names of no known layout: {shown}", "give weights of a supported layout")


def _named(weights: Weights) -> Weights:
    """Without class names that aren't as many as the classes: they would name the wrong ones."""
    names, count = weights.classes, weights.fields["num_classes"]
    if names is None or len(names) == count:
        return weights
    note = f"{weights.origin} names {len(names)} classes of {count}: left aside"
    return dataclasses.replace(weights, classes=None, notes=(*weights.notes, note))


def _arrays(path: Path) -> tuple[Arrays, Path]:
    """Arrays of a file, or of the one in a folder, and the folder that configs lie in."""
    if not path.is_dir():
        return read_arrays(path), path.parent
    index = path / _INDEX
    if index.is_file():
        shards = sorted(set(read_json(index)["weight_map"].values()))
        return {name: a for shard in shards for name, a in read_arrays(path / shard).items()}, path
    preferred = path / "model.safetensors"
    files = [preferred] if preferred.is_file() else sorted([*path.glob("*.safetensors"), *path.glob("*.npz")])
    if len(files) != 1:
        what = f"{len(files)} files of weights" if files else "no .safetensors or .npz file"
        raise UsageError(f"folder {path} holds {what}", "give one file, or the folder of a run")
    return read_arrays(files[0]), path


def _json(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.is_file() else None
