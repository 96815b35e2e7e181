"""The data of a run: specs of the splits, one class map, and what is refused before any work."""

import pytest

from vit_jax.config import base_config
from vit_jax.data.dataset import full_spec, open_dataset
from vit_jax.errors import UsageError


def digits(**changes):
    data = base_config().data
    for key, value in changes.items():
        data[key] = value
    return open_dataset(data, seed=0, num_classes=None)


@pytest.mark.parametrize(
    ("value", "train", "spec"),
    [
        ("test", "digits@train", "digits@test"),
        ("train[90%:]", "folder:/a@b/c", "folder:/a@b/c@train[90%:]"),
        ("digits", "folder:/a", "digits"),
        ("folder:/b@test", "folder:/a", "folder:/b@test"),
    ],
)
def test_a_bare_split_means_the_source_of_train(value, train, spec):
    assert full_spec(value, train) == spec


def test_digits_give_their_facts():
    data = digits(val="train[90%:]")
    facts = data.facts()
    assert (facts.num_examples, facts.num_classes, facts.image_shape) == (1437, 10, (8, 8, 3))
    assert {name: len(split) for name, split in data.evals.items()} == {"val": 144, "test": 360}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"on_bad_image": "ignore"}, "on_bad_image is 'ignore'"),
        ({"preprocess_eval": "decode|flip_lr"}, "is random"),
        ({"preprocess_eval": "decode|value_range(0, 1)"}, "normalise differently"),
        ({"preprocess_eval": "decode|resize(4)"}, "make the two end"),
        ({"test": "test[:0]"}, "empty split"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, says):
    with pytest.raises(UsageError, match=says):
        digits(**changes)


def test_a_batch_larger_than_the_memory_is_refused():
    data = digits()
    data.check_memory(128)
    with pytest.raises(UsageError, match="GiB of images in flight"):
        data.check_memory(10**12)
