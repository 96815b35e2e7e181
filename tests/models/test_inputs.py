"""What a model takes and what it refuses, by name, before any computation."""

import json

import jax
import jax.numpy as jnp
import pytest

from vit_jax import create_model
from vit_jax.errors import UsageError
from vit_jax.models.check import grid_of


def _create(image_size=32, **fields):
    return create_model("mu/16", num_classes=3, image_size=image_size, **fields)


def _shapes(model, *image_shape, dtype=jnp.float32):
    """Output shapes for images of this shape, without running the model."""
    images = jax.ShapeDtypeStruct(image_shape, dtype)
    logits, aux = jax.eval_shape(lambda x: model.init_with_output(jax.random.key(0), x)[0], images)
    return logits.shape, aux["encoded"].shape


def test_width_and_heads(golden):
    cases = json.loads((golden / "cases/model_shapes.json").read_text())
    for case in cases["valid"]:
        model = _create(width=case["width"], num_heads=case["heads"])
        params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))["params"]
        kernel = params["encoder"]["block_0"]["attn"]["query"]["kernel"]
        assert kernel.shape == (case["width"], case["heads"], case["head_dim"])
    for case in cases["invalid"]:
        fields = {"num_heads" if name == "heads" else name: value for name, value in case.items()}
        with pytest.raises(UsageError) as error:
            _create(**fields)
        if 0 in case.values():
            assert " is 0" in str(error.value)
        else:
            assert str(case["width"]) in str(error.value) and str(case["heads"]) in str(error.value)


def test_resolutions(golden):
    cases = json.loads((golden / "cases/resolutions.json").read_text())
    for case in cases["valid"]:
        size = case["image"] if isinstance(case["image"], int) else tuple(case["image"])
        rows, columns = grid_of(size, case["patch"])
        assert case["grid"] in (rows, [rows, columns])
        model = create_model(f"mu/{case['patch']}", num_classes=3, image_size=size)
        height, width = model.image_size
        assert _shapes(model, 1, height, width, 3) == ((1, 3), (1, rows * columns + 1, 32))
    for case in cases["refused_or_cropped"]:
        with pytest.raises(UsageError, match=rf"{case['image']} .*patch size {case['patch']}"):
            create_model(f"mu/{case['patch']}", num_classes=3, image_size=case["image"])


def test_nonsquare_images():
    model = _create(image_size=(32, 64))  # height, width
    assert _shapes(model, 2, 32, 64, 3) == ((2, 3), (2, 9, 32))
    with pytest.raises(UsageError, match=r"4x2 patches, but the position table is for 2x4"):
        _shapes(model, 2, 64, 32, 3)
    with pytest.raises(UsageError, match=r"height 50 .* patch size 16"):
        _shapes(_create(), 2, 50, 50, 3)


def test_fixed_positions_take_any_grid():
    for posemb in ("sincos2d", "none"):
        assert _shapes(_create(posemb=posemb, pool="gap"), 1, 48, 16, 3) == ((1, 3), (1, 3, 32))
        # Only a learned table can have a row for the class token.
        assert _shapes(_create(posemb=posemb, posemb_cls=True), 1, 48, 16, 3) == ((1, 3), (1, 4, 32))


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((2, 32, 32, 1), jnp.float32, r"\(2, 32, 32, 1\).*height, width, 3"),
        ((32, 32, 3), jnp.float32, r"\(32, 32, 3\).*batch"),
        ((2, 32, 32, 3), jnp.uint8, "uint8.*normalise"),
        ((2, 64, 64, 3), jnp.float32, "4x4 patches, but the position table is for 2x2"),
    ],
)
def test_refused_images(shape, dtype, message):
    with pytest.raises(UsageError, match=message):
        _shapes(_create(), *shape, dtype=dtype)


def test_one_channel_model():
    assert _shapes(_create(channels=1), 2, 32, 32, 1) == ((2, 3), (2, 5, 32))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": -32}, "width is -32"),
        ({"depth": 1.5}, "depth is 1.5"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"stoch_depth": -0.1}, "stoch_depth is -0.1"),
        ({"pool": "gpa"}, "'gpa' .*did you mean 'gap'"),
        ({"posemb": "sincos"}, "'sincos' .*did you mean 'sincos2d'"),
        ({"remat": "ful"}, "'ful' .*did you mean 'full'"),
        ({"gelu": "relu"}, "'relu'"),
        ({"attention": "cudnn"}, "'cudnn' is not available"),
        ({"attention": "xxla"}, "'xxla' .*did you mean 'xla'"),
        ({"dtype": "bf16"}, "'bf16' .*did you mean 'bfloat16'"),
        ({"softmax_dtype": "int8"}, "'int8' .*bfloat16"),
        ({"posemb": "sincos2d", "width": 6}, "multiple of 4"),
    ],
)
def test_refused_fields(fields, message):
    with pytest.raises(UsageError, match=message):
        _create(**fields)


def test_pooling_and_heads():
    images = (2, 32, 32, 3)
    assert _shapes(_create(pool="none"), *images) == ((2, 4, 3), (2, 4, 32))
    assert _shapes(_create(pool="tok_gap"), *images) == ((2, 3), (2, 5, 32))
    assert _shapes(_create(pool="map"), *images) == ((2, 3), (2, 4, 32))
    model = create_model("mu/16", num_classes=0, image_size=32, rep_size=20)
    params = jax.jit(model.init)(jax.random.key(0, impl="rbg"), jnp.zeros(images))["params"]
    assert "head" not in params and params["pre_logits"]["kernel"].shape == (32, 20)
    logits, aux = jax.jit(model.apply)({"params": params}, jnp.ones(images))
    assert logits.shape == (2, 20) and (logits == aux["pre_logits"]).all()
