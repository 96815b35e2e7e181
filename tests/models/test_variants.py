"""Names, shapes and parameter counts."""

import json
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import vit_jax
from vit_jax.errors import UsageError
from vit_jax.models.variants import (
    MIXERS,
    RESNETS,
    VARIANTS,
    list_models,
    model_family,
    variant_fields,
)


def _count(model, size=224):
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, size, size, 3)))["params"]
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def test_counts_of_big_vision(golden):
    entries = json.loads((golden / "param_counts.json").read_text())["big_vision"]
    pattern = re.compile(r"(\S+) pool=(\w+) classes=(\w+) 224px posemb=(\w+)")
    for entry, count in entries.items():
        name, pool, classes, posemb = pattern.fullmatch(entry).groups()
        num_classes = 0 if classes == "None" else int(classes)
        # Stacked layers count the same and trace one block instead of up to 56.
        model = vit_jax.create_model(
            name, num_classes=num_classes, image_size=224, pool=pool, posemb=posemb, scan=True
        )
        assert _count(model) == count, entry


def test_counts_of_vision_transformer(golden):
    entries = json.loads((golden / "param_counts.json").read_text())["vision_transformer"]
    pattern = re.compile(r"ViT-(\w+)_(\d+)(-gap-norep)? classes=1000 224px")
    matches = {entry: pattern.fullmatch(entry) for entry in entries if entry.startswith("ViT-")}
    assert len(matches) == 13
    for entry, match in matches.items():
        fields = {"pool": "gap"} if match[3] else {"posemb_cls": True}
        name = f"{match[1]}/{match[2]}"
        model = vit_jax.create_model(name, num_classes=1000, image_size=224, scan=True, **fields)
        assert _count(model) == entries[entry], entry


def test_counts_unrolled(golden):
    """The case file's counts, on models that aren't stacked."""
    counts = json.loads((golden / "cases/model_shapes.json").read_text())
    counts = counts["param_counts_1000_classes_224px_class_token_without_own_row"]
    for name in ("Ti/16", "B/32"):
        assert _count(vit_jax.create_model(name, num_classes=1000, image_size=224)) == counts[name]


@pytest.mark.parametrize(("name", "millions", "size"), [("s/28", 5.4, 224), ("s/16", 5.0, 224)])
def test_counts_of_scaling_vit(name, millions, size):
    model = vit_jax.create_model(name, num_classes=0, image_size=size, pool="gap", scan=True)
    assert abs(_count(model, size) / 1e6 - millions) < 0.05


def test_any_patch_size():
    assert variant_fields("G-opt/14") == {
        "patch_size": 14,
        "depth": 48,
        "width": 1536,
        "mlp_dim": 8192,
        "num_heads": 16,
    }
    assert variant_fields("S/4")["patch_size"] == 4
    assert variant_fields("s/16")["depth"] == 6 and variant_fields("S/16")["depth"] == 12


def test_list_models():
    assert list_models("B/*") == ["B/8", "B/16", "B/32"]
    assert list_models("g*") == ["g/14", "g-opt/14"]
    assert vit_jax.list_models is list_models
    families = {}
    for name in list_models():
        assert variant_fields(name)
        families.setdefault(model_family(name), []).append(name)
    plain = [name for name in families["vit"] if "+" not in name and not name.startswith("Axial-")]
    assert {name.split("/")[0] for name in plain} == set(VARIANTS)
    assert {name.split("x")[0] for name in families["resnet"]} == set(RESNETS)
    assert {name.split("/")[0] for name in families["mixer"]} == {f"Mixer-{name}" for name in MIXERS}


def test_list_models_of_a_backbone():
    assert list_models("R50*") == [
        "R50+B/16",
        "R50+B/32",
        "R50+L/16",
        "R50+L/32",
        "R50x1",
        "R50x2",
        "R50x3",
    ]
    assert "R+Ti/16" in list_models("R+*") and list_models("Mixer-H*") == ["Mixer-H/14"]


def test_unknown_name_lists_the_variants(golden):
    cases = json.loads((golden / "cases/config_unknown.json").read_text())["cases"]
    names = [case["set"].removeprefix("model=") for case in cases if case["set"].startswith("model=")]
    assert names == ["ViT-Q/16"]
    for name in [*names, "b/16", "B/0", "B", "B/16/16", ""]:
        with pytest.raises(UsageError) as error:
            vit_jax.create_model(name, num_classes=10, image_size=32)
        assert repr(name) in str(error.value)
        assert all(variant in error.value.remedy for variant in VARIANTS)
    with pytest.raises(UsageError, match=r"did you mean 'Ti/16'"):
        variant_fields("ti/16")


def test_unknown_field_names_the_nearest():
    with pytest.raises(UsageError, match=r"'droput' \(did you mean 'dropout'"):
        vit_jax.create_model("mu/16", num_classes=1, image_size=32, droput=0.1)


def test_names_need_no_jax_and_models_no_backend():
    program = """
import sys, vit_jax
vit_jax.list_models("*")
assert "jax" not in sys.modules
vit_jax.create_model("B/16", num_classes=1000, image_size=224)
from jax._src import xla_bridge
assert not xla_bridge._backends
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
