"""Kinds and places of positions (Table 8 of the ViT paper): against loops in numpy, and against one another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny_job import run, tiny_job
from vit_jax import create_model, sharding
from vit_jax.errors import UsageError
from vit_jax.formats.adapt import adapt
from vit_jax.formats.resize import resize
from vit_jax.formats.weights import Weights
from vit_jax.formats.writing import write
from vit_jax.models.positions import grid_table, relative_logits
from vit_jax.models.stack import stack_layers, unstack_layers
from vit_jax.param_groups import make_groups
from vit_jax.paths import named_leaves

SHAPE = {"width": 16, "depth": 2, "mlp_dim": 24, "num_heads": 2, "num_classes": 5}
GRID = (2, 3)  # rows, columns
KINDS = ("learn", "learn2d", "relative")
ABLATION = [
    ("learn", "stem"), ("learn", "every"), ("learn", "shared"), ("learn2d", "stem"), ("learn2d", "every"),
    ("learn2d", "shared"), ("relative", "every"), ("relative", "shared"), ("none", None),
]  # fmt: skip


def _create(posemb, posemb_at=None, image_size=(16, 24), **fields):
    return create_model(
        "mu/8", image_size=image_size, posemb=posemb, posemb_at=posemb_at, **{**SHAPE, **fields}
    )


def _images(size=(16, 24)):
    return np.random.default_rng(2).uniform(-1, 1, size=(2, *size, 3)).astype(np.float32)


def _shapes(model, size=(16, 24)):
    return jax.eval_shape(model.init, jax.random.key(0), _images(size))["params"]


def _random(model, size=(16, 24)):
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: rng.normal(0.1, 0.3, leaf.shape).astype(np.float32), _shapes(model, size)
    )


def _logits(model, params):
    return np.asarray(jax.jit(model.apply)({"params": params}, _images())[0])


# ---- the tables


def test_two_tables_written_out():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(1, 3, 4)), rng.normal(size=(1, 2, 4))
    expected = [np.concatenate([x[0, column], y[0, row]]) for row in range(2) for column in range(3)]
    np.testing.assert_allclose(grid_table(jnp.asarray(x), jnp.asarray(y))[0], np.stack(expected), rtol=1e-6)


@pytest.mark.parametrize("prefix", [0, 2])
def test_relative_logits_written_out(prefix):
    rng, N, H = np.random.default_rng(0), 5, 3
    q = rng.normal(size=(2, prefix + N, H, 4)).astype(np.float32)
    keys = rng.normal(size=(2 * N - 1, H, 4)).astype(np.float32)
    found = relative_logits(jnp.asarray(q), jnp.asarray(keys), prefix, jnp.float32)
    expected = np.zeros((2, H, prefix + N, prefix + N))
    for p_q in range(N):
        for p_k in range(N):
            products = (q[:, prefix + p_q] * keys[N - 1 - (p_q - p_k)]).sum(-1)  # [B, H]
            expected[:, :, prefix + p_q, prefix + p_k] = products
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_numbers_of_parameters():
    """N = 6 patches of width 16, two layers; the 2-D tables have 2 rows and 3 columns of 8."""
    one = {"learn": 6 * 16, "learn2d": (2 + 3) * 8, "relative": 11 * 16}
    without = sum(x.size for x in jax.tree.leaves(_shapes(_create("none"))))
    for kind, at in ABLATION[:-1]:
        count = sum(x.size for x in jax.tree.leaves(_shapes(_create(kind, at))))
        assert count - without == one[kind] * (2 if at == "every" else 1), (kind, at)
    base = create_model("B/16", num_classes=1000, image_size=224, posemb="relative")
    shapes = jax.eval_shape(base.init, jax.random.key(0), jnp.zeros((1, 224, 224, 3)))["params"]
    assert sum(x.size for x in jax.tree.leaves(shapes)) == 86_566_888 + (12 * 391 - 196) * 768


# ---- the models


@pytest.mark.parametrize("kind", KINDS)
def test_one_table_in_all_layers_is_a_copy_in_each(kind):
    shared, every = _create(kind, "shared", num_registers=1), _create(kind, "every", num_registers=1)
    params = _random(shared)
    tables = {name: params[name] for name in params if name.startswith("posemb")}
    copied = {name: params[name] for name in params if name not in tables}
    encoder = {
        name: {**block, **tables} if name.startswith("block_") else block
        for name, block in params["encoder"].items()
    }
    np.testing.assert_allclose(
        _logits(shared, params), _logits(every, {**copied, "encoder": encoder}), atol=1e-5
    )


def test_two_tables_are_one_of_their_rows():
    params = _random(_create("learn2d"))
    one = {name: leaf for name, leaf in params.items() if not name.startswith("posemb")}
    one["posemb"] = np.asarray(grid_table(params["posemb_x"], params["posemb_y"]))
    np.testing.assert_allclose(_logits(_create("learn2d"), params), _logits(_create("learn"), one), atol=1e-5)
    # Before the only layer is before the first one.
    model = _create("learn", "shared", depth=1)
    np.testing.assert_allclose(_logits(model, one), _logits(_create("learn", depth=1), one), atol=1e-5)


def test_relative_positions_act_in_the_softmax():
    """Of the first layer: softmax of content and position, with the same queries."""
    model = _create("relative", "shared")
    params = _random(model)
    capture = jax.jit(
        lambda m, p: m.apply({"params": p}, _images(), capture_attention=True)[1], static_argnums=0
    )
    nothing = {name: leaf for name, leaf in params.items() if name != "posemb_relative"}
    aux = capture(_create("none"), nothing)
    block = params["encoder"]["block_0"]
    x = np.asarray(aux["with_posemb"])
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    x = x * block["norm1"]["scale"] + block["norm1"]["bias"]
    q = np.einsum("bnd,dhk->bnhk", x, block["attn"]["query"]["kernel"]) + block["attn"]["query"]["bias"]
    extra = relative_logits(jnp.asarray(q) / np.sqrt(8), params["posemb_relative"], 1, jnp.float32)
    expected = jax.nn.softmax(jnp.log(aux["attention"][0]) + extra, axis=-1)
    np.testing.assert_allclose(capture(model, params)["attention"][0], expected, atol=2e-5)


@pytest.mark.parametrize(
    ("kind", "at"),
    [
        ("relative", "every"),
        pytest.param("learn2d", "every", marks=pytest.mark.slow),
        pytest.param("relative", "shared", marks=pytest.mark.slow),
    ],
)
def test_scan_and_remat(kind, at):
    """The same loss and gradients as the loop, and every parameter has one."""

    def run_model(params, **fields):
        model = _create(kind, at, pool="tok_gap", **fields)

        def loss(params):
            return jnp.square(model.apply({"params": params}, _images(), train=True)[0] - 1).mean()

        return jax.jit(jax.value_and_grad(loss))(params)

    params = _random(_create(kind, at, pool="tok_gap"))
    loss, gradients = run_model(params)
    flat = named_leaves(gradients)
    assert all(np.isfinite(leaf).all() for leaf in flat.values())
    assert all(np.abs(leaf).max() > 1e-4 for name, leaf in flat.items() if "posemb" in name)
    scanned_loss, scanned = run_model(stack_layers(params), scan=True, remat="full")
    np.testing.assert_allclose(scanned_loss, loss, rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        unstack_layers(scanned),
        gradients,
    )


@pytest.mark.parametrize("posemb", ["relative", pytest.param("learn2d", marks=pytest.mark.slow)])
def test_the_same_on_eight_devices(posemb):
    fields = {"model__posemb": posemb, "model__posemb_at": "every", "fsdp_min_size": 64}
    _, alone = run(tiny_job(**fields), 3)
    _, spread = run(tiny_job(8, mesh__fsdp=2, mesh__tensor=2, mesh__replica=2, **fields), 3)
    np.testing.assert_allclose(spread, alone, rtol=1e-4)


def test_keys_of_the_offsets_split_by_heads():
    mesh = sharding.make_mesh(2, 2, 2)
    model = _create("relative", scan=True)
    specs = sharding.tree_shardings(_shapes(model), mesh, rules=sharding.TENSOR_RULES, fsdp_min_size=16)
    found = specs["encoder"]["blocks"]["posemb_relative"].spec  # [L, 2 N - 1, H, hd]
    assert tuple(found) == (None, None, "tensor", "fsdp")


def test_layer_decay():
    """A shared table counts as what comes before the layers, one of a layer as that layer."""
    options = {"frozen": "", "lr_mults": (), "layer_decay": 0.5}
    found = make_groups(_shapes(_create("learn2d", "shared")), **options).multipliers
    assert found["posemb_x"] == found["posemb_y"] == found["patch_embed/kernel"] == 0.125
    assert (
        make_groups(_shapes(_create("relative", "shared")), **options).multipliers["posemb_relative"] == 0.125
    )
    found = make_groups(_shapes(_create("relative")), **options).multipliers
    assert (
        found["encoder/block_0/posemb_relative"] == 0.25 and found["encoder/block_1/posemb_relative"] == 0.5
    )


# ---- weights


def _weights(model, params):
    names = ("posemb", "posemb_at", "posemb_cls", "image_size", "patch_size", *SHAPE)
    fields = {name: getattr(model, name) for name in names}
    return Weights("run", "weights", "vit", fields, params, "zoom", (127.5,) * 3, (127.5,) * 3)


@pytest.mark.parametrize(("kind", "at"), ABLATION[:6])
def test_tables_for_another_image_size(kind, at, caplog):
    model = _create(kind, at, posemb_cls=kind == "learn")
    weights = _weights(model, _random(model))
    other = _create(kind, at, posemb_cls=kind == "learn", image_size=(24, 32))
    before, after = named_leaves(weights.params), named_leaves(adapt(weights, other))
    assert "resized from 2x3 to 3x4 (zoom)" in caplog.text
    tables = [name for name in before if name.rpartition("/")[2].startswith("posemb")]
    assert len(tables) == (2 if at == "every" else 1) * (2 if kind == "learn2d" else 1)
    for name in before:
        if name not in tables:
            np.testing.assert_array_equal(after[name], before[name])
        elif kind == "learn":
            np.testing.assert_array_equal(after[name][:, :1], before[name][:, :1])
            np.testing.assert_array_equal(
                after[name][:, 1:], resize(before[name][:, 1:], GRID, (3, 4), "zoom")
            )
        else:  # along the columns of one row, or along the rows of one column
            old, new = ((1, 3), (1, 4)) if name.endswith("_x") else ((2, 1), (3, 1))
            np.testing.assert_allclose(after[name], resize(before[name], old, new, "zoom"), atol=1e-6)


def test_weights_that_do_not_fit():
    relative = _create("relative")
    with pytest.raises(UsageError, match=r"a 2x3 grid.*fit 3x4"):
        adapt(_weights(relative, _random(relative)), _create("relative", image_size=(24, 32)))
    every = _create("learn", "every", posemb_cls=True)
    with pytest.raises(UsageError, match="class token in every layer"):
        adapt(_weights(every, _random(every)), _create("learn", "every"))
    with pytest.raises(UsageError, match="posemb_relative"):
        adapt(_weights(relative, _random(relative)), _create("learn"))
    plain = _create("learn", "every")
    with_rows = adapt(_weights(plain, _random(plain)), every)
    assert all(not with_rows["encoder"][f"block_{i}"]["posemb"][:, 0].any() for i in range(2))


@pytest.mark.parametrize("layout", ["npz", "big_vision", "timm", "hf"])
def test_published_layouts_refuse(layout, tmp_path):
    for kind, at in ABLATION[1:8]:
        model = _create(kind, at)
        with pytest.raises(UsageError, match=f"{layout} has no place for positions of kind '{kind}'"):
            write(_weights(model, {}), tmp_path / "w", layout)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_other_images_than_the_table_is_made_for(kind):
    model = _create(kind)
    with pytest.raises(UsageError, match="grid of 3x3 patches, but the position table is for 2x3"):
        jax.eval_shape(model.apply, {"params": _shapes(model)}, jnp.zeros((1, 24, 24, 3)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"posemb": "learn1d"}, "unknown posemb 'learn1d'"),
        ({"posemb": "learn", "posemb_at": "all"}, "unknown posemb_at 'all'"),
        ({"posemb": "sincos2d", "posemb_at": "every"}, "posemb_at 'every' with posemb 'sincos2d'"),
        ({"posemb": "none", "posemb_at": "shared"}, "posemb_at 'shared' with posemb 'none'"),
        ({"posemb": "relative", "posemb_at": "stem"}, "posemb_at 'stem' with relative"),
        ({"posemb": "learn2d", "width": 15, "num_heads": 3}, "posemb 'learn2d' of width 15"),
    ],
)
def test_refused_fields(fields, message):
    with pytest.raises(UsageError, match=message):
        _create(**fields)
