"""The case eval-exact: 103 examples with given logits, counted exactly for every batch and device count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.data.fakes import Example, FakePreprocess
from tests.tiny_job import FACTS, tiny_config
from vit_jax import job as job_lib
from vit_jax import losses, sharding, step
from vit_jax.data import pipeline, prefetch
from vit_jax.evaluators.classification import Classification
from vit_jax.mixup import Mix
from vit_jax.tasks.classify import Classify

N, TOP1, LOSS = 103, 52, 1.312613


class Source:
    """Example i shows its own number, so that a model can look its logits up."""

    def __init__(self, labels):
        self._labels = labels

    def __len__(self):
        return len(self._labels)

    def __getitem__(self, i):
        return Example(np.full((4, 4, 3), i, np.uint8), int(self._labels[i]), str(i))


class GivenLogits:
    """A model whose logits are those of the case."""

    def apply(self, variables, images, *, train):
        index = images[:, 0, 0, 0].astype(jnp.int32)
        return variables["params"]["table"][index], {}


@pytest.fixture(scope="module")
def case(golden):
    with np.load(golden / "cases" / "eval103.npz") as arrays:
        return arrays["logits"], arrays["label"]


def _evaluate(case, batch, mesh):
    logits, labels = case
    task = Classify(
        num_classes=7,
        train_loss=losses.make_loss("softmax_xent", label_smoothing=0.0),
        eval_loss=losses.make_loss("softmax_xent", label_smoothing=0.0),
        mix=Mix(),
        accum_steps=1,
        seed=0,
        mean=(0.0,) * 3,
        std=(1.0,) * 3,
    )
    placed = sharding.batch_sharding(mesh)
    eval_step = jax.jit(
        lambda params, batch: step.eval_step(params, batch, model=GivenLogits(), task=task),
        out_shardings=sharding.replicated(mesh),
    )

    def batches():
        reading = pipeline.Reading(num_threads=2, prefetch_buffer=16, num_workers=0, on_bad_image="error")
        host = pipeline.eval_batches(
            Source(labels), FakePreprocess(random=False), reading, global_batch=batch, num_classes=7,
            local_rows=prefetch.local_rows(placed, batch),
        )  # fmt: skip
        with prefetch.device_prefetch(host, placed, global_batch=batch, depth=2) as on_devices:
            yield from on_devices

    params = {"table": jax.device_put(logits, sharding.replicated(mesh))}
    state = step.TrainState(None, params, None, None, None)
    return Classification(batches, eval_step).run(state)


@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("batch", [1, 7, 32, 64, 103, 200])
def test_every_example_counts_once(case, batch, devices):
    """A batch that the devices don't divide is rounded up, as a job does (next test)."""
    batch = -(-batch // devices) * devices
    mesh = sharding.make_mesh(-1, 1, 1, jax.devices()[:devices])
    found = _evaluate(case, batch, mesh)
    assert found["count"] == N and found["correct"] == TOP1
    assert found["accuracy"] == TOP1 / N
    assert found["loss"] == pytest.approx(LOSS, abs=1e-6)


def test_the_mesh_changes_no_count(case):
    found = _evaluate(case, 32, sharding.make_mesh(2, 2, 2, jax.devices()))
    assert (found["correct"], found["count"]) == (TOP1, N)
    assert found["loss"] == pytest.approx(LOSS, abs=1e-6)


@pytest.mark.parametrize(("batch", "rounded"), [(1, 8), (7, 8), (103, 104), (200, 200)])
def test_an_evaluation_batch_is_rounded_up_to_a_row_for_every_device(batch, rounded):
    assert job_lib.build(tiny_config(eval__global_batch=batch), FACTS, jax.devices()).eval_batch == rounded
