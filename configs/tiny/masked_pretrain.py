"""Masked patch prediction on two CPU cores: any folder of small images, no label looked at.

Not a paper row; the rehearsal of configs/pretrain_masked.py (ViT, arXiv 2010.11929, appendix B.1.2) that
configs/tiny/masked_finetune.py starts from. Width 96, 4 layers, 48 px, patch 8: 18 of 36 patches are hidden. The
argument is a folder and KEY=VALUE:

    folder   with train/CLASS/ and validation/CLASS/ images, "tiny-imagenet" by default; unlabelled images can lie
             in a single folder, train/ANY_NAME/
    target   mean_colour (default) | patch_4x4 | pixels
    epochs   24

    python -m vit_jax.train --config=configs/tiny/masked_pretrain.py:FOLDER --workdir=runs/masked

Hardware: two CPU cores. 20 classes of Tiny-ImageNet, 250 images each: on the 1000 validation images the colour of
34.4 % of the hidden patches is right, loss 2.20 (6.24 at the start), after 1875 steps (6 CPU minutes).
"""

from ml_collections import ConfigDict

from vit_jax.config import base_config, parse_argument
from vit_jax.errors import UsageError

_DEFAULTS = {"folder": "tiny-imagenet", "target": "mean_colour", "epochs": "24"}


def get_config(arg: str = "") -> ConfigDict:
    """arg: FOLDER,KEY=VALUE,... as above."""
    values = parse_argument(arg, _DEFAULTS, positional="folder")
    try:
        epochs = float(values["epochs"])
    except ValueError:
        raise UsageError(f"config argument epochs is {values['epochs']!r}", "give a number") from None
    config = base_config()

    config.task = "masked_patch"
    config.masked_patch.target = values["target"]

    config.total_epochs = epochs
    config.warmup_epochs = epochs / 12
    config.global_batch = 64

    config.model.name = "Ti/8"
    config.model.width = 96
    config.model.depth = 4
    config.model.mlp_dim = 384
    config.model.num_heads = 3
    config.model.pool = "gap"
    config.model.posemb = "sincos2d"

    config.data.train = f"folder:{values['folder']}@train"
    config.data.val = f"folder:{values['folder']}@validation"
    config.data.test = ""
    config.data.preprocess_train = "decode|inception_crop(48, 30)|flip_lr|value_range(-1, 1)"
    config.data.preprocess_eval = "decode|resize(48)|value_range(-1, 1)"

    config.optim.name = "adam"
    config.optim.lr = 2e-3
    config.optim.wd = 0.1
    config.optim.clip_norm = 1.0
    config.schedule = "cosine"

    config.log_every_steps = 50
    config.eval.every_epochs = 4.0
    config.checkpoint.every_epochs = 4.0
    return config
