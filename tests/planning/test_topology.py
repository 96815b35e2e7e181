"""Names of slices, and the refusal of those that don't exist."""

import pytest

from vit_jax import flops
from vit_jax.errors import UsageError
from vit_jax.planning import topology


def test_names():
    (one,) = topology.parse("v5e:16x16")
    assert (one.chips, one.slices, one.shape, one.generation) == (256, 1, (16, 16), "v5e")
    pod, two, cpu = topology.parse("v5p:4x4x4, 2*v5e:4x8,cpu:8")
    assert (pod.chips, two.chips, two.slices, cpu.chips) == (64, 64, 2, 8)
    assert cpu.facts is None and pod.facts.hbm_bytes > 95 * 2**30


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("v5e", "write v5e:16x16"),
        ("v5:4x4", "unknown generation 'v5' .did you mean"),
        ("v5p:4x4", "has 2 axes; v5p slices have 3 .write v5p:4x4x4"),
        ("v5e:4x4x4", "has 3 axes; v5e slices have 2"),
        ("v5e:0x4", "at least 1"),
        ("0*v5e:4x4", "at least 1"),
        ("cpu:2x2", "write cpu:N"),
        ("v5e:4x4,", "topology ''"),
    ],
)
def test_refusals(text, says):
    with pytest.raises(UsageError, match=says):
        topology.parse(text)


@pytest.mark.parametrize(
    ("name", "count", "kind"),
    [
        ("v2:2x2", 8, "TPU v2"), ("v3:2x2", 8, "TPU v3"), ("v4:2x2x4", 16, "TPU v4"),
        ("v5e:4x4", 16, "TPU v5 lite"), ("v5p:2x2x1", 4, "TPU v5"), ("v6e:4x4", 16, "TPU v6 lite"),
        ("tpu7x:2x2x1", 8, "TPU7x"), ("2*v5e:2x4", 16, "TPU v5 lite"), ("cpu:4", 4, "cpu"),
    ],
)  # fmt: skip
def test_devices(name, count, kind, capfd):
    """Devices a slice has, from the compiler itself; their peak is known; nothing is said about it."""
    (place,) = topology.parse(name)
    found = topology.devices(place)
    assert len(found) == count and found[0].device_kind == kind
    if place.facts is not None:
        assert len(found) == place.chips * place.facts.devices_per_chip
        assert flops.peak_flops(kind)
    assert capfd.readouterr().err == ""


def test_a_slice_that_cannot_be():
    (place,) = topology.parse("v5e:3x3")
    with pytest.raises(UsageError, match=r"v5e:3x3.*not divisible"):
        topology.devices(place)


def test_more_cpus_than_there_are():
    (place,) = topology.parse("cpu:64")
    with pytest.raises(UsageError, match=r"has 8 CPU devices .*device_count=64"):
        topology.devices(place)
