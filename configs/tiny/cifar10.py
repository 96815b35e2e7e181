"""CIFAR-10 from scratch by a plain ViT, made for half an hour on two CPU cores, or one GPU with `machine=gpu`.

Not a paper row; a recipe in the manner of "Better plain ViT baselines" (arXiv 2205.01580) at 32 pixels: patch 4 (64
tokens), mean pooling, fixed sincos2d positions, padded crops, flips, and for the GPU RandAugment, Mixup and CutMix.
The argument is the data and KEY=VALUE pairs:

    data      a source with `train` and `test`: the unpacked binary version of the data set by default
              (cifar10:cifar-10-batches-bin), a folder of images (folder:PATH), or either after `prepare`, whose
              records are the cheapest to read (arrayrecord:PATH)
    machine   cpu (default): width 96, 4 layers, 16 epochs | gpu: width 384, 7 layers, bfloat16, 200 epochs
    epochs    another number of them

    python -m vit_jax.prepare cifar10:cifar-10-batches-bin cifar10-prepared --shuffle=0
    python -m vit_jax.train --config=configs/tiny/cifar10.py:arrayrecord:cifar10-prepared --workdir=runs/cifar10

Neither has been run to its end here. For two cores: 150 steps (--config.total_steps=150 --config.warmup_steps=15
--config.eval.every_steps=150 --config.data.test='test[:500]') took 62 seconds of CPU time with start, compilation
and evaluation, and gave 26.0 % of those 500 test images; the whole run has 12,500. `machine=gpu` aims at 93 % in
ten minutes.
"""

from ml_collections import ConfigDict

from vit_jax.config import base_config, one_of, parse_argument
from vit_jax.errors import UsageError

_DEFAULTS = {"data": "cifar10:cifar-10-batches-bin", "machine": "cpu", "epochs": ""}
_EPOCHS = {"cpu": 16, "gpu": 200}


def get_config(arg: str = "") -> ConfigDict:
    """arg: DATA,KEY=VALUE,... as above."""
    values = parse_argument(arg, _DEFAULTS, positional="data")
    machine = one_of(values["machine"], _EPOCHS, "config argument machine")
    try:
        epochs = float(values["epochs"] or _EPOCHS[machine])
    except ValueError:
        raise UsageError(
            f"config argument epochs is {values['epochs']!r}", "give a number, such as epochs=16"
        ) from None
    config = base_config()

    config.total_epochs = epochs
    config.warmup_epochs = epochs / 16
    config.data.train = f"{values['data']}@train"
    config.data.test = f"{values['data']}@test"
    config.data.preprocess_train = "decode|pad(4)|random_crop(32)|flip_lr|value_range(-1, 1)"
    config.data.preprocess_eval = "decode|value_range(-1, 1)"
    config.data.train_examples = 50_000
    config.num_classes = 10

    config.model.name = "S/4"
    config.model.image_size = 32
    config.model.pool = "gap"
    config.model.posemb = "sincos2d"

    config.label_smoothing = 0.1
    config.optim.name = "adam"
    config.optim.clip_norm = 1.0
    config.schedule = "cosine"
    config.checkpoint.every_minutes = 5.0
    if machine == "cpu":
        _for_cpu(config)
    else:
        _for_gpu(config)
    return config


def _for_cpu(config: ConfigDict) -> None:
    """A few passes: the model is small and sees crops and flips alone."""
    config.global_batch = 64
    config.model.width = 96
    config.model.depth = 4
    config.model.mlp_dim = 384
    config.model.num_heads = 3
    config.optim.lr = 2e-3
    config.optim.wd = 0.1
    config.eval.every_epochs = 4.0
    config.log_every_steps = 100


def _for_gpu(config: ConfigDict) -> None:
    """Many passes: strong augmentation, and the average of the parameters besides."""
    config.global_batch = 512
    config.model.depth = 7
    config.model.stoch_depth = 0.1
    config.model.dtype = "bfloat16"
    crops = "decode|pad(4)|random_crop(32)|flip_lr"
    config.data.preprocess_train = f"{crops}|randaug(2, 10, mode='fixed')|value_range(-1, 1)"
    config.mixup_alpha = 0.2
    config.cutmix_alpha = 1.0
    config.optim.lr = 1e-3
    config.optim.wd = 0.1
    config.optim.momentum_dtype = "bfloat16"
    config.ema_decay = 0.999
    config.eval.every_epochs = 10.0
