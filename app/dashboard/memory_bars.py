"""What a plan needs of every device's memory, as bars against the limit. Pure drawing; shown by `picture`."""

from __future__ import annotations

import math
from html import escape

from app.dashboard import quantities as q
from planner.plan import Plan
from planner.spec import ClusterSpec, ModelProfile
from planner.validate import memory_by_device

TIGHT = 0.9
"""From this share of the limit on a bar says so."""

COMPACT_ABOVE = 64


def memory_bars(plan: Plan, cluster: ClusterSpec, profile: ModelProfile) -> str:
    """A bar a device; devices without work have none."""
    needed = memory_by_device(plan, profile)
    shares = {device: num / cluster.memory_bytes[device] for device, num in needed.items()}
    worst = max(shares.values(), default=0.0)
    note = f"fullest {q.percent(worst)} of its limit" if math.isfinite(worst) else "deeper than the memory table"
    bars = "".join(_bar(device, needed.get(device), cluster) for device in cluster.devices)
    size = " compact" if len(cluster.devices) > COMPACT_ABOVE else ""
    return (
        f'<div class="head"><h3>Memory per device</h3><span class="muted">{escape(note)}, '
        f"reserve included</span></div>"
        f'<div class="memory{size}" role="list" aria-label="Memory per device against its limit">{bars}</div>'
    )


def largest_share(plan: Plan, cluster: ClusterSpec, profile: ModelProfile) -> float | None:
    """The fullest device's share of its limit; None without a working device."""
    shares = [num / cluster.memory_bytes[device] for device, num in memory_by_device(plan, profile).items()]
    return max(shares, default=None)


def _bar(device: int, needed: float | None, cluster: ClusterSpec) -> str:
    limit = cluster.memory_bytes[device]
    if needed is None:
        tip, width, kind, value = f"device {device}: no work, limit {q.num_bytes(limit)}", 0.0, "none", q.UNKNOWN
    else:
        share = needed / limit
        kind = "over" if share > 1 + 1e-12 else "near" if share >= TIGHT else ""
        width = 100 * min(share, 1.0) if math.isfinite(share) else 100.0
        mark = " !" if kind == "over" else ""
        tip = f"device {device}: {q.num_bytes(needed)} of {q.num_bytes(limit)} ({q.percent(share)})" + (
            ", more than there is" if kind == "over" else ""
        )
        value = q.percent(share) + mark
    label = escape(tip, quote=True)
    return (
        f'<div class="memory-row {kind}" role="listitem" data-tip="{label}" aria-label="{label}">'
        f'<b>{device}</b><span class="memory-bar"><i style="width:{width:.1f}%"></i></span><span>{value}</span></div>'
    )
