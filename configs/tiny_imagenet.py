"""Tiny-ImageNet or any folder of 64-pixel images from scratch: the pretraining rehearsal for two CPU cores.

Not a paper row. ViT, patch 8, 64 px (64 tokens), inception crop, flip, mixup and label smoothing. The argument is
the folder, with TRAIN/CLASS/ and VALIDATION/CLASS/ subfolders.

    python -m vit_jax.train --config=configs/tiny_imagenet.py:DATA/tiny-imagenet --workdir=runs/tiny_imagenet
"""

from ml_collections import ConfigDict

from vit_jax.config import base_config


def get_config(folder: str = "tiny-imagenet") -> ConfigDict:
    """folder: with `train` and `validation` subfolders of one folder per class."""
    config = base_config()

    config.total_epochs = 30.0
    config.warmup_epochs = 3.0
    config.global_batch = 64

    config.model.name = "Ti/8"
    config.model.width = 96
    config.model.depth = 4
    config.model.mlp_dim = 384
    config.model.num_heads = 3
    config.model.pool = "gap"
    config.model.posemb = "sincos2d"

    config.data.train = f"folder:{folder}@train"
    config.data.val = f"folder:{folder}@validation"
    config.data.test = ""
    config.data.preprocess_train = "decode|inception_crop(64, 30)|flip_lr|value_range(-1, 1)"
    config.data.preprocess_eval = "decode|resize(64)|value_range(-1, 1)"

    config.label_smoothing = 0.1
    config.mixup_alpha = 0.2
    config.optim.name = "adam"
    config.optim.lr = 2e-3
    config.optim.wd = 0.1
    config.optim.clip_norm = 1.0
    config.schedule = "cosine"

    config.log_every_steps = 50
    config.eval.every_epochs = 10.0
    config.checkpoint.every_epochs = 10.0
    config.checkpoint.best_metric = "eval/val/accuracy"
    return config
