"""timm's Vision Transformers: a safetensors file, usually in a folder with timm's config.json."""

from typing import Any

import numpy as np

from vit_jax.errors import UsageError
from vit_jax.formats import table, torch_names
from vit_jax.formats.posemb import add_zero_rows, learned_table
from vit_jax.formats.table import CONV, SAME, Row, pair
from vit_jax.formats.torch_names import DENSE, HEADS, MERGE, NORM
from vit_jax.formats.weights import Arrays, Weights, complete, heads_of, model_of, shapes_of
from vit_jax.models.check import size_of
from vit_jax.paths import named_leaves, nested

LAYOUT = "timm"
_POSITIONS = ("cls_token", "reg_token", "pos_embed")
_POOLS = {"token": "tok", "avg": "gap", "map": "map", "": "none"}
_GELU = {"gelu": "erf", "gelu_tanh": "tanh"}


def _parts(ours: tuple[str, ...], theirs: str, leaves: torch_names.Leaves) -> list[Row]:
    """Several of our layers <-> one of theirs, stacked along its outputs."""
    return [
        row._replace(part=k, parts=len(ours))
        for k, name in enumerate(ours)
        for row in pair(name, theirs, leaves)
    ]


def _rows(*, swiglu: bool) -> list[Row]:
    here, there = "encoder/block_{i}", "blocks.{i}"
    fc1 = [f"{here}/mlp/gate", f"{here}/mlp/fc1"] if swiglu else [f"{here}/mlp/fc1"]
    return [
        Row("cls_token", "cls_token"),
        Row("registers", "reg_token"),
        Row("posemb", "pos_embed"),
        *pair("patch_embed", "patch_embed.proj", (("kernel", ".weight", CONV), ("bias", ".bias", SAME))),
        *pair("pre_norm", "norm_pre", NORM),
        *pair(f"{here}/norm1", f"{there}.norm1", NORM),
        *_parts(tuple(f"{here}/attn/{n}" for n in ("query", "key", "value")), f"{there}.attn.qkv", HEADS),
        *pair(f"{here}/attn/q_norm", f"{there}.attn.q_norm", NORM),
        *pair(f"{here}/attn/k_norm", f"{there}.attn.k_norm", NORM),
        *pair(f"{here}/attn/out", f"{there}.attn.proj", MERGE),
        Row(f"{here}/layer_scale1", f"{there}.ls1.gamma"),
        *pair(f"{here}/norm2", f"{there}.norm2", NORM),
        *_parts(tuple(fc1), f"{there}.mlp.fc1", DENSE),
        *pair(f"{here}/mlp/fc2", f"{there}.mlp.fc2", DENSE),
        Row(f"{here}/layer_scale2", f"{there}.ls2.gamma"),
        *pair("encoder/norm", "norm", NORM),
        *pair("pool_norm", "fc_norm", NORM),
        Row("map_head/probe", "attn_pool.latent"),
        *pair("map_head/attn/query", "attn_pool.q", HEADS),
        *_parts(("map_head/attn/key", "map_head/attn/value"), "attn_pool.kv", HEADS),
        *pair("map_head/attn/out", "attn_pool.proj", MERGE),
        *pair("map_head/norm", "attn_pool.norm", NORM),
        *pair("map_head/mlp/fc1", "attn_pool.mlp.fc1", DENSE),
        *pair("map_head/mlp/fc2", "attn_pool.mlp.fc2", DENSE),
        *pair("pre_logits", "pre_logits.fc", DENSE),
        *pair("head", "head", DENSE),
    ]


def matches(arrays: Arrays) -> bool:
    """Whether the names are timm's (or DeiT's)."""
    return "patch_embed.proj.weight" in arrays and "blocks.0.attn.qkv.weight" in arrays


