"""The data-size study of configs/data_size.py on two CPU cores: shares of any folder of small images, two models.

Not a paper row; the question of ViT (arXiv 2010.11929), Figure 4: does the larger model need more images to be the
better one? Every share is trained by the same settings for the same number of steps at most, and stops early by the
accuracy on a tenth of the training images that no share has. The argument is a folder and KEY=VALUE pairs:

    folder    with train/CLASS/ and validation/CLASS/ images, "tiny-imagenet" by default; resized to 64 pixels
    share     of the training images, "3%" or "500", the same of every class; "" (default): all but that tenth.
              Shares are nested: a larger one has all images of a smaller one
    model     small (width 96, 4 layers), large (192, 6 layers)
    steps     1500 at most
    wd, dropout, smoothing   weight decay (0.1, times the learning rate), dropout (0) and label smoothing (0.1)

    python -m vit_jax.train --config=configs/tiny/data_size.py:FOLDER,share=10% --workdir=runs/small-10
    python -m vit_jax.evaluate --checkpoint=runs/small-10@best \
        --config=fewshot:folder:FOLDER,test=validation,methods=fewshot --data=folder:FOLDER@validation

The last line of the second has, of the best checkpoint, eval/test/accuracy and 5-shot accuracy on the validation
images; training logs both too. Measured with 20 classes of Tiny-ImageNet (4,500 images, FOLDER,steps=500): 26.2 %
of 1,000 validation images and 19.8 % 5-shot at step 500. A whole study, of all shares and both models,
hasn't been run. Hardware: two CPU cores.
"""

from ml_collections import ConfigDict

from vit_jax.config import base_config, one_of, parse_argument
from vit_jax.errors import UsageError

# Width, depth, heads.
_MODELS = {"small": (96, 4, 3), "large": (192, 6, 6)}
_DEFAULTS = {
    "folder": "tiny-imagenet", "share": "", "model": "small", "steps": "1500", "wd": "0.1", "dropout": "0",
    "smoothing": "0.1",
}  # fmt: skip


def get_config(arg: str = "") -> ConfigDict:
    """arg: FOLDER,KEY=VALUE,... as above."""
    values = parse_argument(arg, _DEFAULTS, positional="folder")
    width, depth, heads = _MODELS[one_of(values["model"], _MODELS, "config argument model")]
    try:
        steps = int(values["steps"])
        wd, dropout, smoothing = (float(values[key]) for key in ("wd", "dropout", "smoothing"))
    except ValueError as error:
        raise UsageError(f"config argument: {error}", "give numbers") from None
    folder = f"folder:{values['folder']}"
    config = base_config()

    config.total_steps = steps
    config.warmup_steps = min(200, steps // 10)
    config.global_batch = 64

    config.model.name = "Ti/8"
    config.model.width = width
    config.model.depth = depth
    config.model.mlp_dim = 4 * width
    config.model.num_heads = heads
    config.model.pool = "gap"
    config.model.posemb = "sincos2d"
    config.model.dropout = dropout

    config.data.train = f"{folder}@train{{:{values['share'] or '90%'}-stratified}}"
    config.data.val = f"{folder}@train{{90%:-stratified}}"
    config.data.test = f"{folder}@validation"
    config.data.preprocess_train = "decode|inception_crop(64, 30)|flip_lr|value_range(-1, 1)"
    config.data.preprocess_eval = "decode|resize(64)|value_range(-1, 1)"

    config.label_smoothing = smoothing
    config.optim.name = "adam"
    config.optim.lr = 2e-3
    config.optim.wd = wd
    config.optim.clip_norm = 1.0
    config.schedule = "cosine"

    config.log_every_steps = 50
    config.eval.every_steps = 50
    config.checkpoint.every_steps = 200
    config.early_stop.metric = "eval/val/accuracy"
    config.early_stop.patience = 6

    config.features.data = (("own", folder, "train", "validation"),)
    config.features.methods = ("fewshot",)
    config.features.every_steps = steps  # at the end alone
    config.fewshot.shots = (5,)
    return config
