"""Quickstart: a small ViT on scikit-learn's digits, in a minute or two on a laptop.

Not a paper row: it shows the whole way (train, evaluate, checkpoint, resume) without a download.
8x8 images, 1437 to train and 360 to test.

    python -m vit_jax.train --config=configs/quickstart.py --workdir=runs/quickstart
"""

from ml_collections import ConfigDict

from vit_jax.config import base_config


def get_config() -> ConfigDict:
    """The quickstart configuration."""
    config = base_config()

    config.total_epochs = 60.0
    config.warmup_epochs = 5.0
    config.global_batch = 128

    config.model.name = "mu/2"
    config.model.image_size = 8
    config.model.width = 64
    config.model.depth = 4
    config.model.mlp_dim = 256
    config.model.num_heads = 4

    config.data.train = "digits@train"
    config.data.test = "digits@test"
    config.data.preprocess_train = "decode|value_range(-1, 1)"
    config.data.preprocess_eval = "decode|value_range(-1, 1)"

    config.mixup_alpha = 0.2
    config.optim.name = "adam"
    config.optim.lr = 3e-3
    config.optim.wd = 0.1
    config.optim.clip_norm = 1.0
    config.schedule = "cosine"

    config.log_every_steps = 20
    config.eval.every_epochs = 20.0
    config.checkpoint.every_epochs = 20.0
    return config
