"""The .npz layouts of Google's ViTs: vision_transformer (and AugReg) and big_vision, hybrids included.

Both name arrays alike; they differ in how sub-modules are counted, where the position table lies and whether
it has a row for the class token.
"""

import re
from typing import Any

from vit_jax.errors import UsageError
from vit_jax.formats import resnet_names, table
from vit_jax.formats.posemb import add_zero_rows, asked_grid, fold_class_row, grid_of_rows, learned_table
from vit_jax.formats.table import SAME, Row, pair
from vit_jax.formats.weights import Arrays, Weights, complete, model_of, shapes_of
from vit_jax.paths import named_leaves, nested

NPZ, BIG_VISION = "npz", "big_vision"

_DENSE = (("kernel", "/kernel", SAME), ("bias", "/bias", SAME))
_NORM = (("scale", "/scale", SAME), ("bias", "/bias", SAME))

# What a file may call an array -> what big_vision's newest files call it. Pre-Linen files count all sub-modules
# of a block together; older big_vision ones keep the table in the Transformer and a MAP head at the top.
_RENAMES = [
    (re.compile(r"(Transformer/encoderblock(?:_\d+)?)/LayerNorm_2/"), r"\1/LayerNorm_1/"),
    (re.compile(r"(Transformer/encoderblock(?:_\d+)?)/MultiHeadDotProductAttention_1/"),
     r"\1/MultiHeadDotProductAttention_0/"),
    (re.compile(r"(Transformer/encoderblock(?:_\d+)?)/MlpBlock_3/"), r"\1/MlpBlock_0/"),
    (re.compile(r"Transformer/(?:posembed_input/)?pos_embedding$"), "pos_embedding"),
    (re.compile(r"(probe$|(?:MlpBlock_0|LayerNorm_0|MultiHeadDotProductAttention_0)/)"), r"MAPHead_0/\1"),
]  # fmt: skip
_STACKED = "Transformer/encoderblock/"
_BLOCK = re.compile(r"Transformer/encoderblock_(\d+)/LayerNorm_0/scale")


def _rows(norm2: str, attn: str, mlp: str, posemb: str) -> list[Row]:
    def attention(ours: str, theirs: str) -> list[Row]:
        return [row for name in ("query", "key", "value", "out")
                for row in pair(f"{ours}/{name}", f"{theirs}/{name}", _DENSE)]  # fmt: skip

    def perceptron(ours: str, theirs: str) -> list[Row]:
        return pair(f"{ours}/fc1", f"{theirs}/Dense_0", _DENSE) + pair(
            f"{ours}/fc2", f"{theirs}/Dense_1", _DENSE
        )

    here, there = "encoder/block_{i}", "Transformer/encoderblock_{i}"
    return [
        Row("cls_token", "cls"),
        Row("posemb", posemb),
        *pair("patch_embed", "embedding", _DENSE),
        *pair(f"{here}/norm1", f"{there}/LayerNorm_0", _NORM),
        *attention(f"{here}/attn", f"{there}/{attn}"),
        *pair(f"{here}/norm2", f"{there}/{norm2}", _NORM),
        *perceptron(f"{here}/mlp", f"{there}/{mlp}"),
        *pair("encoder/norm", "Transformer/encoder_norm", _NORM),
        Row("map_head/probe", "MAPHead_0/probe"),
        *attention("map_head/attn", "MAPHead_0/MultiHeadDotProductAttention_0"),
        *pair("map_head/norm", "MAPHead_0/LayerNorm_0", _NORM),
        *perceptron("map_head/mlp", "MAPHead_0/MlpBlock_0"),
        *pair("pre_logits", "pre_logits", _DENSE),
        *pair("head", "head", _DENSE),
        *resnet_names.rows("backbone/", "unit{u}"),
    ]


ROWS = {
    NPZ: _rows("LayerNorm_2", "MultiHeadDotProductAttention_1", "MlpBlock_3",
               "Transformer/posembed_input/pos_embedding"),
    BIG_VISION: _rows("LayerNorm_1", "MultiHeadDotProductAttention_0", "MlpBlock_0", "pos_embedding"),
}  # fmt: skip


def matches(arrays: Arrays) -> bool:
    """Whether arrays (without a prefix) have this layout."""
    return any(name.startswith("Transformer/encoderblock") for name in arrays)


def read(arrays: Arrays, hints: dict[str, Any], origin: str) -> Weights:
    """Arrays without a prefix -> weights.

    Args:
      hints: model fields that the caller gives; a fixed position embedding (`posemb`) and a non-square
        `image_size` can't be read off the file.

    Raises:
      UsageError: names or shapes that aren't those of one model, or hints that contradict them.
    """
    layout = NPZ if "Transformer/posembed_input/pos_embedding" in arrays else BIG_VISION
    arrays = _unstack({_renamed(name): array for name, array in arrays.items()})
    arrays, fields = _fields(arrays, hints, origin)
    model = model_of("vit", fields)
    params = table.read(arrays, shapes_of(model), ROWS[BIG_VISION], origin=origin)
    half = (127.5,) * model.channels
    return Weights(layout, origin, "vit", fields, nested(params), "zoom", half, half)


