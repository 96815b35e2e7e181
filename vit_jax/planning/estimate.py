"""From a program's costs to seconds, two ways, and to the hours and price of a run.

est   every operation at the compiler's own cycles: right for matrix products, pessimistic for what memory limits;
roof  matrix products at their cycles, all the rest at the time that its HBM bytes take at 90 % of the peak.
The truth should lie between. Neither was checked on hardware, save that est reproduces the published hours of
one run (configs/plain_s16.py). Collectives are in neither: they come from bytes and the links' speed.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from vit_jax.planning.program import Collective, Costs
from vit_jax.planning.topology import Generation, Topology

_HBM_EFFICIENCY = 0.9


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind in a step.

    Attributes:
      kind: "all-gather", "all-reduce", "reduce-scatter", ...
      devices: that take part in each; 0: unknown.
      between_slices: over the data centre's network instead of the links of a slice.
      overlapped: beside other work, so that it may cost nothing.
      count: of operations.
      bytes: of the whole arrays, all operations together.
      seconds: estimate.
    """

    kind: str
    devices: int
    between_slices: bool
    overlapped: bool
    count: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Estimate:
    """Seconds of one step on one device.

    Attributes:
      est, roof: computation alone, the two bounds; see above.
      traffic: collectives, by kind.
    """

    est: float
    roof: float
    traffic: tuple[Traffic, ...]

    @property
    def step(self) -> float:
        """The pessimistic whole: est, then all collectives one after another."""
        return self.est + sum(t.seconds for t in self.traffic)

    @property
    def best_step(self) -> float:
        """The optimistic whole: roof and what can't overlap with it."""
        hidden = sum(t.seconds for t in self.traffic if t.overlapped)
        return max(self.roof, hidden) + sum(t.seconds for t in self.traffic if not t.overlapped)


def estimate(costs: Costs, topology: Topology, devices: int) -> Estimate:
    """The estimate for a program on all `devices` of a TPU topology."""
    facts = topology.facts
    roof = costs.matmul_cycles / facts.clock_hz + costs.other_bytes / (facts.hbm_bandwidth * _HBM_EFFICIENCY)
    est = (costs.matmul_cycles + costs.other_cycles) / facts.clock_hz
    traffic = tuple(_by_kind(costs.collectives, facts, devices // topology.slices))
    return Estimate(est, min(roof, est), traffic)


def _by_kind(collectives: Iterable[Collective], facts: Generation, per_slice: int) -> Iterable[Traffic]:
    parts: dict[tuple[str, int, bool, bool], list[tuple[int, int, float]]] = {}
    for c in collectives:
        size = 0 if c.groups is None else c.groups.shape[1]
        far = c.kind == "send" or (
            c.groups is not None and bool((c.groups // per_slice != c.groups[:, :1] // per_slice).any())
        )
        seconds = c.count * collective_seconds(c, facts, per_slice, between_slices=far)
        parts.setdefault((c.kind, size, far, c.overlapped), []).append((c.count, c.bytes * c.count, seconds))
    for key, rows in sorted(parts.items()):
        counts, sizes, seconds = zip(*rows, strict=True)
        yield Traffic(*key, sum(counts), sum(sizes), sum(seconds))


def collective_seconds(c: Collective, facts: Generation, per_slice: int, *, between_slices: bool) -> float:
    """One operation as a ring in both directions of one axis of the torus.

    Between slices each device's share of what its slice exchanges passes its own part of the host's network.
    """
    n = per_slice if c.groups is None else c.groups.shape[1]
    if n == 1:
        return 0.0
    passes = 2 if c.kind == "all-reduce" else 1  # a reduce-scatter, then an all-gather
    share = 1.0 if c.kind in ("collective-permute", "send") else (n - 1) / n
    bandwidth = facts.dcn_bandwidth if between_slices else 2 * facts.link_bandwidth
    return passes * share * c.bytes / bandwidth


def hours(steps: int, step_seconds: float) -> float:
    """Of so many steps, without evaluation, checkpoints and restarts."""
    return steps * step_seconds / 3600


def assumptions(topology: Topology) -> list[str]:
    """What an estimate for this topology takes for granted, a line each."""
    facts = topology.facts
    if facts is None:
        return ["cpu: compiled and counted only; CPUs differ too much for an estimate"]
    lines = [
        f"{topology.generation}: clock {facts.clock_hz / 1e9:g} GHz; HBM {facts.hbm_bytes / 2**30:.2f} GiB and "
        f"{facts.hbm_bandwidth / 1e9:g} GB/s; links {facts.link_bandwidth / 1e9:g} GB/s each way",
        "est: the compiler's cycles; roof: its cycles for matrix products, the rest at HBM bytes / "
        f"{_HBM_EFFICIENCY:.0%} of peak; MFU counts computation alone",
        "collectives: a ring over one axis of the torus, both directions; images/s, hours and cost add all of them "
        "to est, with no overlap",
        "hours: steps alone, without compiling, evaluation, checkpoints, restarts; input not a limit",
    ]
    if facts.devices_per_chip > 1:
        lines.append(f"{topology.generation}: {facts.devices_per_chip} devices a chip; memory is per device")
    if topology.slices > 1:
        lines.append(f"between slices: {facts.dcn_bandwidth / 1e9:g} GB/s a device")
    return lines


def mfu(flops_per_step: float, seconds: float, devices: int, peak: float | None) -> float | None:
    """Share of the devices' bfloat16 peak; None where that is unknown."""
    if peak is None or not seconds or not math.isfinite(seconds):
        return None
    return flops_per_step / (seconds * devices * peak)
