"""Adam or SGD for pretraining ResNets, ViT (arXiv 2010.11929) Table 7: 7 epochs of JFT, then fine-tuning.

The argument is a model and KEY=VALUE pairs:

    model      expected, adam / sgd: ImageNet, CIFAR-10, CIFAR-100, Pets, Flowers, mean
    R50x1      77.54/78.24  97.67/97.46  86.07/85.17  91.11/91.00  94.26/92.06  89.33/88.79 (default)
    R152x2     84.97/84.37  99.06/99.07  92.05/91.06  95.37/94.79  98.62/99.32  94.01/93.72
    optimizer  adam (default), with the rate and decay of Table 3: 1e-3 and 6e-4; or sgd with momentum 0.9
    lr         peak learning rate
    data, train, val, classes   as in pretrain_jft.py

SGD's settings aren't known. Ours are BiT's as recalled, not verified: 0.03 per 256 images, so 0.48, and a decay of
1e-4 times the rate; warm-up and linear schedule stay those of Table 3.
Fine-tuning: finetune.py, which has the paper's grid. Hardware: not stated. Not reproduced: JFT-300M is private.

    python -m vit_jax.train --config=configs/ablations/optimizer.py:R50x1,optimizer=sgd --workdir=gs://bucket/sgd
"""

from ml_collections import ConfigDict

from vit_jax.config import load, one_of, parse_argument
from vit_jax.errors import UsageError

_DATA = {"data": "arrayrecord:jft300m", "train": "train", "val": "", "classes": "18291"}


def get_config(arg: str = "") -> ConfigDict:
    """arg: MODEL,KEY=VALUE,... as above."""
    values = parse_argument(
        arg, {"model": "R50x1", "optimizer": "adam", "lr": "", **_DATA}, positional="model"
    )
    one_of(values["model"], ("R50x1", "R152x2"), "config argument model")
    optimizer = one_of(values.pop("optimizer"), ("adam", "sgd"), "config argument optimizer")
    lr = values.pop("lr")
    config = load("pretrain_jft:" + ",".join(f"{key}={value}" for key, value in values.items()))

    if optimizer == "sgd":
        config.optim.name = "sgd"
        config.optim.momentum = 0.9
        config.optim.lr = 0.03 * config.global_batch / 256
        config.optim.wd = 1e-4
    if lr:
        try:
            config.optim.lr = float(lr)
        except ValueError:
            raise UsageError(f"config argument lr is {lr!r}", "give a number") from None
    return config
