"""Looking into models: the numbers are those of the attention that `apply` captures, for all kinds of ViT."""

import jax
import numpy as np
import pytest

from tests.tiny_job import tiny_job
from vit_jax import create_model, figures, inspection, sharding, views
from vit_jax.data.dataset import DataFacts
from vit_jax.errors import UsageError
from vit_jax.models.stack import stack_layers

SHAPE = {"width": 16, "depth": 2, "mlp_dim": 24, "num_heads": 2}


def facts_of(model):
    size = (*model.image_size, model.channels)
    return DataFacts(0, 3, size, (), (127.5,) * model.channels, (127.5,) * model.channels)


def tiny(name="mu/4", image_size=(8, 12), **fields):
    """A model, its random parameters, and an inspector of it on one device."""
    model = create_model(name, num_classes=3, image_size=image_size, **{**SHAPE, **fields})
    pixels = np.zeros((1, *model.image_size, model.channels), np.float32)
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(model.init, jax.random.key(0), pixels)["params"]
    params = jax.tree.map(lambda leaf: rng.normal(0, 0.5, leaf.shape).astype(np.float32), shapes)
    return model, params, inspector(model, params)


def inspector(model, params, devices=1):
    mesh = sharding.make_mesh(devices, 1, 1, jax.devices()[:devices])
    placed = jax.device_put(params, sharding.replicated(mesh))
    return inspection.Inspector(model, placed, mesh, facts_of(model))


def an_image(model):
    return np.random.default_rng(1).integers(0, 256, (*model.image_size, model.channels), np.uint8)


@pytest.mark.parametrize(
    ("fields", "prefix", "class_token"),
    [
        ({}, 1, True),
        ({"num_registers": 3, "posemb_cls": True}, 4, True),
        ({"pool": "gap", "posemb": "sincos2d"}, 0, False),
        ({"pool": "gap", "class_token": True}, 1, False),  # there is a class token, but nobody reads it
        ({"pool": "map", "num_registers": 1}, 1, False),
        ({"pool": "tok_gap", "channels": 1}, 1, True),
        ({"dtype": "bfloat16", "softmax_dtype": "bfloat16"}, 1, True),
    ],
)
def test_a_look_is_made_of_the_captured_attention(fields, prefix, class_token):
    model, params, inspect = tiny(**fields)
    image = an_image(model)
    pixels = (image[None].astype(np.float32) - 127.5) / 127.5
    _, aux = jax.jit(lambda p, x: model.apply({"params": p}, x, capture_attention=True))(params, pixels)
    attention = np.asarray(aux["attention"][:, 0], np.float32)
    found = inspect.look(image)
    joint = views.rollout(attention)[-1]
    rows = joint[0] if class_token else joint[prefix:].mean(axis=0)
    np.testing.assert_allclose(found.rollout, rows[prefix:].reshape(2, 3), atol=1e-5)
    for distance, renormalise in ((found.distance, True), (found.distance_raw, False)):
        expected = views.mean_distance(attention, (2, 3), 4, renormalise=renormalise)
        assert distance.shape == (2, 2)
        np.testing.assert_allclose(distance, expected, rtol=1e-4)
    assert ("class token" in inspect.reads) == class_token


def test_scanned_blocks_and_many_devices_give_the_same_look():
    model, params, inspect = tiny()
    image = an_image(model)
    expected = inspect.look(image)
    scanned = model.clone(scan=True, remat="full")
    for other in (inspector(model, params, devices=8), inspector(scanned, stack_layers(params))):
        found = other.look(image)
        np.testing.assert_allclose(found.rollout, expected.rollout, atol=1e-6)
        np.testing.assert_allclose(found.distance, expected.distance, rtol=1e-5)
        np.testing.assert_allclose(found.distance_raw, expected.distance_raw, rtol=1e-5)


def test_a_hybrids_distance_counts_the_backbones_stride():
    model, _, inspect = tiny("R50+B/16", (64, 32), backbone=(1,), backbone_width=0.5, patch_size=2)
    assert inspect.grid == (8, 4)
    look = inspect.look(an_image(model))
    farthest = np.hypot(7 * 8, 3 * 8)
    assert look.distance.min() > 8 and look.distance.max() < farthest
    learned = inspect.learned()
    assert learned.filters is None and "feature map" in learned.left_out["filters"]
    assert learned.similarity.shape == (8, 4, 8, 4)


