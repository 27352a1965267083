"""Which status may follow which: one function a table, and no other place that assigns a status.

Terminal statuses are final. Moving to the status that a row already has is not a transition and is
refused like any other; callers that may repeat themselves look first (`allowed`).

    run        pending > starting > calibrating > training <> paused; forward steps may be skipped, because
               telemetry may drop a message; lost <> any that is not terminal;
               terminal: finished, stopped, failed
    plan       queued > solving > ready > approved > switching > active > superseded; approved > active
               for the plan that a run starts with; terminal: superseded, rejected, failed
    command    pending > accepted > applied | failed; pending > failed
    injection  requested > active > cleared; requested > cleared
    checkpoint saved > removed; terminal: removed, failed
    what-if    queued > solving > done | failed | cancelled; queued > failed | cancelled
"""

from __future__ import annotations

from collections.abc import Mapping

from db.errors import TransitionError
from db.models import CheckpointRow, CommandRow, InjectionRow, PlanRow, RunRow, WhatIfRow

Table = Mapping[str, frozenset[str]]

_RUN_ENDS = ("finished", "stopped", "failed")
RUN: Table = {
    "pending": frozenset({"starting", "calibrating", "training", "paused", "lost", *_RUN_ENDS}),
    "starting": frozenset({"calibrating", "training", "paused", "lost", *_RUN_ENDS}),
    "calibrating": frozenset({"training", "paused", "lost", *_RUN_ENDS}),
    "training": frozenset({"paused", "lost", *_RUN_ENDS}),
    "paused": frozenset({"training", "lost", *_RUN_ENDS}),
    "lost": frozenset({"pending", "starting", "calibrating", "training", "paused", *_RUN_ENDS}),
    **{status: frozenset() for status in _RUN_ENDS},
}

_PLAN_ENDS = ("rejected", "failed")
PLAN: Table = {
    "queued": frozenset({"solving", *_PLAN_ENDS}),
    "solving": frozenset({"ready", *_PLAN_ENDS}),
    "ready": frozenset({"approved", *_PLAN_ENDS}),
    "approved": frozenset({"switching", "active", *_PLAN_ENDS}),
    "switching": frozenset({"active", *_PLAN_ENDS}),
    "active": frozenset({"superseded"}),
    **{status: frozenset() for status in ("superseded", *_PLAN_ENDS)},
}

COMMAND: Table = {
    "pending": frozenset({"accepted", "failed"}),
    "accepted": frozenset({"applied", "failed"}),
    "applied": frozenset(),
    "failed": frozenset(),
}

INJECTION: Table = {
    "requested": frozenset({"active", "cleared"}),
    "active": frozenset({"cleared"}),
    "cleared": frozenset(),
}

CHECKPOINT: Table = {
    "saved": frozenset({"removed"}),
    "removed": frozenset(),
    "failed": frozenset(),
}

_WHAT_IF_ENDS = ("failed", "cancelled")
WHAT_IF: Table = {
    "queued": frozenset({"solving", *_WHAT_IF_ENDS}),
    "solving": frozenset({"done", *_WHAT_IF_ENDS}),
    **{status: frozenset() for status in ("done", *_WHAT_IF_ENDS)},
}


def move_run(row: RunRow, status: str) -> None:
    """Gives a run its next status, or raises `TransitionError`."""
    row.status = _next(RUN, f"run {row.id}", row.status, status)


def move_plan(row: PlanRow, status: str) -> None:
    """Gives a plan its next status, or raises `TransitionError`."""
    row.status = _next(PLAN, f"plan {row.version} of run {row.run}", row.status, status)


def move_command(row: CommandRow, status: str) -> None:
    """Gives a command its next status, or raises `TransitionError`."""
    row.status = _next(COMMAND, f"command {row.id}", row.status, status)


def move_injection(row: InjectionRow, status: str) -> None:
    """Gives an injection its next status, or raises `TransitionError`."""
    row.status = _next(INJECTION, f"injection {row.id}", row.status, status)


def move_checkpoint(row: CheckpointRow, status: str) -> None:
    """Gives a checkpoint its next status, or raises `TransitionError`."""
    row.status = _next(CHECKPOINT, f"checkpoint {row.id}", row.status, status)


def move_what_if(row: WhatIfRow, status: str) -> None:
    """Gives a what-if its next status, or raises `TransitionError`."""
    row.status = _next(WHAT_IF, f"what-if {row.id}", row.status, status)


def is_allowed(table: Table, status: str, new: str) -> bool:
    """Whether `new` may follow `status`."""
    return new in table[status]


def is_final(table: Table, status: str) -> bool:
    """Whether nothing may follow `status`."""
    return not table[status]


def open_statuses(table: Table) -> tuple[str, ...]:
    """The statuses that are not terminal."""
    return tuple(status for status, following in table.items() if following)


def _next(table: Table, name: str, status: str, new: str) -> str:
    if new not in table:
        raise TransitionError(f"{name}: status must be one of {', '.join(table)}, given {new!r}")
    if new not in table[status]:
        expected = ", ".join(sorted(table[status])) or "none, it is final"
        raise TransitionError(f"{name} is {status}: the next status must be one of ({expected}), given {new}")
    return new
