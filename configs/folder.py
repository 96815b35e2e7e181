"""ViT-S/16 from scratch on any folder of photos, 224 px.

Not a paper row; the recipe is that of "Better plain ViT baselines" (arXiv 2205.01580, section 2) as far as it is
here: GAP, fixed sincos2d positions, inception crop, flip, mixup 0.2, Adam with bf16 first moment, wd 1e-4 absolute
and clip 1, without RandAugment. The argument is the folder, with `train`, `test` and perhaps `validation`
subfolders of one folder per class. For an accelerator; shrink it for a laptop with
--config.model.name=Ti/16 --config.global_batch=64 and fewer epochs.

    python -m vit_jax.train --config=configs/folder.py:PHOTOS --workdir=runs/photos
"""

from ml_collections import ConfigDict

from vit_jax.config import base_config


def get_config(folder: str = "photos") -> ConfigDict:
    """folder: with a subfolder per split and in each one per class."""
    config = base_config()

    config.total_epochs = 90.0
    config.warmup_epochs = 5.0
    config.global_batch = 256

    config.model.name = "S/16"
    config.model.pool = "gap"
    config.model.posemb = "sincos2d"

    config.data.train = f"folder:{folder}"
    config.data.test = f"folder:{folder}"
    config.data.preprocess_train = "decode|inception_crop(224)|flip_lr|value_range(-1, 1)"
    config.data.preprocess_eval = "decode|resize_small(256)|central_crop(224)|value_range(-1, 1)"

    config.mixup_alpha = 0.2
    config.optim.name = "adam"
    config.optim.momentum_dtype = "bfloat16"
    config.optim.lr = 1e-3
    config.optim.wd = 1e-4
    config.optim.wd_mode = "absolute"
    config.optim.clip_norm = 1.0
    config.schedule = "cosine"

    config.eval.every_epochs = 10.0
    config.checkpoint.every_epochs = 10.0
    config.checkpoint.every_minutes = 30.0
    return config
