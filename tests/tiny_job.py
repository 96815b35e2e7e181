"""A job small enough to compile in a second or two, for tests of the step, the loop and the mesh."""

import jax
import numpy as np

from vit_jax import job as job_lib
from vit_jax.config import base_config
from vit_jax.data.dataset import DataFacts

FACTS = DataFacts(
    num_examples=64, num_classes=5, image_shape=(8, 8, 3), label_shape=(), mean=(127.5,) * 3, std=(127.5,) * 3
)


def tiny_config(**overrides):
    """A 2-layer ViT of width 32 on 8x8 images; overrides by dotted key, with `__` for the dot."""
    config = base_config()
    config.total_steps = 20
    config.warmup_steps = 2
    config.global_batch = 16
    config.model.name = "mu/4"
    config.model.width = 32
    config.model.depth = 2
    config.model.mlp_dim = 64
    config.model.num_heads = 4
    config.optim.lr = 0.01
    config.optim.wd = 0.1
    config.optim.clip_norm = 1.0
    config.log_every_steps = 5
    for key, value in overrides.items():
        *groups, leaf = key.split("__")
        target = config
        for group in groups:
            target = target[group]
        target[leaf] = value
    return config


def tiny_job(devices=1, facts=FACTS, **overrides):
    """A job on the first `devices` devices."""
    return job_lib.build(tiny_config(**overrides), facts, jax.devices()[:devices])


def batches(job, count, seed=0, mask=None):
    """`count` random batches on the job's devices; a learnable rule ties label and brightness."""
    rng = np.random.default_rng(seed)
    size, facts = job.config.global_batch, job.facts
    for _ in range(count):
        label = rng.integers(0, facts.num_classes, size).astype(np.int32)
        noise = rng.integers(0, 60, (size, *facts.image_shape))
        image = (noise + label[:, None, None, None] * 40).astype(np.uint8)
        ones = np.ones(size, np.float32) if mask is None else np.asarray(mask, np.float32)
        yield jax.device_put({"image": image, "label": label, "mask": ones}, job.batch_sharding)


def run(job, count, **kwargs):
    """State and losses (list of float) after `count` steps from scratch."""
    state, step = job.create_state(), job.lower_train_step().compile()
    losses = []
    for batch in batches(job, count, **kwargs):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    return state, losses