def write(weights: Weights, layout: str) -> Arrays:
    """The arrays of the layout; readers of it assume tanh-GELU, epsilon 1e-6 and inputs in [-1, 1].

    Raises:
      UsageError: something that this layout, or its readers, can't express; says what.
    """
    fields = weights.model().__dict__
    for name, only in (("gelu", "tanh"), ("ln_eps", 1e-6)):
        if fields[name] != only:
            raise UsageError(
                f"{layout} files have no place for {name}={fields[name]!r}: their readers take {only!r}",
                "onnx and stablehlo take any model, hf and timm most",
            )
    as_read = "map" if fields["pool"] == "map" else "tok" if "cls_token" in weights.params else "gap"
    if fields["pool"] != as_read:
        raise UsageError(
            f"{layout} files have no place for pool={fields['pool']!r}: readers take it for {as_read!r}",
            "onnx and stablehlo take any model",
        )
    if layout == NPZ and fields["pool"] == "map":
        raise UsageError("vision_transformer files know no attention pooling", "choose --to=big_vision")
    params = named_leaves(weights.params)
    if layout == NPZ:
        params = learned_table(params, fields)
        if "cls_token" in params and "posemb" in params and not fields["posemb_cls"]:
            params = add_zero_rows(params, 1)  # this layout has a row for the class token
    elif fields["posemb_cls"] and "cls_token" in params and "posemb" in params:
        params = fold_class_row(params)
    return table.write(params, ROWS[layout])


def _renamed(name: str) -> str:
    for pattern, new in _RENAMES:
        if pattern.match(name):
            return pattern.sub(new, name)
    return name


def _unstack(arrays: Arrays) -> Arrays:
    """One array per block where the file has one for all, with a leading layer axis."""
    flat: Arrays = {}
    for name, array in arrays.items():
        if name.startswith(_STACKED):
            rest = name.removeprefix(_STACKED)
            flat |= {f"Transformer/encoderblock_{i}/{rest}": array[i] for i in range(array.shape[0])}
        else:
            flat[name] = array
    return flat


def _fields(arrays: Arrays, hints: dict[str, Any], origin: str) -> tuple[Arrays, dict[str, Any]]:
    """The model that the arrays are of; the position table comes back without a class row that is zero."""

    def shape(name: str, ndim: int) -> tuple[int, ...]:
        if name not in arrays or arrays[name].ndim != ndim:
            have = f"has shape {list(arrays[name].shape)}" if name in arrays else "is missing"
            raise UsageError(f"{origin} is no complete ViT: {name} {have}", "give the whole file")
        return arrays[name].shape

    patch, patch_width, channels, width = shape("embedding/kernel", 4)
    if patch != patch_width:
        raise UsageError(
            f"{origin} has patches of {patch}x{patch_width}", "only square patches are supported"
        )
    found: dict[str, Any] = {
        "patch_size": patch,
        "channels": channels,
        "width": width,
        "depth": sum(_BLOCK.fullmatch(name) is not None for name in arrays),
        "mlp_dim": shape("Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel", 2)[1],
        "num_heads": shape("Transformer/encoderblock_0/MultiHeadDotProductAttention_0/query/kernel", 3)[1],
        "rep_size": shape("pre_logits/kernel", 2)[1] if "pre_logits/kernel" in arrays else 0,
        "num_classes": shape("head/kernel", 2)[1] if "head/kernel" in arrays else 0,
        "class_token": "cls" in arrays,
    }
    downsampling = patch
    if "conv_root/kernel" in arrays:
        found["backbone"] = resnet_names.depths(arrays)
        found["channels"] = shape("conv_root/kernel", 4)[2]
        found["backbone_width"] = shape("conv_root/kernel", 4)[3] / resnet_names.STEM_WIDTH
        downsampling = 4 * 2 ** max(len(found["backbone"]) - 1, 0) * patch
    if "MAPHead_0/probe" in arrays:
        found["pool"] = "map"
    elif "pool" not in hints:
        found["pool"] = "tok" if "cls" in arrays else "gap"
    arrays, grid = _positions(arrays, hints, found, asked_grid(hints.get("image_size"), downsampling), origin)
    defaults = {"gelu": "tanh", "ln_eps": 1e-6}
    if grid is not None:
        found["image_size"] = (grid[0] * downsampling, grid[1] * downsampling)
    else:  # no table ties such a model to a size
        defaults["image_size"] = (round(224 / downsampling) * downsampling,) * 2
    return arrays, {**defaults, **complete(hints, found, origin)}


def _positions(
    arrays: Arrays, hints: dict[str, Any], found: dict[str, Any], asked: tuple[int, int] | None, origin: str
) -> tuple[Arrays, tuple[int, int] | None]:
    """Completes `found` by the kind of position embedding; the grid of its table, if there's one."""
    if "pos_embedding" not in arrays:
        if "posemb" not in hints:
            raise UsageError(f"{origin} has no position table", "give posemb='sincos2d', or 'none'")
        found["posemb_cls"] = False
        return arrays, None
    rows = arrays["pos_embedding"]
    counts = (1, 0) if found["class_token"] else (0,)
    grid, prefix = grid_of_rows(
        rows.shape[1],
        prefix_counts=counts,
        asked=asked,
        class_row=hints.get("posemb_cls"),
        origin=origin,
    )
    found["posemb"] = "learn"
    if prefix and not rows[:, 0].any():
        # How writers store a model without such a row; adding zero is adding nothing.
        arrays, prefix = {**arrays, "pos_embedding": rows[:, 1:]}, 0
    found["posemb_cls"] = bool(prefix)
    return arrays, grid
