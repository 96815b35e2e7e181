"""The class map of a prepared data set: the source's own classes, a list the user gives, or ImageNet-21k's."""

import hashlib
from collections.abc import Sequence

from vit_jax.errors import UsageError
from vit_jax.workdir import read_class_file

IMAGENET21K = "imagenet21k"
# The released ImageNet-21k heads have 21,843 rows: the WordNet ids of the 21,841 archives of the fall 2011 release,
# and two ids that it has no images of, all in the order of the ids as strings. Digest of the ids, one a line, as
# published in https://storage.googleapis.com/bit_models/imagenet21k_wordnet_ids.txt.
_IMAGENET21K_WITHOUT_IMAGES = ("n03931044", "n09859684")
_IMAGENET21K_COUNT = 21_843
_IMAGENET21K_SHA256 = "66362bdedf36d933382edca5493fc562dcc17128ce36403c9e730a75f48cb2f2"


def class_list(option: str | None, found: Sequence[str]) -> tuple[str, ...] | None:
    """The class names in label order.

    Args:
      option: None: as the source has them; `imagenet21k`; else a file, a name a line.
      found: the names of the source's classes, for `imagenet21k`.

    Returns:
      the names, or None for the source's own.

    Raises:
      UsageError: the file can't be read or names a class twice; or the source isn't ImageNet-21k.
    """
    if option is None:
        return None
    if option == IMAGENET21K:
        return imagenet21k(found)
    names = tuple(name for name in read_class_file(option) if name)
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise UsageError(f"{option} names class {twice!r} twice", "make class names unique")
    if not names:
        raise UsageError(f"{option} names no class", "give a text file, a name a line")
    return names


def imagenet21k(found: Sequence[str]) -> tuple[str, ...]:
    """ImageNet-21k's 21,843 WordNet ids in the order of the released weights, from those of its archives.

    Raises:
      UsageError: with the two ids without images they aren't these.
    """
    names = tuple(sorted({*found, *_IMAGENET21K_WITHOUT_IMAGES}))
    digest = hashlib.sha256(
        "".join(f"{name}\n" for name in names).encode(errors="surrogateescape")
    ).hexdigest()
    if digest != _IMAGENET21K_SHA256:
        raise UsageError(
            f"--classes={IMAGENET21K}: the source has {len(found)} classes, which with the two without images "
            f"aren't the {_IMAGENET21K_COUNT} of ImageNet-21k (fall 2011)",
            "for another release or a part give --classes=FILE, such as the published imagenet21k_wordnet_ids.txt",
        )
    return names
