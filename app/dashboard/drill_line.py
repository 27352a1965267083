"""The timeline of a drill as HTML. Pure drawing of its stages; shown by `picture`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import escape

from app.dashboard import quantities as q
from app.dashboard.drill import DrillStage, drill_span, lag

_TOLD = {"done": "done", "waiting": "waiting", "failed": "failed", "later": "not yet"}


def drill_line(stages: Sequence[DrillStage], *, now: datetime) -> str:
    """The stages from left to right, each with its time, the lag to the one before, and what happened."""
    drawn = []
    before: DrillStage | None = None
    for stage in stages:
        gap = lag(before, stage) if before is not None else ""
        if stage.at is not None:
            before = stage
        drawn.append(
            f'<li class="drill-stage {stage.state}" aria-label="{escape(stage.name)}: {_TOLD[stage.state]}">'
            f'<span class="drill-name">{escape(stage.name)} <span class="drill-lag">{escape(gap)}</span></span>'
            f'<span class="drill-at">{escape(_at(stage, now))}</span>'
            f'<span class="drill-note">{escape(stage.note)}</span></li>'
        )
    return f'<ol class="drill" aria-label="Timeline of this drill">{"".join(drawn)}</ol>'


def drill_summary(stages: Sequence[DrillStage]) -> str:
    """In words: how long it took, or where it is."""
    waiting = next((stage for stage in stages if stage.state == "waiting"), None)
    if waiting is not None:
        return waiting.note or f"waits for {waiting.name}"
    failed = next((stage for stage in stages if stage.state == "failed"), None)
    if failed is not None:
        return f"ended at {failed.name}: {failed.note}"
    span = drill_span(stages)
    return f"from request to recovery in {q.age(span.total_seconds())}" if span is not None else ""


def _at(stage: DrillStage, now: datetime) -> str:
    if stage.at is None:
        return "" if stage.state != "waiting" else "…"
    text = q.clock(stage.at, now=now)
    return text.replace(" UTC", f".{stage.at.microsecond // 100_000} UTC")