def read(arrays: Arrays, hints: dict[str, Any], origin: str, config: dict[str, Any] | None = None) -> Weights:
    """A state dict -> weights.

    Args:
      hints: model fields that the caller gives; without a config these can't be read off the file: `num_heads`
        of an unusual shape, and `pool="gap"` of a model that has a class token and no fc_norm.
      config: the content of timm's config.json, where there is one.

    Raises:
      UsageError: names or shapes that aren't those of one model, or hints that contradict them.
    """
    args = _model_args(config)
    hints = {**_config_fields(args), **hints}
    kernel = arrays["patch_embed.proj.weight"]
    width, channels, patch, patch_width = kernel.shape
    if patch != patch_width:
        raise UsageError(
            f"{origin} has patches of {patch}x{patch_width}", "only square patches are supported"
        )
    depth = torch_names.count_blocks(arrays, r"blocks\.(\d+)\.")
    fc1, fc2 = (arrays[f"blocks.0.mlp.{name}.weight"].shape for name in ("fc1", "fc2"))
    found: dict[str, Any] = {
        "patch_size": patch,
        "channels": channels,
        "width": width,
        "depth": depth,
        "mlp_dim": fc2[1],
        "swiglu": fc1[0] == 2 * fc2[1],
        "patch_bias": "patch_embed.proj.bias" in arrays,
        "qkv_bias": "blocks.0.attn.qkv.bias" in arrays,
        "qk_norm": "blocks.0.attn.q_norm.weight" in arrays,
        "pre_norm": "norm_pre.weight" in arrays,
        "norm_after_pool": "fc_norm.weight" in arrays,
        "num_classes": arrays["head.weight"].shape[0] if "head.weight" in arrays else 0,
        "rep_size": arrays["pre_logits.fc.weight"].shape[0] if "pre_logits.fc.weight" in arrays else 0,
    }
    found["num_heads"] = heads_of(width, depth, fc2[1], hints, origin)
    if "blocks.0.ls1.gamma" not in arrays:
        found["layer_scale"] = 0.0
    arrays, positions = torch_names.read_positions(arrays, _POSITIONS, hints, patch, origin)
    found |= positions
    if "attn_pool.latent" in arrays:
        found["pool"] = "map"
    elif "pool" not in hints:
        found["pool"] = "gap" if found["norm_after_pool"] or not found["class_token"] else "tok"
    defaults = {"gelu": "erf", "ln_eps": 1e-6}
    if "blocks.0.ls1.gamma" in arrays:
        defaults["layer_scale"] = 1e-5  # its initial value, which no longer matters
    fields = complete({**defaults, **hints}, found, origin)
    rows = _rows(swiglu=fields["swiglu"])
    params = table.read(arrays, shapes_of(model_of("vit", fields)), rows, origin=origin)
    mean, std = _normalization(config, channels)
    return Weights(
        LAYOUT, origin, "vit", fields, nested(params), "bicubic_antialias", mean, std, _classes(config)
    )


def write(weights: Weights) -> tuple[Arrays, dict[str, Any]]:
    """State dict and config.json, for `timm.create_model("local-dir:FOLDER")`.

    Raises:
      UsageError: something that timm's VisionTransformer can't express; says what.
    """
    fields = weights.model().__dict__
    if fields["pool"] == "tok_gap":
        raise UsageError("timm knows no head on class token and mean together", "choose --to=hf")
    if fields["rep_size"]:
        raise UsageError("timm no longer knows the representation layer before the head", "choose --to=npz")
    if fields["backbone"] is not None:
        raise UsageError("hybrids can't be written for timm yet", "choose --to=npz")
    if fields["ln_eps"] != 1e-6:
        raise UsageError(f"timm's config has no place for ln_eps={fields['ln_eps']}", "choose --to=hf")
    params = learned_table(named_leaves(weights.params), fields)
    prefix_rows = fields["posemb_cls"]
    if prefix_rows and fields["num_registers"]:
        params = add_zero_rows(params, fields["num_registers"], after=1)
    arrays = table.write(params, _rows(swiglu=fields["swiglu"]))
    return arrays, _config(weights, fields, has_class="cls_token" in params, has_table="posemb" in params)


