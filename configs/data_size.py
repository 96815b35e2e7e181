"""How much data a ViT needs: the study of ViT (arXiv 2010.11929), section 4.3, Figures 3 and 4.

The argument is a model and KEY=VALUE pairs. What isn't said below is as in Table 3 for the set, that is as in
pretrain_i1k.py, pretrain_i21k.py and pretrain_jft.py, which also say what models there are and what they take:

    model     B/16 by default. b/32 and b/16 are B with every hidden size halved: S/32 and S/16 (6 heads; the paper
              says no number), with the learning rate of B
    on        i1k, i21k, jft (default): the set
    data      another source in its place, as those configs take it; lengths stay those of the set:
              --config.total_steps=N sets another

Figure 3, larger and larger sets, with the three regularisers tuned for each:

    wd, dropout, smoothing   weight decay (times the learning rate), dropout, label smoothing; Table 3's values (wd
                             0.3, 0.03, 0.1 and dropout 0.1, 0.1, 0 on i1k, i21k, jft) and no smoothing by default

Figure 4, random subsets of one set with the same settings and number of steps for all, and early stopping:

    images    9M, 30M, 90M, 300M (the paper's, of JFT; 300M: all but `val`), any number, or a share such as 3%. A
              subset has all images of a smaller one, whatever the seed of the run
    val       split for early stopping, by accuracy; "train{99.9%:}" by default: a random thousandth of the training
              images, which no subset then has
    fewshot   source of ImageNet for 5-shot accuracy of the frozen features, tfds:imagenet2012 by default, "none"
              for none; logged at every evaluation as eval/imagenet/5shot/accuracy

Expected: ImageNet top-1 after fine-tuning at 384 px, Table 5:

              B/16    B/32    L/16    L/32    H/14
    i1k       77.91   73.38   76.53   71.16
    i21k      83.97   81.28   85.15   80.99   85.13
    jft       84.15   80.73   87.12   84.37   88.04

So the larger model is the worse one on ImageNet alone, and wins with JFT. Figure 4 has curves without numbers: B/32
is much worse than R50x1 on 9M images and better on 90M, and so is L/16 beside R152x2. Hardware: the paper's L/16 on
JFT took 680 TPUv3 core-days (Table 2). The paper's patience isn't known; here it is 5 evaluations, of 100 a run,
each of 1.6 M forward passes for 21 M images trained on. Nothing was run at this size: neither the images nor the
hardware was at hand; tiny/data_size.py is the same study on two cores.

    python -m vit_jax.train --config=configs/data_size.py:L/16,on=i1k,wd=0.3,dropout=0.1,smoothing=0.1 \
        --workdir=gs://bucket/l16-i1k
    python -m vit_jax.train --config=configs/data_size.py:L/16,images=9M,data=arrayrecord:gs://bucket/jft300m \
        --workdir=gs://bucket/l16-9M
    python -m vit_jax.evaluate --config=fewshot:tfds:imagenet2012,test=validation,methods=fewshot \
        --checkpoint=gs://bucket/l16-9M@best
"""

import re
from fractions import Fraction

from ml_collections import ConfigDict

from vit_jax.config import load, one_of, parse_argument
from vit_jax.errors import UsageError

_SETS = {"i1k": 1_281_167, "i21k": 14_197_122, "jft": 303_000_000}  # training images
_HALVED = {"b/32": ("B/32", "S/32"), "b/16": ("B/16", "S/16")}
_NAMED = {"9M": "9000000", "30M": "30000000", "90M": "90000000", "300M": "100%"}
_REST = "99.9%"  # what validation leaves
_DEFAULTS = {
    "model": "B/16", "on": "jft", "data": "", "wd": "", "dropout": "", "smoothing": "0", "images": "", "val": "",
    "fewshot": "tfds:imagenet2012",
}  # fmt: skip
_EVALUATIONS = 100  # a run, of subsets


def get_config(arg: str = "") -> ConfigDict:
    """arg: MODEL,KEY=VALUE,... as above."""
    values = parse_argument(arg, _DEFAULTS, positional="model")
    model, halved = _HALVED.get(values["model"], (values["model"], None))
    on = one_of(values["on"], _SETS, "config argument on")
    source = f",data={values['data']}" if values["data"] else ""
    config = load(f"pretrain_{on}:{model}{source}").unlock()
    if halved:
        config.model.name = halved
        config.model.rep_size = config.model.rep_size // 2
    try:
        config.label_smoothing = float(values["smoothing"])
        config.optim.wd = float(values["wd"] or config.optim.wd)
        config.model.dropout = float(values["dropout"] or config.model.dropout)
    except ValueError as error:
        raise UsageError(f"config argument: {error}", "give numbers") from None
    if values["images"]:
        _take_subset(config, values, _SETS[on])
    elif values["val"]:
        config.data.val = f"{config.data.train.rpartition('@')[0]}@{values['val']}"
    return config.lock()


def _take_subset(config: ConfigDict, values: dict[str, str], whole: int) -> None:
    """Trains on a random subset for as many steps as the whole set would take, at most."""
    source = config.data.train.rpartition("@")[0]
    share = _NAMED.get(values["images"], values["images"])
    if not re.fullmatch(r"\d+(\.\d+)?%|\d+", share):
        raise UsageError(
            f"config argument images is {values['images']!r}", f"give {', '.join(_NAMED)}, a number, or 3%"
        )
    if share == "100%" and not values["val"]:
        share = _REST
    config.total_examples = round(config.total_epochs * whole)
    config.total_epochs = None
    config.data.train = f"{source}@train{{:{share}}}"
    config.data.train_examples = (
        round(Fraction(share.rstrip("%")) * whole / 100) if share.endswith("%") else int(share)
    )
    config.data.val = f"{source}@{values['val'] or f'train{{{_REST}:}}'}"
    every = max(1, config.total_examples // config.global_batch // _EVALUATIONS)
    config.eval.every_epochs, config.eval.every_steps = None, every
    config.early_stop.metric = "eval/val/accuracy"
    config.early_stop.patience = 5
    config.fewshot.shots = (5,)
    if values["fewshot"] != "none":
        config.features.data = (("imagenet", values["fewshot"], "train", "validation"),)
