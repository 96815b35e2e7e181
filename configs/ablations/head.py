"""Class token or mean of the patches, ViT (arXiv 2010.11929) appendix D.3: equal, when each has its learning rate.

With the JFT settings of Table 3 (pretrain_jft.py) otherwise. The argument is a pooling and KEY=VALUE pairs:

    pool     lr by default
    tok      8e-4   class token, then the dense + tanh layer and the classifier
    gap      3e-4   mean of the patches, then the classifier; no class token
    map      3e-4   attention pooling of Scaling ViT (arXiv 2106.04560), then the classifier; not in D.3, and its
                    rate is that of gap for want of a better one
    lr       peak learning rate: gap,lr=8e-4 is the comparison that made the mean look worse than the class token
    model    B/16 by default (the paper's figure names none that is known here), or another ViT of pretrain_jft.py
    data, train, val, classes   as in pretrain_jft.py

The two rates are read off the paper's figure and are uncertain. The appendix has curves of ImageNet 5-shot accuracy
and no numbers in the text: expected is that tok and gap end alike at their own rates. Hardware: not stated. Not
reproduced: JFT-300M is private. On two cores: tiny/head.py.

    python -m vit_jax.train --config=configs/ablations/head.py:gap --workdir=gs://bucket/gap
    python -m vit_jax.evaluate --config=configs/fewshot.py:data=tfds:imagenet2012,test=validation,methods=fewshot \
        --checkpoint=gs://bucket/gap
"""

from ml_collections import ConfigDict

from vit_jax.config import load, one_of, parse_argument
from vit_jax.errors import UsageError

_RATES = {"tok": 8e-4, "gap": 3e-4, "map": 3e-4}
_DATA = {"data": "arrayrecord:jft300m", "train": "train", "val": "", "classes": "18291"}


def get_config(arg: str = "") -> ConfigDict:
    """arg: POOL,KEY=VALUE,... as above."""
    values = parse_argument(arg, {"pool": "tok", "lr": "", "model": "B/16", **_DATA}, positional="pool")
    pool = one_of(values.pop("pool"), _RATES, "config argument pool")
    lr = values.pop("lr")
    if values["model"].startswith("R") and "+" not in values["model"]:
        raise UsageError(f"config argument model is {values['model']!r}", "a ResNet has no class token")
    config = load("pretrain_jft:" + ",".join(f"{key}={value}" for key, value in values.items()))
    try:
        config.optim.lr = float(lr or _RATES[pool])
    except ValueError:
        raise UsageError(f"config argument lr is {lr!r}", "give a number") from None

    config.model.pool = pool
    if pool != "tok":
        config.model.rep_size = None
    return config
