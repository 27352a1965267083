"""Audit entries and heartbeats."""

from __future__ import annotations

import os

from db import audit, heartbeats
from db.messages import utc_now
from db.runs import RunView
from db.store import Store


def test_entries_are_newest_first_and_paged(store: Store, run: RunView) -> None:
    for number in range(5):
        audit.record(
            store, actor="ann", action="look", run=1 if number % 2 else None, target=f"t{number}", detail={"n": number}
        )
    assert [entry.target for entry in audit.entries(store)][:5] == ["t4", "t3", "t2", "t1", "t0"]
    assert [entry.target for entry in audit.entries(store, 1)] == ["t3", "t1", ""]
    assert [entry.target for entry in audit.entries(store, limit=2, offset=1)] == ["t3", "t2"]
    entry = audit.entries(store, limit=1)[0]
    assert (entry.actor, entry.action, entry.run, entry.detail) == ("ann", "look", None, {"n": 4})
    assert entry.at <= utc_now()


def test_the_last_beat_of_each_service(store: Store) -> None:
    assert heartbeats.all_beats(store) == {}
    heartbeats.beat(store, "worker", {"queue": 1})
    first = heartbeats.all_beats(store)["worker"]
    heartbeats.beat(store, "worker", {"queue": 2})
    heartbeats.beat(store, "controller")
    beats = heartbeats.all_beats(store)
    assert list(beats) == ["controller", "worker"]
    assert (beats["worker"].detail, beats["worker"].pid) == ({"queue": 2}, os.getpid())
    assert first.at <= beats["worker"].at <= utc_now()
