"""The tables of statuses, by example: what may follow, what may not, and that ends are final."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from db import transitions
from db.errors import TransitionError
from db.models import CheckpointRow, CommandRow, InjectionRow, PlanRow, RunRow, WhatIfRow

ALLOWED = {
    "run": [
        ("pending", "starting"),
        ("pending", "training"),  # telemetry may drop a message
        ("starting", "calibrating"),
        ("calibrating", "training"),
        ("training", "paused"),
        ("paused", "training"),
        ("pending", "lost"),
        ("training", "lost"),
        ("lost", "training"),
        ("lost", "starting"),  # a new attempt
        ("training", "finished"),
        ("paused", "stopped"),
        ("pending", "failed"),
        ("lost", "failed"),
    ],
    "plan": [
        ("queued", "solving"),
        ("solving", "ready"),
        ("ready", "approved"),
        ("approved", "switching"),
        ("switching", "active"),
        ("approved", "active"),  # the plan that a run starts with
        ("active", "superseded"),
        ("queued", "failed"),
        ("solving", "rejected"),
        ("switching", "rejected"),
    ],
    "command": [("pending", "accepted"), ("accepted", "applied"), ("accepted", "failed"), ("pending", "failed")],
    "injection": [("requested", "active"), ("active", "cleared"), ("requested", "cleared")],
    "checkpoint": [("saved", "removed")],
    "what-if": [
        ("queued", "solving"),
        ("solving", "done"),
        ("queued", "failed"),  # no worker took it
        ("solving", "failed"),
        ("queued", "cancelled"),
        ("solving", "cancelled"),
    ],
}

REFUSED = {
    "run": [
        ("training", "starting"),
        ("training", "calibrating"),
        ("training", "pending"),
        ("training", "training"),
        ("finished", "training"),
        ("finished", "lost"),
        ("stopped", "failed"),
        ("failed", "finished"),
        ("training", "dancing"),
    ],
    "plan": [
        ("queued", "ready"),
        ("queued", "active"),
        ("ready", "active"),
        ("ready", "switching"),
        ("active", "rejected"),
        ("active", "failed"),
        ("superseded", "active"),
        ("rejected", "approved"),
        ("failed", "queued"),
    ],
    "command": [("pending", "applied"), ("applied", "failed"), ("failed", "pending"), ("applied", "applied")],
    "injection": [("cleared", "active"), ("active", "requested"), ("cleared", "cleared")],
    "checkpoint": [("removed", "saved"), ("failed", "saved"), ("saved", "failed")],
    "what-if": [("queued", "done"), ("cancelled", "done"), ("done", "cancelled"), ("failed", "queued")],
}

ROWS: dict[str, tuple[Callable[[Any, str], None], Callable[[str], Any], transitions.Table]] = {
    "run": (transitions.move_run, lambda status: RunRow(id=7, status=status), transitions.RUN),
    "plan": (transitions.move_plan, lambda status: PlanRow(run=7, version=2, status=status), transitions.PLAN),
    "command": (transitions.move_command, lambda status: CommandRow(id=3, status=status), transitions.COMMAND),
    "injection": (transitions.move_injection, lambda status: InjectionRow(id=3, status=status), transitions.INJECTION),
    "checkpoint": (
        transitions.move_checkpoint,
        lambda status: CheckpointRow(id=3, status=status),
        transitions.CHECKPOINT,
    ),
    "what-if": (transitions.move_what_if, lambda status: WhatIfRow(id=3, status=status), transitions.WHAT_IF),
}


@pytest.mark.parametrize(("table", "former", "new"), [(name, *pair) for name in ALLOWED for pair in ALLOWED[name]])
def test_allowed(table: str, former: str, new: str) -> None:
    move, make, _ = ROWS[table]
    row = make(former)
    move(row, new)
    assert row.status == new


@pytest.mark.parametrize(("table", "former", "new"), [(name, *pair) for name in REFUSED for pair in REFUSED[name]])
def test_refused(table: str, former: str, new: str) -> None:
    move, make, _ = ROWS[table]
    row = make(former)
    with pytest.raises(TransitionError, match=new):
        move(row, new)
    assert row.status == former


@pytest.mark.parametrize("table", ROWS)
def test_every_status_reaches_an_end_and_ends_are_final(table: str) -> None:
    statuses = ROWS[table][2]
    for status in statuses:
        reached, frontier = set(), {status}
        while frontier:
            reached |= frontier
            frontier = {new for known in frontier for new in statuses[known]} - reached
        assert any(transitions.is_final(statuses, known) for known in reached)
        assert transitions.is_final(statuses, status) == (status not in transitions.open_statuses(statuses))


def test_message_names_what_is_expected() -> None:
    with pytest.raises(TransitionError, match=r"run 7 is finished: .* \(none, it is final\), given training"):
        transitions.move_run(RunRow(id=7, status="finished"), "training")
