"""ONNX files: the logits of the model for any batch size, and what else a user needs."""

import json
import os

import numpy as np
import onnx
import pytest

from tests.export.tiny_models import NAMES, NORMALIZATION, assert_same, images, logits_of, tiny
from vit_jax.errors import UsageError
from vit_jax.export import onnx_file, parity, read_back_logits_onnx, write_onnx
from vit_jax.models.stack import stack_layers

# Every pooling, position embedding and GELU, and forms that are brought to the plain one first.
VARIANTS = {
    "tok": {},
    "gap": {"pool": "gap", "gelu": "erf"},
    "map": {"pool": "map", "posemb": "sincos2d"},
    "map_erf": {"pool": "map", "gelu": "erf", "posemb": "none"},
    "tok_gap": {"pool": "tok_gap", "posemb": "none"},
    "none": {"pool": "none", "posemb": "sincos2d"},
    "posemb_cls": {"posemb_cls": True},
    "learn2d": {"posemb": "learn2d", "posemb_at": "every", "num_registers": 1},
    "relative": {"posemb": "relative", "pool": "tok_gap"},
    "axial": {"axial": True, "pool": "gap"},
    "rep_size": {"rep_size": 8, "ln_eps": 1e-5},
    "no_classes": {"num_classes": 0, "pool": "gap"},
    "scan": {"scan": True, "remat": "full"},
    "one_channel": {"channels": 1},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_of_every_variant(variant, tmp_path):
    model, params = tiny(**VARIANTS[variant])
    write_onnx(model, params, tmp_path / "model.onnx")
    reference = logits_of(model, params, 8)
    for batch in (1, 3, 8):
        other = read_back_logits_onnx(tmp_path / "model.onnx", images(model, batch))
        assert_same(reference[:batch], other)


def test_stacked_parameters_are_unstacked(tmp_path):
    model, params = tiny()
    write_onnx(model.clone(scan=True), stack_layers(params), tmp_path / "model.onnx")
    assert_same(logits_of(model, params, 2), read_back_logits_onnx(tmp_path / "model.onnx", images(model, 2)))


@pytest.mark.parametrize("opset", [17, 18, 21])
def test_opsets_and_operators(opset, tmp_path):
    model, params = tiny(pool="map")
    write_onnx(model, params, tmp_path / "model.onnx", opset=opset)
    proto = onnx.load(tmp_path / "model.onnx")
    assert [(o.domain, o.version) for o in proto.opset_import] == [("", opset)]
    operators = [node.op_type for node in proto.graph.node]
    # What runtimes have fast kernels for is there as one operator: 2 blocks, the last norm, the head.
    assert operators.count("LayerNormalization") == 6 and operators.count("Softmax") == 3
    assert not {"Exp", "ReduceMax", "ReduceSum"} & set(operators)
    assert_same(logits_of(model, params, 2), read_back_logits_onnx(tmp_path / "model.onnx", images(model, 2)))


def test_opsets_out_of_range(tmp_path):
    model, params = tiny()
    for opset in (16, 999):
        with pytest.raises(UsageError, match=rf"opset {opset} \(choose one from 17"):
            write_onnx(model, params, tmp_path / "model.onnx", opset=opset)


def test_names_and_free_batch(tmp_path):
    model, params = tiny()
    write_onnx(model, params, tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx").graph
    (given,), (computed,) = graph.input, graph.output
    assert given.name == "images" and computed.name == "logits"
    assert [d.dim_param or d.dim_value for d in given.type.tensor_type.shape.dim] == ["N", 32, 48, 3]
    assert [d.dim_param or d.dim_value for d in computed.type.tensor_type.shape.dim] == ["N", 3]
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    kernel = params["encoder"]["block_1"]["mlp"]["fc1"]["kernel"]
    np.testing.assert_array_equal(weights["encoder/block_1/mlp/fc1/kernel"], kernel)
    assert any(node.name.startswith("encoder/block_1/attn/") for node in graph.node)


def test_a_bfloat16_model_computes_in_float32(tmp_path):
    model, params = tiny(dtype="bfloat16")
    write_onnx(model, params, tmp_path / "model.onnx")
    other = read_back_logits_onnx(tmp_path / "model.onnx", images(model, 2))
    assert_same(logits_of(model.clone(dtype="float32"), params, 2), other)
    assert parity(logits_of(model, params, 2), other)[0] > 1e-4


def test_metadata(tmp_path):
    model, params = tiny(gelu="erf", dtype="bfloat16")
    given = {"normalization": NORMALIZATION, "class_names": NAMES, "metadata": {"source": "a run"}}
    write_onnx(model, params, tmp_path / "model.onnx", **given)
    props = {p.key: json.loads(p.value) for p in onnx.load(tmp_path / "model.onnx").metadata_props}
    assert props["class_names"] == NAMES and [props["mean"], props["std"]] == list(NORMALIZATION)
    assert props["image_size"] == [32, 48] and props["gelu"] == "erf" and props["source"] == "a run"
    assert props["model"]["class"] == "ViT" and props["model"]["width"] == 32
    assert props["model"]["dtype"] == "float32"  # of the program


def test_a_large_model_keeps_its_weights_beside(tmp_path, monkeypatch):
    model, params = tiny()
    path = tmp_path / "model.onnx"
    monkeypatch.setattr(onnx_file, "_LARGEST_SINGLE_FILE", 1000)
    write_onnx(model, params, path)
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "model.onnx.data"]
    assert path.stat().st_size < (tmp_path / "model.onnx.data").stat().st_size
    assert_same(logits_of(model, params, 2), read_back_logits_onnx(path, images(model, 2)))
    monkeypatch.undo()
    with pytest.raises(UsageError, match="exists already"):
        write_onnx(model, params, path)
    write_onnx(model, params, path, overwrite=True)
    assert os.listdir(tmp_path) == ["model.onnx"]  # no weights of the former file stay behind
    assert_same(logits_of(model, params, 2), read_back_logits_onnx(path, images(model, 2)))
