"""Names of accelerators: TPU generations with their cloud names, shapes and hosts, and the GPUs of GKE.

Sources: Google's names for queued resources, and the node labels and shapes in xpk's table of systems.
"""

import math
import re
from dataclasses import dataclass

from .command import Refused, known_names


@dataclass(frozen=True)
class Generation:
    """One TPU generation.

    word: of the accelerator type, as in v5litepod-256; alias: ours. runtime: of a TPU VM, None where there is none.
    cores: that the number in the accelerator type counts, per chip. gke: its node label. dimensions: of a slice.
    """

    word: str
    alias: str
    runtime: str | None
    cores: int
    gke: str
    dimensions: int


GENERATIONS = (
    Generation("v4", "v4", "tpu-ubuntu2204-base", 2, "tpu-v4-podslice", 3),
    Generation("v5litepod", "v5e", "v2-alpha-tpuv5-lite", 1, "tpu-v5-lite-podslice", 2),
    Generation("v5p", "v5p", "v2-alpha-tpuv5", 2, "tpu-v5p-slice", 3),
    Generation("v6e", "v6e", "v2-alpha-tpuv6e", 1, "tpu-v6e-slice", 2),
    Generation("tpu7x", "7x", None, 2, "tpu7x", 3),
)
# GPU -> its GKE node label.
GPUS = {
    "l4": "nvidia-l4",
    "a100-40gb": "nvidia-tesla-a100",
    "h100-80gb": "nvidia-h100-80gb",
    "h100-mega-80gb": "nvidia-h100-mega-80gb",
    "h200-141gb": "nvidia-h200-141gb",
    "b200": "nvidia-b200",
}
# Shapes of the two-dimensional generations by chips; the others are found by `_cube`.
_FLAT = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}


@dataclass(frozen=True)
class Slice:
    """A TPU slice. accelerator_type: the cloud's name for it; topology: such as 4x8."""

    generation: Generation
    accelerator_type: str
    chips: int
    topology: str
    chips_per_host: int

    @property
    def hosts(self) -> int:
        return self.chips // self.chips_per_host


@dataclass(frozen=True)
class GpuNode:
    """A machine with GPUs. label: GKE's."""

    label: str
    gpus: int


def tpu_slice(name: str, topology: str = "", chips_per_host: int = 0) -> Slice:
    """The slice of an accelerator type: v5litepod-256 (v5e-256), v4-32, v5p-128, v6e-16, tpu7x-128.

    Args:
      topology: where the type has several; "" for the usual one.
      chips_per_host: 0 for that of the usual machine types: 4, or 1 for a single chip.

    Raises:
      Refused: unknown generation, a size that it doesn't have, a topology of another size.
    """
    word, _, number = name.rpartition("-")
    generation = next((g for g in GENERATIONS if word in (g.word, g.alias)), None)
    if generation is None or not number.isdecimal() or not int(number):
        known = [f"{g.word}-N" for g in GENERATIONS]
        raise Refused(f"unknown accelerator {name!r}", known_names(name, known))
    chips, rest = divmod(int(number), generation.cores)
    if rest:
        raise Refused(
            f"{name} has half a chip", f"{generation.word} counts {generation.cores} cores per chip"
        )
    if topology:
        sizes = topology.split("x")
        if not all(map(str.isdecimal, sizes)) or math.prod(map(int, sizes)) != chips:
            raise Refused(f"--topology={topology} isn't {chips} chips", f"{name} has {chips}")
    else:
        topology = _FLAT.get(chips, "") if generation.dimensions == 2 else _cube(chips)
        if not topology:
            usual = ", ".join(
                str(n * generation.cores) for n in (_FLAT if generation.dimensions == 2 else _POWERS)
            )
            raise Refused(f"{name} has no usual topology", f"give --topology, or a size of {usual}")
    per_host = chips_per_host or min(chips, 4)
    if chips % per_host:
        raise Refused(
            f"{chips} chips on hosts of {per_host}", "give --chips-per-host, a divisor of the chips"
        )
    return Slice(generation, f"{generation.word}-{number}", chips, topology, per_host)


def gpu_node(name: str) -> GpuNode:
    """The machine of a name such as h100-80gb-8: GPU and number of them.

    Raises:
      Refused: unknown.
    """
    word, _, number = name.rpartition("-")
    if word not in GPUS or not number.isdecimal() or not int(number):
        raise Refused(f"unknown accelerator {name!r}", known_names(name, [f"{gpu}-N" for gpu in GPUS]))
    return GpuNode(GPUS[word], int(number))


def accelerator(name: str, topology: str = "", chips_per_host: int = 0) -> Slice | GpuNode:
    """A slice or a GPU machine, by name.

    Raises:
      Refused: unknown as either.
    """
    word = name.rpartition("-")[0]
    if word in GPUS:
        if topology or chips_per_host:
            raise Refused(f"{name} has no topology", "leave out --topology and --chips-per-host")
        return gpu_node(name)
    if any(word in (g.word, g.alias) for g in GENERATIONS):
        return tpu_slice(name, topology, chips_per_host)
    known = [f"{g.word}-N" for g in GENERATIONS] + [f"{gpu}-N" for gpu in GPUS]
    raise Refused(f"unknown accelerator {name!r}", known_names(name, known))


_POWERS = [4 * 2**n for n in range(11)]


def _cube(chips: int) -> str:
    """The most cube-like shape of a power of two of chips, as the cloud names it by default; "" for other sizes."""
    if chips not in _POWERS:
        return ""
    doublings = int(math.log2(chips))
    if chips == 4:
        return "2x2x1"
    low, more = divmod(doublings, 3)
    return "x".join(str(2 ** (low + (i >= 3 - more))) for i in range(3))


def check_name(name: str, limit: int, why: str) -> str:
    """The name of a job, as clouds want it.

    Raises:
      Refused: too long, or of other characters.
    """
    if len(name) > limit:
        raise Refused(f"the name {name!r} has {len(name)} characters", f"at most {limit}: {why}")
    if not re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name):
        raise Refused(
            f"the name {name!r}", "lower-case letters, digits and dashes, a letter first, no dash last"
        )
    return name
