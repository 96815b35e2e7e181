"""The table of model names: `B/16` is a variant (B) and a patch size (16), `R50+B/16` a hybrid of total stride 16.

Pure Python, so that names can be listed and checked without loading jax.
"""

import fnmatch
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from vit_jax.errors import UsageError, known_names


class Variant(NamedTuple):
    """One row of the table of Vision Transformers."""

    depth: int
    width: int
    mlp_dim: int
    num_heads: int
    usual_patches: tuple[int, ...]  # what `list_models` shows; any other patch size works as well


# B, L, H: ViT (arXiv 2010.11929), table 1. s, g, G: Scaling ViT (arXiv 2106.04560). Ti, S: as in the
# published vision_transformer code. M, So400m, g-opt, G-opt, e and the tiny mu for tests: as in big_vision.
# Case matters: s and S, g and G are different models.
VARIANTS: dict[str, Variant] = {
    "mu": Variant(1, 32, 128, 2, (16,)),
    "s": Variant(6, 256, 1024, 8, (16, 28)),
    "Ti": Variant(12, 192, 768, 3, (16,)),
    "S": Variant(12, 384, 1536, 6, (8, 16, 32)),
    "M": Variant(12, 512, 2048, 8, (16, 32)),
    "B": Variant(12, 768, 3072, 12, (8, 16, 32)),
    "L": Variant(24, 1024, 4096, 16, (14, 16, 32)),
    "So400m": Variant(27, 1152, 4304, 16, (14, 16)),
    "H": Variant(32, 1280, 5120, 16, (14,)),
    "g": Variant(40, 1408, 6144, 16, (14,)),
    "g-opt": Variant(40, 1536, 6144, 16, (14,)),
    "G": Variant(48, 1664, 8192, 16, (14,)),
    "G-opt": Variant(48, 1536, 8192, 16, (14,)),
    "e": Variant(56, 1792, 15360, 16, (14,)),
}

# Units of each stage of the ResNets: BiT (arXiv 1912.11370); R26 as in the published AugReg models.
RESNETS: dict[str, tuple[int, ...]] = {
    "R26": (2, 2, 2, 2),
    "R50": (3, 4, 6, 3),
    "R101": (3, 4, 23, 3),
    "R152": (3, 8, 36, 3),
    "R200": (3, 24, 36, 3),
}


class MixerVariant(NamedTuple):
    """One row of the table of MLP-Mixers."""

    depth: int
    width: int
    tokens_mlp_dim: int
    channels_mlp_dim: int
    usual_patches: tuple[int, ...]


# MLP-Mixer (arXiv 2105.01601), table 1.
MIXERS: dict[str, MixerVariant] = {
    "S": MixerVariant(8, 512, 256, 2048, (16, 32)),
    "B": MixerVariant(12, 768, 384, 3072, (16, 32)),
    "L": MixerVariant(24, 1024, 512, 4096, (16, 32)),
    "H": MixerVariant(32, 1280, 640, 5120, (14,)),
}

# ViT (arXiv 2010.11929), table 6, and AugReg (arXiv 2106.10270), table 1; any other combination works as well.
_USUAL_HYBRIDS = (
    "R+Ti/16",
    "R26+S/32",
    "R26+B/32",
    "R50+B/16",
    "R50+B/32",
    "R50+L/16",
    "R50+L/32",
)
# The published BiT models, those of table 6 of the ViT paper, and R26.
_USUAL_RESNETS = (
    "R26x1",
    "R50x1",
    "R50x2",
    "R50x3",
    "R101x1",
    "R101x3",
    "R152x1",
    "R152x2",
    "R152x4",
    "R200x3",
)

# Appendix D.6 of the ViT paper; any other variant and patch size works as well.
_USUAL_AXIAL = ("Axial-B/32", "Axial-B/16")

_VIT = re.compile(r"(?P<variant>[A-Za-z0-9-]+)/(?P<patch>[1-9][0-9]*)")
_AXIAL = re.compile(rf"Axial-{_VIT.pattern}")
_HYBRID = re.compile(
    r"(?P<resnet>R[0-9]*)(x(?P<factor>[0-9]+(\.[0-9]+)?))?\+(?P<variant>[A-Za-z0-9-]+)/(?P<stride>[0-9]+)"
)
_RESNET = re.compile(r"(?P<resnet>R[0-9]+)x(?P<factor>[0-9]+(\.[0-9]+)?)")
_MIXER = re.compile(r"Mixer-(?P<variant>[A-Z])/(?P<patch>[1-9][0-9]*)")


# A name of each family, for models that no name describes.
ANY_NAME = {"vit": "B/16", "resnet": "R50x1", "mixer": "Mixer-B/16"}


