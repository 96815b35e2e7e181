"""Masked patch prediction as a task of the training step: meshes, accumulation, what counts, what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.test_step import assert_trees_close, assert_trees_equal
from tests.tiny_job import FACTS, batches, run, tiny_config, tiny_job
from vit_jax import job as job_lib
from vit_jax import step
from vit_jax.errors import UsageError
from vit_jax.evaluators.hidden_patches import HiddenPatches
from vit_jax.models.stack import stack_layers
from vit_jax.tasks import corruption, masked_patch

SMALL = {"task": "masked_patch", "model__depth": 1, "model__name": "mu/2"}  # 16 patches of 2 pixels


def small_job(devices=1, **overrides):
    return tiny_job(devices, **(SMALL | overrides))


@pytest.fixture(scope="module")
def reference():
    return run(small_job(), 4)


@pytest.mark.parametrize(
    ("devices", "overrides"),
    [
        (8, {"mesh__replica": 2, "mesh__fsdp": 2, "mesh__tensor": 2, "fsdp_min_size": 0}),
        (2, {"accum_steps": 4}),
    ],
)
def test_any_mesh_and_accumulation_hide_the_same_patches(reference, devices, overrides):
    state, losses = run(small_job(devices, **overrides), 4)
    np.testing.assert_allclose(losses, reference[1], rtol=1e-5)
    assert_trees_close(state.params, reference[0].params, atol=2e-5, rtol=0)


def test_the_first_loss_is_that_of_knowing_nothing(reference):
    np.testing.assert_allclose(reference[1][0], np.log(512), rtol=1e-6)  # a zero head
    assert reference[1][-1] < reference[1][0] - 0.3


def test_a_scanned_encoder_has_the_same_loss():
    unrolled, scanned = small_job(model__depth=2), small_job(model__depth=2, model__scan=True)
    params = unrolled.create_state().params
    rng = np.random.default_rng(0)
    params["head"]["kernel"] = jnp.asarray(rng.normal(size=(32, 512)), jnp.float32)
    batch = next(batches(unrolled, 1))

    def loss(job, params):
        apply = functools.partial(job.model.apply, {"params": params})
        return job.task.loss(apply, job.task.examples(batch, jnp.int32(0)))

    given = ((scanned, stack_layers(params)), (unrolled, params))
    found = [jax.jit(functools.partial(loss, job))(tree) for job, tree in given]
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_what_is_hidden_changes_with_step_row_and_seed():
    task = small_job().task
    batch = next(batches(small_job(), 1))
    batch = dict(batch, image=jnp.tile(batch["image"][:1], (16, 1, 1, 1)))
    draw = jax.jit(task.examples)
    hidden = [np.asarray(draw(batch, jnp.int32(i))["corrupted"]) for i in (0, 1, 0)]
    np.testing.assert_array_equal(hidden[0], hidden[2])
    assert (hidden[0] != hidden[1]).any() and (hidden[0][0] != hidden[0][1:]).any(axis=1).sum() > 10
    other = small_job(seed=1).task.examples(batch, jnp.int32(0))["corrupted"]
    assert (other != hidden[0]).any()


def test_the_loss_counts_corrupted_patches_alone():
    job = small_job(masked_patch__share=0.25)
    task = job.task
    examples = task.examples(next(batches(job, 1)), jnp.int32(3))
    assert task.count == 4 and (examples["corrupted"].sum(axis=1) == 4).all()

    def apply(images, *, masked, outputs):
        return outputs, {}

    rng = np.random.default_rng(0)
    outputs = jnp.asarray(rng.normal(size=(16, 16, 512)), jnp.float32)
    loss = task.loss(functools.partial(apply, outputs=outputs), examples)
    log_p = jax.nn.log_softmax(outputs)
    for i in range(16):
        places = np.flatnonzero(examples["corrupted"][i])
        expected = -np.mean([log_p[i, place, examples["target"][i, place]] for place in places])
        np.testing.assert_allclose(loss[i], expected, rtol=1e-5)
    elsewhere = jnp.where(examples["corrupted"][..., None], outputs, jnp.nan)
    np.testing.assert_array_equal(task.loss(functools.partial(apply, outputs=elsewhere), examples), loss)


def test_the_model_sees_mask_tokens_other_patches_and_the_rest():
    """The embeddings that reach the encoder, by hand; a masked patch's own pixels leave no trace."""
    job = small_job(model__posemb="none", model__pool="gap")
    params = job.create_state().params
    params = params | {"mask_token": jnp.full((1, 1, 32), 7.0)}
    batch = next(batches(job, 1))
    examples = job.task.examples(batch, jnp.int32(0))
    _, aux = job.model.apply({"params": params}, examples["image"], masked=examples["masked"])
    _, plain = job.model.apply({"params": params}, step.normalize(batch["image"], job.task))
    rows = jax.vmap(lambda i: jax.random.fold_in(step.purpose_key(0, step.PATCHES, 0), i))(jnp.arange(16))
    drawn = corruption.draw(rows, 16, 8, mask_share=0.8, swap_share=0.1)
    expected = np.take_along_axis(np.asarray(plain["patch_embed"]), np.asarray(drawn.source)[..., None], 1)
    expected = np.where(np.asarray(drawn.masked)[..., None], 7.0, expected)
    np.testing.assert_allclose(aux["with_posemb"], expected, atol=1e-6)
    assert (np.asarray(drawn.source) != np.arange(16)).any() and drawn.masked.any()


