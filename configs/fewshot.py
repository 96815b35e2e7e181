"""Evaluation of a checkpoint by what its frozen features are worth, and on ImageNet's other test sets.

For `vit_jax.evaluate`, with any checkpoint: a run, or published weights. The argument is a list of KEY=VALUE:

    data      SOURCE of images with classes of their own, its splits train and test: folder:PATH, cifar10:PATH,
              tfds:NAME, ...; several are joined by +. Left out: the run's own data.train and data.test
    train, test   their splits, if they are called otherwise
    methods   fewshot+linear+knn (default), or some of them
    imagenet  folder with any of validation/CLASS/ (named as published) and real.json, v2/0 ... v2/999, a/WNID/,
              r/WNID/, objectnet/FOLDER/ and objectnet.json: ReaL, V2, A, R and ObjectNet of those that are named
    sets      which of real+v2+a+r+objectnet to take of it; default: real+v2

Few-shot: images per class 1, 5, 10, 25; least squares onto targets -1 and +1 in closed form, l2 = 2^10 (ViT, arXiv
2010.11929, section 4.1; big_vision's constants), three draws; and a sweep of l2, chosen on other training images.
Images are squashed to the model's size unless --preprocess says otherwise (big_vision for ImageNet:
--preprocess='decode|resize(256)|central_crop(224)').

Expected: the paper's Table 8 has B/16's ImageNet 5-shot at 64.2 % (1-D positions, JFT), Scaling-ViT (arXiv
2106.04560) G/14's 10-shot at 84.86 %; ReaL and V2 of Table 2 and of "Better plain ViT baselines" (83.1 and 64.2
for S/16, 90 epochs). None was reproduced here: neither weights nor images can be downloaded where this was
written. Hardware: whatever runs the model forwards; the rest takes seconds on a CPU, but a linear probe on millions
of images, for which --config.linear.solver=sgd.

    python -m vit_jax.evaluate --config=configs/fewshot.py --checkpoint=runs/ft
    python -m vit_jax.evaluate --config=configs/fewshot.py:data=folder:flowers,methods=fewshot --checkpoint=B_16.npz
    python -m vit_jax.evaluate --config=configs/fewshot.py:methods=,imagenet=/data/imagenet --checkpoint=runs/i1k
"""

from ml_collections import ConfigDict

from vit_jax.config import base_config, one_of, parse_argument
from vit_jax.errors import UsageError

_SETS = ("real", "v2", "a", "r", "objectnet")
_METHODS = ("fewshot", "linear", "knn")
_DEFAULTS = {
    "data": "", "train": "", "test": "", "methods": "fewshot+linear+knn", "imagenet": "", "sets": "real+v2",
}  # fmt: skip


def get_config(arg: str = "") -> ConfigDict:
    """arg: KEY=VALUE,... as above."""
    values = parse_argument(arg, _DEFAULTS, positional="data")
    methods = tuple(filter(None, values["methods"].split("+")))
    for method in methods:
        one_of(method, _METHODS, "config argument methods")
    config = base_config()

    # What the checkpoint's own classifier is tested on: --data adds it.
    config.data.train = config.data.val = config.data.test = ""
    config.data.preprocess_train = config.data.preprocess_eval = ""  # the checkpoint's own

    specs = values["data"].split("+")
    if methods:
        config.features.data = tuple(
            (_name(spec, specs), spec, values["train"], values["test"]) for spec in specs
        )
        config.features.methods = methods
    elif values["data"]:
        raise UsageError("config argument methods is empty", "leave data out too, or name some methods")
    config.fewshot.l2_sweep = tuple(2.0**i for i in range(-10, 21, 2))

    if values["imagenet"]:
        root = values["imagenet"]
        wanted = [one_of(name, _SETS, "config argument sets") for name in values["sets"].split("+")]
        folders = {"real": "validation", "v2": "v2", "a": "a", "r": "r", "objectnet": "objectnet"}
        for name in wanted:
            config.imagenet[name] = f"folder:{root}/{folders[name]}@all"
        config.imagenet.real_labels = f"{root}/real.json"
        config.imagenet.objectnet_classes = f"{root}/objectnet.json"
    return config


def _name(spec: str, specs: list[str]) -> str:
    """What results are called: `own`, or the last part of the location."""
    if not spec:
        return "own"
    name = spec.rpartition(":")[2].rstrip("/").rpartition("/")[2] or spec
    return name if sum(s.endswith(name) for s in specs) == 1 else spec
