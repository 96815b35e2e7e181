"""A model as it is exported: in its plainest form, with parameters on the host, and described in JSON."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.traverse_util import flatten_dict

from vit_jax.errors import UsageError
from vit_jax.models.check import size_of
from vit_jax.models.stack import unstack_layers

# Mean and standard deviation of each channel, in units of uint8 pixels: normalised = (pixels - mean) / std.
Normalization = tuple[Sequence[float], Sequence[float]]

# How layers run rather than what they compute; the plain form traces and exports on any device.
_PLAIN = {"scan": False, "remat": "none", "attention": "xla"}
_OF_A_MESH = ("constrain", "gather")


def plain_form(model: nn.Module, params: Mapping[str, Any]) -> tuple[nn.Module, dict[str, np.ndarray]]:
    """The model unrolled, without rematerialisation, kernels of one device or constraints of a mesh.

    Returns:
        the model, and its parameters by "/"-joined names, float32 on the host.

    Raises:
        UsageError: the parameters are not this model's; the details list names and shapes.
    """
    fields = {field.name: field for field in dataclasses.fields(model)}
    if getattr(model, "scan", False):
        params = unstack_layers(dict(params))
    plain = {name: value for name, value in _PLAIN.items() if name in fields}
    plain |= {name: fields[name].default for name in _OF_A_MESH if name in fields}
    model = model.clone(**plain)
    flat = flatten_dict(dict(params), sep="/")
    expected = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, *input_shape(model)))))
    _check_params(flat, flatten_dict(expected["params"], sep="/"))
    return model, {name: np.asarray(flat[name], np.float32, order="C") for name in sorted(flat)}


def input_shape(model: nn.Module) -> tuple[int, int, int]:
    """(H, W, C) of the images a model is exported for."""
    return (*size_of(model.image_size), model.channels)


def describe(
    model: nn.Module,
    *,
    normalization: Normalization | None,
    class_names: Sequence[str] | None,
    metadata: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What a user of the program needs to know, as JSON values.

    "model" holds the fields of the model and its class, "mean" and "std" are in units of uint8 pixels.

    Raises:
        UsageError: a number of names or channels that isn't the model's, or a key of `metadata` that is taken.
    """
    height, width, channels = input_shape(model)
    fields = {
        field.name: _json_value(getattr(model, field.name))
        for field in dataclasses.fields(model)
        if field.name not in ("parent", "name", *_OF_A_MESH)
    }
    described = {
        "input": f"images: [N, {height}, {width}, {channels}] (NHWC) float32, normalised; any N",
        "output": "logits: float32",
        "image_size": [height, width],
        "channels": channels,
        "model": {"class": type(model).__name__, **fields},
    }
    if "gelu" in fields:
        described["gelu"] = fields["gelu"]
    if normalization is not None:
        mean, std = ([float(value) for value in values] for values in normalization)
        if len(mean) != channels or len(std) != channels:
            raise UsageError(
                f"normalisation by {len(mean)} means and {len(std)} standard deviations",
                f"give one of each for each of the {channels} channels",
            )
        described |= {"mean": mean, "std": std, "normalisation": "(uint8 pixels - mean) / std, per channel"}
    if class_names is not None:
        if len(class_names) != model.num_classes:
            raise UsageError(
                f"{len(class_names)} class names for a model of {model.num_classes} classes",
                "give one name for each class, in the order of the logits",
            )
        described["class_names"] = list(class_names)
    taken = described.keys() & (metadata or {}).keys()
    if taken:
        raise UsageError(f"metadata with the key {min(taken)!r}", f"{sorted(described)} are written anyhow")
    return described | dict(metadata or {})


def _check_params(given: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    wrong = [
        *(f"missing: {name}" for name in sorted(expected.keys() - given.keys())),
        *(f"not in the model: {name}" for name in sorted(given.keys() - expected.keys())),
        *(
            f"{name}: {np.shape(given[name])}, the model has {expected[name].shape}"
            for name in sorted(given.keys() & expected.keys())
            if np.shape(given[name]) != expected[name].shape
        ),
    ]
    if wrong:
        raise UsageError(
            f"parameters that are not the model's ({len(wrong)} differ), first {wrong[0]}",
            "give a model and parameters of the same load or checkpoint",
            "\n".join(wrong),
        )


def _json_value(value: Any) -> Any:
    """A field of a model in JSON: numbers, names and sizes as they are, a type by its name."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [_json_value(item) for item in value]
    return jnp.dtype(value).name
