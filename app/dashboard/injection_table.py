"""The open injections of a run as a table. Pure drawing of a snapshot; shown by `picture`."""

from __future__ import annotations

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
)


def injection_table(snapshot: Snapshot) -> str:
    """The table; one quiet sentence if nothing is injected."""
    shown = [entry for entry in snapshot.injections if entry.status != "cleared"]
    if not shown:
        return '<p class="muted">No injection is open.</p>'
    rows = [
        Row(
            key=str(entry.id),
            cells=[
                str(entry.device),
                q.rate(entry.rate),
                "active" if entry.status == "active" else "waits for the engine",
                escape(q.clock(entry.applied_at or entry.requested_at, now=snapshot.now))
                + (f", step {q.count(entry.applied_step)}" if entry.applied_step is not None else ""),
                escape(q.clock(entry.until_at, now=snapshot.now)) if entry.until_at else "cleared",
            ],
        )
        for entry in sorted(shown, key=lambda entry: entry.device)
    ]
    return table(COLUMNS, rows, label="Open injections")
