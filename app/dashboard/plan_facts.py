"""One plan in detail: what it was made for, how it turned out, what else was considered.

Pure drawing; shown by `picture` beside the plan map.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any

from app.dashboard import quantities as q
from app.dashboard.device_grid import rate_style
from app.dashboard.facts import facts
from app.dashboard.headline import parsed
from app.dashboard.links import link
from app.dashboard.plan_map import summary
from app.dashboard.plan_table import gap, status_badge, trigger
from app.dashboard.rate_colors import HEALTHY_BELOW
from app.dashboard.table import Column, Row, table

if TYPE_CHECKING:
    from db.history import SwitchView
    from db.plans import PlanView

MAX_RUNNERS = 5


def plan_head(plan: PlanView, active_version: int) -> str:
    """Version, state, reason, and the way to the comparison with the active plan."""
    reason = f'<span class="fact">{escape(plan.reason)}</span>' if plan.reason else ""
    compare = ""
    if plan.version != active_version and plan.document is not None:
        target = {"run": plan.run, "version": plan.version, "diff": active_version}
        compare = link(f"compare with v{active_version}", "plans", target)
    name = f'<span class="run-name">Plan v{plan.version}</span>'
    return f'<div class="run-line">{name}{status_badge(plan.status)}{reason}{compare}</div>'


def plan_facts(plan: PlanView, parent: PlanView | None, switch: SwitchView | None, *, now: datetime) -> str:
    """The facts as a list of names and values."""
    pairs = [
        ("Trigger", trigger(plan, parent)),
        ("Asked for", f"{q.clock(plan.created_at, now=now)} by {plan.requested_by}"),
        ("Decided", f"{q.clock(plan.decided_at, now=now)} by {plan.decided_by}" if plan.decided_by else "not yet"),
        ("Active since", q.clock(plan.active_at, now=now) if plan.active_at else "never"),
        ("Predicted", f"{_step(plan.predicted_s)}" + _against(plan)),
        ("Measured", _step(plan.measured_s) + _error(plan)),
        ("Capacity bound", _step(plan.bound_s) + (f", gap {q.percent(gap(plan))}" if gap(plan) is not None else "")),
        ("Solver", f"{plan.solver or 'none'}, {q.seconds(plan.solve_s)}, seed {plan.seed}"),
        ("Switch", _switch(switch)),
    ]
    return facts(pairs)


def plan_rates(plan: PlanView) -> str:
    """The rates that the plan was made for; healthy devices in one word."""
    slow = {device: rate for device, rate in sorted(plan.rates.items()) if not rate < HEALTHY_BELOW}
    if not slow:
        return '<p class="muted">Made for healthy devices.</p>'
    chips = "".join(
        f'<span class="rate-chip" style="{rate_style(rate)}">{device} <b>{q.rate(rate)}</b></span>'
        for device, rate in slow.items()
    )
    return f'<p><span class="muted">Made for</span> {chips} <span class="muted">all others healthy</span></p>'


def runners_up(plan: PlanView) -> str:
    """The plans that came second and later; empty if none is known."""
    entries = plan.details.get("runners_up")
    if not isinstance(entries, list) or not entries:
        return ""
    columns = [
        Column(title="Place", is_number=True),
        Column(title="Predicted", is_number=True),
        Column(title="Moves about", is_number=True),
        Column(title="Plan", is_wide=True),
    ]
    rows = []
    for place, entry in enumerate(entries[:MAX_RUNNERS], start=2):
        if not isinstance(entry, Mapping):
            continue
        document = parsed(entry.get("plan") if isinstance(entry.get("plan"), Mapping) else None)
        words = summary(document) if document is not None else ""
        step_s, moved = _float(entry.get("step_s")), _float(entry.get("moved_bytes"))
        rows.append(Row(key=str(place), cells=[str(place), q.seconds(step_s), q.num_bytes(moved), escape(words)]))
    return table(columns, rows, label="Runner-up plans")


def solver_log(plan: PlanView) -> list[str]:
    """The solver's own lines."""
    log = plan.details.get("log")
    return [str(line) for line in log] if isinstance(log, list) else []


def _step(seconds: float | None) -> str:
    return f"{q.seconds(seconds)} a step" if seconds is not None else q.UNKNOWN


def _against(plan: PlanView) -> str:
    if plan.current_s is None or plan.predicted_s is None or not math.isfinite(plan.predicted_s):
        return ""
    return f", staying {q.seconds(plan.current_s)}"


def _error(plan: PlanView) -> str:
    if not plan.measured_s or not plan.predicted_s or not math.isfinite(plan.predicted_s):
        return ""
    error = plan.measured_s / plan.predicted_s - 1
    return f", {'+' if error >= 0 else ''}{q.percent(error)} off the prediction"


def _switch(switch: SwitchView | None) -> str:
    if switch is None:
        return "none"
    if switch.outcome != "applied":
        return f"refused: {switch.reason}"
    digests = "digests equal" if switch.digests_equal else "digests differ"
    return (
        f"before step {q.count(switch.step)}, {q.num_bytes(switch.bytes_moved)}, "
        f"paused {q.seconds(switch.pause_s)}, {digests}"
    )


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
