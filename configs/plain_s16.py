"""Plain ViT-S/16 on ImageNet-1k from scratch, "Better plain ViT baselines" (arXiv 2205.01580), Table 1.

90 epochs by default; the argument is 90, 150 or 300. Batch 1024, 224 px, pooling by mean, fixed 2-D sine and
cosine positions, tanh layer before the classifier, RandAugment of two layers at magnitude 10 as the reference has
it, mixup 0.2, Adam with its first moment in bfloat16, absolute weight decay 1e-4, clipping at 1, warm-up of 10,000
steps, cosine. Trains on 99 % of the training images, evaluates on the other 1 % and on the validation images.

Expected on ImageNet validation, top-1: 76.5 (90 epochs), 78.5 (150), 80.0 (300); without RandAugment and mixup the
paper has 73.6, 73.7, 73.7. Hardware of the paper: 8 TPUv3 cores, 6.5 hours for 90 epochs. Not reproduced here: no
TPU and no ImageNet were at hand.

    python -m vit_jax.plan --config=configs/plain_s16.py:90 --topology=v3:2x2
    python -m vit_jax.train --config=configs/plain_s16.py:90 --workdir=runs/plain_s16
"""

from ml_collections import ConfigDict

from vit_jax.config import base_config, one_of


def get_config(epochs: str = "90") -> ConfigDict:
    """epochs: 90, 150 or 300."""
    config = base_config()

    config.total_epochs = float(one_of(epochs, ("90", "150", "300"), "config argument epochs"))
    config.warmup_steps = 10_000
    config.global_batch = 1024

    config.model.name = "S/16"
    config.model.pool = "gap"
    config.model.posemb = "sincos2d"
    config.model.rep_size = 384

    config.num_classes = 1000
    config.data.train = "tfds:imagenet2012@train[:99%]"
    config.data.val = "tfds:imagenet2012@train[99%:]"
    config.data.test = "tfds:imagenet2012@validation"
    config.data.train_examples = 1_268_355
    config.data.preprocess_train = "decode|inception_crop(224)|flip_lr|randaug(2, 10)|value_range(-1, 1)"
    config.data.preprocess_eval = "decode|resize_small(256)|central_crop(224)|value_range(-1, 1)"

    config.mixup_alpha = 0.2
    config.optim.name = "adam"
    config.optim.lr = 1e-3
    config.optim.wd = 1e-4
    config.optim.wd_mode = "absolute"
    config.optim.clip_norm = 1.0
    config.optim.momentum_dtype = "bfloat16"
    config.schedule = "cosine"

    config.eval.every_epochs = 5.0
    config.checkpoint.every_epochs = 5.0
    config.checkpoint.best_metric = "eval/val/accuracy"
    return config
