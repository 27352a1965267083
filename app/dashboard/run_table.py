"""The list of runs: how each one is doing, in a row. Pure drawing of snapshots; shown by `picture`."""

from __future__ import annotations

import json
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
from db.runs import RunView

COLUMNS = (
    Column(title="Run", sort="run", tip="Number and name; under it the model."),
    Column(title="State", sort="status"),
    Column(
        title="Devices",
        sort="devices",
        tip="One mark a device (in a large cluster: a node, by its worst), coloured by its rate; grey is healthy.",
    ),
    Column(title="Stragglers now", sort="stragglers", tip="Devices at 1.05 times healthy or slower."),
    Column(title="Steps", is_number=True, sort="step", tip="Steps done, of those that were asked for."),
    Column(title="Loss", is_number=True, sort="loss", tip=DEFINITIONS["loss"]),
    Column(title="Tokens/s", is_number=True, sort="tokens_per_s", tip=DEFINITIONS["tokens"]),
    Column(title="Efficiency", is_number=True, sort="efficiency", tip=DEFINITIONS["efficiency"]),
    Column(title="Plan", sort="plan", tip="The active version, and how a better one becomes active."),
    Column(
        title="Data", is_number=True, sort="age", tip="Time since the engine was last heard, or since the run ended."
    ),
    Column(title="Started by", sort="started_by"),
    Column(title=""),
)

OF_RUNS = ("run", "status", "devices", "step", "loss", "plan")
"""Columns that rows of the store are enough to sort by; others need a snapshot of every run."""


def run_table(snapshots: Sequence[Snapshot], sorting: Sorting, *, why_not: str = "") -> str:
    """The table; a click on a row opens the run, its last cell the menu.

    Args:
        snapshots: in order.
        why_not: why nothing can be asked of any run; empty: it can.
    """
    rows = [
        Row(
            key=str(entry.run.id),
            cells=_cells(entry, why_not),
            is_muted=not entry.run.is_open or entry.is_stale,
            go=("live", {"run": str(entry.run.id)}),
        )
        for entry in snapshots
    ]
    return table(COLUMNS, rows, label="Runs", sorting=sorting, empty="No run matches the filter.")


def in_order(snapshots: Sequence[Snapshot], sorting: Sorting) -> list[Snapshot]:
    """Sorted by any column; what is unknown comes last when descending."""
    return sorted(snapshots, key=lambda entry: _order(entry, sorting.column), reverse=sorting.is_descending)


def runs_in_order(runs: Sequence[RunView], sorting: Sorting) -> list[RunView]:
    """Sorted by one of `OF_RUNS`, for lists too long for snapshots."""
    return sorted(runs, key=lambda run: _known(_of_run(run, sorting.column)), reverse=sorting.is_descending)


def records(snapshots: Sequence[Snapshot]) -> list[dict[str, Any]]:
    """The same as plain values, for a download."""
    return [
        {
            "run": entry.run.id,
            "name": entry.run.name,
            "status": entry.run.status,
            "reason": entry.run.reason,
            "num_layers": entry.run.config.model.num_layers,
            "num_parameters": entry.run.config.model.num_parameters,
            "num_devices": entry.run.config.num_devices,
            "step": entry.run.step,
            "num_steps": entry.run.config.train.num_steps,
            "loss": entry.run.loss,
            "step_s": entry.figures.measured_s,
            "tokens_per_s": entry.figures.tokens_per_s,
            "bound_s": entry.figures.bound_s,
            "efficiency": entry.figures.efficiency,
            "stragglers": " ".join(f"{device}={rate:.3g}" for device, rate in stragglers(entry).items()),
            "plan_version": entry.active_version,
            "mode": entry.run.mode,
            "is_stale": entry.is_stale,
            "last_seen_at": entry.run.last_seen_at,
            "started_by": started_by(entry),
            "created_at": entry.run.created_at,
            "ended_at": entry.run.ended_at,
        }
        for entry in snapshots
    ]


def stragglers(snapshot: Snapshot) -> dict[int, float]:
    """The devices that are slow now, worst first."""
    slow = {device: rate for device, rate in snapshot.rates.items() if rate >= HEALTHY_BELOW}
    return dict(sorted(slow.items(), key=lambda entry: -entry[1]))


def started_by(snapshot: Snapshot) -> str:
    """Who registered the run: it was also who asked for its first plan."""
    first = next((plan for plan in snapshot.plans if plan.version == 1), None)
    return first.requested_by if first is not None else ""


def _cells(snapshot: Snapshot, why_not: str) -> list[str]:
    run, figures = snapshot.run, snapshot.figures
    config = run.config
    here = {"run": run.id}
    return [
        f"{link(f'{run.id} · {run.name}', 'live', here)}"
        f'<span class="sub">{config.model.num_layers} layers {q.TIMES} {config.model.hidden_size}</span>',
        badge(snapshot) + _reason(run),
        f'<span class="strip-count">{q.count(config.num_devices)}</span>{strip(snapshot.rates, config.nodes)}',
        _slow(stragglers(snapshot)) if run.is_open else '<span class="muted">none</span>',
        _progress(run),
        q.number(run.loss),
        q.number(figures.tokens_per_s),
        _meter(figures.efficiency),
        f"{link(f'v{snapshot.active_version}', 'plans', here | {'version': snapshot.active_version})}"
        f'<span class="sub">{run.mode}</span>',
        _age(snapshot),
        escape(started_by(snapshot)),
        _menu(run, why_not),
    ]


