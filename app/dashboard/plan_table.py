"""The list of a run's plans, and one plan's facts in words. Pure drawing; shown by `picture`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any

from app.dashboard import quantities as q
from app.dashboard.links import link
from app.dashboard.rate_colors import HEALTHY_BELOW
from app.dashboard.table import Column, Row, Sorting, table

if TYPE_CHECKING:
    from db.history import SwitchView
    from db.plans import PlanView

SHIFT = 0.05
"""A rate that differs by more than this from the plan before is named in the trigger."""

COLUMNS = (
    Column(title="Version", sort="version"),
    Column(title="When", tip="When the plan was asked for."),
    Column(
        title="Trigger", is_wide=True, tip="What asked for it: the rates that changed, or a person.", sort="trigger"
    ),
    Column(title="By", tip="Who asked for it, and who decided if that is somebody else."),
    Column(title="State", sort="status"),
    Column(
        title="Predicted",
        is_number=True,
        tip="Step time that the cost model predicts at the rates it was made for.",
        sort="predicted_s",
    ),
    Column(title="Measured", is_number=True, tip="Median step time once it ran.", sort="measured_s"),
    Column(
        title="Bound",
        is_number=True,
        tip="Capacity bound at the rates it was made for; a plan may be slightly faster.",
        sort="bound_s",
    ),
    Column(title="Gap", is_number=True, tip="Predicted over bound, minus one.", sort="gap"),
    Column(title="Solve time", is_number=True, tip="Seconds in the solver.", sort="solve_s"),
    Column(title="Moved", is_number=True, tip="Bytes sent between ranks by the switch; about: estimated before it."),
    Column(title="Pause", is_number=True, tip="Time in which no rank trained during the switch."),
)


def plan_table(
    plans: Sequence[PlanView],
    switches: Mapping[int, SwitchView],
    parents: Mapping[int, PlanView],
    *,
    ticked: Sequence[int],
    now: datetime,
    sorting: Sorting | None = None,
    empty: str = "No plan yet.",
) -> str:
    """The table, in the order given.

    Args:
        switches: the last switch to each version.
        parents: plans by version, to name what changed.
        ticked: versions whose box is ticked.
        sorting: how the plans are sorted, for the heads.
        empty: what stands where there are no plans.
    """
    rows = [
        Row(
            key=str(plan.version),
            cells=_cells(plan, switches.get(plan.version), parents.get(plan.parent or 0), now),
            is_picked=plan.version in ticked,
            is_muted=plan.status in ("superseded", "rejected", "failed"),
        )
        for plan in plans
    ]
    return table(COLUMNS, rows, label="Plans", is_tickable=True, sorting=sorting, empty=empty)


def record(plan: PlanView, switch: SwitchView | None) -> dict[str, Any]:
    """The same as plain values, for a download."""
    names = ("version", "created_at", "trigger", "requested_by", "decided_by", "decided_reason", "status", "reason")
    more = ("predicted_s", "measured_s", "current_s", "bound_s", "gap", "solve_s", "solver", "seed", "parent")
    return {name: getattr(plan, name) for name in names + more} | {
        "bytes_moved": None if switch is None else switch.bytes_moved,
        "pause_s": None if switch is None else switch.pause_s,
        "digests_equal": None if switch is None else switch.digests_equal,
        "decided_at": plan.decided_at,
        "active_at": plan.active_at,
        "rates": plan.rates,
        "document": plan.document,
    }


def trigger(plan: PlanView, parent: PlanView | None) -> str:
    """Why the plan was made: `device 3: 1.00x -> 2.57x`, `manual`, `first plan`."""
    if plan.trigger == "initial":
        return "first plan"
    if plan.trigger == "rollback":
        return f"back to v{plan.parent}" if plan.parent is not None else "rollback"
    before = parent.rates if parent is not None else {}
    changes = [
        f"device {device}: {q.rate(before.get(device, 1.0))} → {q.rate(rate)}"
        for device, rate in sorted(plan.rates.items())
        if _has_shifted(before.get(device, 1.0), rate)
    ]
    lead = {"shift": "", "command": "manual"}.get(plan.trigger, plan.trigger)
    if plan.trigger == "shift" and changes and not any(_is_slower(before, plan.rates, device) for device in plan.rates):
        lead = "recovered"
    shown = ", ".join(changes[:2]) + (f" and {len(changes) - 2} more" if len(changes) > 2 else "")
    return ": ".join(part for part in (lead, shown) if part) or plan.trigger


def gap(plan: PlanView) -> float | None:
    """How far the prediction is above the capacity bound (slightly negative: below it)."""
    if plan.predicted_s is None or not plan.bound_s or not math.isfinite(plan.predicted_s):
        return None
    return plan.predicted_s / plan.bound_s - 1


def status_badge(status: str) -> str:
    """A plan's state as a word with a mark whose shape differs."""
    return f'<span class="badge plan-{escape(status)}">{escape(status)}</span>'


def _cells(plan: PlanView, switch: SwitchView | None, parent: PlanView | None, now: datetime) -> list[str]:
    why = f' data-tip="{escape(q.arrows(plan.reason), quote=True)}" tabindex="0"' if plan.reason else ""
    moved = plan.details.get("moved_bytes")
    is_applied = switch is not None and switch.outcome == "applied"
    return [
        link(f"v{plan.version}", "plans", {"run": plan.run, "version": plan.version}),
        f'<span data-tip="{plan.created_at:%Y-%m-%d %H:%M:%S} UTC">{escape(q.clock(plan.created_at, now=now))}</span>',
        escape(trigger(plan, parent)),
        _people(plan),
        f"<span{why}>{status_badge(plan.status)}</span>",
        q.seconds(plan.predicted_s),
        q.seconds(plan.measured_s),
        q.seconds(plan.bound_s),
        q.percent(gap(plan)),
        q.seconds(plan.solve_s),
        q.num_bytes(switch.bytes_moved)
        if is_applied and switch is not None
        else f'<span class="muted">about {q.num_bytes(float(moved))}</span>'
        if isinstance(moved, int | float) and moved > 0
        else q.UNKNOWN,
        q.seconds(switch.pause_s) if is_applied and switch is not None else q.UNKNOWN,
    ]


def _people(plan: PlanView) -> str:
    """Who asked, and who decided if that is somebody else."""
    asked = escape(plan.requested_by)
    if not plan.decided_by or plan.decided_by in (plan.requested_by, plan.worker):
        return asked
    why = f": {plan.decided_reason}" if plan.decided_reason else ""
    tip = escape(q.arrows(f"decided by {plan.decided_by}{why}"), quote=True)
    return f'{asked}<span class="muted" data-tip="{tip}" tabindex="0">, {escape(plan.decided_by)}</span>'


def _is_slower(before: Mapping[int, float], after: Mapping[int, float], device: int) -> bool:
    """A device that has shifted, and not to where it was healthy."""
    former = before.get(device, 1.0)
    return _has_shifted(former, after[device]) and not (after[device] < former and after[device] < HEALTHY_BELOW)


def _has_shifted(before: float, after: float) -> bool:
    if math.isnan(after) or math.isnan(before):
        return math.isnan(after) != math.isnan(before)
    if math.isinf(after) or math.isinf(before):
        return after != before
    return abs(after / before - 1) > SHIFT
