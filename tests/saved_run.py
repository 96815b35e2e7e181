"""A run directory with random parameters, saved without training."""

import jax
import numpy as np

from tests.tiny_job import tiny_config
from vit_jax import config as config_lib
from vit_jax import job as job_lib
from vit_jax import model_config, workdir
from vit_jax.checkpoint import Checkpoints
from vit_jax.data.dataset import open_dataset

DIGITS = {"data__preprocess_train": "decode", "data__preprocess_eval": "decode|value_range(-1, 1)"}


def save(path, devices=1, **overrides):
    """Saves step 0 of a tiny model of the digits; overrides as for tiny_config. Returns job, dataset and state."""
    config = tiny_config(**(DIGITS | overrides))
    dataset = open_dataset(config.data, seed=config.seed, num_classes=config.num_classes)
    model_config.resolve(config, dataset.facts(), {})
    job = job_lib.build(config, dataset.facts(), jax.devices()[:devices])
    state = job.create_state()
    rng = np.random.default_rng(1)

    def varied(x):  # the head starts at zero, where all images get the same answer
        return jax.device_put(np.asarray(x) + rng.normal(0, 0.2, x.shape).astype(np.float32), x.sharding)

    state = state.replace(params=jax.tree.map(varied, state.params))
    workdir.open_workdir(path, config_lib.to_dict(config), may_change=(), hints={}, command=["test"])
    workdir.write_classes(path, dataset.classes)
    checkpoints = Checkpoints(path / "checkpoints", keep=1, keep_every_steps=None)
    checkpoints.save(0, state)
    checkpoints.close()
    return job, dataset, state
