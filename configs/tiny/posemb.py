"""The position embeddings of configs/ablations/posemb.py on two CPU cores: any folder of small images.

Not a paper row; the question of ViT (arXiv 2010.11929), Table 8. 64 px, patch 8 (64 tokens), width 96, 4 layers, a
class token, and the settings of tiny_imagenet.py. The argument is a folder and KEY=VALUE pairs:

    folder    with train/CLASS/ and validation/CLASS/ images, "tiny-imagenet" by default
    kind      none, learn (default), learn2d, relative, sincos2d
    at        stem, every, shared; by default stem, and every for relative
    steps     1500 by default

    python -m vit_jax.train --config=configs/tiny/posemb.py:FOLDER,kind=learn2d,at=every --workdir=runs/2d-every

Logged: eval/val/accuracy, and at the end 5-shot accuracy of the frozen features as in Table 8. Vary the seed
(--config.seed=1) before a difference is believed. Hardware: two CPU cores.

Measured with 20 classes of Tiny-ImageNet (5000 images), 400 steps, seed 0 alone, eval/val/accuracy of 1000 images
(standard error 1.4): none 27.1, learn 25.4, sincos2d 24.6 %. Table 8 has none 3 % behind; at 5 epochs nothing of
that is seen, and a single seed can't tell these apart. learn2d, relative and longer runs weren't measured.

    python -m vit_jax.study --workdir=runs/tiny --data=FOLDER --experiment=posemb --seeds=1
"""

from ml_collections import ConfigDict

from vit_jax.config import load, one_of, parse_argument
from vit_jax.errors import UsageError

_DEFAULTS = {"folder": "tiny-imagenet", "kind": "learn", "at": "", "steps": "1500"}


def get_config(arg: str = "") -> ConfigDict:
    """arg: FOLDER,KEY=VALUE,... as above."""
    values = parse_argument(arg, _DEFAULTS, positional="folder")
    kinds, places = ("none", "learn", "learn2d", "relative", "sincos2d"), ("stem", "every", "shared")
    if not values["steps"].isdecimal():
        raise UsageError(f"config argument steps is {values['steps']!r}", "give a whole number")
    steps = int(values["steps"])
    config = load(f"tiny_imagenet:{values['folder']}")

    config.total_epochs = config.warmup_epochs = None
    config.total_steps = steps
    config.warmup_steps = steps // 10
    config.model.pool = "tok"
    config.model.posemb = one_of(values["kind"], kinds, "config argument kind")
    if values["at"]:
        config.model.posemb_at = one_of(values["at"], places, "config argument at")

    config.eval.every_epochs = None
    config.eval.every_steps = max(steps // 5, 1)
    config.checkpoint.every_epochs = None
    config.checkpoint.every_steps = max(steps // 5, 1)
    config.features.data = (("own", f"folder:{values['folder']}", "train", "validation"),)
    config.features.methods = ("fewshot",)
    config.features.every_steps = steps  # at the end alone
    config.fewshot.shots = (5,)
    return config
