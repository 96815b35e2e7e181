"""timm's config.json: what a folder of weights says beyond its tensors, and what we write there.

Fields that the architecture's name alone decides were read off timm 1.0.31's vision_transformer.py.
"""

import re
from typing import Any

import numpy as np

from vit_jax.errors import UsageError, known_names
from vit_jax.formats.weights import Weights
from vit_jax.models.check import size_of

POOLS = {"token": "tok", "avg": "gap", "map": "map", "": "none"}
GELU = {"gelu": "erf", "gelu_tanh": "tanh"}

_OURS = re.compile(r"(vit|deit3?|flexivit)_")
_TANH = re.compile(
    r"vit_(base_patch32_siglip(_gap)?_256|large_patch16_siglip(_gap)?_512"
    r"|(so400m|giantopt)_patch16_siglip(_gap)?_\d+)"
)
# Arguments that the tensors show, or that only training and speed depend on.
_SHOWN = (
    "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "mlp_ratio", "qkv_bias", "qk_norm", "fc_norm",
    "class_token", "no_embed_class", "reg_tokens", "pre_norm", "final_norm", "pos_embed", "drop_rate",
    "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate", "weight_init",
    "fix_init", "dynamic_img_size", "dynamic_img_pad", "num_heads", "global_pool", "act_layer", "init_values",
    "img_size", "norm_layer",
)  # fmt: skip


def fields_of(config: dict[str, Any], origin: str) -> dict[str, Any]:
    """Our model fields that config.json settles.

    Raises:
      UsageError: an architecture, an argument or a value that isn't supported; names it.
    """
    args = config["model_args"] if config.get("model_args") is not None else {}
    if not isinstance(args, dict):
        raise UsageError(f"model_args of {origin} is {args!r}", "it must be an object")
    unknown = sorted(set(args) - set(_SHOWN))
    if unknown:
        raise UsageError(
            f"{origin} has timm's {unknown[0]}={args[unknown[0]]!r}", known_names(unknown[0], _SHOWN)
        )
    fields = _by_architecture(config.get("architecture"), origin)
    if args.get("norm_layer") not in (None, "layernorm"):
        raise UsageError(
            f"{origin} has timm's norm_layer={args['norm_layer']!r}", "only LayerNorm is supported"
        )
    pool = args["global_pool"] if "global_pool" in args else config.get("global_pool")
    if pool is not None:
        fields["pool"] = _known(POOLS, pool, "global_pool", origin)
    if "act_layer" in args:
        fields["gelu"] = _known(GELU, args["act_layer"], "act_layer", origin)
    if "num_heads" in args:
        fields["num_heads"] = args["num_heads"]
    if args.get("init_values"):
        fields["layer_scale"] = float(args["init_values"])
    if "no_embed_class" in args:
        fields["posemb_cls"] = not args["no_embed_class"]
    if "img_size" in args:
        size = args["img_size"]
        if not isinstance(size, int) and not (isinstance(size, list) and len(size) == 2):
            raise UsageError(f"img_size of {origin} is {size!r}", "it must be one number, or two")
        fields["image_size"] = (size, size) if isinstance(size, int) else tuple(size)
    return fields


def _by_architecture(name: str | None, origin: str) -> dict[str, Any]:
    if name is None:
        return {}
    if not _OURS.match(name):
        raise UsageError(f"{origin} is of timm's architecture {name!r}", "only its plain ViTs are supported")
    if "quickgelu" in name:
        raise UsageError(f"{origin} ({name}) uses QuickGELU", "only exact and tanh GELU are supported")
    fields: dict[str, Any] = {"ln_eps": 1e-5 if "_clip_" in name else 1e-6}
    return {**fields, "gelu": "tanh" if _TANH.fullmatch(name) else "erf"}


def _known(known: dict[str, str], value: Any, what: str, origin: str) -> str:
    if value not in known:
        listed = "known ones: " + ", ".join(map(repr, known))
        raise UsageError(f"{origin} has timm's {what}={value!r}", listed)
    return known[value]


def normalization(
    config: dict[str, Any] | None, channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std in uint8 units; without a config those of timm's conversions of Google's weights, [-1, 1]."""
    pretrained = (config or {}).get("pretrained_cfg") or {}
    if "mean" in pretrained and "std" in pretrained:
        return tuple(255 * m for m in pretrained["mean"]), tuple(255 * s for s in pretrained["std"])
    half = (127.5,) * channels
    return half, half


def classes(config: dict[str, Any] | None) -> tuple[str, ...] | None:
    """Class names; timm itself writes them at the top level."""
    config = config or {}
    names = config.get("label_names") or (config.get("pretrained_cfg") or {}).get("label_names")
    return tuple(names) if names else None


def config_of(
    weights: Weights, fields: dict[str, Any], *, has_class: bool, has_table: bool
) -> dict[str, Any]:
    """The config.json for weights whose model has those fields.

    Raises:
      UsageError: something that it can't express; says what.
    """
    _check(fields)
    height, width = size_of(fields["image_size"])
    pool = next(theirs for theirs, ours in POOLS.items() if ours == fields["pool"])
    args: dict[str, Any] = {
        "img_size": [height, width],
        "patch_size": fields["patch_size"],
        "in_chans": fields["channels"],
        "embed_dim": fields["width"],
        "depth": fields["depth"],
        "num_heads": fields["num_heads"],
        "mlp_ratio": _ratio(fields),
        "act_layer": next(theirs for theirs, ours in GELU.items() if ours == fields["gelu"]),
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
    config = {
        "architecture": "vit_base_patch16_224",  # the arguments below override its shape
        "num_classes": fields["num_classes"],
        "num_features": fields["width"],
        "global_pool": pool,
        "model_args": args,
        "pretrained_cfg": {
            "input_size": [fields["channels"], height, width],
            "mean": [round(m / 255, 7) for m in weights.mean],
            "std": [round(s / 255, 7) for s in weights.std],
            "num_classes": fields["num_classes"],
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "crop_mode": "squash",
        },
    }
    return config if weights.classes is None else {**config, "label_names": list(weights.classes)}


def _check(fields: dict[str, Any]) -> None:
    other = "onnx and stablehlo take any model"
    if fields["pool"] == "tok_gap":
        raise UsageError("timm knows no head on class token and mean together", other)
    if fields["rep_size"]:
        raise UsageError("timm no longer knows the representation layer before the head", other)
    if fields["backbone"] is not None:
        raise UsageError("hybrids can't be written for timm", other)
    if fields["ln_eps"] != 1e-6:
        raise UsageError(f"timm's config has no place for ln_eps={fields['ln_eps']}", other)
    if fields["swiglu"]:
        raise UsageError("a SwiGLU model can't be described by timm's config.json", other)
    if fields["patch_bias"] == fields["pre_norm"]:
        raise UsageError(
            f"timm's models have a patch bias or pre_norm, this one {'both' if fields['pre_norm'] else 'neither'}",
            other,
        )


def _ratio(fields: dict[str, Any]) -> float:
    """timm computes the MLP width as int(width * ratio): a ratio that gives it back exactly."""
    ratio = fields["mlp_dim"] / fields["width"]
    return ratio if int(fields["width"] * ratio) == fields["mlp_dim"] else float(np.nextafter(ratio, np.inf))
