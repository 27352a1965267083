"""The audit log as a table: when, who, from where, what, on what, with which result. Pure; shown by `picture`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any

from app.dashboard import quantities as q
from app.dashboard.downloads import json_text
from app.dashboard.links import link
from app.dashboard.table import Column, Row, Sorting, table

if TYPE_CHECKING:
    from db.audit import AuditView

COLUMNS = (
    Column(title="When", sort="at"),
    Column(title="Run", sort="run"),
    Column(title="Who", sort="actor"),
    Column(title="Through", sort="source", tip="Command line, dashboard, or the program that acted by itself."),
    Column(title="Action", sort="action"),
    Column(title="On", sort="target"),
    Column(title="Result", sort="result"),
    Column(title="Reason", is_wide=True),
)
_TARGET = re.compile(r"(plan|device|command|step|attempt) (\d+)")
MAX_DETAIL = 600


def audit_table(entries: Sequence[AuditView], sorting: Sorting, *, now: datetime, is_filtered: bool) -> str:
    """The table, in the order given."""
    rows = [Row(key=str(entry.id), cells=_cells(entry, now)) for entry in entries]
    empty = "No entry matches the filter." if is_filtered else "Nothing has been done yet."
    return table(COLUMNS, rows, label="Audit", sorting=sorting, empty=empty)


def records(entries: Sequence[AuditView]) -> list[dict[str, Any]]:
    """The same as plain values, for a download."""
    names = ("id", "at", "run", "actor", "via", "action", "target", "result", "reason", "detail")
    return [{name: getattr(entry, name) for name in names} for entry in entries]


def object_link(entry: AuditView) -> tuple[str, Mapping[str, Any]] | None:
    """Page and parameters of what the entry is about; None if it is about no run."""
    if entry.run is None:
        return None
    found = _TARGET.match(entry.target)
    if found is None:
        return "live", {"run": entry.run}
    kind, number = found[1], found[2]
    if kind == "plan":
        return "plans", {"run": entry.run, "version": number}
    if kind == "device":
        return "live", {"run": entry.run, "device": number}
    if kind == "command":  # all that became of it
        return "audit", {"audit_run": entry.run, "audit_text": entry.target}
    return "live", {"run": entry.run}


def _cells(entry: AuditView, now: datetime) -> list[str]:
    target = object_link(entry)
    label = entry.target or ("" if entry.run is None else f"run {entry.run}")
    detail = json_text(entry.detail) if entry.detail else ""
    shown = detail if len(detail) <= MAX_DETAIL else f"{detail[:MAX_DETAIL]} …"
    tip = f' data-tip="{escape(shown, quote=True)}" tabindex="0"' if shown else ""
    return [
        f'<span data-tip="{entry.at:%Y-%m-%d %H:%M:%S.%f} UTC">{escape(q.clock(entry.at, now=now))}</span>',
        "" if entry.run is None else link(str(entry.run), "live", {"run": entry.run}),
        escape(entry.actor),
        escape(entry.via) or q.UNKNOWN,
        f"<span{tip}>{escape(entry.action)}</span>",
        link(label, target[0], target[1]) if target is not None and label else escape(label),
        escape(entry.result) or q.UNKNOWN,
        f'<span class="muted">{escape(q.arrows(entry.reason))}</span>',
    ]
