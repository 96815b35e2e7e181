"""ImageNet-1k from scratch, ViT (arXiv 2010.11929) Table 3, last row: 300 epochs for all models.

Batch 4096, 224 px, Adam with peak learning rate 3e-3, weight decay 0.3 times the learning rate, clipping at 1,
warm-up 10,000 steps, cosine, dropout 0.1 (after every dense layer but q, k, v and after the positions; ResNets have
none). Sigmoid cross-entropy with head bias -10; ViTs have a tanh layer before the classifier; inception crop, flip.
It trains on 99 % of the training images and evaluates on the other 1 % and on the validation images.
The argument is a model and KEY=VALUE pairs:

    model    B/16 (default), B/32, L/16, L/32, H/14, R50+B/16, R50+B/32, R50+L/16, R50+L/32, R50x1, R50x2, R101x1,
             R152x1, R152x2
    epochs   300 by default
    data     tfds:imagenet2012 by default, or another source with its splits

Expected on ImageNet validation at 224 px, top-1: B/16 74.79, B/32 69.19, L/16 72.59, L/32 66.90 (figures of the
paper's authors); fine-tuned at 384 px: B/16 77.91, B/32 73.38, L/16 76.53, L/32 71.16 (Table 5). With augmentation
the same images give far more: augreg.py, plain_s16.py. Hardware: the paper names none for these runs; `plan` says
what a slice takes. Not reproduced here: neither the hardware nor ImageNet was at hand.
L and larger scan their blocks, recompute them in the backward pass and split parameters 16 ways (mesh.fsdp): the
number of chips must be a multiple of 16.

    python -m vit_jax.plan --config=configs/pretrain_i1k.py:B/16 --topology=v5e:4x8
    python -m vit_jax.train --config=configs/pretrain_i1k.py:B/16 --workdir=gs://bucket/b16
"""

from ml_collections import ConfigDict

from vit_jax.config import base_config, one_of, parse_argument
from vit_jax.errors import UsageError

VITS = ("B/16", "B/32", "L/16", "L/32", "H/14", "R50+B/16", "R50+B/32", "R50+L/16", "R50+L/32")
RESNETS = ("R50x1", "R50x2", "R101x1", "R152x1", "R152x2")
_WIDTH = {"B": 768, "L": 1024, "H": 1280}
_DEFAULTS = {"model": "B/16", "epochs": "300", "data": "tfds:imagenet2012"}


def get_config(arg: str = "") -> ConfigDict:
    """arg: MODEL,KEY=VALUE,... as above."""
    values = parse_argument(arg, _DEFAULTS, positional="model")
    model = one_of(values["model"], VITS + RESNETS, "config argument model")
    try:
        epochs = float(values["epochs"])
    except ValueError:
        raise UsageError(f"config argument epochs is {values['epochs']!r}", "give a number") from None
    config = base_config()

    config.total_epochs = epochs
    config.warmup_steps = 10_000
    config.global_batch = 4096
    config.num_classes = 1000

    config.model.name = model
    config.model.head_bias_init = -10.0
    config.model.dtype = "bfloat16"
    if model in VITS:
        config.model.rep_size = _WIDTH[model.removeprefix("R50+")[0]]
        config.model.dropout = 0.1
        if config.model.rep_size >= 1024:
            config.model.scan = True
            config.model.remat = "full"
            config.mesh.fsdp = 16

    config.data.train = f"{values['data']}@train[:99%]"
    config.data.val = f"{values['data']}@train[99%:]"
    config.data.test = f"{values['data']}@validation"
    config.data.train_examples = 1_268_355
    config.data.preprocess_train = "decode|inception_crop(224)|flip_lr|value_range(-1, 1)"
    config.data.preprocess_eval = "decode|resize_small(256)|central_crop(224)|value_range(-1, 1)"

    config.loss = "sigmoid_xent"
    config.optim.name = "adam"
    config.optim.lr = 3e-3
    config.optim.wd = 0.3
    config.optim.clip_norm = 1.0
    config.schedule = "cosine"

    config.eval.every_epochs = 10.0
    config.checkpoint.every_epochs = 5.0
    config.checkpoint.best_metric = "eval/val/accuracy"
    return config
