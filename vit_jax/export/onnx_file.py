"""ONNX files of models, and running one with onnxruntime to compare it with the model."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import linen as nn

from vit_jax.errors import UsageError
from vit_jax.export.destination import new_files
from vit_jax.export.inference import Normalization, describe, input_shape, plain_form
from vit_jax.export.onnx_graph import is_symbolic
from vit_jax.export.onnx_trace import onnx_graph
from vit_jax.export.packages import needed

OLDEST_OPSET = 17  # the first with LayerNormalization

_IMAGES, _LOGITS = "images", "logits"
_WEIGHTS_SUFFIX = ".data"

# protobuf holds no message of 2 GiB; beyond this many bytes the parameters get a file of their own.
_LARGEST_SINGLE_FILE = 1_900_000_000


def write_onnx(
    model: nn.Module,
    params: Mapping[str, Any],
    path: str | os.PathLike,
    *,
    normalization: Normalization | None = None,
    class_names: Sequence[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    opset: int = OLDEST_OPSET,
    overwrite: bool = False,
) -> None:
    """Writes one ONNX file: input "images" [N, H, W, C] (NHWC) float32, already normalised; output "logits".

    Computes in float32 whatever the model's `dtype` is. N is free, H and W are the model's `image_size`. Models
    whose parameters don't fit into one protobuf (2 GiB: H/14 and larger) get them in PATH.data beside it.
    The file's metadata_props hold the description, each value as JSON: "class_names", "mean" and "std" in units
    of uint8 pixels, "image_size" [H, W], "gelu", "model" with all fields, and what else `metadata` gives.

    Args:
        model: a model of this package; a scanned one is unrolled first.
        params: its parameters, nested.
        path: the file; it appears when it is complete.
        normalization: (mean, std) per channel in units of uint8 pixels.
        class_names: one for each class.
        metadata: further JSON values.
        opset: version of the operator set, 17 or newer.
        overwrite: replace a file that exists.

    Raises:
        UsageError: a missing package, an opset that isn't known, parameters of another model, an operation
            without an ONNX form, a destination that exists or can't be written.
    """
    onnx = needed("onnx")
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST_OPSET <= opset <= newest:
        raise UsageError(f"ONNX opset {opset}", f"choose one from {OLDEST_OPSET} to {newest}")
    model, flat = plain_form(model, params)
    model = model.clone(dtype="float32")
    described = describe(model, normalization=normalization, class_names=class_names, metadata=metadata)
    with new_files(path, overwrite=overwrite, beside=(_WEIGHTS_SUFFIX,)) as folder:
        proto = _model_proto(model, flat, opset)
        onnx.helper.set_model_props(proto, {key: json.dumps(value) for key, value in described.items()})
        written = folder / Path(path).name
        size = sum(len(tensor.raw_data) for tensor in proto.graph.initializer)
        if size > _LARGEST_SINGLE_FILE:
            weights = written.name + _WEIGHTS_SUFFIX
            onnx.save(
                proto, written, save_as_external_data=True, all_tensors_to_one_file=True, location=weights
            )
        else:
            onnx.save(proto, written)
        onnx.checker.check_model(str(written), full_check=True)


def read_back_logits_onnx(path: str | os.PathLike, images: np.ndarray) -> np.ndarray:
    """Runs a file from `write_onnx` with onnxruntime, on CPU.

    Args:
        path: the file.
        images: [N, H, W, C] float32, already normalised.

    Returns:
        the logits, float32.

    Raises:
        UsageError: a missing package, a file that is missing or can't be read, images of another size or type.
    """
    onnxruntime = needed("onnxruntime")
    if not Path(path).is_file():
        raise UsageError(f"no file {path}", "give a file exported as onnx")
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a type for each of its status codes
        raise UsageError(f"{path} can't be read: {error}", "export the model once more") from error
    takes = session.get_inputs()[0]
    images = np.asarray(images)
    if images.ndim != 4 or list(images.shape[1:]) != takes.shape[1:] or images.dtype != np.float32:
        raise UsageError(
            f"images of shape {images.shape} and type {images.dtype}",
            f"this program takes float32 images of shape {takes.shape}",
        )
    return session.run([_LOGITS], {_IMAGES: images})[0]


def _model_proto(model: nn.Module, flat: dict[str, np.ndarray], opset: int) -> Any:
    """The ModelProto, without metadata."""
    helper, numpy_helper = needed("onnx.helper"), needed("onnx.numpy_helper")
    graph, logits = onnx_graph(model, flat, opset, images=_IMAGES, reserved=[_LOGITS])
    nodes, constants = graph.needed_for(graph.full(logits))
    nodes.append(helper.make_node("Identity", [graph.full(logits)], [_LOGITS], name=_LOGITS))
    float32 = needed("onnx").TensorProto.FLOAT
    lengths = [str(n) if is_symbolic(n) else n for n in logits.shape]
    proto = helper.make_graph(
        nodes,
        type(model).__name__,
        [helper.make_tensor_value_info(_IMAGES, float32, ["N", *input_shape(model)])],
        [helper.make_tensor_value_info(_LOGITS, float32, lengths)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(
        proto,
        opset_imports=imports,
        ir_version=helper.find_min_ir_version_for(imports),
        producer_name="vit_jax",
    )
