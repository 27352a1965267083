"""How the start of a run goes, in the form of a drill's timeline. Pure drawing; shown by `picture`.

registered -> engine starting -> first step, or failed with the reason and the last lines of the log
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from app.dashboard import quantities as q
from app.dashboard.drill import DrillStage, StageState
from app.dashboard.drill_line import drill_line
from app.dashboard.links import link
from app.dashboard.run_table import started_by
from app.dashboard.snapshot import Snapshot

SLOW_START_S = 60.0
"""A trainer that has started no engine after this time is worth a word."""


def run_start_line(snapshot: Snapshot, log: Sequence[str]) -> str:
    """The stages; of a run that failed, or whose engine is long in coming, also what was printed last."""
    run = snapshot.run
    stages = start_stages(snapshot)
    head = (
        f'<div class="head"><h3>{link(f"Run {run.id} · {run.name}", "live", {"run": run.id})}</h3>'
        f'<span class="muted">{escape(_words(snapshot))}</span></div>'
    )
    is_late = run.status == "pending" and (snapshot.now - run.created_at).total_seconds() > SLOW_START_S
    shown = ""
    if log and (run.status == "failed" or is_late):
        text = escape("\n".join(log))
        shown = f'<pre class="log-lines" aria-label="Last lines of the log">{text}</pre>'
    return head + drill_line(stages, now=snapshot.now) + shown


def start_stages(snapshot: Snapshot) -> list[DrillStage]:
    """Registered, starting, training."""
    run = snapshot.run
    stages = [DrillStage(name="registered", state="done", at=run.created_at, note=f"by {started_by(snapshot)}")]
    has_failed = run.status == "failed"
    if run.started_at is not None and not (has_failed and run.attempt is None):
        stages.append(DrillStage(name="starting", state="done", at=run.started_at, note="the engine was heard"))
    else:
        note = run.reason or "failed" if has_failed else "its processes are coming up" if run.is_open else run.status
        state: StageState = "failed" if has_failed else "waiting" if run.is_open else "later"
        at = run.ended_at if has_failed else None
        return [
            *stages,
            DrillStage(name="starting", state=state, at=at, note=note),
            DrillStage(name="training", state="later"),
        ]
    if snapshot.steps:
        first = snapshot.steps[0]
        stages.append(DrillStage(name="training", state="done", at=first.at, note="its first step"))
    elif has_failed:
        stages.append(DrillStage(name="training", state="failed", at=run.ended_at, note=run.reason))
        return stages
    else:
        note = "calibrating" if run.status == "calibrating" else "before its first step"
        stages.append(DrillStage(name="training", state="waiting" if run.is_open else "later", note=note))
    if has_failed:
        stages.append(DrillStage(name="failed", state="failed", at=run.ended_at, note=run.reason))
    return stages


def is_settled(snapshot: Snapshot) -> bool:
    """Whether the start is over, well or not."""
    return bool(snapshot.steps) or not snapshot.run.is_open


def _words(snapshot: Snapshot) -> str:
    run = snapshot.run
    if run.status == "failed":
        return f"failed: {run.reason or 'no reason given'}"
    if snapshot.steps and run.is_open:
        return f"is {run.status}, step {q.count(run.step)}"
    return f"is {run.status}" if run.status != "pending" else "is registered, its engine has not been heard yet"
