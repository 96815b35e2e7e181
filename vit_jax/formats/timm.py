"""timm's Vision Transformers: a safetensors file, usually in a folder with timm's config.json."""

from typing import Any

from vit_jax.errors import UsageError
from vit_jax.formats import table, timm_config, torch_names
from vit_jax.formats.posemb import add_zero_rows, learned_table
from vit_jax.formats.table import CONV, SAME, Row, pair
from vit_jax.formats.torch_names import DENSE, HEADS, MERGE, NORM
from vit_jax.formats.weights import Arrays, Weights, complete, heads_of, model_of, shapes_of
from vit_jax.paths import named_leaves, nested

LAYOUT = "timm"
_POSITIONS = ("cls_token", "reg_token", "pos_embed")


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
    told = timm_config.fields_of(config, origin) if config is not None else {}
    # The grid of the table: what the config says of it goes before what the caller wants to have.
    asked = {**hints, **{name: told.pop(name) for name in ("image_size", "posemb_cls") if name in told}}
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
    found["num_heads"] = heads_of(width, depth, fc2[1], {**hints, **told}, origin)
    if "blocks.0.ls1.gamma" not in arrays:
        found["layer_scale"] = 0.0
    arrays, positions = torch_names.read_positions(arrays, _POSITIONS, asked, patch, origin)
    found |= positions
    if "attn_pool.latent" in arrays:
        found["pool"] = "map"
    elif "pool" not in {**hints, **told}:
        found["pool"] = "gap" if found["norm_after_pool"] or not found["class_token"] else "tok"
    defaults = {"gelu": "erf", "ln_eps": 1e-6}
    if "blocks.0.ls1.gamma" in arrays:
        defaults["layer_scale"] = 1e-5  # its initial value, which no longer matters
    fields = {**defaults, **complete(hints, {**told, **found}, origin)}
    rows = _rows(swiglu=fields["swiglu"])
    params = table.read(arrays, shapes_of(model_of("vit", fields)), rows, origin=origin)
    mean, std = timm_config.normalization(config, channels)
    return Weights(
        LAYOUT,
        origin,
        "vit",
        fields,
        nested(params),
        "bicubic_antialias",
        mean,
        std,
        timm_config.classes(config),
    )


def write(weights: Weights) -> tuple[Arrays, dict[str, Any]]:
    """State dict and config.json, for `timm.create_model("local-dir:FOLDER")`.

    Raises:
      UsageError: something that timm's VisionTransformer can't express; says what.
    """
    fields = weights.model().__dict__
    params = learned_table(named_leaves(weights.params), fields)
    prefix_rows = fields["posemb_cls"]
    if prefix_rows and fields["num_registers"]:
        params = add_zero_rows(params, fields["num_registers"], after=1)
    config = timm_config.config_of(
        weights, fields, has_class="cls_token" in params, has_table="posemb" in params
    )
    return table.write(params, _rows(swiglu=fields["swiglu"])), config
