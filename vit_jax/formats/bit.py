"""The .npz layouts of BiT ResNets: big_vision's two generations, and the published files with TF names."""

import re
from typing import Any

from vit_jax.formats import resnet_names, table
from vit_jax.formats.table import POINTWISE, SAME, pair
from vit_jax.formats.weights import Arrays, Weights, complete, model_of, shapes_of
from vit_jax.paths import nested

_HEAD = pair("head", "head", (("kernel", "/kernel", SAME), ("bias", "/bias", SAME)))
_LAST_NORM = pair("norm", "norm-pre-head", resnet_names.NORM_LEAVES)

ROWS = {
    "v1": [*resnet_names.rows("", "unit{u}"), *_HEAD],
    "v2": [
        *(row._replace(theirs=row.theirs.replace("conv_root", "root_block/conv_root"))
          for row in resnet_names.rows("", "unit{u:02d}")),
        *_LAST_NORM,
        *_HEAD,
    ],
}  # fmt: skip

# Published files: a, b, c are the three convolutions of a unit; some number their layers.
_NUMBER = re.compile(r"(standardized_conv2d|conv2d|group_norm)_\d+")
_TF_NAMES = [
    (re.compile(r"^resnet/root_block/standardized_conv2d/"), "root_block/conv_root/"),
    (re.compile(r"^resnet/(block\d+/unit\d+)/a/proj/standardized_conv2d/"), r"\1/conv_proj/"),
    (re.compile(r"^resnet/group_norm/"), "norm-pre-head/"),
    (re.compile(r"^resnet/head/conv2d/"), "head/"),
    (re.compile(r"/gamma$"), "/scale"),
    (re.compile(r"/beta$"), "/bias"),
    *(
        (re.compile(rf"^resnet/(block\d+/unit\d+)/{letter}/{layer}/"), rf"\1/{short}{number}/")
        for letter, number in (("a", 1), ("b", 2), ("c", 3))
        for layer, short in (("standardized_conv2d", "conv"), ("group_norm", "gn"))
    ),
]


def matches(arrays: Arrays) -> bool:
    """Whether arrays (without a prefix) have one of these layouts."""
    return any(re.fullmatch(r"(resnet/)?block1/unit0?1/.*", name) for name in arrays) and not any(
        name.startswith(("Transformer/", "embedding/")) for name in arrays
    )


def read(arrays: Arrays, hints: dict[str, Any], origin: str) -> Weights:
    """Arrays without a prefix -> weights of a ResNet; `image_size` may be any, 224 unless given.

    Raises:
      UsageError: names or shapes that aren't those of one model.
    """
    arrays = {_renamed(name): array for name, array in arrays.items()}
    generation = "v2" if "root_block/conv_root/kernel" in arrays else "v1"
    root = arrays["root_block/conv_root/kernel" if generation == "v2" else "conv_root/kernel"]
    head = arrays["head/kernel"].shape[-1] if "head/kernel" in arrays else 0
    found = {
        "generation": generation,
        "depths": resnet_names.depths(arrays),
        "width_factor": root.shape[3] / resnet_names.STEM_WIDTH,
        "channels": root.shape[2],
        "num_classes": head,
    }
    fields = complete({"image_size": (224, 224), **hints}, found, origin)
    model = model_of("resnet", fields)
    rows = [row._replace(change=POINTWISE) if row.ours == "head/kernel" else row for row in ROWS[generation]]
    params = table.read(arrays, shapes_of(model), rows, origin=origin)
    half = (127.5,) * found["channels"]
    return Weights("bit", origin, "resnet", fields, nested(params), "zoom", half, half)


def write(params: Arrays, generation: str) -> Arrays:
    """The arrays of big_vision's layout of that generation."""
    return table.write(params, ROWS[generation])


def _renamed(name: str) -> str:
    name = _NUMBER.sub(r"\1", name)
    for pattern, new in _TF_NAMES:
        name = pattern.sub(new, name)
    return name
