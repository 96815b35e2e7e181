"""The configs of small studies: what they compare is alike in all else."""

import pytest

from tests.shrunken import facts_of
from vit_jax import config as config_lib
from vit_jax.errors import UsageError
from vit_jax.flops import forward_flops
from vit_jax.model_config import build_model

ARCHITECTURES = ("vit", "resnet", "hybrid")


def test_architectures_have_equal_flops():
    flops = []
    for name in ARCHITECTURES:
        config = config_lib.load(f"tiny/architecture:{name}")
        config.num_classes = 20
        flops.append(forward_flops(build_model(config, facts_of(config))))
    assert max(flops) < 1.05 * min(flops)
    assert (min(flops) // 10**6, max(flops) // 10**6) == (64, 65)  # as the docstring says


def test_architectures_differ_in_the_model_alone():
    configs = [config_lib.to_dict(config_lib.load(f"tiny/architecture:{name}")) for name in ARCHITECTURES]
    models = [config.pop("model") for config in configs]
    assert configs[0] == configs[1] == configs[2]
    assert len({model["name"] for model in models}) == 3


def test_cifar10_by_argument():
    config = config_lib.load("tiny/cifar10:folder:a/b,epochs=3")
    assert (config.data.train, config.data.test) == ("folder:a/b@train", "folder:a/b@test")
    assert (config.total_epochs, config.warmup_epochs, config.model.dtype) == (3, 3 / 16, "float32")
    config = config_lib.load("tiny/cifar10:machine=gpu")
    assert (config.total_epochs, config.model.dtype, config.model.width) == (200, "bfloat16", None)
    assert "randaug" in config.data.preprocess_train and config.cutmix_alpha == 1


@pytest.mark.parametrize(
    "wrong", ["architecture:mixer", "architecture:steps=1e3", "cifar10:machine=tpu", "cifar10:epochs=x"]
)
def test_unknown_arguments_are_refused(wrong):
    with pytest.raises(UsageError):
        config_lib.load(f"tiny/{wrong}")
