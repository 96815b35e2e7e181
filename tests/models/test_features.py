"""Maps of patch tokens, and one vector per image, of every kind of model."""

import jax
import numpy as np
import pytest

import vit_jax
from vit_jax.errors import UsageError
from vit_jax.models.features import REPRESENTATIONS, check_representation, represent

TINY = {"width": 16, "depth": 2, "mlp_dim": 16, "num_heads": 2, "num_classes": 3}


def outputs(model, size, seed=0):
    """(model.apply's result) of two random images, for random parameters."""
    images = np.random.default_rng(seed).normal(size=(2, *size, 3)).astype(np.float32)
    params = jax.jit(model.init)(jax.random.key(seed), images)["params"]
    return jax.jit(model.apply)({"params": params}, images)


@pytest.mark.parametrize(
    "fields",
    [
        {"pool": "tok"},
        {"pool": "gap"},
        {"pool": "gap", "class_token": True},
        {"pool": "tok", "num_registers": 3},
        {"pool": "map", "scan": True},
        {"pool": "gap", "norm_after_pool": True},
        {"pool": "none", "posemb": "sincos2d"},
    ],
)
def test_rows_and_columns_are_those_of_the_image(fields):
    model = vit_jax.create_model("mu/4", image_size=(8, 12), **(TINY | fields))
    _, aux = outputs(model, (8, 12))
    found = vit_jax.dense_features(model, aux)
    assert found.shape == (2, 2, 3, 16)
    prefix = aux["encoded"].shape[1] - 6
    for y in range(2):
        for x in range(3):
            assert np.array_equal(found[:, y, x], aux["encoded"][:, prefix + 3 * y + x])


def test_a_patch_of_the_map_sees_its_own_pixels():
    """Without blocks' mixing: depth 1 and zero attention output, so that each token depends on its patch alone."""
    model = vit_jax.create_model("mu/4", image_size=(8, 12), **(TINY | {"pool": "gap", "depth": 1}))
    images = np.zeros((1, 8, 12, 3), np.float32)
    params = jax.jit(model.init)(jax.random.key(0), images)["params"]
    params["encoder"]["block_0"]["attn"]["out"]["kernel"] *= 0
    changed = images.copy()
    changed[0, 5, 9] = 1.0  # row 1, column 2 of the grid
    maps = [vit_jax.dense_features(model, model.apply({"params": params}, x)[1]) for x in (images, changed)]
    moved = np.any(np.asarray(maps[0] != maps[1])[0], axis=-1)
    assert moved.tolist() == [[False, False, False], [False, False, True]]


def test_the_grid_of_a_hybrid_and_of_a_mixer():
    hybrid = vit_jax.create_model("R+Ti/16", image_size=(64, 96), **TINY, backbone_width=0.5, patch_size=8)
    assert vit_jax.dense_features(hybrid, outputs(hybrid, (64, 96))[1]).shape == (2, 2, 3, 16)
    mixer = vit_jax.create_model(
        "Mixer-B/16",
        image_size=(32, 48),
        width=8,
        depth=1,
        tokens_mlp_dim=8,
        channels_mlp_dim=8,
        num_classes=2,
    )
    assert vit_jax.dense_features(mixer, outputs(mixer, (32, 48))[1]).shape == (2, 2, 3, 8)


def test_images_of_another_size_where_positions_allow_it():
    model = vit_jax.create_model("mu/4", image_size=8, **(TINY | {"pool": "gap", "posemb": "sincos2d"}))
    aux = outputs(model, (8, 16))[1]
    with pytest.raises(UsageError, match="8 patch tokens are no grid of 2x2"):
        vit_jax.dense_features(model, aux)
    assert vit_jax.dense_features(model, aux, image_size=(8, 16)).shape == (2, 2, 4, 16)


def test_a_resnet_has_no_patch_tokens():
    model = vit_jax.create_model("R50x1", image_size=32, num_classes=2)
    with pytest.raises(UsageError, match="no patch tokens"):
        vit_jax.dense_features(model, {"pre_logits": np.zeros((1, 8))})
    with pytest.raises(UsageError, match="no patch tokens"):
        check_representation(model, "patches")


def test_representations():
    model = vit_jax.create_model("mu/4", image_size=8, **(TINY | {"rep_size": 5, "num_registers": 2}))
    logits, aux = outputs(model, (8, 8))
    found = {name: np.asarray(represent(model, logits, aux, name)) for name in REPRESENTATIONS}
    tokens = np.asarray(aux["encoded"])
    assert {name: x.shape[1] for name, x in found.items()} == {
        "pre_logits": 5, "logits": 3, "cls": 16, "patches": 16, "cls_patches": 32
    }  # fmt: skip
    assert np.array_equal(found["cls"], tokens[:, 0])
    np.testing.assert_allclose(found["patches"], tokens[:, 3:].mean(axis=1), atol=1e-6)
    assert np.array_equal(found["cls_patches"], np.concatenate([found["cls"], found["patches"]], axis=1))


@pytest.mark.parametrize(
    ("fields", "name", "says"),
    [
        ({}, "prelogits", "did you mean 'pre_logits'"),
        ({"pool": "gap"}, "cls", "no class token"),
        ({"num_classes": 0}, "logits", "no classes"),
    ],
)
def test_what_a_model_does_not_have_is_refused(fields, name, says):
    model = vit_jax.create_model("mu/4", image_size=8, **(TINY | fields))
    with pytest.raises(UsageError, match=says):
        check_representation(model, name)
