"""VTAB-1k (arXiv 1910.04867): 19 tasks of 1000 training images each, as in Table 9 of ViT (arXiv 2010.11929).

For `vit_jax.vtab`, with any checkpoint: published weights, or a run. The argument is a protocol and KEY=VALUE:

    vit          (default) the ViT paper's one setting for all tasks: 384 px, 2500 steps, lr 0.01, SGD momentum 0.9,
                 cosine, batch 512, global-norm clip 1, no weight decay
    lightweight  VTAB's own sweep: 224 px, SGD momentum 0.9, batch 512, lr 0.1 or 0.01, 2500 or 10,000 steps, the
                 rate divided by 10 at 30, 60 and 90 %
    augreg       "How to train your ViT" (arXiv 2106.10270): as vit, but 224 px, lr 0.001, 0.003, 0.01 or 0.03,
                 500 or 2500 steps, momentum in bfloat16
    linear       logistic regression on frozen features, 224 px, its l2 chosen on V
    size         pixels
    norm         auto (default): as the weights' layout or config says | half: -1..1, as Google's weights want |
                 unit: 0..1 | imagenet: by ImageNet's mean and standard deviation

A sweep trains on 800 images (T) and chooses, task by task, on 200 (V); the final runs train on all 1000 and are
tested on the whole test split, every image once. A task's score is the median of its runs (vtab.seeds: 3; a linear
probe: 1, as it draws nothing), the VTAB score the mean of the 19 tasks. Images are squashed to a square, bilinear
without antialiasing; nothing is cropped or flipped. There is no warm-up, as the papers name none.

Expected, test accuracy: L/16 from ImageNet-21k 72.7, from JFT 76.3, H/14 from JFT 77.6 (Table 9). None was
reproduced here: neither the weights nor the data sets can be downloaded where this was written. Hardware: an
accelerator; --config.accum_steps=8 where batch 512 doesn't fit. vit is 57 runs of 2500 steps, lightweight 133 runs
and augreg 209, of 500 to 10,000 steps.

    python -m vit_jax.vtab --check-data
    python -m vit_jax.vtab --config=configs/vtab.py --checkpoint=B_16.npz --workdir=runs/vtab
    python -m vit_jax.vtab --config=configs/vtab.py:linear --checkpoint=B_16.npz --workdir=runs/probe \
        --data-dir=vtab --task=cifar100,caltech101
"""

from ml_collections import ConfigDict

from vit_jax.config import base_config, one_of, parse_argument
from vit_jax.errors import UsageError

PROTOCOLS = ("vit", "lightweight", "augreg", "linear")
_SIZES = {"vit": 384, "lightweight": 224, "augreg": 224, "linear": 224}
_NORMS = {"auto": "", "half": "|value_range(-1, 1)", "unit": "|value_range(0, 1)", "imagenet": "|normalize()"}
_DEFAULTS = {"protocol": "vit", "size": "", "norm": "auto"}


def get_config(arg: str = "") -> ConfigDict:
    """arg: PROTOCOL,KEY=VALUE,... as above."""
    values = parse_argument(arg, _DEFAULTS, positional="protocol")
    protocol = one_of(values["protocol"], PROTOCOLS, "config argument protocol")
    norm = _NORMS[one_of(values["norm"], _NORMS, "config argument norm")]
    size = values["size"] or str(_SIZES[protocol])
    if not size.isdecimal() or not int(size):
        raise UsageError(f"config argument size is {size!r}", "give a number of pixels")
    config = base_config()

    config.model.name = ""  # the checkpoint's
    config.model.rep_size = 0
    config.data.train = config.data.val = config.data.test = ""  # each task's own
    # The checkpoint's normalisation is added where the string names none.
    config.data.preprocess_train = config.data.preprocess_eval = f"decode|resize({size}){norm}"

    config.total_steps = 2500
    config.global_batch = 512
    config.optim.name = "sgd"
    config.optim.lr = 0.01
    config.optim.momentum = 0.9
    if protocol in ("vit", "augreg"):
        config.schedule = "cosine"
        config.optim.clip_norm = 1.0
    if protocol == "augreg":
        config.optim.momentum_dtype = "bfloat16"
        config.sweep.lr, config.sweep.steps = (0.001, 0.003, 0.01, 0.03), (500, 2500)
    if protocol == "lightweight":
        config.schedule = "stair"
        config.sweep.lr, config.sweep.steps = (0.1, 0.01), (2500, 10_000)
    if protocol == "linear":
        config.vtab.method = "linear"
        config.vtab.seeds = 1
        config.linear.l2 = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)

    config.checkpoint.every_steps = 500
    config.checkpoint.every_minutes = 10.0
    config.checkpoint.keep = 1
    config.tensorboard = False
    return config
