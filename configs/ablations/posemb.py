"""Kinds of position embedding, ViT (arXiv 2010.11929) Table 8: B/16, ImageNet 5-shot accuracy of frozen features.

Pretrained with the JFT settings of Table 3 (pretrain_jft.py). The argument is a kind and KEY=VALUE pairs:

    kind     at=stem (before the layers)  at=every (each layer its own)  at=shared (one, in all layers)
    none     .61382
    learn    .64206 (the default)         .63964                         .64292
    learn2d  .64001                       .64046                         .64022
    relative the paper has one figure, .64032, and doesn't say where: at=every (default) or at=shared
    sincos2d fixed sines and cosines, in no paper row
    model    B/16 by default, or another row of pretrain_jft.py
    data, train, val, classes   as in pretrain_jft.py

learn2d has an X and a Y table of half the width, concatenated; the class token has none of the cells, so nothing is
added to it. relative has keys for the one-dimensional offsets between patches, whose products with the query are
added to the logits; pairs with the class token get nothing, and relative tables can't be resized to other images.
The paper leaves both open. Hardware of these runs: not stated. Not reproduced: JFT-300M is private. On two cores:
tiny/posemb.py.

    python -m vit_jax.train --config=configs/ablations/posemb.py:learn2d,at=every --workdir=gs://bucket/2d-every
    python -m vit_jax.evaluate --config=configs/fewshot.py:data=tfds:imagenet2012,test=validation,methods=fewshot \
        --checkpoint=gs://bucket/2d-every
"""

from ml_collections import ConfigDict

from vit_jax.config import load, one_of, parse_argument

_KINDS = ("none", "learn", "learn2d", "relative", "sincos2d")
_PLACES = ("stem", "every", "shared")
_DATA = {"data": "arrayrecord:jft300m", "train": "train", "val": "", "classes": "18291"}


def get_config(arg: str = "") -> ConfigDict:
    """arg: KIND,KEY=VALUE,... as above."""
    defaults = {"kind": "learn", "at": "", "model": "B/16", **_DATA}
    values = parse_argument(arg, defaults, positional="kind")
    kind = one_of(values.pop("kind"), _KINDS, "config argument kind")
    at = values.pop("at")
    config = load("pretrain_jft:" + ",".join(f"{key}={value}" for key, value in values.items()))

    config.model.posemb = kind
    config.model.posemb_at = one_of(at, _PLACES, "config argument at") if at else None
    return config