def test_the_mask_token_and_every_patch_get_gradients(reference):
    before, after = small_job().create_state().params, reference[0].params
    assert not before["mask_token"].any() and np.abs(after["mask_token"]).min() > 0
    assert after["head"]["kernel"].shape == (32, 512)


def test_labels_and_masked_rows_are_not_looked_at():
    job = small_job()
    update = job.lower_train_step().compile()
    (batch,) = batches(job, 1, mask=[1.0] * 8 + [0.0] * 8)
    other = dict(batch, image=batch["image"].at[8:].set(255), label=batch["label"] * 0 - 1)
    (a, metrics), (b, _) = update(job.create_state(), batch), update(job.create_state(), other)
    assert_trees_equal(a.params, b.params)
    assert float(metrics["examples"]) == 8


@pytest.mark.parametrize(
    ("target", "outputs"), [("mean_colour", 512), ("patch_4x4", 8192), ("pixels", 4 * 4 * 3)]
)
def test_every_target_fits_the_model(target, outputs):
    """With a head of zeros: a guess among 512 colours, or the mean square of the pixels."""
    job = small_job(masked_patch__target=target, model__name="mu/4")
    assert job.model.num_classes == outputs
    batch = next(batches(job, 1))
    examples = job.task.examples(batch, jnp.int32(0))
    loss = job.task.loss(lambda images, masked: (jnp.zeros((16, 4, outputs)), {}), examples)
    squares = np.square(np.asarray(examples["target"], np.float64)).mean(-1)
    corrupted = np.asarray(examples["corrupted"])
    guess = (squares * corrupted).sum(1) / 2 if target == "pixels" else np.full(16, np.log(512))
    np.testing.assert_allclose(loss, guess, rtol=1e-5)


def test_pixels_train():
    _, losses = run(small_job(masked_patch__target="pixels"), 6)
    assert losses[-1] < 0.8 * losses[0]


def passes(job, images, size):
    """Evaluation batches of so many rows, the last one padded."""

    def fresh():
        for start in range(0, len(images), size):
            part = images[start : start + size]
            full = np.zeros((size, *images.shape[1:]), np.uint8)
            full[: len(part)] = part
            mask = (np.arange(size) < len(part)).astype(np.float32)
            batch = {"image": full, "label": np.zeros(size, np.int32), "mask": mask}
            yield jax.device_put(batch, job.batch_sharding)

    return fresh


