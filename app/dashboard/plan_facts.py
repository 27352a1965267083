"""One plan in detail: what it was made for, how it turned out, what else was considered.

Pure drawing; shown by `picture` beside the plan map.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any

from app.dashboard import quantities as q
from app.dashboard.device_grid import Cell, cell_state, grid
from app.dashboard.facts import facts
from app.dashboard.headline import parsed
from app.dashboard.links import link
from app.dashboard.plan_map import place, summary
from app.dashboard.plan_table import gap, status_badge, trigger
from app.dashboard.rate_colors import HEALTHY_BELOW
from app.dashboard.table import Column, Row, table

if TYPE_CHECKING:
    from db.plans import PlanView
    from planner.plan import Plan

MAX_RUNNERS = 5


def plan_head(plan: PlanView, active_version: int) -> str:
    """Version, state, reason, and the way to the comparison with the active plan."""
    reason = f'<span class="muted">{escape(q.arrows(plan.reason))}</span>' if plan.reason else ""
    compare = ""
    if plan.version != active_version and plan.document is not None:
        target = {"run": plan.run, "version": plan.version, "diff": active_version}
        compare = link(f"compare with v{active_version}", "plans", target)
    name = f'<span class="run-name">Plan v{plan.version}</span>'
    if plan.trigger == "rollback" and plan.parent is not None:
        back = link(f"v{plan.parent}", "plans", {"run": plan.run, "version": plan.parent})
        name += f'<span class="fact">returns to {back}</span>'
    return f'<div class="run-line">{name}{status_badge(plan.status)}{reason}{compare}</div>'


def plan_facts(plan: PlanView, parent: PlanView | None, *, now: datetime) -> str:
    """The facts as a list of names and values; a reason that `plan_head` says already is left out."""
    because = plan.decided_reason if plan.decided_reason != plan.reason else ""
    pairs = [
        ("Trigger", trigger(plan, parent)),
        ("Asked for", f"{q.clock(plan.created_at, now=now)} by {plan.requested_by}"),
        ("Decided", f"{q.clock(plan.decided_at, now=now)} by {plan.decided_by}" if plan.decided_by else "not yet"),
        *([("Because", q.arrows(because))] if because else []),
        ("Active since", q.clock(plan.active_at, now=now) if plan.active_at else "never"),
        ("Predicted", f"{_step(plan.predicted_s)}" + _against(plan)),
        ("Measured", _step(plan.measured_s) + _error(plan)),
        ("Capacity bound", _step(plan.bound_s) + (f", gap {q.percent(gap(plan))}" if gap(plan) is not None else "")),
        ("Solver", _solver(plan)),
    ]
    return facts(pairs)


def plan_rates(plan: PlanView, document: Plan | None, nodes: Sequence[Sequence[int]]) -> str:
    """The rates that the plan was made for, as the device grid."""
    slow = [device for device, rate in sorted(plan.rates.items()) if not rate < HEALTHY_BELOW]
    if not plan.rates:
        return '<p class="muted">Made for healthy devices.</p>'
    note = "all healthy" if not slow else f"{len(slow)} of {len(plan.rates)} not healthy"
    cells = []
    for node, devices in enumerate(nodes):
        for device in devices:
            rate = plan.rates.get(device)
            role, where = ("active", "") if document is None else place(document, device)
            state = cell_state(role=role, rate=rate, is_heard=True)
            cells.append(Cell(device=device, node=node, state=state, rate=rate, place=where))
    head = f'<div class="head"><h3>Rates it was made for</h3><span class="muted">{note}</span></div>'
    return head + grid(cells, is_selectable=False)


def runners_up(plan: PlanView, shown: int | None) -> str:
    """The plans that came second and later, each with the way to its map; empty if none is known.

    Args:
        shown: place of the one whose map is open.
    """
    columns = [
        Column(title="Place", is_number=True),
        Column(title="Predicted", is_number=True),
        Column(title="Against the first", is_number=True),
        Column(title="Moves about", is_number=True),
        Column(title="Plan", is_wide=True),
        Column(title="Map"),
    ]
    rows = []
    for number, entry in _runners(plan):
        document = parsed(entry.get("plan") if isinstance(entry.get("plan"), Mapping) else None)
        words = summary(document) if document is not None else ""
        step_s, moved = _float(entry.get("step_s")), _float(entry.get("moved_bytes"))
        slower = None if step_s is None or not plan.predicted_s else step_s / plan.predicted_s - 1
        address = {"run": plan.run, "version": plan.version}
        show = (
            link("hide", "plans", address) if number == shown else link("show", "plans", address | {"runner": number})
        )
        cells = [
            str(number),
            q.seconds(step_s),
            q.UNKNOWN if slower is None else f"+{q.percent(slower)}",
            q.num_bytes(moved),
            escape(words),
            show if document is not None else q.UNKNOWN,
        ]
        rows.append(Row(key=str(number), cells=cells, is_picked=number == shown))
    return table(columns, rows, label="Runner-up plans") if rows else ""


def runner_up(plan: PlanView, number: int) -> Plan | None:
    """The plan that came at this place; None if it is not known."""
    entry = dict(_runners(plan)).get(number)
    return None if entry is None else parsed(entry.get("plan") if isinstance(entry.get("plan"), Mapping) else None)


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


def _solver(plan: PlanView) -> str:
    if plan.solve_s is None:
        return "none: it was not searched for" if plan.trigger in ("initial", "rollback") else "no answer yet"
    return f"{plan.solver or 'unknown'}, {q.seconds(plan.solve_s)}, seed {plan.seed}, by {plan.worker or 'unknown'}"


def _runners(plan: PlanView) -> list[tuple[int, Mapping[str, Any]]]:
    entries = plan.details.get("runners_up")
    if not isinstance(entries, list):
        return []
    known = [entry for entry in entries[:MAX_RUNNERS] if isinstance(entry, Mapping)]
    return list(enumerate(known, start=2))


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
