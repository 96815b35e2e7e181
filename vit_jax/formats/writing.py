"""Writing weights in a published layout; the inverse of `formats.read`."""

import json
from pathlib import Path
from typing import Any

from vit_jax.errors import UsageError
from vit_jax.formats import bit, google, hf, mixer, table, timm
from vit_jax.formats.container import write_npz, write_safetensors
from vit_jax.formats.weights import Arrays, Weights
from vit_jax.models.positions import place_of
from vit_jax.paths import named_leaves

# Files of plain arrays, and folders with a config beside them.
FILES = (google.NPZ, google.BIG_VISION)
FOLDERS = (timm.LAYOUT, hf.LAYOUT)


def write(weights: Weights, path: Path, layout: str) -> None:
    """Writes a file (npz, big_vision) or a new folder (timm, hf).

    Raises:
      UsageError: something that the layout can't express; says what, before anything is written.
    """
    if weights.family == "vit":
        _check_encoder(weights, layout)
    if layout in FILES:
        write_npz(path, _flax_arrays(weights, layout))
        return
    if weights.family != "vit":
        raise UsageError(
            f"a {weights.family} can't be written as {layout}", "choose --to=npz, onnx or stablehlo"
        )
    if layout == timm.LAYOUT:
        arrays, config = timm.write(weights)
        texts = {"config.json": config}
    else:
        arrays, config, preprocessor = hf.write(weights)
        texts = {"config.json": config, "preprocessor_config.json": preprocessor}
    path.mkdir()
    write_safetensors(path / "model.safetensors", arrays)
    for name, content in texts.items():
        (path / name).write_text(_json(content), encoding="utf-8")


def _check_encoder(weights: Weights, layout: str) -> None:
    """Raises UsageError for what no published layout has names for."""
    model, other = weights.model(), "onnx and stablehlo take any model"
    if model.axial:
        raise UsageError(f"{layout} has no place for axial attention", other)
    place = place_of(model.posemb, model.posemb_at)
    if model.posemb in ("learn2d", "relative") or place != "stem":
        where = (
            ""
            if place == "stem"
            else f" ({'in every layer' if place == 'every' else 'shared by the layers'})"
        )
        raise UsageError(f"{layout} has no place for positions of kind {model.posemb!r}{where}", other)


def hints_of(weights: Weights, layout: str) -> dict[str, Any]:
    """What the readers must be told of such weights, because the layout doesn't show it."""
    model = weights.model()
    hints: dict[str, Any] = {"image_size": model.image_size}
    if weights.family != "vit":
        return hints
    # Other layouts hold a fixed table as a learned one.
    if model.posemb == "none" or (model.posemb == "sincos2d" and layout == google.BIG_VISION):
        hints["posemb"] = model.posemb
    return hints


def _flax_arrays(weights: Weights, layout: str) -> Arrays:
    if weights.family == "vit":
        return google.write(weights, layout)
    params = named_leaves(weights.params)
    if weights.family == "mixer":
        return table.write(params, mixer.ROWS)
    return bit.write(params, weights.model().generation)


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
