"""Injections: one open a device, active when the engine says so, gone in time."""

from __future__ import annotations

from datetime import timedelta

from db import audit, injections, runs
from db.runs import RunView
from db.store import Store
from tests.db.telemetry import START


def test_one_open_injection_a_device(store: Store, run: RunView) -> None:
    first = injections.add(store, 1, 3, 2.57, START, 11)
    assert (first.status, first.desired_version, first.until_at, first.command) == ("requested", 2, START, 11)
    other = injections.add(store, 1, 4, 3.75)
    second = injections.add(store, 1, 3, 5.42)
    assert [view.id for view in injections.open_injections(store, 1)] == [second.id, other.id]
    assert [view.status for view in injections.all_injections(store, 1)] == ["requested", "requested", "cleared"]
    assert [entry.result for entry in audit.entries(store, 1)][:2] == ["requested", "cleared"]


def test_active_once_the_engine_has_the_version(store: Store, run: RunView) -> None:
    injections.add(store, 1, 3, 2.57)
    runs.change(store, 1)
    late = injections.add(store, 1, 4, 2.57)
    assert injections.observed(store, 1, 1, 5, START) == []
    active = injections.observed(store, 1, 2, 6, START)
    assert [(view.device, view.status, view.applied_step, view.applied_at) for view in active] == [
        (3, "active", 6, START)
    ]
    assert injections.observed(store, 1, 2, 7, START) == []
    assert late.desired_version == 3


def test_clear_and_expire(store: Store, run: RunView) -> None:
    for device in range(4):
        injections.add(store, 1, device, 2.0, START + timedelta(seconds=device) if device else None)
    assert [view.device for view in injections.expired(store, START + timedelta(seconds=2))] == [1, 2]
    assert [view.device for view in injections.clear(store, 1, [1, 2])] == [1, 2]
    assert injections.expired(store, START + timedelta(seconds=2)) == []
    cleared = injections.clear(store, 1, None)
    assert [(view.device, view.status) for view in cleared] == [(0, "cleared"), (3, "cleared")]
    assert injections.clear(store, 1) == []
    assert runs.desired(store, 1).injections == ()


def test_an_ended_run_expires_nothing(store: Store, run: RunView) -> None:
    injections.add(store, 1, 3, 2.0, START)
    runs.set_status(store, 1, "stopped")
    assert injections.expired(store, START) == []
