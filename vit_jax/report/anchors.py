"""Published results that the shipped fine-tuning config (configs/finetune.py) is meant to meet, top-1 %.

ViT: arXiv 2010.11929, Tables 2 and 5. AugReg: "How to train your ViT", arXiv 2106.10270. JFT and ImageNet-21k can't
be told from a file of weights, so the rows of all pre-training sets are given.
"""

from dataclasses import dataclass

from ml_collections import ConfigDict

from vit_jax.data.dataset import full_spec
from vit_jax.models.check import size_of

# Our name of a data set, as in data.train -> the papers'.
_DATA = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet2012": "ImageNet",
    "oxford_flowers102": "Flowers",
    "oxford_iiit_pet": "Pets",
}

# Where it isn't `test`.
_TEST_SPLIT = {"ImageNet": "validation"}

# ViT, Table 5: pre-training -> data set -> accuracy of these models, at 384 px.
_TABLE_5_MODELS = ("B/16", "B/32", "L/16", "L/32", "H/14")
_TABLE_5 = {
    "ImageNet": {
        "CIFAR-10": (98.13, 97.77, 97.86, 97.94),
        "CIFAR-100": (87.13, 86.31, 86.35, 87.07),
        "ImageNet": (77.91, 73.38, 76.53, 71.16),
        "Flowers": (89.49, 85.43, 89.66, 86.36),
        "Pets": (93.81, 92.04, 93.64, 91.35),
    },
    "ImageNet-21k": {
        "CIFAR-10": (98.95, 98.79, 99.16, 99.13, 99.27),
        "CIFAR-100": (91.67, 91.97, 93.44, 93.04, 93.82),
        "ImageNet": (83.97, 81.28, 85.15, 80.99, 85.13),
        "Flowers": (99.38, 99.11, 99.61, 99.19, 99.51),
        "Pets": (94.43, 93.02, 94.73, 93.09, 94.82),
    },
    "JFT": {
        "CIFAR-10": (99.00, 98.61, 99.38, 99.19, 99.50),
        "CIFAR-100": (91.87, 90.49, 94.04, 92.52, 94.55),
        "ImageNet": (84.15, 80.73, 87.12, 84.37, 88.04),
        "Flowers": (99.56, 99.27, 99.56, 99.45, 99.68),
        "Pets": (95.80, 93.40, 97.11, 95.83, 97.56),
    },
}

# ViT, Table 2, ImageNet with averaged parameters (0.9999): (model, px) -> pre-training -> accuracy.
_TABLE_2 = {
    ("H/14", 518): {"JFT": 88.55},
    ("L/16", 512): {"JFT": 87.76, "ImageNet-21k": 85.30},
}

# AugReg, fine-tuned on ImageNet: px -> model -> pre-trained on ImageNet (300 epochs), ImageNet-21k (30), (300).
_AUGREG_PRETRAINING = ("ImageNet, 300 epochs", "ImageNet-21k, 30 epochs", "ImageNet-21k, 300 epochs")
_AUGREG = {
    224: {
        "L/16": (74.01, 82.05, 83.98),
        "B/16": (78.73, 80.42, 83.96),
        "S/16": (77.51, 76.04, 80.46),
        "R50+L/32": (74.17, 80.26, 82.74),
        "R26+S/32": (78.20, 77.42, 80.81),
        "Ti/16": (69.56, 68.89, 73.75),
        "B/32": (71.38, 72.24, 79.13),
        "S/32": (69.19, 68.49, 73.47),
        "R+Ti/16": (67.30, 65.65, 69.69),
    },
    384: {
        "L/16": (77.21, 84.48, 85.59),
        "B/16": (81.63, 83.46, 85.49),
        "S/16": (80.70, 80.22, 83.73),
        "R50+L/32": (76.71, 83.19, 85.99),
        "R26+S/32": (81.55, 81.11, 83.85),
        "Ti/16": (74.64, 74.20, 78.22),
        "B/32": (76.60, 78.65, 83.59),
        "S/32": (75.65, 75.74, 79.58),
        "R+Ti/16": (73.48, 71.97, 75.40),
    },
}


@dataclass(frozen=True)
class Anchor:
    """A published number: top-1 accuracy in percent."""

    source: str
    pretraining: str
    accuracy: float


def anchors(config: ConfigDict) -> list[Anchor]:
    """The rows that belong to a run's config: same model, data, test split, size and recipe; none for any other.

    The recipe is the shipped one where weights are fine-tuned by SGD with momentum in full, none of them frozen.
    """
    data = _data_of(config.data.train)
    if data is None or not config.model.image_size:
        return []
    test = full_spec(config.data.test, config.data.train)
    whole = _data_of(test) == data and test.rpartition("@")[2] == _TEST_SPLIT.get(data, "test")
    height, width = size_of(config.model.image_size)
    tuned = config.init and config.optim.name == "sgd" and not config.optim.frozen
    if not tuned or not whole or height != width:
        return []
    name = config.model.name
    if config.optim.momentum_dtype == "bfloat16":
        values = _AUGREG.get(height, {}).get(name, ()) if data == "ImageNet" else ()
        return [
            Anchor("AugReg (arXiv 2106.10270)", *pair)
            for pair in zip(_AUGREG_PRETRAINING, values, strict=False)
        ]
    if data == "ImageNet" and config.ema_decay == 0.9999:
        rows = _TABLE_2.get((name, height), {})
        return [Anchor("ViT, Table 2", *row) for row in rows.items()]
    if height != 384 or name not in _TABLE_5_MODELS or config.ema_decay is not None:
        return []
    place = _TABLE_5_MODELS.index(name)
    return [
        Anchor("ViT, Table 5", pretraining, table[data][place])
        for pretraining, table in _TABLE_5.items()
        if place < len(table[data])
    ]


def _data_of(spec: str) -> str | None:
    """The papers' name of the data set of a spec: `tfds:cifar10@train`, `cifar10:PATH@test`; None: another."""
    kind, _, rest = spec.partition("@")[0].partition(":")
    name = rest.partition(":")[0] if kind == "tfds" else kind
    return _DATA.get(name)
