"""What a plan says, as tables for a terminal (they are Markdown too)."""

from collections.abc import Sequence
from typing import Any

GIB = 2**30


def table(plans: Sequence[dict[str, Any]]) -> str:
    """One column for each plan, one row for each figure."""
    rows = [["", *(plan["topology"] for plan in plans)]]
    for title, show in _ROWS:
        cells = [_cell(show, plan) for plan in plans]
        if any(cells):
            rows.append([title, *(cell or "-" for cell in cells)])
    return _aligned(rows)


def ranking(candidates: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """The candidates of a search that fit, best first, then those that don't."""
    rows = [["images/s", "MFU est", "roof", "GiB", "setting"]]
    for words, plan in candidates:
        speed, est, roof, peak = (
            plan[key] for key in ("images_per_second", "est_mfu", "roof_mfu", "peak_bytes")
        )
        rows.append([
            f"{speed:,.0f}" if speed else "-",
            f"{est:.1%}" if est else "-",
            f"{roof:.1%}" if roof else "-",
            f"{peak / GIB:.2f}" if peak else "-",
            words if plan["fits"] else f"{words}: {plan['reason']}",
        ])  # fmt: skip
    return _aligned(rows)


def _cell(show: Any, plan: dict[str, Any]) -> str:
    try:
        return show(plan)
    except (TypeError, KeyError):  # None: not known of this plan
        return ""


def _gib(key: str) -> Any:
    return lambda plan: f"{plan[key] / GIB:.2f} GiB"


def _batch(plan: dict[str, Any]) -> str:
    parts = plan["accum_steps"]
    return f"{plan['global_batch']}" + (f" in {parts} parts" if parts > 1 else "")


def _parameters(plan: dict[str, Any]) -> str:
    return f"{plan['params'] / 1e6:.1f} M, {plan['param_bytes_per_chip'] / GIB:.2f} GiB a device"


def _computation(plan: dict[str, Any]) -> str:
    return f"{plan['roof_step_seconds'] * 1e3:.0f} (roof) to {plan['est_step_seconds'] * 1e3:.0f} ms (est)"


def _collectives(plan: dict[str, Any]) -> str:
    parts = plan["collectives"]
    total = sum(part["seconds"] for part in parts)
    if not total:
        return "none"
    hidden = sum(part["seconds"] for part in parts if part["overlapped"])
    size = sum(part["bytes"] for part in parts) / GIB
    return f"{size:.2f} GiB, {total * 1e3:.1f} ms ({hidden / total:.0%} overlapped)"


_ROWS = (
    ("chips", lambda p: f"{p['chips']}"),
    ("mesh", lambda p: " x ".join(f"{k} {v}" for k, v in p["mesh"].items())),
    ("global batch", _batch),
    ("fits", lambda p: "yes" if p["fits"] else f"NO: {p['reason']}"),
    ("HBM: arguments", _gib("argument_bytes")),
    ("HBM: temporaries", _gib("temp_bytes")),
    ("HBM: peak", _gib("peak_bytes")),
    ("HBM: limit", _gib("hbm_limit_bytes")),
    ("parameters", _parameters),
    ("optimizer", lambda p: f"{p['opt_bytes_per_chip'] / GIB:.2f} GiB a device"),
    ("whole everywhere", lambda p: f"{p['unsharded_fraction']:.2%} of parameter bytes"),
    ("model FLOPs", lambda p: f"{p['model_flops_per_step'] / 1e12:.3g} T a step"),
    ("step, computation", _computation),
    ("collectives", _collectives),
    ("MFU", lambda p: f"{p['est_mfu']:.1%} (est) to {p['roof_mfu']:.1%} (roof)"),
    ("images/s", lambda p: f"{p['images_per_second']:,.0f}"),
    ("steps", lambda p: f"{p['steps']:,}"),
    ("hours", lambda p: f"{p['hours']:,.1f}"),
    ("chip-hours", lambda p: f"{p['chip_hours']:,.0f}"),
    ("cost", lambda p: f"{p['cost']:,.0f}"),
)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)
