"""A config made small enough to compile in seconds, of the same family, loss, optimizer and augmentation."""

import re

import jax
import numpy as np
from ml_collections import ConfigDict

from vit_jax import job as job_lib
from vit_jax.data import preprocess
from vit_jax.data.dataset import DataFacts
from vit_jax.data.sources import parse_spec
from vit_jax.models import variants

BATCH, CLASSES, STEPS = 4, 5, 5
_NATURAL_SIZE = {"digits": 8, "idx": 28}  # of sources whose images need no resize
_TRANSFORMER = {"width": 16, "depth": 1, "mlp_dim": 16, "num_heads": 2}
_MIXER = {"width": 16, "depth": 1, "tokens_mlp_dim": 8, "channels_mlp_dim": 16}
_RESNET = {"depths": (1,), "width_factor": 0.5}


def facts_of(config: ConfigDict) -> DataFacts:
    """As the data would say, without having it; long enough for any warm-up."""
    train = preprocess.parse(config.data.preprocess_train)
    size = train.output_size or (_NATURAL_SIZE[parse_spec(config.data.train)[0]],) * 2
    mean, std = (tuple(map(float, array)) for array in train.normalize)
    examples = 60_000 if config.data.train_examples is None else config.data.train_examples
    classes = 10 if config.num_classes is None else config.num_classes
    return DataFacts(examples, classes, (*size, train.channels), (), mean, std)


def name_of(config: ConfigDict) -> str:
    """The model; where the weights of init would tell it, B/16."""
    return config.model.name or "B/16"


def shrink(config: ConfigDict) -> None:
    """In place: one thin layer, two patches or so a side, batch 4, five classes, one of a few steps for warm-up."""
    config.model.name = name_of(config)
    family, fields = variants.model_family(config.model.name), variants.variant_fields(config.model.name)
    small = dict({"vit": _TRANSFORMER, "mixer": _MIXER, "resnet": _RESNET}[family])
    backbone = fields.get("backbone")
    if backbone is not None:
        small |= {"backbone": backbone[:1], "backbone_width": 0.5}
    if config.model.rep_size:
        small["rep_size"] = 16
    config.model.update(small)
    pixels = 32 if family == "resnet" else 2 * fields["patch_size"] * (1 if backbone is None else 4)
    for key in ("preprocess_train", "preprocess_eval"):
        config.data[key] = re.sub(r"((?:crop|resize|resize_small)\()\d+", rf"\g<1>{pixels}", config.data[key])
    config.model.image_size = None
    config.num_classes = CLASSES
    config.global_batch = config.eval.global_batch = BATCH
    config.accum_steps = 1
    config.mesh.replica = config.mesh.fsdp = config.mesh.tensor = 1
    for name, steps in (("total", STEPS), ("warmup", 1), ("cooldown", 1)):
        if any(config[f"{name}_{unit}"] is not None for unit in ("steps", "epochs", "examples")):
            config.update({f"{name}_epochs": None, f"{name}_examples": None, f"{name}_steps": steps})


def batch_of(config: ConfigDict, job: job_lib.Job, seed: int = 0) -> dict[str, jax.Array]:
    """A batch of noise on the job's device, through the config's own training preprocessing."""
    rng = np.random.default_rng(seed)
    program = preprocess.parse(config.data.preprocess_train)
    height, width, channels = job.facts.image_shape
    around = (height, width) if program.output_size is None else (height + 9, width + 5)
    images = [
        program.host(rng.integers(0, 256, (*around, channels)).astype(np.uint8), rng) for _ in range(BATCH)
    ]
    host = {
        "image": np.stack(images),
        "label": rng.integers(0, CLASSES, BATCH).astype(np.int32),
        "mask": np.ones(BATCH, np.float32),
    }
    return jax.device_put(host, job.batch_sharding)