def _config(weights: Weights, fields: dict[str, Any], *, has_class: bool, has_table: bool) -> dict[str, Any]:
    height, width = size_of(fields["image_size"])
    pool = next(theirs for theirs, ours in _POOLS.items() if ours == fields["pool"])
    args: dict[str, Any] = {
        "img_size": [height, width],
        "patch_size": fields["patch_size"],
        "in_chans": fields["channels"],
        "embed_dim": fields["width"],
        "depth": fields["depth"],
        "num_heads": fields["num_heads"],
        "mlp_ratio": _ratio(fields),
        "act_layer": next(theirs for theirs, ours in _GELU.items() if ours == fields["gelu"]),
        "global_pool": pool,
        "fc_norm": fields["norm_after_pool"],
        "class_token": has_class,
        "qkv_bias": fields["qkv_bias"],
        "qk_norm": fields["qk_norm"],
        "pre_norm": fields["pre_norm"],
        "reg_tokens": fields["num_registers"],
        "no_embed_class": not fields["posemb_cls"],
    }
    if fields["layer_scale"]:
        args["init_values"] = fields["layer_scale"]
    if not has_table:
        args["pos_embed"] = "none"
    if fields["swiglu"]:
        raise UsageError("a SwiGLU model can't be described by timm's config.json", "choose --to=hf")
    if not fields["patch_bias"] and not fields["pre_norm"]:
        raise UsageError(
            "timm drops the patch embedding's bias only together with pre_norm", "choose --to=onnx"
        )
    if fields["patch_bias"] and fields["pre_norm"]:
        raise UsageError("timm has no pre_norm model with a bias in its patch embedding", "choose --to=onnx")
    pretrained = {
        "input_size": [fields["channels"], height, width],
        "mean": [m / 255 for m in weights.mean],
        "std": [s / 255 for s in weights.std],
        "num_classes": fields["num_classes"],
        "interpolation": "bilinear",
        "crop_pct": 1.0,
    }
    if weights.classes is not None:
        pretrained["label_names"] = list(weights.classes)
    return {
        "architecture": "vit_base_patch16_224",
        "num_classes": fields["num_classes"],
        "num_features": fields["width"],
        "global_pool": pool,
        "model_args": args,
        "pretrained_cfg": pretrained,
    }


def _ratio(fields: dict[str, Any]) -> float:
    """timm computes the MLP width as int(width * ratio): a ratio that gives it back exactly."""
    ratio = fields["mlp_dim"] / fields["width"]
    return ratio if int(fields["width"] * ratio) == fields["mlp_dim"] else float(np.nextafter(ratio, np.inf))


def _model_args(config: dict[str, Any] | None) -> dict[str, Any]:
    return dict(config["model_args"]) if config is not None and "model_args" in config else {}


def _config_fields(args: dict[str, Any]) -> dict[str, Any]:
    """Our fields that a file of weights alone doesn't show, from timm's model arguments."""
    fields: dict[str, Any] = {}
    if "num_heads" in args:
        fields["num_heads"] = args["num_heads"]
    if "global_pool" in args:
        fields["pool"] = _known(_POOLS, args["global_pool"], "global_pool")
    if "act_layer" in args:
        fields["gelu"] = _known(_GELU, args["act_layer"], "act_layer")
    if args.get("init_values"):
        fields["layer_scale"] = float(args["init_values"])
    if "img_size" in args:
        size = args["img_size"]
        fields["image_size"] = (size, size) if isinstance(size, int) else tuple(size)
    return fields


def _known(known: dict[str, str], value: str, what: str) -> str:
    if value not in known:
        raise UsageError(
            f"timm's {what} {value!r} isn't supported", "known ones: " + ", ".join(map(repr, known))
        )
    return known[value]


def _normalization(
    config: dict[str, Any] | None, channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """In uint8 units; without a config that of timm's own conversions of Google's weights, [-1, 1]."""
    pretrained = config["pretrained_cfg"] if config is not None and "pretrained_cfg" in config else {}
    if "mean" in pretrained and "std" in pretrained:
        return tuple(255 * m for m in pretrained["mean"]), tuple(255 * s for s in pretrained["std"])
    half = (127.5,) * channels
    return half, half


def _classes(config: dict[str, Any] | None) -> tuple[str, ...] | None:
    pretrained = config["pretrained_cfg"] if config is not None and "pretrained_cfg" in config else {}
    return tuple(pretrained["label_names"]) if pretrained.get("label_names") else None
