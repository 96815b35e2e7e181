"""Digests must depend on content alone, and on all of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax.digest import finish_digests, start_digests, tree_digests
from vit_jax.paths import named_leaves

P = PartitionSpec


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((2, 2, 2), ("r", "f", "t"), axis_types=(jax.sharding.AxisType.Auto,) * 3)


@pytest.fixture(scope="module")
def values():
    return np.random.default_rng(0).normal(size=(8, 4, 16)).astype(np.float32)


def _digest(x):
    return tree_digests({"x": x})["x"]


def test_a_digest_never_changes():
    # What is on disk must stay valid: these were computed once with integer arithmetic in Python.
    assert _digest(np.array([], np.float32)) == "0000000000000000"
    assert _digest(np.arange(6, dtype=np.int32).reshape(2, 3)) == _reference(np.arange(6).reshape(2, 3))


def _reference(words):
    def mix(h):
        h = ((h ^ h >> 16) * 0x7FEB352D) % 2**32
        h = ((h ^ h >> 15) * 0x846CA68B) % 2**32
        return h ^ h >> 16

    sums = [0, 0]
    for flat, (index, word) in enumerate(np.ndenumerate(words)):
        hashed = sum(mix((i * 0x9E3779B9 + axis + 1) % 2**32) for axis, i in enumerate(index))
        sums[0] += mix((int(word) + flat * 0x9E3779B9) % 2**32)
        sums[1] += mix(int(word) ^ mix((hashed + 0x51ED270B) % 2**32))
    return "".join(f"{s % 2**32:08x}" for s in sums)


@pytest.mark.parametrize(
    "spec",
    [
        P(),
        P("f"),
        P(None, "t"),
        P(("r", "f")),
        P(("f", "r"), None, "t"),
        P("t", "f", "r"),
        P(("r", "f", "t")),
    ],
    ids=str,
)
def test_sharding_does_not_matter(mesh, values, spec):
    placed = jax.device_put(jnp.asarray(values), NamedSharding(mesh, spec))
    assert _digest(placed) == _digest(values)


def test_fewer_devices_and_a_leading_layer_axis_do_not_matter(values):
    for count in (1, 2, 4):
        mesh = jax.make_mesh(
            (count,), ("f",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:count]
        )
        for spec in (P("f"), P(None, "f")):
            assert _digest(jax.device_put(values, NamedSharding(mesh, spec))) == _digest(values)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "uint8", "int8", "bool"])
def test_one_flipped_bit_shows_in_both_halves(mesh, dtype):
    rng = np.random.default_rng(1)
    array = np.array(jnp.asarray(rng.integers(0, 2, (16, 3)), dtype))
    before = _digest(array)
    for _ in range(8):
        changed = array.copy()
        raw = changed.view(np.uint8).reshape(-1)
        bit = 0 if dtype == "bool" else rng.integers(8)
        raw[rng.integers(raw.size)] ^= np.uint8(1 << bit)
        after = _digest(jax.device_put(changed, NamedSharding(mesh, P(("r", "f", "t")))))
        assert after[:8] != before[:8] and after[8:] != before[8:]


def test_swapped_and_moved_elements_show(values):
    swapped = values.copy()
    swapped[[0, 1]] = values[[1, 0]]
    assert _digest(swapped) != _digest(values)
    assert _digest(values.reshape(4, 8, 16)) != _digest(values)
    assert _digest(-np.zeros(3, np.float32)) != _digest(np.zeros(3, np.float32))


def test_scalars_64_bit_numbers_and_nan(mesh):
    assert _digest(np.float32(3)) == _digest(jnp.float32(3))
    assert _digest(np.int64(2**40)) != _digest(np.int64(2**41))
    assert _digest(np.float32(np.nan)) == _digest(np.float32(np.nan))
    with pytest.raises(TypeError, match="complex64"):
        _digest(np.complex64(1))


def test_arrays_may_be_donated_while_the_digest_is_under_way(mesh):
    sharding = NamedSharding(mesh, P("f"))
    add = jax.jit(lambda x: x + 1, donate_argnums=0, out_shardings=sharding)
    x = jax.device_put(jnp.arange(2.0**18), sharding)
    expected = _digest(np.asarray(x))
    started = start_digests({"x": x})
    for _ in range(3):
        x = add(x)
    x.block_until_ready()
    assert finish_digests(started) == {"x": expected}


def test_no_transfer_is_implicit(mesh, values):
    placed = jax.device_put(values, NamedSharding(mesh, P("f")))
    expected = {"a": _digest(values), "b": _digest(values)}
    with jax.transfer_guard("disallow"):
        assert tree_digests({"a": placed, "b": values}) == expected


def test_paths_are_unique():
    assert list(named_leaves({"b": {"c": 1}, "a": [2, (3,)]})) == ["a/0", "a/1/0", "b/c"]
    with pytest.raises(ValueError, match="'a/b'"):
        named_leaves({"a/b": 1, "a": {"b": 2}})