@pytest.mark.parametrize(("devices", "size"), [(8, 8), (1, 5)])
def test_evaluation_hides_the_same_patches_in_any_batch(reference, devices, size):
    """19 images in batches of 8 on eight devices, and of 5, against all 19 at once."""
    job = small_job(devices, eval__global_batch=size, seed=devices)  # the seed has no part in it
    images = np.random.default_rng(0).integers(0, 256, (19, 8, 8, 3)).astype(np.uint8)
    state = reference[0]
    placed = state.replace(params=jax.device_put(jax.device_get(state.params), job.state_shardings.params))
    found = HiddenPatches(passes(job, images, size), job.lower_eval_step().compile()).run(placed)

    rows = jax.vmap(lambda i: jax.random.fold_in(step.purpose_key(0, step.EVAL_PATCHES, 0), i))(
        jnp.arange(19)
    )
    drawn = corruption.draw(rows, 16, 8, mask_share=0.8, swap_share=0.1)
    patches = corruption.to_patches(jnp.asarray(images), 2)
    seen = corruption.to_images(corruption.swap(patches, drawn.source), (4, 4))
    logits, _ = job.model.apply(
        {"params": jax.device_get(state.params)}, step.normalize(seen, job.task), masked=drawn.masked
    )
    log_p, classes = np.asarray(jax.nn.log_softmax(logits)), np.asarray(job.task.target.of(patches))
    corrupted = np.asarray(drawn.corrupted)
    loss = -np.take_along_axis(log_p, classes[..., None], -1)[..., 0][corrupted].mean()
    right = int((log_p.argmax(-1) == classes)[corrupted].sum())
    assert (found["count"], found["answers"]) == (19, 19 * 8)
    assert found["correct"] == right and found["accuracy"] == right / (19 * 8)
    assert found["loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"task": "mask_patch"}, "task is 'mask_patch'.*masked_patch"),
        ({"model__name": "R50x1", **{f"model__{n}": None for n in ("width", "depth", "mlp_dim", "num_heads")}},
         "R50x1 no ViT"),
        ({"model__name": "R+Ti/16"}, "a hybrid: its convolutions"),
        ({"model__pool": "map"}, "model.pool is 'map'"),
        ({"model__rep_size": 8}, "model.rep_size is 8"),
        ({"model__name": "mu/3"}, "8 is not a multiple of the patch size 3"),
        ({"model__name": "mu/8"}, r"masked_patch.share 0.5 of 1 patches"),
        ({"masked_patch__share": 0.01}, "masked_patch.share 0.01 of 16 patches is 0"),
        ({"masked_patch__share": 1.5}, "masked_patch.share is 1.5"),
        ({"masked_patch__swap_share": 0.3}, "over 1 together"),
        ({"masked_patch__target": "mean_color"}, "did you mean 'mean_colour'"),
        ({"masked_patch__target": "patch_4x4"}, "the patch size 2 no multiple of 4"),
        ({"mixup_alpha": 0.2}, "mixup_alpha is 0.2"),
        ({"label_smoothing": 0.1}, "label_smoothing is 0.1"),
        ({"cutmix_alpha": 0.5}, "cutmix_alpha is 0.5"),
        ({"loss": "sigmoid_xent"}, "loss is 'sigmoid_xent'"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(overrides, says):
    facts = FACTS if "R" not in overrides.get("model__name", "") else FACTS.__class__(
        **{**FACTS.__dict__, "image_shape": (64, 64, 3)}
    )  # fmt: skip
    with pytest.raises(UsageError, match=says):
        job_lib.build(tiny_config(**(SMALL | overrides)), facts, jax.devices()[:1])


def test_features_of_every_patch_are_no_features_of_an_image():
    job = small_job(model__pool="gap")
    for name in ("pre_logits", "logits"):
        with pytest.raises(UsageError, match=f"{name}.*every patch"):
            job.features_step(name)
    batch = next(batches(job, 1))
    rows = job.features_step("patches")(job.create_state().params, batch)["rows"]
    assert rows.shape == (16, 32)


def test_masked_patches_need_a_mask_token():
    model = tiny_job().model
    with pytest.raises(UsageError, match="mask_token=True"):
        model.init(jax.random.key(0), jnp.zeros((1, 8, 8, 3)), masked=jnp.zeros((1, 4), bool))


def test_the_parameters_of_the_task_are_these():
    job = small_job()
    plain = set(tiny_job(**{k: v for k, v in SMALL.items() if k != "task"}).abstract_params)
    assert set(job.abstract_params) - plain == set(masked_patch.OWN_PARAMS) - {"head"}
