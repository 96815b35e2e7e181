"""Seconds from costs, by hand."""

import numpy as np
import pytest

from vit_jax.planning import estimate, topology
from vit_jax.planning.program import Collective, Costs

GIB = 2**30
(V5E,) = topology.parse("v5e:4x4")
(TWO,) = topology.parse("2*v5e:2x4")


def gather(kind="all-gather", size=90_000_000, count=2, groups=None, overlapped=False):
    groups = np.arange(16).reshape(1, 16) if groups is None else groups
    return Collective(kind, size, count, groups, overlapped)


def test_the_two_bounds():
    costs = Costs(15_000_000, 30_000_000, 819_000_000, (), 0, 0)
    found = estimate.estimate(costs, V5E, 16)
    assert found.est == pytest.approx(0.030)  # 45 Mcycles at 1.5 GHz
    assert found.roof == pytest.approx(0.010 + 0.001 / 0.9)
    assert found.step == found.est and found.best_step == found.roof


def test_roof_is_never_above_est():
    costs = Costs(15_000_000, 1, 819_000_000_000, (), 0, 0)
    found = estimate.estimate(costs, V5E, 16)
    assert found.roof == found.est


def test_a_ring_of_sixteen():
    facts = V5E.facts
    seconds = estimate.collective_seconds(gather(), facts, 16, between_slices=False)
    assert seconds == pytest.approx(15 / 16 * 0.001)  # 90 MB at 90 GB/s
    assert estimate.collective_seconds(gather("all-reduce"), facts, 16, between_slices=False) == 2 * seconds
    alone = gather(groups=np.arange(16).reshape(16, 1))
    assert estimate.collective_seconds(alone, facts, 16, between_slices=False) == 0
    unknown = Collective("all-gather", 90_000_000, 1, None, False)
    assert estimate.collective_seconds(unknown, facts, 16, between_slices=False) == seconds


def test_traffic_is_summed_by_kind_and_told_apart_by_network():
    near = np.arange(16).reshape(2, 8)
    far = near.T
    costs = Costs(
        1_500_000, 0, 0,
        (gather(groups=near), gather(groups=near, count=1), gather("all-reduce", groups=far, overlapped=True)),
        0, 0,
    )  # fmt: skip
    found = estimate.estimate(costs, TWO, 16)
    within, between = found.traffic
    assert (within.kind, within.devices, within.between_slices, within.count) == ("all-gather", 8, False, 3)
    assert within.bytes == 270_000_000 and within.seconds == pytest.approx(3 * 7 / 8 * 0.001)
    assert (between.devices, between.between_slices, between.overlapped) == (2, True, True)
    assert between.seconds == pytest.approx(2 * 2 * 0.5 * 90e6 / TWO.facts.dcn_bandwidth)
    assert found.step == pytest.approx(0.001 + within.seconds + between.seconds)
    assert found.best_step == pytest.approx(between.seconds + within.seconds)  # longer than the computation


def test_mfu_and_hours():
    assert estimate.mfu(197e12 * 16, 2.0, 16, 197e12) == pytest.approx(0.5)
    assert estimate.mfu(1.0, 1.0, 1, None) is None
    assert estimate.hours(7200, 0.5) == 1.0


@pytest.mark.parametrize("name", ["v3:2x2", "2*v5e:4x4", "cpu:8"])
def test_assumptions_are_said(name):
    (place,) = topology.parse(name)
    text = "\n".join(estimate.assumptions(place))
    assert ("2 devices a chip" in text) is name.startswith("v3")
    assert ("between slices" in text) is name.startswith("2*")
    assert ("CPUs differ" in text) is name.startswith("cpu")
