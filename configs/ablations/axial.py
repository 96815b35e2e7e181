"""Axial attention, ViT (arXiv 2010.11929) appendix D.6: along rows with an MLP, then along columns with an MLP.

With the JFT settings that Table 3 has for B/32 and B/16 (pretrain_jft.py). The argument is a model and KEY=VALUE
pairs:

    model    Axial-B/32 (default), Axial-B/16: 12 such double blocks. B/32 and B/16 for comparison
    data, train, val, classes   as in pretrain_jft.py

A class token would stand in no row or column: the mean of the patches goes to the tanh layer and the classifier.
The paper doesn't say what it pools. Expected, of a figure without numbers: both are better than B/32 and B/16 in
5-shot ImageNet accuracy, and cost more, for every block has two MLPs. Hardware: not stated.
Not reproduced: JFT-300M is private.

    python -m vit_jax.train --config=configs/ablations/axial.py:Axial-B/32 --workdir=gs://bucket/axial
    python -m vit_jax.evaluate --config=configs/fewshot.py:data=tfds:imagenet2012,test=validation,methods=fewshot \
        --checkpoint=gs://bucket/axial
"""

from ml_collections import ConfigDict

from vit_jax.config import load, one_of, parse_argument

_MODELS = ("Axial-B/32", "Axial-B/16", "B/32", "B/16")
_DATA = {"data": "arrayrecord:jft300m", "train": "train", "val": "", "classes": "18291"}


def get_config(arg: str = "") -> ConfigDict:
    """arg: MODEL,KEY=VALUE,... as above."""
    values = parse_argument(arg, {"model": "Axial-B/32", **_DATA}, positional="model")
    model = one_of(values.pop("model"), _MODELS, "config argument model")
    row = model.removeprefix("Axial-")
    config = load(f"pretrain_jft:{row}," + ",".join(f"{key}={value}" for key, value in values.items()))

    config.model.name = model
    if model != row:
        config.model.pool = "gap"
    return config