def test_what_the_parameters_show():
    _, params, inspect = tiny(posemb_cls=True)
    learned = inspect.learned()
    assert learned.left_out == {}
    np.testing.assert_array_equal(
        learned.filters.images, views.embedding_filters(params["patch_embed"]["kernel"]).images
    )
    rows = params["posemb"][0, 1:]  # the class token's own row is none of a patch
    expected = np.dot(rows[0], rows[4]) / np.linalg.norm(rows[0]) / np.linalg.norm(rows[4])
    np.testing.assert_allclose(learned.similarity[0, 0, 1, 1], expected, rtol=1e-5)


@pytest.mark.parametrize(("posemb", "word"), [("sincos2d", "fixed"), ("none", "no position embedding")])
def test_positions_that_are_not_learned_are_left_out_with_the_reason(posemb, word):
    learned = tiny(posemb=posemb)[2].learned()
    assert learned.similarity is None and word in learned.left_out["positions"]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("R50x1", {"depths": (1,), "width_factor": 0.5}),
        ("Mixer-B/16", {"width": 8, "depth": 1, "tokens_mlp_dim": 4, "channels_mlp_dim": 4}),
    ],
)
def test_models_without_attention_are_refused_in_one_line(name, fields):
    model = create_model(name, num_classes=3, image_size=32, **fields)
    with pytest.raises(UsageError, match="no attention and no position embeddings: there is no rollout"):
        inspection.Inspector(model, {}, None, facts_of(model))
    with pytest.raises(UsageError, match=r"capture_attention: a (ResNet|Mixer) has no attention"):
        model.init(jax.random.key(0), np.zeros((1, 32, 32, 3), np.float32), capture_attention=True)


def test_parameters_that_are_shared_out_over_the_devices():
    """As a run keeps them; what is looked at isn't shared out, and comes out the same."""
    job = tiny_job(devices=8, mesh__fsdp=4, mesh__tensor=2, fsdp_min_size=0)
    params = job.create_state().params
    kernel = params["patch_embed"]["kernel"]
    assert not kernel.sharding.is_fully_replicated
    shared = inspection.Inspector(job.model, params, job.mesh, job.facts)
    whole = jax.tree.map(np.asarray, params)
    alone = inspector(
        create_model("mu/4", num_classes=5, image_size=8, width=32, depth=2, mlp_dim=64, num_heads=4), whole
    )
    found, expected = shared.look(an_image(job.model)), alone.look(an_image(job.model))
    np.testing.assert_allclose(found.rollout, expected.rollout, atol=1e-6)
    np.testing.assert_allclose(found.distance, expected.distance, rtol=1e-5)
    np.testing.assert_array_equal(shared.learned().filters.images, alone.learned().filters.images)


def test_a_model_that_has_diverged_is_drawn_as_far_as_it_goes():
    model, params, _ = tiny()
    inspect = inspector(model, jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), params))
    learned, look = inspect.learned(), inspect.look(an_image(model))
    assert learned.filters is None and "finite" in learned.left_out["filters"]
    assert figures.png(figures.draw_positions(learned.similarity))
    assert figures.png(figures.draw_distance(look.distance, num_images=1))
    assert figures.png(figures.draw_rollout(an_image(model), look.rollout))


@pytest.mark.parametrize(("name", "size", "most"), [("L/16", 384, 0.15), ("H/14", 518, 0.7)])
def test_large_models_at_high_resolution_need_little_memory(name, size, most):
    """GiB of temporaries by XLA's count, without computing anything: a fifth and less of the attention weights."""
    model = create_model(name, num_classes=10, image_size=size)
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, size, size, 3), np.float32))["params"]
    mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
    inspect = inspection.Inspector(model, shapes, mesh, facts_of(model))
    images = jax.ShapeDtypeStruct((1, size, size, 3), np.uint8)
    found = inspect._capture.lower(shapes, images).compile().memory_analysis().temp_size_in_bytes / 2**30
    tokens = np.prod(inspect.grid) + 1
    weights = 4 * model.depth * model.num_heads * tokens**2 / 2**30
    print(f"{name} at {size} px: {found:.3f} GiB, of attention weights {weights:.2f} GiB")
    assert found < most < weights / 3
