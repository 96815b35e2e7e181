"""Reads the reference parameter layouts of `tests/golden` into this project's names."""

import json
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from vit_jax.models import create_model

# The two references count a block's sub-modules together (0, 1, 2, 3) or by class (0, 0, 1, 0).
_RULES = [
    (r"^(?:opt/target|params)/", ""),
    (r"^embedding/", "patch_embed/"),
    (r"^cls$", "cls_token"),
    (r"^(?:Transformer/posembed_input/)?pos_embedding$", "posemb"),
    (r"^Transformer/encoder_norm/", "encoder/norm/"),
    (r"^Transformer/encoderblock_(\d+)/", r"encoder/block_\1/"),
    (r"^Transformer/encoderblock/", "encoder/blocks/"),
    (r"^MAPHead_0/LayerNorm_0/", "map_head/norm/"),
    (r"^MAPHead_0/", "map_head/"),
    (r"/LayerNorm_0/", "/norm1/"),
    (r"/LayerNorm_[12]/", "/norm2/"),
    (r"/MultiHeadDotProductAttention_[01]/", "/attn/"),
    (r"/MlpBlock_[03]/Dense_0/", "/mlp/fc1/"),
    (r"/MlpBlock_[03]/Dense_1/", "/mlp/fc2/"),
]
# The ResNets: backbone of a hybrid, or a model of their own. Units are counted unit1 or unit01.
_RESNET_RULES = [
    (r"^(?:root_block/)?conv_root/", "root/conv/"),
    (r"^gn_root/", "root/norm/"),
    (r"^block(\d+)/unit0*(\d+)/", r"stage_\1/unit_\2/"),
    (r"/conv_proj/", "/proj/"),
    (r"/gn_proj/", "/proj_norm/"),
    (r"/gn(\d)/", r"/norm\1/"),
    (r"^norm-pre-head/", "norm/"),
]
_NOT_PARAMETERS = re.compile(r"(opt/(?!target/)|chrono/)")


def from_reference(flat: dict[str, np.ndarray], prefix: str = "") -> dict[str, Any]:
    """{"Transformer/…/kernel": array} -> our nested parameters, float32.

    Only names under `prefix` (such as "start/") are read; optimizer state is left out, bfloat16 stored as
    two-byte void is widened. Stacked blocks stay stacked.
    """
    params: dict[str, Any] = {}
    for name, array in flat.items():
        if not name.startswith(prefix) or _NOT_PARAMETERS.match(name.removeprefix(prefix)):
            continue
        path = name.removeprefix(prefix)
        for pattern, ours in [*_RULES, *_RESNET_RULES]:
            path = re.sub(pattern, ours, path)
        *parents, leaf = path.split("/")
        node = params
        for parent in parents:
            node = node.setdefault(parent, {})
        values = _float32(np.asarray(array))
        per_channel = leaf in ("scale", "bias") and values.ndim == 4  # a GroupNorm's may be [1, 1, 1, C]
        node[leaf] = values.reshape(-1) if per_channel else values
    if "root" in params and "patch_embed" in params:
        convolutional = {name for name in params if name == "root" or name.startswith("stage_")}
        params["backbone"] = {name: params.pop(name) for name in convolutional}
    return params


def model_of(config: dict[str, Any], **fields: Any) -> Any:
    """The model of a `vt`, `bv`, `bit` or `train` file's config (any reference's keys)."""
    if config.get("model") in ("bit", "bit_paper"):
        return create_model(
            "R50x1",
            num_classes=config["num_classes"],
            image_size=config["image_size"],
            depths=tuple(config["depth"]),
            width_factor=config["width"],
            generation={"bit": "v1", "bit_paper": "v2"}[config["model"]],
            **fields,
        )
    if "hidden_size" in config:  # vision_transformer
        shape = {
            "width": config["hidden_size"],
            "depth": config["num_layers"],
            "patch_size": config["patch"][0],
            "pool": {"token": "tok", "gap": "gap"}[config["classifier"]],
            "posemb_cls": True,
            "rep_size": config.get("representation_size") or 0,
        }
        if config.get("resnet"):
            shape["backbone"] = tuple(config["resnet"]["num_layers"])
            shape["backbone_width"] = config["resnet"]["width_factor"]
    else:  # big_vision
        shape = {
            "width": config["width"],
            "depth": config["depth"],
            "patch_size": config["patch_size"][0],
            "pool": config["pool_type"],
            "posemb": config["posemb"],
            "rep_size": config["width"] if config.get("rep_size") else 0,
            "scan": config.get("scan", False),
        }
    size = config["image_size"]
    return create_model(
        "mu/8",
        num_classes=config["num_classes"],
        image_size=size if isinstance(size, int) else tuple(size),
        **{**shape, "mlp_dim": config["mlp_dim"], "num_heads": config["num_heads"], **fields},
    )


def load_case(path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, np.ndarray]]:
    """`golden/bv/NAME` -> config, our parameters, and the arrays of `NAME.io.npz`."""
    io = load_npz(path.with_name(path.name + ".io.npz"))
    return json.loads(str(io["config"])), from_reference(load_npz(path.with_name(path.name + ".npz"))), io


def load_npz(path: Path) -> dict[str, np.ndarray]:
    """All arrays of a file."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def model_input(image_uint8: np.ndarray) -> np.ndarray:
    """uint8 -> float32 in [-1, 1], as every reference got it."""
    return image_uint8.astype(np.float32) / np.float32(127.5) - np.float32(1)


def _float32(array: np.ndarray) -> np.ndarray:
    return (array.view(jnp.bfloat16) if array.dtype == np.dtype("V2") else array).astype(np.float32)
