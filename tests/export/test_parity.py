"""The measure of how far two programs are apart."""

import numpy as np
import pytest

from vit_jax.errors import UsageError
from vit_jax.export import parity


def test_largest_difference_absolute_and_relative():
    reference = np.array([[1.0, -4.0], [2.0, 0.5]], np.float32)
    assert parity(reference, reference) == (0.0, 0.0)
    assert parity(reference, reference - np.array([[0.0, 0.5]], np.float32)) == (0.5, 0.125)
    assert parity(np.zeros((1, 2)), np.ones((1, 2))) == (1.0, np.inf)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_logits_that_are_not_finite_agree_with_nothing(broken):
    reference = np.array([[1.0, broken]], np.float32)
    for pair in [(reference, reference), (np.ones((1, 2)), reference), (reference, np.ones((1, 2)))]:
        assert parity(*pair) == (np.inf, np.inf)


def test_only_logits_of_one_shape_compare():
    with pytest.raises(UsageError, match=r"\(2, 3\) against \(2, 2\)"):
        parity(np.zeros((2, 2)), np.zeros((2, 3)))
    with pytest.raises(UsageError, match="at least one"):
        parity(np.zeros((0, 2)), np.zeros((0, 2)))
