"""Published numbers stand beside the runs that they belong to, and beside no others."""

import pytest

from configs import finetune, quickstart
from vit_jax.report.anchors import Anchor, anchors


def config(argument="", **sets):
    """The shipped fine-tuning config as a run stores it: with the model's name and image size filled in."""
    found = finetune.get_config(argument)
    size = next((int(w[5:]) for w in argument.split(",") if w.startswith("size=")), 384)
    found.model.image_size = (size, size)
    for key, value in sets.items():
        *groups, leaf = key.split("__")
        target = found
        for group in groups:
            target = target[group]
        target[leaf] = value
    return found


def numbers(*args, **sets):
    return {a.pretraining: a.accuracy for a in anchors(config(*args, **sets))}


def test_the_numbers_of_the_configs_own_docstring():
    for dataset, expected in (
        ("cifar10", 98.95), ("cifar100", 91.67), ("imagenet2012", 83.97), ("oxford_iiit_pet", 94.43),
        ("oxford_flowers102", 99.38),
    ):  # fmt: skip
        assert numbers(f"model=B/16,dataset={dataset}")["ImageNet-21k"] == expected
        assert f"{expected:.2f}" in finetune.__doc__
    assert numbers("model=B/16,dataset=imagenet2012,recipe=augreg")["ImageNet-21k, 300 epochs"] == 85.49


def test_rows_of_table_5():
    assert anchors(config("model=H/14,dataset=cifar100")) == [
        Anchor("ViT, Table 5", "ImageNet-21k", 93.82),
        Anchor("ViT, Table 5", "JFT", 94.55),
    ]
    assert numbers("model=L/32,dataset=cifar10") == {"ImageNet": 97.94, "ImageNet-21k": 99.13, "JFT": 99.19}


def test_imagenet_at_its_larger_sizes_is_table_2():
    assert anchors(config("model=L/16,dataset=imagenet2012,size=512")) == [
        Anchor("ViT, Table 2", "JFT", 87.76),
        Anchor("ViT, Table 2", "ImageNet-21k", 85.30),
    ]
    assert numbers("model=H/14,dataset=imagenet2012,size=518") == {"JFT": 88.55}


def test_augreg_at_both_sizes():
    assert numbers("model=Ti/16,dataset=imagenet2012,recipe=augreg,size=224") == {
        "ImageNet, 300 epochs": 69.56, "ImageNet-21k, 30 epochs": 68.89, "ImageNet-21k, 300 epochs": 73.75,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("argument", "sets"),
    [
        ("model=B/16,dataset=folder:flowers", {}),
        ("model=B/16,dataset=cifar10,size=224", {}),
        ("model=S/16,dataset=cifar10", {}),
        ("model=B/16,dataset=cifar10,recipe=augreg", {}),
        ("model=B/16,dataset=cifar10,train=probe", {}),
        ("model=B/16,dataset=cifar10", {"optim__name": "adam"}),
        ("model=B/16,dataset=cifar10", {"init": ""}),
        ("model=B/16,dataset=cifar10", {"data__test": "test[:1000]"}),
        ("model=B/16,dataset=cifar10", {"data__test": "tfds:cifar100@test"}),
        ("model=B/16,dataset=cifar10", {"data__test": ""}),
        ("model=B/16,dataset=imagenet2012", {"data__test": "tfds:imagenet2012@train[99%:]"}),
        ("model=B/16,dataset=imagenet2012,size=512", {}),
        ("model=B/16,dataset=cifar10", {"model__image_size": (384, 192)}),
        ("model=B/16,dataset=cifar10", {"model__image_size": None}),
        ("model=B/16,dataset=cifar10", {"ema_decay": 0.99}),
    ],
)
def test_anything_else_has_none(argument, sets):
    assert anchors(config(argument, **sets)) == []


def test_data_is_known_by_either_source_and_digits_have_no_row():
    assert numbers("model=B/16,dataset=cifar10:/data/cifar")["JFT"] == 99.00
    assert numbers("model=B/16,dataset=cifar10", data__test="test")["JFT"] == 99.00
    assert anchors(quickstart.get_config()) == []
