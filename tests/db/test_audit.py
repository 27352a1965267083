"""Audit entries and heartbeats."""

from __future__ import annotations

import os
from typing import Any

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


def test_entries_are_filtered_sorted_and_counted(store: Store, run: RunView) -> None:
    def told(actor: str, action: str, **others: Any) -> None:
        audit.record(store, actor=actor, action=action, **others)

    told("eve", "command.inject", run=1, source="dashboard", target="command 1", result="pending")
    told("controller", "command.inject", run=1, source="dashboard", target="command 1", result="accepted")
    told("worker@h:12", "plan.status", run=1, target="plan 2", result="ready", detail={"reason": "50% _less"})
    told("bob", "access.unlock", source="dashboard", result="refused")
    since = utc_now()
    told("engine", "plan.switch", run=1, target="plan 2", result="applied")

    def found(**wanted: Any) -> list[str]:
        matching = audit.Filter(**wanted)
        entries = audit.find(store, matching)
        assert audit.count(store, matching) == len(entries)
        return [f"{entry.actor} {entry.result}" for entry in entries]

    assert found(actor="eve") == ["eve pending"]
    assert found(run=1, action="command.inject") == ["controller accepted", "eve pending"]
    assert found(source="worker") == ["worker@h:12 ready"], "a program that acts needs no source"
    assert found(source="engine") == ["engine applied"]
    assert found(source="dashboard", result="refused") == ["bob refused"]
    assert found(text="PLAN 2") == ["engine applied", "worker@h:12 ready"]
    assert found(text="50% _less") == ["worker@h:12 ready"], "in the detail, and % is no pattern"
    assert found(text="5_%") == []
    assert found(since=since) == ["engine applied"]
    assert "engine applied" not in found(until=since)
    assert found(actor="nobody") == []
    by_actor = audit.find(store, audit.Filter(run=1, text="command"), sort="actor", is_descending=False)
    assert [entry.actor for entry in by_actor] == ["controller", "eve"]
    assert [entry.via for entry in audit.find(store, audit.Filter(run=1), sort="source", limit=2)] == [
        "worker",
        "engine",
    ]
    assert len(audit.find(store, audit.Filter(), sort="nonsense", limit=2, offset=1)) == 2
    known = audit.choices(store)
    assert {"eve", "bob", "engine"} <= set(known.actors)
    assert {"dashboard", "engine", "worker"} <= set(known.sources)
    assert (known.runs, "plan.switch" in known.actions, "refused" in known.results) == ((1,), True, True)
    newest = audit.last(store, 1, "plan.status")
    assert newest is not None
    assert newest.reason == "50% _less"
    assert audit.last(store, 1, "nothing") is None
