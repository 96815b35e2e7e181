"""ViT-G/14 as in "Scaling Vision Transformers" (arXiv 2106.04560); paper row: ViT-G/14 on JFT-3B.

Attention pooling, no class token (256 tokens at 224 px), no hidden layer in the head. Adafactor with its first
moment in bfloat16, reciprocal square root schedule (timescale 10,000 steps) with a cool-down of 50,000 steps, peak
8e-4 after a warm-up of 10,000, batch 16,384, 1,000,000 steps, clipping at 1. Weight decay 0.03 times the learning
rate in the body and 100 times that in the classifier. Sigmoid cross-entropy over 29,593 classes, head bias -10;
inception crop and flip. Blocks are scanned and recomputed in the backward pass, parameters split 16 ways
(mesh.fsdp): the number of chips must be a multiple of 16.

The argument is a model and KEY=VALUE pairs:

    G/14 (default), g/14   g with G's settings isn't a run of the paper
    steps    1000000 by default. One run gives many lengths: steps=STEP+50000 and --config.resume=RUN@STEP, in a
             workdir of its own, cool down from a checkpoint of it
    data     a source with label vectors over `classes`, arrayrecord:jft3b by default
    classes  29593 by default

Expected after fine-tuning: ImageNet 90.45, ReaL 90.81, ImageNet-V2 83.33, ObjectNet 70.53; VTAB 78.29; few-shot
ImageNet, 1 image per class 69.52, 10 images 84.86 (few-shot transfer). JFT-3B is
private, and nothing was run. Hardware: by estimates of `vit_jax.plan` (libtpu 0.0.52; the command below), which
were never timed on hardware:

    slice       memory of a chip   computation of a step   MFU          images/s   hours
    v5p:4x4x4   17.3 of 95.7 GiB   3.3 to 3.5 s            47 to 49 %   4,600      990
    v5e:16x16   5.4 of 15.75 GiB   1.6 to 1.7 s            56 to 60 %   8,900      510

Adafactor's state takes 0.24 GiB of that on a chip, where the parameters take 0.45 and Adam's would take 0.90.

    python -m vit_jax.plan --config=configs/scaling_g14.py --topology=v5p:4x4x4,v5e:16x16
    python -m vit_jax.train --config=configs/scaling_g14.py:data=arrayrecord:gs://bucket/images,classes=21843 \
        --workdir=gs://bucket/g14
"""

from ml_collections import ConfigDict

from vit_jax.config import base_config, one_of, parse_argument
from vit_jax.errors import UsageError

_DEFAULTS = {"model": "G/14", "steps": "1000000", "data": "arrayrecord:jft3b", "classes": "29593"}


def get_config(arg: str = "") -> ConfigDict:
    """arg: MODEL,KEY=VALUE,... as above."""
    values = parse_argument(arg, _DEFAULTS, positional="model")
    for key in ("steps", "classes"):
        if not values[key].isdecimal():
            raise UsageError(f"config argument {key} is {values[key]!r}", "give a whole number")
    config = base_config()

    config.total_steps = int(values["steps"])
    config.warmup_steps = 10_000
    config.cooldown_steps = 50_000
    config.global_batch = 16_384
    config.num_classes = int(values["classes"])

    config.model.name = one_of(values["model"], ("G/14", "g/14"), "config argument model")
    config.model.pool = "map"
    config.model.head_bias_init = -10.0
    config.model.dtype = "bfloat16"
    config.model.scan = True
    config.model.remat = "full"
    config.mesh.fsdp = 16

    config.data.train = f"{values['data']}@train"
    config.data.test = ""
    config.data.train_examples = 3_000_000_000  # about that
    config.data.preprocess_train = "decode|inception_crop(224)|flip_lr|value_range(-1, 1)"
    config.data.preprocess_eval = "decode|resize_small(256)|central_crop(224)|value_range(-1, 1)"

    config.loss = "sigmoid_xent"
    config.optim.name = "adafactor"
    config.optim.momentum_dtype = "bfloat16"
    config.optim.lr = 8e-4
    config.optim.wd = 0.03
    config.optim.wd_mults = (("head/kernel", 100.0),)
    config.optim.clip_norm = 1.0
    config.schedule = "rsqrt"
    config.schedule_timescale_steps = 10_000

    config.checkpoint.every_steps = 1000
    config.checkpoint.keep_every_steps = 50_000
    return config
