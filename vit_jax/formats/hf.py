"""Hugging Face's ViT and DINOv2: a folder of model.safetensors, config.json and preprocessor_config.json."""

import re
from typing import Any

from vit_jax.errors import UsageError, known_names
from vit_jax.formats import table, torch_names
from vit_jax.formats.posemb import add_zero_rows, learned_table
from vit_jax.formats.table import CONV, SAME, Row, pair
from vit_jax.formats.torch_names import DENSE, HEADS, MERGE, NORM, Leaves
from vit_jax.formats.weights import Arrays, Weights, complete, model_of, shapes_of
from vit_jax.models.check import size_of
from vit_jax.paths import named_leaves, nested

LAYOUT = "hf"
_GELU = {"gelu": "erf", "gelu_pytorch_tanh": "tanh", "gelu_new": "tanh"}
_KINDS = ("vit", "dinov2", "dinov2_with_registers")
_POSITIONS = ("embeddings.cls_token", "embeddings.register_tokens", "embeddings.position_embeddings")
# Used in self-supervised training alone; and the pooler of a bare ViT without classes, where it isn't wanted.
_UNUSED = re.compile(r"embeddings\.mask_token")
_PREFIX = re.compile(r"(vit|dinov2|dinov2_with_registers)\.")


def _rows(kind: str, *, swiglu: bool) -> list[Row]:
    vit = kind == "vit"
    norm1, norm2 = ("layernorm_before", "layernorm_after") if vit else ("norm1", "norm2")
    fc1, fc2 = ("intermediate.dense", "output.dense") if vit else ("mlp.fc1", "mlp.fc2")
    if swiglu:
        fc1, fc2 = "mlp.weights_in", "mlp.weights_out"
    here, there = "encoder/block_{i}", "encoder.layer.{i}"
    first = [f"{here}/mlp/gate", f"{here}/mlp/fc1"] if swiglu else [f"{here}/mlp/fc1"]
    conv: Leaves = (("kernel", ".weight", CONV), ("bias", ".bias", SAME))
    return [
        Row("cls_token", "embeddings.cls_token"),
        Row("registers", "embeddings.register_tokens"),
        Row("posemb", "embeddings.position_embeddings"),
        *pair("patch_embed", "embeddings.patch_embeddings.projection", conv),
        *pair(f"{here}/norm1", f"{there}.{norm1}", NORM),
        *(row for name in ("query", "key", "value")
          for row in pair(f"{here}/attn/{name}", f"{there}.attention.attention.{name}", HEADS)),
        *pair(f"{here}/attn/out", f"{there}.attention.output.dense", MERGE),
        Row(f"{here}/layer_scale1", f"{there}.layer_scale1.lambda1"),
        *pair(f"{here}/norm2", f"{there}.{norm2}", NORM),
        *(row._replace(part=k, parts=len(first))
          for k, name in enumerate(first) for row in pair(name, f"{there}.{fc1}", DENSE)),
        *pair(f"{here}/mlp/fc2", f"{there}.{fc2}", DENSE),
        Row(f"{here}/layer_scale2", f"{there}.layer_scale2.lambda1"),
        *pair("encoder/norm", "layernorm", NORM),
        *pair("pre_logits", "pooler.dense", DENSE),
        *pair("head", "classifier", DENSE),
    ]  # fmt: skip


def matches(arrays: Arrays) -> bool:
    """Whether the names are those of Hugging Face's ViT or DINOv2."""
    return any(_PREFIX.sub("", name).startswith("embeddings.patch_embeddings.") for name in arrays)


