"""ImageNet-21k pretraining, ViT (arXiv 2010.11929) Table 3: 90 epochs, batch 4096, 224 px, Adam, linear decay.

The argument is a model and KEY=VALUE pairs:

    B/16, B/32, L/16, L/32   rows of Table 3 (90 epochs; L also 30: epochs=30)
    H/14, g/14, G/14         not paper rows: Table 3 has no ImageNet-21k row for H. H/14 takes the L rows' settings;
                             g and G ("Scaling Vision Transformers", arXiv 2106.04560) pool by attention, have no
                             class token, and keep Adam's first moment in bfloat16; with their own recipe:
                             scaling_g14.py
    epochs   passes over the images
    data     a source with the splits below, arrayrecord:imagenet21k by default; 21,843 classes
    train    split that is trained on, "train" by default
    val      split that is evaluated every epoch; none by default

Dropout 0.1 after every dense layer but q, k, v and after the positions; weight decay 0.03 times the learning rate;
warm-up 10,000 steps; sigmoid cross-entropy with head bias -10; a tanh layer before the classifier; inception
crop and flip, no other augmentation. Computation in bfloat16 with parameters, softmax and norms in float32.
L and larger scan their blocks, recompute them in the backward pass and split parameters 16 ways (mesh.fsdp): the
number of chips must be a multiple of 16.

Expected on held-out ImageNet-21k images, top-1: B/16 47.88, B/32 44.04, L/16 49.90, L/32 45.42, H/14 49.06
(figures of the paper's authors; on ImageNet after fine-tuning see Table 5: B/16 83.97, L/16 85.15). Hardware: the
paper's L/16 took about 30 days on one TPUv3 of 8 cores. None was reproduced here: neither the hardware nor
ImageNet-21k was at hand; `vit_jax.plan` compiles each of these for the slice it is to run on.

    python -m vit_jax.plan --config=configs/pretrain_i21k.py:L/16 --topology=v5e:16x16
    python -m vit_jax.train --config=configs/pretrain_i21k.py:L/16,data=arrayrecord:gs://bucket/imagenet21k \
        --workdir=gs://bucket/l16
"""

from ml_collections import ConfigDict

from vit_jax.config import base_config, one_of, parse_argument
from vit_jax.errors import UsageError

SMALL, LARGE, HUGE = ("B/16", "B/32"), ("L/16", "L/32", "H/14"), ("g/14", "G/14")
_DEFAULTS = {"model": "B/16", "epochs": "90", "data": "arrayrecord:imagenet21k", "train": "train", "val": ""}


def get_config(arg: str = "") -> ConfigDict:
    """arg: MODEL,KEY=VALUE,... as above."""
    values = parse_argument(arg, _DEFAULTS, positional="model")
    model = one_of(values["model"], SMALL + LARGE + HUGE, "config argument model")
    try:
        epochs = float(values["epochs"])
    except ValueError:
        raise UsageError(f"config argument epochs is {values['epochs']!r}", "give a number") from None
    config = base_config()

    config.total_epochs = epochs
    config.warmup_steps = 10_000
    config.global_batch = 4096
    config.num_classes = 21_843

    config.model.name = model
    config.model.rep_size = {"B": 768, "L": 1024, "H": 1280, "g": 0, "G": 0}[model[0]]
    config.model.head_bias_init = -10.0
    config.model.dropout = 0.1
    config.model.dtype = "bfloat16"
    if model in LARGE + HUGE:
        config.model.scan = True
        config.model.remat = "full"
        config.mesh.fsdp = 16
    if model in HUGE:
        config.model.pool = "map"

    config.data.train = f"{values['data']}@{values['train']}"
    config.data.val = f"{values['data']}@{values['val']}" if values["val"] else ""
    config.data.test = ""
    config.data.train_examples = 14_197_122  # of the whole set; with fewer, set it or let the data tell
    config.data.preprocess_train = "decode|inception_crop(224)|flip_lr|value_range(-1, 1)"
    config.data.preprocess_eval = "decode|resize_small(256)|central_crop(224)|value_range(-1, 1)"

    config.loss = "sigmoid_xent"
    config.optim.name = "adam"
    config.optim.lr = 1e-3
    config.optim.wd = 0.03
    config.optim.momentum_dtype = "bfloat16" if model in HUGE else "float32"
    config.schedule = "linear"
    config.schedule_end_lr = 1e-5

    config.eval.every_epochs = 1.0
    config.checkpoint.every_steps = 1000
    config.checkpoint.keep_every_steps = 50_000
    return config
