"""Checkpoints of two processes with two devices each, and their way to one process and back."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tests.collectives import own_lines
from vit_jax.checkpoint import Reader

ROOT = Path(__file__).resolve().parent.parent

PROGRAM = """
import sys
from vit_jax import distributed
distributed.initialize(init_timeout_s=60, heartbeat_timeout_s=60, shutdown_timeout_s=30)
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from vit_jax.checkpoint import Checkpoints

mesh = jax.make_mesh((4,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))
specs = {"kernel": PartitionSpec("fsdp"), "step": PartitionSpec()}
shardings = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
checkpoints = Checkpoints(sys.argv[1], keep=5, keep_every_steps=None)
host = {"kernel": np.arange(2048.0, dtype=np.float32).reshape(8, 256), "step": np.int32(1)}
if sys.argv[2] == "save":
    for step in (10, 20):
        state = {
            name: jax.make_array_from_callback(x.shape, shardings[name], lambda i, x=x: x[i] * step)
            for name, x in host.items()
        }
        assert checkpoints.save(step, state)
else:
    target = {
        name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=shardings[name]) for name, x in host.items()
    }
    step, state = checkpoints.restore_latest(target)
    for name, x in host.items():
        for shard in state[name].addressable_shards:
            np.testing.assert_array_equal(shard.data, (x * step)[shard.index])
    print("restored", step, flush=True)
checkpoints.close()
distributed.shutdown()
"""


def _run(folder: Path, what: str) -> list[tuple[str, str]]:
    """What the two processes wrote to stdout (its own lines) and stderr."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    env |= {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "JAX_NUM_PROCESSES": "2",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, folder, what],
            cwd=ROOT,
            env=env | {"JAX_PROCESS_ID": str(i)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for i in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    lines = [own_lines(out) for out, _ in outputs]
    return [("\n".join(out), err) for out, (_, err) in zip(lines, outputs, strict=True)]


@pytest.mark.multiprocess
def test_two_processes_save_one_restores_and_both_fall_back_from_damage_to_the_part_of_one(tmp_path):
    folder = tmp_path / "checkpoints"
    _run(folder, "save")

    mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))
    target = {
        "kernel": jax.ShapeDtypeStruct(
            (8, 256), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("fsdp"))
        ),
        "step": jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec())),
    }
    step, state = Reader(folder).restore_latest(target)
    assert step == 20
    np.testing.assert_array_equal(state["kernel"], np.arange(2048.0).reshape(8, 256) * 20)
    assert int(state["step"]) == 20

    parts = (folder / "20" / "state" / "ocdbt.process_1").rglob("*")
    largest = max((path for path in parts if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 16
    largest.write_bytes(content)

    (out0, err0), (out1, err1) = _run(folder, "restore")
    assert out0 == out1 == "restored 10"
    assert err0.count("checkpoint step 20 damaged: ") == 1 and "; using step 10" in err0
    assert "damaged" not in err1
    assert sorted(path.name for path in folder.iterdir()) == ["10"]
