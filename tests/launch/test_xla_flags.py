"""Each entry of the flags table is known to the installed jaxlib, jax or libtpu: a stale one ends a run at once."""

import importlib.util
import os
import subprocess
import sys

import pytest

from launch import xla_flags
from launch.command import Refused

COMPILE = """
import sys, jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding
device = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices[0]
x = jax.ShapeDtypeStruct((8, 8), "float32", sharding=SingleDeviceSharding(device))
jax.jit(lambda x: x @ x).lower(x).compile(compiler_options=dict(a.split("=") for a in sys.argv[1:]))
"""
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu isn't installed: pip install '.[plan]'"
)


def python(code, *words, **env):
    clean = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")}
    return subprocess.run(
        [sys.executable, "-c", code, *words], env=clean | {"JAX_PLATFORMS": "cpu"} | env,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def compile_for_tpu(*options, **env):
    return python(COMPILE, *options, TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1", **env)


def chosen(how):
    return [f for f in xla_flags.FLAGS if f.how == how]


def test_jaxlib_knows_the_xla_flags():
    flags = chosen("xla")
    done = python("import jax; jax.devices()", XLA_FLAGS=" ".join(f"{f.name}={f.value}" for f in flags))
    assert flags and done.returncode == 0, done.stderr
    done = python("import jax; jax.devices()", XLA_FLAGS="--xla_gpu_enable_async_collectives=true")
    assert done.returncode != 0 and "Unknown flag" in done.stderr  # that's how a stale one ends


def test_jax_knows_its_variables():
    for flag in chosen("env"):
        if flag.name.startswith("JAX_"):
            code = f"import jax; print(jax.config.{flag.name.lower()})"
            assert python(code, **{flag.name: flag.value}).stdout.strip() == flag.value


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("flag", chosen("tpu"), ids=lambda f: f.name)
def test_libtpu_knows_the_compiler_options(flag):
    done = compile_for_tpu(f"{flag.name}={flag.value}")
    assert done.returncode == 0, done.stderr[-2000:]


@needs_libtpu
@pytest.mark.slow
def test_libtpu_knows_the_variable_that_the_launchers_set():
    for generation in ("v4", "v5e", "v5p", "v6e", "7x"):
        done = compile_for_tpu(**xla_flags.tpu_env(generation, 2, {}))
        assert done.returncode == 0, done.stderr[-2000:]
    assert compile_for_tpu(LIBTPU_INIT_ARGS="--xla_tpu_no_such_flag=true").returncode != 0
    assert "No such compile option" in compile_for_tpu("xla_tpu_no_such_flag=true").stderr


def test_compiler_options_by_generation_and_slices():
    assert xla_flags.compiler_options("v5e", 1) == {}
    several = xla_flags.compiler_options("v5p", 2)
    assert several == {
        "xla_tpu_enable_data_parallel_all_reduce_opt": "true",
        "xla_tpu_data_parallel_opt_different_sized_ops": "true",
    }
    assert xla_flags.compiler_options("v6e", 2) == several | {"xla_tpu_scoped_vmem_limit_kib": "98304"}


def test_given_variables_win():
    env = xla_flags.tpu_env("v6e", 1, {"LIBTPU_INIT_ARGS": "--xla_tpu_scoped_vmem_limit_kib=1", "A": "b"})
    assert env == {
        "A": "b",
        "LIBTPU_INIT_ARGS": "--xla_tpu_scoped_vmem_limit_kib=98304 --xla_tpu_scoped_vmem_limit_kib=1",
    }
    assert xla_flags.tpu_env("v5e", 1, {"A": "b"}) == {"A": "b"}
    env = xla_flags.gpu_env(["deterministic"], {"NCCL_DEBUG": "INFO", "XLA_FLAGS": "--xla_x=1"})
    assert env["NCCL_DEBUG"] == "INFO" and env["JAX_OPTIMIZATION_LEVEL"] == "O1"
    assert env["XLA_FLAGS"] == "--xla_gpu_deterministic_ops=true --xla_x=1"
    with pytest.raises(Refused, match="known: deterministic, fsdp"):
        xla_flags.gpu_env(["speed"], {})


def test_each_entry_has_a_reason_and_a_source():
    for flag in xla_flags.FLAGS:
        assert flag.reason and flag.source and flag.platform in ("gpu", "tpu"), flag
        assert flag.when in ("always", "multislice", "v6e", *xla_flags.NAMED_SETS), flag
