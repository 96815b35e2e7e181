"""StableHLO through `jax.export`: one folder with the program, the parameters and a description."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.traverse_util import unflatten_dict

from vit_jax.errors import UsageError
from vit_jax.export.destination import new_folder
from vit_jax.export.inference import Normalization, describe, input_shape, plain_form
from vit_jax.export.packages import needed

PLATFORMS = ("cpu", "cuda", "tpu")

_PROGRAM, _PARAMS, _METADATA = "model.stablehlo", "params.safetensors", "metadata.json"

_HOW_TO_LOAD = [
    "import jax.export, safetensors.numpy",
    f"program = jax.export.deserialize(open('{_PROGRAM}', 'rb').read())",
    f"params = safetensors.numpy.load_file('{_PARAMS}')",
    "logits = jax.jit(program.call)(params, images)",
]


def write_stablehlo(
    model: nn.Module,
    params: Mapping[str, Any],
    path: str | os.PathLike,
    *,
    normalization: Normalization | None = None,
    class_names: Sequence[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a folder that runs with jax alone, on CPU, CUDA and TPU, for any batch size.

    `model.stablehlo` is a serialised `jax.export` of (params, images) -> logits, `params.safetensors` holds its
    first argument, a flat dict of float32 arrays, and `metadata.json` the description with a recipe to load it.
    Activations have the model's `dtype`; logits are float32.

    Args:
        model: a model of this package; a scanned one is unrolled first.
        params: its parameters, nested.
        path: the folder; it appears when it is complete.
        normalization: (mean, std) per channel in units of uint8 pixels.
        class_names: one for each class.
        metadata: further JSON values for `metadata.json`.
        overwrite: replace a folder that was exported before.

    Raises:
        UsageError: a missing package, parameters of another model, a destination that exists or can't be written.
    """
    needed("flatbuffers")  # of jax.export's serialisation
    save_file = needed("safetensors.numpy").save_file
    model, flat = plain_form(model, params)
    described = describe(model, normalization=normalization, class_names=class_names, metadata=metadata)

    def logits(flat_params: dict[str, jax.Array], images: jax.Array) -> jax.Array:
        return model.apply({"params": unflatten_dict(flat_params, sep="/")}, images, train=False)[0]

    with new_folder(path, overwrite=overwrite, marks=(_PROGRAM, _METADATA)) as folder:
        (batch,) = jax.export.symbolic_shape("N")
        program = jax.export.export(jax.jit(logits), platforms=PLATFORMS)(
            {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in flat.items()},
            jax.ShapeDtypeStruct((batch, *input_shape(model)), jnp.float32),
        )
        described |= {
            "platforms": list(PLATFORMS),
            "jax_version": jax.__version__,
            "calling_convention_version": program.calling_convention_version,
            "how_to_load": _HOW_TO_LOAD,
        }
        (folder / _PROGRAM).write_bytes(program.serialize())
        save_file(flat, folder / _PARAMS)
        (folder / _METADATA).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


def load_stablehlo(path: str | os.PathLike) -> Callable[[np.ndarray], jax.Array]:
    """The program of a folder from `write_stablehlo`, ready to call.

    Returns:
        images [N, H, W, C] float32, already normalised -> logits float32; compiled once for each N.

    Raises:
        UsageError: the folder or one of its files is missing or unreadable; from the call: images of another
            size or type than the program's.
    """
    needed("flatbuffers")
    load_file = needed("safetensors.numpy").load_file
    folder = Path(path)
    for name in (_PROGRAM, _PARAMS):
        if not (folder / name).is_file():
            raise UsageError(f"{folder} holds no {name}", "give a folder exported as stablehlo")
    try:
        program = jax.export.deserialize(bytearray((folder / _PROGRAM).read_bytes()))
        params = load_file(folder / _PARAMS)
    except Exception as error:  # the readers' own errors, of many types
        raise UsageError(
            f"{folder} can't be read: {type(error).__name__}: {error}", "export the model once more"
        ) from error
    takes = program.in_avals[-1]
    call = jax.jit(program.call)

    def logits(images: np.ndarray) -> jax.Array:
        if np.ndim(images) != 4 or np.shape(images)[1:] != takes.shape[1:] or images.dtype != takes.dtype:
            raise UsageError(
                f"images of shape {np.shape(images)} and type {np.asarray(images).dtype}",
                f"this program takes {takes.str_short()}",
            )
        return call(params, images)

    return logits