def _reason(run: RunView) -> str:
    if run.status not in ("failed", "lost") or not run.reason:
        return ""
    short = run.reason if len(run.reason) <= 40 else f"{run.reason[:39]}…"
    return f'<span class="sub" data-tip="{escape(run.reason, quote=True)}" tabindex="0">{escape(short)}</span>'


def _slow(slow: dict[int, float]) -> str:
    if not slow:
        return '<span class="muted">none</span>'
    shown = [f"<b>{device}</b> {q.rate(rate)}" for device, rate in list(slow.items())[:2]]
    more = f'<span class="sub">and {len(slow) - 2} more</span>' if len(slow) > 2 else ""
    return ", ".join(shown) + more


def _progress(run: RunView) -> str:
    num_steps, num_done = run.config.train.num_steps, 0 if run.step is None else run.step + 1
    share = min(1.0, num_done / num_steps)
    return (
        f'{q.count(num_done)} <span class="muted">/ {q.count(num_steps)}</span>'
        f'<span class="progress" aria-hidden="true"><i style="width:{100 * share:.1f}%"></i></span>'
    )


def _meter(share: float | None) -> str:
    if share is None:
        return q.UNKNOWN
    width = max(0.0, min(1.0, share))
    return f'<span class="meter" aria-hidden="true"><i style="width:{100 * width:.0f}%"></i></span>{q.percent(share)}'


def _age(snapshot: Snapshot) -> str:
    run = snapshot.run
    if not run.is_open:
        ended = (snapshot.now - run.ended_at).total_seconds() if run.ended_at else None
        return f'<span data-tip="{q.clock(run.ended_at, now=snapshot.now)}">{escape(q.age(ended))} ago</span>'
    if snapshot.data_age_s is None:
        return "none yet"
    note = ' <b class="muted">stale</b>' if snapshot.is_stale else ""
    return f'<span data-age="{snapshot.data_age_s:.2f}">{q.age(snapshot.data_age_s)}</span>{note}'


def _menu(run: RunView, why_not: str) -> str:
    """What can be asked of a run; items follow `[data-go]` to the pseudo page `ask`."""
    name = f"run-menu-{run.id}"
    refused = why_not or ("" if run.is_open else f"Run {run.id} has ended ({run.status}).")
    if run.is_stopping and run.is_open:
        refused = refused or "It is stopping."
    items = [
        _item("resume" if run.is_paused else "pause", run, refused),
        _item("checkpoint", run, refused),
        "<hr>",
        _item("stop", run, refused),
    ]
    pages = "".join(
        _page(label, page, run) for label, page in (("Live", "live"), ("Inject", "inject"), ("Plans", "plans"))
    )
    return (
        f'<button type="button" class="menu-open" popovertarget="{name}" style="anchor-name:--{name}" '
        f'aria-label="Menu of run {run.id}">⋮</button>'
        f'<div class="row-menu" popover id="{name}" style="position-anchor:--{name}">{pages}<hr>{"".join(items)}</div>'
    )


def _item(kind: str, run: RunView, refused: str) -> str:
    label = {"stop": "Stop …"}.get(kind, kind.capitalize())
    if refused:
        return f'<button type="button" disabled title="{escape(refused, quote=True)}">{label}</button>'
    go = escape(json.dumps(["ask", {"run": str(run.id), "kind": kind}]), quote=True)
    return f'<button type="button" data-go="{go}">{label}</button>'


def _page(label: str, page: str, run: RunView) -> str:
    go = escape(json.dumps([page, {"run": str(run.id)}]), quote=True)
    return f'<button type="button" data-go="{go}">{label}</button>'


def _order(snapshot: Snapshot, column: str) -> tuple[bool, Any]:
    """Sort key; what is unknown comes last when descending."""
    if column in OF_RUNS:
        return _known(_of_run(snapshot.run, column))
    values: dict[str, Any] = {
        "stragglers": next(iter(stragglers(snapshot).values()), 0.0) if snapshot.run.is_open else 0.0,
        "tokens_per_s": snapshot.figures.tokens_per_s,
        "efficiency": snapshot.figures.efficiency,
        "age": snapshot.data_age_s,
        "started_by": started_by(snapshot),
    }
    return _known(values.get(column, snapshot.run.id))


def _of_run(run: RunView, column: str) -> Any:
    return {
        "status": run.status,
        "devices": run.config.num_devices,
        "step": run.step,
        "loss": run.loss,
        "plan": run.active_plan_version or run.target_plan_version,
    }.get(column, run.id)


def _known(value: Any) -> tuple[bool, Any]:
    is_known = value is not None and not (isinstance(value, float) and math.isnan(value))
    return is_known, value if is_known else 0
