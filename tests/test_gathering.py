"""Weights made whole where they are used: which, in which type, and that training doesn't notice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.test_step import assert_trees_close
from tests.tiny_job import run, tiny_job
from vit_jax import gathering, sharding

LAYER = {
    "attn": {"query": {"kernel": (8, 4, 2), "bias": (4, 2)}, "out": {"kernel": (4, 2, 8), "bias": (8,)}},
    "mlp": {"fc1": {"kernel": (8, 16), "bias": (16,)}},
    "norm1": {"scale": (8,)},
}


def gathered(gather, shapes):
    """What comes out of the function on a mesh: (spec, dtype) by path."""
    tree = jax.tree.map(jnp.ones, shapes, is_leaf=lambda s: isinstance(s, tuple))
    out = jax.jit(gather)(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): (x.sharding.spec, x.dtype.name)
        for path, x in jax.tree_util.tree_flatten_with_path(out)[0]
    }


def test_a_layers_kernels_come_whole_in_the_type_of_the_computation():
    mesh = sharding.make_mesh(2, 2, 2)
    found = gathered(gathering.layer_gather(mesh, 16, "bfloat16"), LAYER)
    assert found["attn/query/kernel"] == (P(None, "tensor"), "bfloat16")
    assert found["attn/out/kernel"] == (P("tensor"), "bfloat16")
    assert found["mlp/fc1/kernel"] == (P(None, "tensor"), "bfloat16")
    assert found["mlp/fc1/bias"][1] == "float32"  # split over tensor alone
    assert found["norm1/scale"][1] == "float32"


def test_nothing_is_done_where_nothing_is_split():
    assert gathering.layer_gather(sharding.make_mesh(4, 1, 2), 0, "bfloat16") is None
    gather = gathering.layer_gather(sharding.make_mesh(1, 8, 1), 10**9, "bfloat16")
    kernel = jnp.ones((8, 16))
    assert gather({"mlp": {"fc1": {"kernel": kernel}}})["mlp"]["fc1"]["kernel"] is kernel


def test_the_rest_keeps_its_type_and_layers_are_left_alone():
    job = tiny_job(8, mesh__fsdp=8, fsdp_min_size=0)
    gather = gathering.gather_outside_layers(job.mesh, 0, job.model)
    params = job.create_state().params
    out = jax.jit(gather)(params)
    kernel = out["encoder"]["block_0"]["mlp"]["fc1"]["kernel"]
    assert kernel.sharding == params["encoder"]["block_0"]["mlp"]["fc1"]["kernel"].sharding
    assert "fsdp" in kernel.sharding.spec
    for name in ("patch_embed", "head"):
        assert "fsdp" in params[name]["kernel"].sharding.spec
        assert out[name]["kernel"].sharding.is_fully_replicated and out[name]["kernel"].dtype == jnp.float32


@pytest.mark.parametrize("scan", [False, True])
def test_training_is_the_same(scan):
    """A layer's weights, whole, are the arrays of one device; only sums over the mesh change their order."""
    sets = dict(model__scan=scan, model__remat="full", model__dropout=0.1, model__pool="map", fsdp_min_size=0)
    alone, losses = run(tiny_job(**sets), 3)
    on_mesh, mesh_losses = run(tiny_job(8, **sets, mesh__replica=2, mesh__fsdp=2, mesh__tensor=2), 3)
    np.testing.assert_allclose(mesh_losses, losses, rtol=1e-5)
    assert_trees_close(on_mesh.params, alone.params, atol=2e-5, rtol=0)