def read(
    arrays: Arrays,
    hints: dict[str, Any],
    origin: str,
    config: dict[str, Any] | None,
    preprocessor: dict[str, Any] | None,
) -> Weights:
    """A state dict and the content of config.json and preprocessor_config.json -> weights.

    Raises:
      UsageError: no config, an architecture that isn't supported, or arrays that aren't this model's.
    """
    if config is None:
        raise UsageError(
            f"{origin} has no config.json beside it", "give the folder as save_pretrained wrote it"
        )
    kind = _need(config, "model_type", str, origin)
    if kind not in _KINDS:
        raise UsageError(f"{origin} is of Hugging Face's type {kind!r}", known_names(kind, _KINDS))
    arrays = {_PREFIX.sub("", name, count=1): array for name, array in arrays.items()}
    told = _config_fields(config, origin)
    if not any(name.startswith("classifier.") for name in arrays) and "pool" not in hints:
        hints["pool"] = "tok"
    patch = _need(config, "patch_size", int, origin)
    scaled = "encoder.layer.0.layer_scale1.lambda1" in arrays
    swiglu = "encoder.layer.0.mlp.weights_in.weight" in arrays
    fc2 = {"vit": "output.dense", "dinov2": "mlp.fc2"}["vit" if kind == "vit" else "dinov2"]
    last = "mlp.weights_out" if swiglu else fc2
    found: dict[str, Any] = {
        "patch_size": patch,
        "channels": _need(config, "num_channels", int, origin),
        "width": _need(config, "hidden_size", int, origin),
        "depth": _need(config, "num_hidden_layers", int, origin),
        "num_heads": _need(config, "num_attention_heads", int, origin),
        "mlp_dim": _shape(arrays, f"encoder.layer.0.{last}.weight", origin)[1],
        "swiglu": swiglu,
        "qkv_bias": "encoder.layer.0.attention.attention.query.bias" in arrays,
        "num_classes": arrays["classifier.weight"].shape[0] if "classifier.weight" in arrays else 0,
        "rep_size": arrays["pooler.dense.weight"].shape[0] if "pooler.dense.weight" in arrays else 0,
        "layer_scale": _need(config, "layerscale_value", float, origin) if scaled else 0.0,
    }
    if "classifier.weight" in arrays:
        found["pool"] = "tok" if kind == "vit" else "tok_gap"
    arrays, positions = torch_names.read_positions(arrays, _POSITIONS, hints, patch, origin)
    fields = complete(hints, {**told, **found, **positions}, origin)
    rows = _rows(kind, swiglu=swiglu)
    params = table.read(arrays, shapes_of(model_of("vit", fields)), rows, origin=origin, ignored=_UNUSED)
    mean, std = _normalization(preprocessor, kind, found["channels"], origin)
    return Weights(LAYOUT, origin, "vit", fields, nested(params), "bicubic", mean, std, _classes(config))


def write(weights: Weights) -> tuple[Arrays, dict[str, Any], dict[str, Any]]:
    """State dict, config.json and preprocessor_config.json, for `AutoModelForImageClassification`.

    Raises:
      UsageError: something that neither of Hugging Face's two models can express; says what.
    """
    fields = weights.model().__dict__
    kind = "vit" if fields["pool"] == "tok" else "dinov2"
    _check(fields, kind)
    params = learned_table(named_leaves(weights.params), fields)
    if not fields["posemb_cls"]:
        params = add_zero_rows(params, 1)
    arrays = table.write(params, _rows(kind, swiglu=fields["swiglu"]))
    prefixed = {
        (name if name.startswith("classifier.") else f"{kind}.{name}"): a for name, a in arrays.items()
    }
    if kind == "dinov2":
        prefixed["dinov2.embeddings.mask_token"] = params["cls_token"][0] * 0
    return prefixed, _config(weights, fields, kind), _preprocessor(weights, fields)


def _check(fields: dict[str, Any], kind: str) -> None:
    other = "onnx and stablehlo take any model"
    if fields["pool"] not in ("tok", "tok_gap"):
        raise UsageError(f"Hugging Face's ViT and DINOv2 know no pooling {fields['pool']!r}", other)
    if not fields["num_classes"]:
        raise UsageError("a model without classes can't be written as an image classifier", other)
    unknown = [n for n in ("qk_norm", "pre_norm", "norm_after_pool", "rep_size", "num_registers", "backbone")
               if fields[n]]  # fmt: skip
    if kind == "vit":
        unknown += [n for n in ("layer_scale", "swiglu") if fields[n]]
    elif not fields["layer_scale"]:
        raise UsageError("Hugging Face's DINOv2 needs LayerScale, which this model lacks", other)
    if unknown:
        raise UsageError(f"Hugging Face's {kind} has no place for {', '.join(unknown)}", other)
    if not fields["patch_bias"] or fields["posemb"] == "none":
        raise UsageError(f"Hugging Face's {kind} always has a patch bias and positions", other)
    height, width = size_of(fields["image_size"])
    if height != width:
        raise UsageError(f"Hugging Face's {kind} config has no place for {height}x{width} images", other)
    if kind == "dinov2":
        ratio, rest = divmod(fields["mlp_dim"], fields["width"])
        if fields["swiglu"] or rest:
            raise UsageError(
                f"DINOv2's config can't express an MLP of {fields['mlp_dim']}, ratio {ratio}+", other
            )


