"""Schedules as `play` commands carry them: what is refused, and in which order entries are kept."""

from __future__ import annotations

from typing import Any

import pytest

from db import audit, commands, injections
from db.errors import InputError
from db.messages import utc_now
from db.runs import RunView
from db.schedule import MAX_ENTRIES, Entry, arguments, checked, entries_of
from db.store import Store

WHO = {"actor": "ann", "source": "cli"}
ONE = {"at_s": 0.0, "device": 1, "rate": 2.57}


def test_entries_are_kept_in_the_order_of_their_times() -> None:
    given = arguments("x", [Entry(at_s=9.0, device=0, rate=2.0), Entry(at_s=1.0, device=1, rate=3.0, for_s=4.0)])
    kept = checked(given, num_devices=2)
    assert entries_of(kept) == [Entry(at_s=1.0, device=1, rate=3.0, for_s=4.0), Entry(at_s=9.0, device=0, rate=2.0)]
    assert checked(kept, num_devices=2) == kept


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (ONE | {"device": 8}, r"entry 2: device must be 0\.\.7, given 8"),
        (ONE | {"device": True}, "entry 2: device must be a device number, given True"),
        (ONE | {"rate": 0.0}, "entry 2: rate must be a positive finite number"),
        (ONE | {"rate": float("nan")}, "entry 2: rate must be a finite number, given nan"),
        (ONE | {"at_s": -1.0}, "entry 2: at_s must be 0"),
        (ONE | {"for_s": 0}, "entry 2: for_s must be a positive"),
        (ONE | {"until": 3}, "entry 2 must have at_s, device, rate, for_s"),
        ({"at_s": 1.0}, "entry 2 must have"),
        (ONE, "device 1 must have one rate at second 0"),
    ],
)
def test_what_is_refused_is_named_by_its_entry(entry: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        checked({"name": "x", "entries": [ONE, entry]}, num_devices=8)


@pytest.mark.parametrize("entries", [None, [], "text", [ONE] * (MAX_ENTRIES + 1)])
def test_a_schedule_has_entries(entries: Any) -> None:
    with pytest.raises(InputError, match="entries must be a list"):
        checked({"name": "x", "entries": entries}, num_devices=8)


def test_one_schedule_at_a_time(store: Store, run: RunView) -> None:
    first = commands.submit(store, run.id, "play", {"name": "S1", "entries": [ONE]}, key="a", **WHO)
    assert commands.submit(store, run.id, "play", {"name": "S1", "entries": [ONE]}, key="a", **WHO).id == first.id
    with pytest.raises(InputError, match=rf"S1 \(command {first.id}\) is not over"):
        commands.submit(store, run.id, "play", {"name": "S2", "entries": [ONE]}, **WHO)
    commands.finish(store, first.id, ok=False, result="ended")
    commands.submit(store, run.id, "play", {"name": "S2", "entries": [ONE]}, **WHO)
    told = [entry.detail["arguments"] for entry in audit.entries(store, run.id) if entry.action == "command.play"]
    assert told[0] == {"name": "S2", "num_entries": 1}


def test_a_batch_of_entries_is_one_version(store: Store, run: RunView) -> None:
    now = utc_now()
    entries = [
        (Entry(at_s=0.0, device=0, rate=2.57), None),
        (Entry(at_s=0.0, device=1, rate=3.75, for_s=1.0), now),
        (Entry(at_s=1.0, device=0, rate=1.0), None),
    ]
    assert injections.play(store, run.id, entries, command=7, now=now) == run.desired_version + 1
    assert injections.num_played(store, run.id, 7) == 3
    assert [entry.status for entry in injections.of_command(store, run.id, 7)] == ["cleared"] * 3
    assert injections.open_injections(store, run.id) == []
