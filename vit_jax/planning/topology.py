"""TPU slices by name, what their chips can do, and devices to compile for without having them."""

import contextlib
import importlib.util
import math
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from vit_jax.errors import UsageError, known_names

GIB = 2**30


@dataclass(frozen=True)
class Generation:
    """What is known of a chip; per jax device, which is a chip save where it has two (v2, v3, TPU7x).

    Attributes:
      dims: of the wiring of its slices.
      devices_per_chip: 1, or 2 where jax sees each core.
      hbm_bytes: what the compiler lets a program use; read off its out-of-memory messages.
      hbm_bandwidth: bytes per second, peak.
      clock_hz: that the compiler's cycles are counted in.
      link_bandwidth: bytes per second and direction of one link to a neighbour.
      dcn_bandwidth: bytes per second to other slices.
      flags: its name in the launchers' table of compiler flags.
    """

    dims: int
    devices_per_chip: int
    hbm_bytes: int
    hbm_bandwidth: float
    clock_hz: float
    link_bandwidth: float
    dcn_bandwidth: float
    flags: str


# Memory: forced out-of-memory compiles. Bandwidths: Google's pages on each generation and, for the links and the
# network between slices, the published "How to Scale Your Model" (v2, v3 and TPU7x: from the totals per chip).
GENERATIONS = {
    "v2": Generation(2, 2, int(7.48 * GIB), 350e9, 0.70e9, 31e9, 3.1e9, "v2"),
    "v3": Generation(2, 2, int(15.48 * GIB), 450e9, 0.94e9, 50e9, 3.1e9, "v3"),
    "v4": Generation(3, 1, int(30.75 * GIB), 1228e9, 1.05e9, 45e9, 6.25e9, "v4"),
    "v5e": Generation(2, 1, int(15.75 * GIB), 819e9, 1.50e9, 45e9, 3.1e9, "v5e"),
    "v5p": Generation(3, 1, int(95.73 * GIB), 2765e9, 1.75e9, 90e9, 6.25e9, "v5p"),
    "v6e": Generation(2, 1, int(31.24 * GIB), 1640e9, 1.75e9, 90e9, 6.25e9, "v6e"),
    "tpu7x": Generation(3, 2, int(94.74 * GIB), 3690e9, 1.75e9, 50e9, 6.25e9, "7x"),
}

_FORM = re.compile(r"(?:(\d+)\*)?(\w+):(\d+(?:x\d+)*)")


@dataclass(frozen=True)
class Topology:
    """A place to run: `v5e:16x16`, `2*v5e:16x16` (two slices), `v3:2x2` (4 chips, 8 cores), `cpu:8`."""

    name: str
    generation: str  # a key of GENERATIONS, or "cpu"
    shape: tuple[int, ...]  # chips along each axis of a slice
    slices: int

    @property
    def chips(self) -> int:
        """Of all slices."""
        return self.slices * math.prod(self.shape)

    @property
    def facts(self) -> Generation | None:
        """None for CPUs, which no two people have alike."""
        return GENERATIONS.get(self.generation)


def parse(text: str) -> list[Topology]:
    """Topologies separated by commas.

    Raises:
      UsageError: no such generation or form.
    """
    return [_parse_one(word.strip()) for word in text.split(",")]


def _parse_one(word: str) -> Topology:
    match = _FORM.fullmatch(word)
    known = [*GENERATIONS, "cpu"]
    if match is None:
        raise UsageError(f"topology {word!r}", "write v5e:16x16, 2*v5e:16x16 for two slices, or cpu:8")
    slices, generation, shape = int(match[1] or 1), match[2], tuple(map(int, match[3].split("x")))
    if generation not in known:
        raise UsageError(
            f"topology {word!r}: unknown generation {generation!r}", known_names(generation, known)
        )
    if slices < 1 or min(shape) < 1:
        raise UsageError(f"topology {word!r}", "sizes are at least 1")
    if generation == "cpu":
        if len(shape) > 1 or slices > 1:
            raise UsageError(f"topology {word!r}", "write cpu:N, with the number of devices")
        return Topology(word, generation, shape, 1)
    dims = GENERATIONS[generation].dims
    if len(shape) != dims:
        example = "x".join(["4"] * dims)
        raise UsageError(
            f"topology {word!r} has {len(shape)} axes; {generation} slices have {dims}",
            f"write {generation}:{example}",
        )
    return Topology(word, generation, shape, slices)


def devices(topology: Topology) -> Sequence[Any]:
    """jax devices to compile for: descriptions of the slice's, or as many real ones of the CPU.

    Raises:
      UsageError: libtpu isn't installed, the slice doesn't exist, or this process has fewer CPU devices.
    """
    if topology.generation == "cpu":
        found = jax.devices("cpu")
        if len(found) < topology.chips:
            raise UsageError(
                f"topology {topology.name}: this process has {len(found)} CPU devices",
                f"set XLA_FLAGS=--xla_force_host_platform_device_count={topology.chips}",
            )
        return found[: topology.chips]
    if importlib.util.find_spec("libtpu") is None:
        raise UsageError(
            f"topology {topology.name} needs libtpu, the TPU compiler", "pip install 'vit_jax[plan]'"
        )
    from jax.experimental import topologies

    # Each v4 chip is one device to jax; v4's two cores are fused, which libtpu doesn't assume by itself.
    options: dict[str, Any] = {"chip_config_name": "megacore"} if topology.generation == "v4" else {}
    if topology.slices > 1:
        options["num_slices"] = topology.slices
    name = f"{topology.generation}:{'x'.join(map(str, topology.shape))}"
    try:
        with _quiet():
            found = topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices
    except jax.errors.JaxRuntimeError as e:
        raise UsageError(f"topology {topology.name}: {e}", "see the cloud's list of slices") from e
    return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Sends what native code writes to stderr elsewhere: libtpu tells at length that this is no TPU machine."""
    # A second process may compile at the same time; nothing runs, so the lock protects nothing.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    with tempfile.TemporaryFile() as scratch:
        saved = os.dup(2)
        os.dup2(scratch.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
