"""The list of runs: how each one is doing, in a row. Pure drawing of snapshots; shown by `picture`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from app.dashboard import quantities as q
from app.dashboard.device_grid import strip
from app.dashboard.headline import DEFINITIONS
from app.dashboard.links import link
from app.dashboard.rate_colors import HEALTHY_BELOW
from app.dashboard.run_line import badge
from app.dashboard.snapshot import Snapshot
from app.dashboard.table import Column, Row, Sorting, table

COLUMNS = (
    Column(title="Run", sort="run"),
    Column(title="State", sort="status"),
    Column(title="Model", sort="model"),
    Column(
        title="Devices",
        sort="devices",
        tip="One mark a device (in a large cluster: a node, by its worst), coloured by its rate; grey is healthy.",
    ),
    Column(title="Stragglers now", sort="stragglers", tip="Devices at 1.05 times healthy or slower."),
    Column(title="Step", is_number=True, sort="step"),
    Column(title="Step time", is_number=True, sort="step_s", tip=DEFINITIONS["step_s"]),
    Column(title="Efficiency", is_number=True, sort="efficiency", tip=DEFINITIONS["efficiency"]),
    Column(title="Plan", sort="plan", tip="The active version, and how a better one becomes active."),
    Column(
        title="Data", is_number=True, sort="age", tip="Time since the engine was last heard, or since the run ended."
    ),
)


def run_table(snapshots: Sequence[Snapshot], sorting: Sorting) -> str:
    """The table."""
    ordered = sorted(snapshots, key=lambda entry: _order(entry, sorting.column), reverse=sorting.is_descending)
    rows = [
        Row(key=str(entry.run.id), cells=_cells(entry), is_muted=not entry.run.is_open or entry.is_stale)
        for entry in ordered
    ]
    return table(COLUMNS, rows, label="Runs", sorting=sorting, empty="No run matches the filter.")


def records(snapshots: Sequence[Snapshot]) -> list[dict[str, Any]]:
    """The same as plain values, for a download."""
    return [
        {
            "run": entry.run.id,
            "name": entry.run.name,
            "status": entry.run.status,
            "num_layers": entry.run.config.model.num_layers,
            "num_devices": entry.run.config.num_devices,
            "step": entry.run.step,
            "num_steps": entry.run.config.train.num_steps,
            "step_s": entry.figures.measured_s,
            "bound_s": entry.figures.bound_s,
            "efficiency": entry.figures.efficiency,
            "stragglers": " ".join(f"{device}={rate:.3g}" for device, rate in stragglers(entry).items()),
            "plan_version": entry.active_version,
            "mode": entry.run.mode,
            "last_seen_at": entry.run.last_seen_at,
            "created_at": entry.run.created_at,
            "ended_at": entry.run.ended_at,
        }
        for entry in snapshots
    ]


def stragglers(snapshot: Snapshot) -> dict[int, float]:
    """The devices that are slow now, worst first."""
    slow = {device: rate for device, rate in snapshot.rates.items() if rate >= HEALTHY_BELOW}
    return dict(sorted(slow.items(), key=lambda entry: -entry[1]))


def _cells(snapshot: Snapshot) -> list[str]:
    run, figures = snapshot.run, snapshot.figures
    config = run.config
    here = {"run": run.id}
    return [
        link(f"{run.id} · {run.name}", "live", here),
        badge(snapshot),
        f'{config.model.num_layers} layers <span class="muted">x {config.model.hidden_size}</span>',
        f'<span class="strip-count">{q.count(config.num_devices)}</span>{strip(snapshot.rates, config.nodes)}',
        _slow(stragglers(snapshot)) if run.is_open else '<span class="muted">none</span>',
        f'{q.count(run.step)} <span class="muted">/ {q.count(config.train.num_steps)}</span>',
        q.seconds(figures.measured_s),
        _meter(figures.efficiency),
        f"{link(f'v{snapshot.active_version}', 'plans', here | {'version': snapshot.active_version})} "
        f'<span class="muted">{run.mode}</span>',
        _age(snapshot),
    ]


def _slow(slow: dict[int, float]) -> str:
    if not slow:
        return '<span class="muted">none</span>'
    shown = [f"<b>{device}</b> {q.rate(rate)}" for device, rate in list(slow.items())[:2]]
    more = f' <span class="muted">and {len(slow) - 2} more</span>' if len(slow) > 2 else ""
    return ", ".join(shown) + more


def _meter(share: float | None) -> str:
    if share is None:
        return q.UNKNOWN
    width = max(0.0, min(1.0, share))
    return f'<span class="meter" aria-hidden="true"><i style="width:{100 * width:.0f}%"></i></span>{q.percent(share)}'


def _age(snapshot: Snapshot) -> str:
    run = snapshot.run
    if not run.is_open:
        ended = (snapshot.now - run.ended_at).total_seconds() if run.ended_at else None
        return f'<span data-tip="{q.clock(run.ended_at, now=snapshot.now)}">ended {escape(q.age(ended))} ago</span>'
    if snapshot.data_age_s is None:
        return "none yet"
    note = ' <b class="muted">stale</b>' if snapshot.is_stale else ""
    return f'<span data-age="{snapshot.data_age_s:.2f}">{q.age(snapshot.data_age_s)}</span>{note}'


def _order(snapshot: Snapshot, column: str) -> tuple[bool, Any]:
    """Sort key; what is unknown comes last when descending."""
    run, figures = snapshot.run, snapshot.figures
    values: dict[str, Any] = {
        "run": run.id,
        "status": run.status,
        "model": (run.config.model.num_layers, run.config.model.hidden_size),
        "devices": run.config.num_devices,
        "stragglers": next(iter(stragglers(snapshot).values()), 0.0) if run.is_open else 0.0,
        "step": run.step,
        "step_s": figures.measured_s,
        "efficiency": figures.efficiency,
        "plan": snapshot.active_version,
        "age": snapshot.data_age_s,
    }
    value = values.get(column, run.id)
    is_known = value is not None and not (isinstance(value, float) and math.isnan(value))
    return is_known, value if is_known else 0
