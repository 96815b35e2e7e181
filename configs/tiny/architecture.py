"""ViT, ResNet and hybrid of equal forward FLOPs on a folder of small images, for two CPU cores.

Not a paper row; the question of ViT (arXiv 2010.11929), Figure 5, at one small budget: which of the three is best
for the same compute? 64 pixels, the same data, steps and optimizer for all. The argument is a model and KEY=VALUE
pairs:

    model     vit: width 96, 4 layers, patch 8. resnet: BiT's v2, one unit in each of four stages, half width.
              hybrid: two units of the v1 ResNet, half width, then 2 layers of width 96. 65 MFLOPs each (an image's
              forward pass, 20 classes), which differ by 1.6 %; see vit_jax/flops.py
    folder    with train/CLASS/ and validation/CLASS/ images, "tiny-imagenet" by default; resized to 64 pixels
    steps     600

    python -m vit_jax.train --config=configs/tiny/architecture.py:hybrid,folder=FOLDER --workdir=runs/hybrid

On 32 channels the ResNets' GroupNorm of 32 groups normalises every channel by itself.

Measured, with 20 classes of Tiny-ImageNet (5000 images), 400 steps, top-1 on the 1000 validation images, seeds 0
and 1, mean and standard deviation (the images' own standard error is 1.4 to 1.5):

    vit 24.6, 24.6: 24.6 +- 0.0    resnet 32.3, 28.8: 30.6 +- 2.5    hybrid 30.0, 31.1: 30.6 +- 0.8 %

    python -m vit_jax.study --workdir=runs/tiny --data=FOLDER --experiment=architecture --seeds=2

So ResNet and hybrid are 6 % before ViT with few images, the ResNet as after the paper's smallest pre-training set
(Figure 3), the hybrid as at its small budgets (Figure 5); that ViT needs less compute than a ResNet (Figure 5,
300 M images) isn't seen here. Equal FLOPs aren't equal time: vit's first run took 145 seconds of CPU time, resnet's
251, compilation included.
"""

from ml_collections import ConfigDict

from vit_jax.config import base_config, one_of, parse_argument
from vit_jax.errors import UsageError

_DEFAULTS = {"model": "vit", "folder": "tiny-imagenet", "steps": "600"}
_TRANSFORMER = {"width": 96, "mlp_dim": 384, "num_heads": 3, "pool": "gap", "posemb": "sincos2d"}
_MODELS = {
    "vit": {"name": "Ti/8", "depth": 4, **_TRANSFORMER},
    "resnet": {"name": "R50x1", "depths": (1, 1, 1, 1), "width_factor": 0.5},
    "hybrid": {
        "name": "R50+Ti/16", "backbone": (2,), "backbone_width": 0.5, "patch_size": 2, "posemb_cls": False,
        "depth": 2, **_TRANSFORMER,
    },
}  # fmt: skip


def get_config(arg: str = "") -> ConfigDict:
    """arg: MODEL,KEY=VALUE,... as above."""
    values = parse_argument(arg, _DEFAULTS, positional="model")
    model = _MODELS[one_of(values["model"], _MODELS, "config argument model")]
    try:
        steps = int(values["steps"])
    except ValueError:
        raise UsageError(f"config argument steps is {values['steps']!r}", "give a whole number") from None
    config = base_config()

    config.total_steps = steps
    config.warmup_steps = steps // 10
    config.global_batch = 64

    config.model.update(model)

    config.data.train = f"folder:{values['folder']}@train"
    config.data.test = f"folder:{values['folder']}@validation"
    config.data.preprocess_train = "decode|inception_crop(64, 30)|flip_lr|value_range(-1, 1)"
    config.data.preprocess_eval = "decode|resize(64)|value_range(-1, 1)"

    config.label_smoothing = 0.1
    config.optim.name = "adam"
    config.optim.lr = 2e-3
    config.optim.wd = 0.1
    config.optim.clip_norm = 1.0
    config.schedule = "cosine"

    config.log_every_steps = 50
    config.eval.every_steps = 200
    config.checkpoint.every_steps = 200
    return config
