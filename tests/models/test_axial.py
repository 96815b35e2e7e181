"""Axial ViTs (appendix D.6 of the ViT paper): against full attention with a mask, and by counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import create_model, list_models
from vit_jax.errors import UsageError
from vit_jax.formats.weights import Weights
from vit_jax.formats.writing import write
from vit_jax.models.attention import Attention, xla_attention
from vit_jax.models.axial import from_lines, to_lines
from vit_jax.models.stack import stack_layers
from vit_jax.models.variants import name_of, variant_fields

GRID = (2, 3)  # rows, columns
SHAPE = {"width": 16, "depth": 2, "mlp_dim": 24, "num_heads": 2, "num_classes": 5, "image_size": (16, 24)}


def _create(**fields):
    return create_model("Axial-mu/8", **{**SHAPE, **fields})


def _images():
    return np.random.default_rng(2).uniform(-1, 1, size=(2, 16, 24, 3)).astype(np.float32)


def _random(model):
    shapes = jax.eval_shape(model.init, jax.random.key(0), _images())["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.normal(0.1, 0.3, leaf.shape).astype(np.float32), shapes)


def _mask(line):
    """[N, N]: 0 for pairs of one row, or of one column, else minus infinity."""
    place = np.indices(GRID).reshape(2, -1)[0 if line == "row" else 1]
    return np.where(place[:, None] == place[None], 0.0, -np.inf).astype(np.float32)


def test_lines_written_out():
    x = jnp.arange(2 * 6 * 4.0).reshape(2, 6, 4)
    rows, columns = to_lines(x, GRID, "row"), to_lines(x, GRID, "column")
    np.testing.assert_array_equal(rows, [x[0, :3], x[0, 3:], x[1, :3], x[1, 3:]])
    np.testing.assert_array_equal(columns, [x[b, c::3] for b in range(2) for c in range(3)])
    np.testing.assert_array_equal(from_lines(rows, GRID, "row"), x)
    np.testing.assert_array_equal(from_lines(columns, GRID, "column"), x)


@pytest.mark.parametrize("line", ["row", "column"])
def test_attention_along_lines_is_masked_attention(line):
    x = np.random.default_rng(0).normal(size=(2, 6, 8)).astype(np.float32)
    attention = Attention(num_heads=2)
    variables = attention.init(jax.random.key(0), x, x)
    along, _ = attention.apply(variables, *[to_lines(x, GRID, line)] * 2)

    params = variables["params"]
    q, k, v = (
        jnp.einsum("bnd,dhk->bnhk", x, params[name]["kernel"]) + params[name]["bias"][None, None]
        for name in ("query", "key", "value")
    )
    options = {"softmax_dtype": jnp.float32, "dropout": 0.0, "dropout_key": None, "return_weights": True}
    mixed, weights = xla_attention(q, k, v, bias=jnp.asarray(_mask(line))[None, None], **options)
    assert np.array_equal(np.asarray(weights[0, 0] > 0), np.isfinite(_mask(line)))
    expected = jnp.einsum("bnhk,hkd->bnd", mixed, params["out"]["kernel"]) + params["out"]["bias"][None, None]
    np.testing.assert_allclose(from_lines(along, GRID, line), expected, atol=1e-5)


def test_scan_and_remat():
    """The same loss as the loop and finite gradients; a row block, then a column block in every layer."""
    params = _random(_create())
    assert list(params["encoder"]) == ["block_0", "block_1", "norm"] and "cls_token" not in params
    assert list(params["encoder"]["block_0"]) == ["column", "row"]

    def loss(params, **fields):
        return jnp.square(_create(**fields).apply({"params": params}, _images())[0] - 1).mean()

    expected = jax.jit(loss)(params)
    scanned = jax.jit(jax.value_and_grad(lambda p: loss(p, scan=True, remat="full")))
    found, gradients = scanned(stack_layers(params))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


def test_names_and_counts():
    """Twice the blocks of B/32 or B/16, a mean instead of a class token."""
    assert list_models("Axial*") == ["Axial-B/32", "Axial-B/16"]
    for patch in (16, 32):
        counts = []
        for name in (f"B/{patch}", f"Axial-B/{patch}"):
            model = create_model(name, num_classes=1000, image_size=224)
            shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 224, 224, 3)))["params"]
            counts.append(sum(leaf.size for leaf in jax.tree.leaves(shapes)))
        block = 4 * (768 * 768 + 768) + 2 * 768 * 3072 + 3072 + 768 + 4 * 768
        assert counts[1] - counts[0] == 12 * block - 768
    fields = variant_fields("Axial-B/16")
    assert name_of("vit", fields) == "Axial-B/16"
    assert name_of("vit", {**fields, "axial": False, "pool": "tok"}) == "B/16"
    assert name_of("vit", variant_fields("B/32")) == "B/32"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pool": "tok"}, "class token or registers"),
        ({"num_registers": 1}, "class token or registers"),
        ({"posemb": "relative"}, "posemb 'relative' in its layers"),
        ({"posemb_at": "every"}, "posemb 'learn' in its layers"),
        ({"axial": 1}, "axial is 1 .*true or false"),
    ],
)
def test_refused_fields(fields, message):
    with pytest.raises(UsageError, match=message):
        _create(**fields)


def test_what_an_axial_model_cannot_do(tmp_path):
    model = _create()
    with pytest.raises(UsageError, match="never among all tokens"):
        jax.eval_shape(lambda x: model.init(jax.random.key(0), x, capture_attention=True), _images())
    weights = Weights("run", "w", "vit", {**SHAPE, "patch_size": 8, "pool": "gap", "axial": True}, {}, "zoom",
                      (0.0,) * 3, (1.0,) * 3)  # fmt: skip
    with pytest.raises(UsageError, match="timm has no place for axial attention"):
        write(weights, tmp_path / "w", "timm")
