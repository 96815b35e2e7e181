"""MLP-Mixer: against the paper's counts and a forward pass written out in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import create_model
from vit_jax.errors import UsageError

KEY = jax.random.key(7, impl="rbg")


def _create(**fields):
    shape = {"width": 12, "depth": 2, "tokens_mlp_dim": 10, "channels_mlp_dim": 20}
    return create_model("Mixer-S/8", **{"num_classes": 5, "image_size": (16, 24), **shape, **fields})


def _images(count=3):
    return np.random.default_rng(2).uniform(-1, 1, size=(count, 16, 24, 3)).astype(np.float32)


def _params(model):
    shapes = jax.eval_shape(model.init, jax.random.key(0), _images())["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.normal(0.1, 0.3, leaf.shape).astype(np.float32), shapes)


# Table 1 of the paper: millions of parameters at 224 px, without the classifier.
@pytest.mark.parametrize(
    ("name", "millions"),
    [("S/32", 19), ("S/16", 18), ("B/32", 60), ("B/16", 59), ("L/32", 206), ("L/16", 207), ("H/14", 431)],
)
def test_counts_of_the_paper(name, millions):
    model = create_model(f"Mixer-{name}", num_classes=0, image_size=224)
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 224, 224, 3)))["params"]
    counted = sum(leaf.size for leaf in jax.tree.leaves(params)) / 1e6
    assert round(counted) == millions, counted


def _numpy_forward(p, images):
    """Section 2 of the paper in float64, patch by patch."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), p)

    def norm(x, q):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * q["scale"] + q[
            "bias"
        ]

    def mlp(x, q):
        h = x @ q["fc1"]["kernel"] + q["fc1"]["bias"]
        h = h / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        return h @ q["fc2"]["kernel"] + q["fc2"]["bias"]

    features = []
    for image in images:
        patches = [image[r : r + 8, c : c + 8] for r in range(0, 16, 8) for c in range(0, 24, 8)]
        x = np.stack([np.tensordot(patch, p["patch_embed"]["kernel"], 3) for patch in patches])
        x = x + p["patch_embed"]["bias"]
        for i in range(2):
            block = p[f"block_{i}"]
            x = x + mlp(norm(x, block["norm1"]).T, block["token_mlp"]).T
            x = x + mlp(norm(x, block["norm2"]), block["channel_mlp"])
        features.append(norm(x, p["norm"]).mean(0))
    return np.stack(features), np.stack(features) @ p["head"]["kernel"] + p["head"]["bias"]


def test_equals_the_paper_written_out():
    model, params = _create(), _params(_create())
    logits, aux = jax.jit(model.apply)({"params": params}, _images())
    features, expected = _numpy_forward(params, _images())
    assert logits.dtype == aux["pre_logits"].dtype == jnp.float32
    np.testing.assert_allclose(aux["pre_logits"], features, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
    assert aux["encoded"].shape == (3, 6, 12) and model.grid == (2, 3)

    half, _ = jax.jit(_create(dtype="bfloat16").apply)({"params": params}, _images())
    assert half.dtype == jnp.float32 and 1e-4 < np.abs(half - logits).max() < 0.3
    headless, _ = jax.jit(_create(num_classes=0).apply)({"params": params}, _images())
    np.testing.assert_array_equal(headless, aux["pre_logits"])


def test_initial_values():
    params = jax.jit(_create(head_bias_init=-10.0).init)(KEY, _images())["params"]
    assert not params["head"]["kernel"].any() and (params["head"]["bias"] == -10).all()
    assert params["block_0"]["token_mlp"]["fc1"]["kernel"].shape == (6, 10)
    assert params["block_1"]["channel_mlp"]["fc2"]["kernel"].shape == (20, 12)


def test_branches_of_the_last_block_are_dropped_at_the_rate():
    B, rate = 1024, 0.7
    model = _create(stoch_depth=rate)
    params = _params(model)
    images = np.broadcast_to(_images(1), (B, 16, 24, 3))
    run = jax.jit(lambda train: model.apply({"params": params}, images, train=train, rngs={"dropout": KEY})[1],
                  static_argnums=0)  # fmt: skip
    first = jax.jit(_create(depth=1).apply)({"params": params}, images[:1])[1]["encoded"]
    untouched = (np.abs(run(True)["encoded"] - first) < 1e-4).all(axis=(1, 2)).mean()
    assert abs(untouched - rate**2) < 4 * np.sqrt(rate**2 * (1 - rate**2) / B)
    np.testing.assert_array_equal(
        run(False)["encoded"][:3], jax.jit(_create().apply)({"params": params}, images)[1]["encoded"][:3]
    )


def test_activations_are_constrained_at_every_block():
    seen = []

    def constrain(x):
        seen.append(x.shape)
        return x

    model = _create(constrain=constrain)
    jax.eval_shape(model.apply, {"params": _params(_create())}, _images())
    assert seen == [(3, 6, 12)] * 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens_mlp_dim": 0}, "tokens_mlp_dim is 0"),
        ({"channels_mlp_dim": 1.5}, "channels_mlp_dim is 1.5"),
        ({"stoch_depth": 1.0}, "stoch_depth is 1.0"),
        ({"image_size": 20}, "height 20 .*patch size 8"),
        ({"dtype": "bf16"}, "did you mean 'bfloat16'"),
        ({"mlp_dim": 8}, "has no field 'mlp_dim' .*'tokens_mlp_dim'"),
        ({"dropout": 0.1}, "has no field 'dropout'"),
    ],
)
def test_refused_fields(fields, message):
    with pytest.raises(UsageError, match=message):
        _create(**fields)


def test_images_of_another_size():
    with pytest.raises(UsageError, match="2x2 patches, but the token perceptrons are for 2x3"):
        jax.eval_shape(_create().init, KEY, jnp.zeros((1, 16, 16, 3)))


def test_unknown_names():
    with pytest.raises(UsageError, match=r"'Mixer-Q/16' \(did you mean 'Mixer-"):
        create_model("Mixer-Q/16", num_classes=1, image_size=32)
