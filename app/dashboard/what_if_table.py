"""The list of earlier what-ifs. Pure drawing; shown by `picture`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any

from app.dashboard import quantities as q
from app.dashboard.links import link
from app.dashboard.table import Column, Row, table
from app.dashboard.what_if_comparison import gap_words, rate_chips

if TYPE_CHECKING:
    from db.what_ifs import WhatIfView

COLUMNS = (
    Column(title="No.", is_number=True),
    Column(title="When"),
    Column(title="By"),
    Column(title="Starts from", is_wide=True, tip="The run and its plan at that moment, or a preset."),
    Column(title="Rates", is_wide=True),
    Column(title="State"),
    Column(title="In use", is_number=True, tip="Predicted step time of the plan in use at these rates."),
    Column(title="Found", is_number=True, tip="Predicted step time of the best plan."),
    Column(title="Gap", is_number=True, tip="Of the best plan to the capacity bound."),
    Column(title="Solver", is_number=True, tip="Seconds that the search took."),
)


def what_if_table(entries: Sequence[WhatIfView], *, shown: int | None, now: datetime) -> str:
    """The table, in the order given.

    Args:
        shown: the one that the page shows.
    """
    rows = [
        Row(
            key=str(entry.id),
            cells=_cells(entry, now),
            is_picked=entry.id == shown,
            is_muted=entry.status in ("failed", "cancelled"),
        )
        for entry in entries
    ]
    return table(COLUMNS, rows, label="Earlier what-ifs", empty="No question has been asked yet.")


def records(entries: Sequence[WhatIfView]) -> list[dict[str, Any]]:
    """The same as plain values, for a download."""
    return [
        {
            "id": entry.id,
            "created_at": entry.created_at,
            "actor": entry.actor,
            "run": entry.run,
            "title": entry.request.title,
            "rates": dict(entry.request.rates),
            "train": entry.request.train,
            "status": entry.status,
            "error": entry.error,
            "current_s": _value(entry, "current_s"),
            "step_s": _best_s(entry),
            "bound_s": _value(entry, "bound_s"),
            "seconds": entry.seconds,
        }
        for entry in entries
    ]


def status_badge(status: str) -> str:
    """The state as a word with a mark whose shape differs; the marks are those of plans."""
    kind = {"done": "active", "cancelled": "superseded"}.get(status, status)
    return f'<span class="badge plan-{escape(kind)}">{escape(status)}</span>'


def _cells(entry: WhatIfView, now: datetime) -> list[str]:
    why = f' data-tip="{escape(entry.error, quote=True)}" tabindex="0"' if entry.error else ""
    return [
        link(f"#{entry.id}", "what-if", {"whatif": entry.id}),
        escape(q.clock(entry.created_at, now=now)),
        escape(entry.actor),
        escape(entry.request.title),
        rate_chips(entry.request.rates),
        f"<span{why}>{status_badge(entry.status)}</span>",
        q.seconds(_value(entry, "current_s")),
        q.seconds(_best_s(entry)),
        gap_words(_value(entry, "gap")),
        q.seconds(entry.seconds),
    ]


def _value(entry: WhatIfView, name: str) -> float | None:
    value = None if entry.result is None else entry.result.get(name)
    return None if value is None else float(value)


def _best_s(entry: WhatIfView) -> float | None:
    plans = [] if entry.result is None else entry.result.get("plans") or []
    return float(plans[0]["step_s"]) if plans else None