def list_models(pattern: str = "*") -> list[str]:
    """Model names that match a shell-style pattern such as `"B/*"` or `"R50*"`; case matters.

    Every variant is listed with its usual patch sizes or widths; `create_model` takes any other too.
    """
    names = [f"{name}/{patch}" for name, variant in VARIANTS.items() for patch in variant.usual_patches]
    names += _USUAL_HYBRIDS + _USUAL_RESNETS + _USUAL_AXIAL
    names += [f"Mixer-{name}/{patch}" for name, mixer in MIXERS.items() for patch in mixer.usual_patches]
    return [name for name in names if fnmatch.fnmatchcase(name, pattern)]


def model_family(name: str) -> str:
    """The architecture of the named model: "vit" (hybrids too), "resnet" or "mixer".

    Raises:
        UsageError: as `variant_fields`.
    """
    return _parse(name)[0]


def variant_fields(name: str) -> dict[str, Any]:
    """The fields of the named model that its name decides.

    A ViT's: `patch_size`, `depth`, `width`, `mlp_dim`, `num_heads`; a hybrid's also `backbone`, `backbone_width`
    and `posemb_cls`; an axial one's also `axial` and `pool`. A ResNet's: `depths`, `width_factor`. A Mixer's:
    `patch_size`, `depth`, `width`, `tokens_mlp_dim`, `channels_mlp_dim`.

    Raises:
        UsageError: no such model; the remedy names the nearest and what a name is made of.
    """
    return _parse(name)[1]


def name_of(family: str, fields: Mapping[str, Any]) -> str:
    """The name of a model of that shape; else any name of its family, whose shape the fields then override."""
    plain = {"backbone": None, "axial": False} if family == "vit" else {}
    names = [name for name in list_models() if model_family(name) == family]
    if family == "vit" and not fields.get("backbone"):
        names += [f"{name}/{fields['patch_size']}" for name in VARIANTS]
    for name in names:
        shape = {**plain, **variant_fields(name)}
        shape.pop("posemb_cls", None)  # a matter of the weights' layout
        if all({**plain, **fields}.get(key) == value for key, value in shape.items()):
            return name
    return ANY_NAME[family]


def _parse(name: str) -> tuple[str, dict[str, Any]]:
    """Family and fields of a name."""
    if (match := _HYBRID.fullmatch(name)) and match["variant"] in VARIANTS:
        fields = _hybrid_fields(match["resnet"], int(match["stride"]), match["factor"])
        if fields is not None:
            return "vit", _vit_fields(match["variant"]) | fields
    if (match := _VIT.fullmatch(name)) and match["variant"] in VARIANTS:
        return "vit", {"patch_size": int(match["patch"])} | _vit_fields(match["variant"])
    if (match := _AXIAL.fullmatch(name)) and match["variant"] in VARIANTS:
        # A class token would stand in no row or column.
        axial = {"axial": True, "pool": "gap"}
        return "vit", {"patch_size": int(match["patch"])} | _vit_fields(match["variant"]) | axial
    if (match := _RESNET.fullmatch(name)) and match["resnet"] in RESNETS:
        return "resnet", {"depths": RESNETS[match["resnet"]], "width_factor": float(match["factor"])}
    if (match := _MIXER.fullmatch(name)) and match["variant"] in MIXERS:
        fields = MIXERS[match["variant"]]._asdict()
        del fields["usual_patches"]
        return "mixer", {"patch_size": int(match["patch"])} | fields
    nearest = known_names(name, list_models())
    nearest = nearest + " " if nearest.startswith("did you mean") else ""
    raise UsageError(
        f"unknown model {name!r}",
        f"{nearest}a name is VARIANT/PATCH, such as B/16, with a variant of: {', '.join(VARIANTS)}; "
        f"RESNETxWIDTH, such as R50x1, with one of: {', '.join(RESNETS)}; a hybrid such as R50+B/16 or R50+L/32 "
        f"(total stride 16 or 32; the root alone: R+Ti/16); Axial-VARIANT/PATCH; or Mixer-VARIANT/PATCH with: "
        f"{', '.join(MIXERS)}",
    )


def _vit_fields(variant: str) -> dict[str, Any]:
    fields = VARIANTS[variant]._asdict()
    del fields["usual_patches"]
    return fields


def _hybrid_fields(resnet: str, stride: int, factor: str | None) -> dict[str, Any] | None:
    """What the backbone adds to a ViT's fields; None if there's no such backbone."""
    if resnet == "R" and stride == 16:
        # The published name is that of its ViT: the root divides by 4 and the patches are 8, 32 in all.
        patch_size, backbone = 8, ()
    elif resnet in RESNETS and stride == 32:
        patch_size, backbone = 1, RESNETS[resnet]
    elif resnet in RESNETS and stride == 16:
        # Stage 4's units are added to stage 3 (section 4.1 of the paper), which leaves the stride at 16.
        first, second, third, fourth = RESNETS[resnet]
        patch_size, backbone = 1, (first, second, third + fourth)
    else:
        return None
    width = float(factor) if factor else 1.0
    return {"patch_size": patch_size, "backbone": backbone, "backbone_width": width, "posemb_cls": True}
