"""The open injections of a run as a table. Pure drawing of a snapshot; shown by `picture`."""

from __future__ import annotations

import json
from html import escape

from app.dashboard import quantities as q
from app.dashboard.snapshot import Snapshot
from app.dashboard.table import Column, Row, table

COLUMNS = (
    Column(title="Device"),
    Column(title="Rate", is_number=True),
    Column(title="State"),
    Column(title="Since"),
    Column(title="Until"),
    Column(title="By"),
    Column(title=""),
)


def injection_table(snapshot: Snapshot, *, may_write: bool = False) -> str:
    """The table; one quiet sentence if nothing is injected.

    Args:
        may_write: each row has a button that follows `[data-go]` to the pseudo page `clear`.
    """
    shown = [entry for entry in snapshot.injections if entry.status != "cleared"]
    if not shown:
        return '<p class="muted">No injection is open.</p>'
    rows = [
        Row(
            key=str(entry.id),
            cells=[
                str(entry.device),
                q.rate(entry.rate),
                "applied" if entry.status == "active" else "accepted, waits for the engine",
                escape(q.clock(entry.applied_at or entry.requested_at, now=snapshot.now))
                + (f", step {q.count(entry.applied_step)}" if entry.applied_step is not None else ""),
                escape(q.clock(entry.until_at, now=snapshot.now)) if entry.until_at else "cleared",
                escape(_asked_by(entry.command, snapshot)),
                _clear(entry.device) if may_write else "",
            ],
        )
        for entry in sorted(shown, key=lambda entry: entry.device)
    ]
    return table(COLUMNS, rows, label="Open injections")


def _asked_by(command: int | None, snapshot: Snapshot) -> str:
    """The last commands are known with their actor, others by number."""
    if command is None:
        return q.UNKNOWN
    known = next((entry for entry in snapshot.commands if entry.id == command), None)
    if known is None:
        return f"command {command}"
    return f"{known.arguments['name']} ({known.actor})" if known.kind == "play" else known.actor


def _clear(device: int) -> str:
    go = escape(json.dumps(["clear", {"device": str(device)}]), quote=True)
    return f'<button type="button" class="row-button" data-go="{go}" aria-label="Clear device {device}">Clear</button>'