def _config(weights: Weights, fields: dict[str, Any], kind: str) -> dict[str, Any]:
    names = weights.classes or tuple(f"LABEL_{k}" for k in range(fields["num_classes"]))
    names = (*names, *(f"LABEL_{k}" for k in range(len(names), fields["num_classes"])))
    config = {
        "architectures": ["ViTForImageClassification" if kind == "vit" else "Dinov2ForImageClassification"],
        "model_type": kind,
        "hidden_size": fields["width"],
        "num_hidden_layers": fields["depth"],
        "num_attention_heads": fields["num_heads"],
        "hidden_act": {"erf": "gelu", "tanh": "gelu_pytorch_tanh"}[fields["gelu"]],
        "layer_norm_eps": fields["ln_eps"],
        "image_size": size_of(fields["image_size"])[0],
        "patch_size": fields["patch_size"],
        "num_channels": fields["channels"],
        "qkv_bias": fields["qkv_bias"],
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "id2label": {str(k): name for k, name in enumerate(names)},
        "label2id": {name: k for k, name in enumerate(names)},
        "dtype": "float32",
        "problem_type": "multi_label_classification" if weights.loss == "sigmoid_xent" else None,
    }
    if kind == "vit":
        return {**config, "intermediate_size": fields["mlp_dim"]}
    return {
        **config,
        "mlp_ratio": fields["mlp_dim"] // fields["width"],
        "layerscale_value": fields["layer_scale"],
        "use_swiglu_ffn": False,
    }


def _preprocessor(weights: Weights, fields: dict[str, Any]) -> dict[str, Any]:
    height, width = size_of(fields["image_size"])
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": 2,  # bilinear
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [round(m / 255, 7) for m in weights.mean],
        "image_std": [round(s / 255, 7) for s in weights.std],
    }


def _config_fields(config: dict[str, Any], origin: str) -> dict[str, Any]:
    act = _need(config, "hidden_act", str, origin)
    if act not in _GELU:
        raise UsageError(f"hidden_act of {origin} is {act!r}", "known ones: " + ", ".join(_GELU))
    return {"gelu": _GELU[act], "ln_eps": _need(config, "layer_norm_eps", float, origin)}


def _need(config: dict[str, Any], key: str, kind: type, origin: str) -> Any:
    """A value of config.json.

    Raises:
      UsageError: it isn't there, or of another type.
    """
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
        shown = repr(value) if key in config else "missing"
        raise UsageError(
            f"{key} in the config.json of {origin} is {shown}", f"it must be of type {kind.__name__}"
        )
    return kind(value)


def _shape(arrays: Arrays, name: str, origin: str) -> tuple[int, ...]:
    if name not in arrays:
        raise UsageError(f"{origin} is no complete model: {name} is missing", "give the whole file")
    return arrays[name].shape


def _normalization(
    preprocessor: dict[str, Any] | None, kind: str, channels: int, origin: str
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """In uint8 units; where the folder doesn't say, as its kind is usually trained."""
    if preprocessor is None or not preprocessor.keys() & {
        "image_mean",
        "image_std",
        "do_normalize",
        "do_rescale",
    }:
        return ((127.5,) * 3, (127.5,) * 3) if kind == "vit" else (IMAGENET_MEAN, IMAGENET_STD)
    factor = preprocessor.get("rescale_factor", 1 / 255) if preprocessor.get("do_rescale", True) else 1.0
    if not preprocessor.get("do_normalize", True):
        return (0.0,) * channels, (1 / factor,) * channels
    found = []
    for key, usual in (("image_mean", 0.5), ("image_std", 0.5)):
        value = preprocessor.get(key, usual)
        values = [value] * channels if isinstance(value, int | float) else list(value)
        if len(values) != channels or not all(isinstance(v, int | float) for v in values):
            raise UsageError(
                f"{key} in the preprocessor_config.json of {origin} is {value!r}", f"give {channels}"
            )
        found.append(tuple(v / factor for v in values))
    return found[0], found[1]


IMAGENET_MEAN = tuple(255 * m for m in (0.485, 0.456, 0.406))
IMAGENET_STD = tuple(255 * s for s in (0.229, 0.224, 0.225))


def _classes(config: dict[str, Any]) -> tuple[str, ...] | None:
    names = config.get("id2label", {})
    ordered = tuple(names[str(k)] for k in range(len(names)) if str(k) in names)
    made_up = all(name == f"LABEL_{k}" for k, name in enumerate(ordered))
    return None if made_up or len(ordered) != len(names) else ordered
