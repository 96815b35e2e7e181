"""Fashion-MNIST from scratch: a small ViT that two CPU cores train in a quarter of an hour.

Not a paper row. 28x28 gray images, 60,000 to train and 10,000 to test, IDX files as published (Debian: package
dataset-fashion-mnist). The argument is the folder that holds them.

    python -m vit_jax.train --config=configs/fashion_mnist.py:/usr/share/datasets/fashion-mnist \
        --workdir=runs/fashion_mnist
"""

from ml_collections import ConfigDict

from vit_jax.config import base_config


def get_config(folder: str = "/usr/share/datasets/fashion-mnist") -> ConfigDict:
    """folder: of the four IDX files."""
    config = base_config()

    config.total_epochs = 9.0
    config.warmup_steps = 300
    config.global_batch = 128

    config.model.name = "mu/7"
    config.model.width = 96
    config.model.depth = 4
    config.model.mlp_dim = 384
    config.model.num_heads = 4
    config.model.pool = "gap"

    config.data.train = f"idx:{folder}@train"
    config.data.test = f"idx:{folder}@test"
    config.data.preprocess_train = "decode(channels=1)|flip_lr|value_range(-1, 1)"
    config.data.preprocess_eval = "decode(channels=1)|value_range(-1, 1)"

    config.optim.name = "adam"
    config.optim.lr = 2e-3
    config.optim.wd = 0.05
    config.optim.clip_norm = 1.0
    config.schedule = "cosine"

    config.log_every_steps = 100
    config.eval.every_epochs = 3.0
    config.checkpoint.every_epochs = 3.0
    return config
