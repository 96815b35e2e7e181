"""Reads the PyTorch parameter layouts of `tests/golden/{timm,hf}` into this project's names."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

_TIMM = [
    (r"^reg_token$", "registers"),
    (r"^pos_embed$", "posemb"),
    (r"^patch_embed\.proj\.", "patch_embed."),
    (r"^norm_pre\.", "pre_norm."),
    (r"^blocks\.(\d+)\.", r"encoder.block_\1."),
    (r"^attn_pool\.latent$", "map_head.probe"),
    (r"^attn_pool\.(q|kv|proj)\.", r"map_head.attn.\1."),
    (r"^attn_pool\.", "map_head."),
    (r"^fc_norm\.", "pool_norm."),
    (r"^norm\.", "encoder.norm."),
    (r"\.ls(\d)\.gamma$", r".layer_scale\1"),
    (r"\.attn\.proj\.", ".attn.out."),
]
_DINOV2 = [
    (r"^dinov2\.", ""),
    (r"^embeddings\.cls_token$", "cls_token"),
    (r"^embeddings\.position_embeddings$", "posemb"),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed."),
    (r"^encoder\.layer\.(\d+)\.", r"encoder.block_\1."),
    (r"^layernorm\.", "encoder.norm."),
    (r"^classifier\.", "head."),
    (r"\.attention\.attention\.", ".attn."),
    (r"\.attention\.output\.dense\.", ".attn.out."),
    (r"\.layer_scale(\d)\.lambda1$", r".layer_scale\1"),
    (r"\.mlp\.weights_out\.", ".mlp.fc2."),
]


def from_torch(path: Path, num_heads: int) -> dict[str, Any]:
    """Our nested parameters. The position table has rows for the registers, which are added to them."""
    flat = {}
    tensors = _safetensors(path)
    for name, array in tensors.items():
        for pattern, ours in _TIMM if "blocks.0.norm1.weight" in tensors else _DINOV2:
            name = re.sub(pattern, ours, name)  # noqa: PLW2901
        if "mask_token" not in name:
            flat |= _parts(name, array, num_heads)
    if "registers" in flat:
        rows = slice(1, 1 + flat["registers"].shape[1])
        flat["registers"] = flat["registers"] + flat["posemb"][:, rows]
        flat["posemb"] = np.delete(flat["posemb"], rows, axis=1)
    params: dict[str, Any] = {}
    for name, array in flat.items():
        *parents, leaf = name.split(".")
        node = params
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = array
    return params


def _parts(name: str, array: np.ndarray, num_heads: int) -> dict[str, np.ndarray]:
    """One tensor as ours: fused ones split, (out, in) transposed, heads separated."""
    for fused, names in (
        (".qkv.", (".query.", ".key.", ".value.")),
        (".kv.", (".key.", ".value.")),
        (".weights_in.", (".gate.", ".fc1.")),
    ):
        if fused in name:
            pieces = zip(names, np.split(array, len(names)), strict=True)
            return {
                k: v
                for part, piece in pieces
                for k, v in _parts(name.replace(fused, part), piece, num_heads).items()
            }
    name = name.replace("attn.q.", "attn.query.")
    if re.search(r"norm\w*\.weight$", name):
        return {name.replace(".weight", ".scale"): array}
    if name.endswith("patch_embed.weight"):
        return {"patch_embed.kernel": array.transpose(2, 3, 1, 0)}
    if name.endswith(".weight"):
        array, name = array.T, name.replace(".weight", ".kernel")
    if re.search(r"\.(query|key|value)\.", name):
        array = array.reshape(*array.shape[:-1], num_heads, -1)
    if name.endswith("attn.out.kernel"):
        array = array.reshape(num_heads, -1, array.shape[-1])
    return {name: array}


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    """The float32 tensors of a safetensors file: length of the header, header in JSON, then the bytes."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32"
        first, last = (start + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(data[first:last], np.float32).reshape(entry["shape"])
    return tensors
