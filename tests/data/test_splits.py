"""Split expressions.

The ranges are what `tfds.core.ReadInstruction` gives; the last two cases it doesn't accept.
"""

import pytest

from vit_jax.data.splits import parse_split
from vit_jax.errors import UsageError


@pytest.mark.parametrize(
    ("expression", "count", "expected"),
    [
        ("train", 10, (0, 10)),
        ("train[:98%]", 1437, (0, 1408)),  # 1408.26
        ("train[90%:]", 1437, (1293, 1437)),  # 1293.3
        ("train[:50%]", 3, (0, 2)),  # 1.5 goes to the even number
        ("train[:50%]", 5, (0, 2)),  # 2.5 too
        ("train[33%:67%]", 200, (66, 134)),
        ("train[-10%:]", 15, (13, 15)),  # -1.5 goes to -2
        ("train[:-25%]", 10, (0, 8)),
        ("train[100:-50]", 1000, (100, 950)),
        ("train[-3:]", 10, (7, 10)),
        ("train[2754:2954]", 3000, (2754, 2954)),
        ("train[1_000:]", 1500, (1000, 1500)),
        ("train[0:0]", 10, (0, 0)),
        ("train[7:3]", 10, (7, 7)),
        (" train [ 2 : 4 ] ", 10, (2, 4)),
    ],
)
def test_range(expression, count, expected):
    (term,) = parse_split(expression)
    assert term.range(count) == expected


def test_sum_of_terms():
    terms = parse_split("train[:800]+train[2754:2954] + test")
    assert [(t.name, *t.range(3000)) for t in terms] == [
        ("train", 0, 800),
        ("train", 2754, 2954),
        ("test", 0, 3000),
    ]


@pytest.mark.parametrize(
    "expression", ["", "train[", "train[5]", "train[1:2:3]", "train[a:]", "train++test", "train[:1.5]"]
)
def test_unparsable(expression):
    with pytest.raises(UsageError, match=r"can't be parsed.*write 'train'"):
        parse_split(expression)


@pytest.mark.parametrize("expression", ["train[:11]", "train[-11:]", "train[:101%]"])
def test_beyond_the_split(expression):
    (term,) = parse_split(expression)
    with pytest.raises(UsageError, match="beyond its 10 examples"):
        term.range(10)
