"""Names of ResNet arrays in the Flax layouts: BiT of either generation, and the backbone of hybrids."""

import re

from vit_jax.formats.table import SQUEEZE, Row, pair
from vit_jax.formats.weights import Arrays

_NORM = (("scale", "/scale", SQUEEZE), ("bias", "/bias", SQUEEZE))
_UNIT = re.compile(r"block(\d+)/unit(\d+)/conv1/kernel")


def rows(ours: str, unit: str) -> list[Row]:
    """Stem and units.

    Args:
      ours: our prefix, such as "backbone/".
      unit: how a unit is spelled there, "unit{u}" or "unit{u:02d}".
    """
    table = [
        Row(f"{ours}root/conv/kernel", "conv_root/kernel"),
        *pair(f"{ours}root/norm", "gn_root", _NORM),
    ]
    here, there = ours + "stage_{s}/unit_{u}", "block{s}/" + unit
    for name in ("1", "2", "3"):
        table.append(Row(f"{here}/conv{name}/kernel", f"{there}/conv{name}/kernel"))
        table += pair(f"{here}/norm{name}", f"{there}/gn{name}", _NORM)
    table.append(Row(f"{here}/proj/kernel", f"{there}/conv_proj/kernel"))
    return table + pair(f"{here}/proj_norm", f"{there}/gn_proj", _NORM)


def depths(names: Arrays) -> tuple[int, ...]:
    """Units of each stage; () for a stem alone."""
    units: dict[int, int] = {}
    for name in names:
        if match := _UNIT.fullmatch(name):
            stage, unit = map(int, match.groups())
            units[stage] = max(unit, units.get(stage, 0))
    return tuple(units[stage] for stage in sorted(units))


NORM_LEAVES = _NORM
STEM_WIDTH = 64  # channels of the stem at width factor 1
