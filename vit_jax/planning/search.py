"""Other settings of the same run, for `plan --search`: remat, scan, FSDP and how the batch is cut."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

# Keys that a candidate may set; batch and learning rate belong together, so another batch is another experiment.
KEYS = ("model.scan", "model.remat", "mesh.fsdp", "accum_steps", "global_batch")


_UNROLLED = 12


def layouts(config: ConfigDict, devices: int) -> Iterator[dict[str, Any]]:
    """Remat, scan and FSDP sizes to try with the config's own batch; its own setting first.

    Left out: a scan without remat, which keeps every layer's activations, stacked; and more than 12 unrolled layers
    of a config that scans, which the compiler takes many minutes for.
    """
    own = {key: read(config, key) for key in KEYS[:3]}
    yield own
    seen = [own]
    recompute = [(True, "full"), (True, "dots"), (False, "none"), (False, "dots"), (False, "full")]
    if config.model.scan and config.model.depth > _UNROLLED:
        recompute = [(scan, remat) for scan, remat in recompute if scan]
    if not config.model.scan and config.model.remat == "none":
        recompute = [(scan, remat) for scan, remat in recompute if scan or remat == "none"]
    for (scan, remat), fsdp in itertools.product(recompute, _fsdp_sizes(devices)):
        candidate = {"model.scan": scan, "model.remat": remat, "mesh.fsdp": fsdp}
        if candidate not in seen:
            seen.append(candidate)
            yield candidate


def _fsdp_sizes(devices: int) -> list[int]:
    """1 and the powers of 4 up to all devices; all of them too where there are at most 64."""
    sizes = [4**i for i in range(6) if 4**i <= devices and devices % 4**i == 0]
    return sizes + ([devices] if devices <= 64 and devices not in sizes else [])


def batches(config: ConfigDict, best: dict[str, Any], devices: int) -> Iterator[dict[str, Any]]:
    """The best layout with the batch in parts, doubled and halved."""
    batch, accum = config.global_batch, config.accum_steps
    for parts in (1, 2, 4, 8):
        if parts != accum and batch % (devices * parts) == 0:
            yield {**best, "accum_steps": parts}
    for other in (2 * batch, batch // 2):
        if other % (devices * accum) == 0 and other >= devices * accum:
            yield {**best, "global_batch": other}


def read(config: ConfigDict, key: str) -> Any:
    """The value of a dotted key."""
    value: Any = config
    for name in key.split("."):
        value = value[name]
    return value


def applied(config: ConfigDict, candidate: dict[str, Any]) -> ConfigDict:
    """A copy of the config with a candidate's settings; the devices that fsdp leaves are replicas."""
    copy = config.copy_and_resolve_references()
    for key, value in candidate.items():
        *groups, leaf = key.split(".")
        group = copy
        for name in groups:
            group = group[name]
        group[leaf] = value
    if "mesh.fsdp" in candidate:
        copy.mesh.replica = -1
    return copy


def flags(candidate: dict[str, Any]) -> str:
    """The command-line words of a candidate."""
    return " ".join(f"--config.{key}={str(value).lower()}" for key, value in candidate.items())


def speed(plan: dict[str, Any]) -> float:
    """Images per second by which candidates are ranked; those that don't fit come last."""
    return plan["images_per_second"] or 0.0 if plan["fits"] else -math.inf
