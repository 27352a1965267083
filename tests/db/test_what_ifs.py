"""What-ifs: one row a key, one claim, one answer, and ends that stay ends; on both databases."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from db import audit, commands, what_ifs
from db.errors import InputError, TransitionError
from db.runs import RunView
from db.store import Store
from tests.db.conftest import PLAN

REQUEST: dict[str, Any] = {
    "origin": "run-1",
    "title": "run 1, plan v1",
    "cluster": {"nodes": [[0, 1]], "memory_bytes": {"0": 1.0, "1": 1.0}},
    "profile": {"num_layers": 2},
    "train": {"global_batch": 4},
    "rates": {0: 2.57, 1: math.inf},
    "current": PLAN,
    "current_version": 1,
    "moves": [(1e6, 0.4)],
    "time_limit_s": 5.0,
}


def submit(store: Store, key: str = "k", run: int | None = None, **fields: Any) -> what_ifs.WhatIfView:
    return what_ifs.submit(store, REQUEST | fields, run=run, actor="ann", source="dashboard", key=key)


def test_a_question_survives_the_store(store: Store) -> None:
    asked = submit(store)
    assert (asked.status, asked.run, asked.actor, asked.result) == ("queued", None, "ann", None)
    assert asked.request.rates == {0: 2.57, 1: math.inf}
    assert asked.request.moves == ((1e6, 0.4),)
    assert asked.request.current == PLAN
    assert what_ifs.get(store, asked.id) == asked
    assert what_ifs.waiting(store) == what_ifs.recent(store) == [asked]
    entry = audit.entries(store)[0]
    assert (entry.actor, entry.action, entry.target, entry.result) == (
        "ann",
        "what-if",
        f"what-if {asked.id}",
        "queued",
    )


def test_the_same_key_is_the_same_question(store: Store) -> None:
    first = submit(store)
    assert submit(store, title="another") == first
    assert submit(store, key="k2").id != first.id
    assert what_ifs.count(store) == 2
    assert [entry.action for entry in audit.entries(store)] == ["what-if", "what-if"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"origin": ""}, "origin of a what-if"),
        ({"rates": {0: math.nan}}, r"rates\.0 of a what-if: .*greater than 0.*given nan"),
        ({"rates": {0: -1.0}}, r"rates\.0 of a what-if: .*given -1"),
        ({"rates": {"x": 1.0}}, "rates.*given 'x'"),
        ({"time_limit_s": 31.0}, r"time_limit_s .*less than or equal to 30.*given 31"),
        ({"colour": 1}, "colour of a what-if: Extra inputs are not permitted"),
        ({"cluster": None}, "cluster of a what-if"),
    ],
)
def test_refused_with_nothing_written(store: Store, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        submit(store, **fields)
    assert what_ifs.count(store) == 0
    assert audit.entries(store) == []


def test_an_unknown_run_or_key_is_refused(store: Store) -> None:
    with pytest.raises(InputError, match="unknown run 9"):
        submit(store, run=9)
    with pytest.raises(InputError, match="key must have 1 to 200 characters, given 0"):
        submit(store, key="")
    with pytest.raises(InputError, match="unknown what-if 5"):
        what_ifs.get(store, 5)
    with pytest.raises(InputError, match="unknown what-if"):
        what_ifs.get(store, 2**70)


def test_claimed_once_and_answered_once(store: Store) -> None:
    id = submit(store).id
    request = what_ifs.claim(store, id, worker="w1")
    assert request is not None
    assert request.rates == {0: 2.57, 1: math.inf}
    assert what_ifs.claim(store, id, worker="w2") is None
    assert what_ifs.get(store, id).worker == "w1"
    done = what_ifs.answered(store, id, result={"bound_s": math.inf}, seconds=0.25)
    assert (done.status, done.result, done.seconds, done.is_open) == ("done", {"bound_s": math.inf}, 0.25, False)
    assert done.done_at is not None
    assert what_ifs.answered(store, id, result={}, seconds=9.0) == done
    assert what_ifs.fail(store, id, "late") == done
    assert what_ifs.waiting(store) == []
    assert [entry.result for entry in audit.entries(store)] == ["done", "solving", "queued"]


def test_only_one_of_many_workers_gets_it(store: Store) -> None:
    id = submit(store).id
    got: list[object] = []
    barrier = threading.Barrier(4)

    def claim(name: str) -> None:
        barrier.wait()
        got.append(what_ifs.claim(store, id, worker=name))

    threads = [threading.Thread(target=claim, args=(f"w{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(entry is not None for entry in got) == 1


def test_a_cancelled_one_drops_its_answer(store: Store) -> None:
    id = submit(store).id
    what_ifs.claim(store, id, worker="w1")
    cancelled = what_ifs.cancel(store, id, actor="bob")
    assert (cancelled.status, cancelled.error) == ("cancelled", "cancelled by bob")
    assert what_ifs.cancel(store, id, actor="eve") == cancelled
    assert what_ifs.answered(store, id, result={}, seconds=1.0).result is None
    assert what_ifs.claim(store, submit(store, key="other").id, worker="w1") is not None


def test_what_has_ended_cannot_be_cancelled(store: Store) -> None:
    id = submit(store).id
    failed = what_ifs.fail(store, id, "no worker took it")
    assert (failed.status, failed.error) == ("failed", "no worker took it")
    assert what_ifs.claim(store, id, worker="w1") is None
    with pytest.raises(TransitionError, match=f"what-if {id} is failed"):
        what_ifs.cancel(store, id, actor="bob")


def test_history_of_a_run_and_of_all(store: Store, run: RunView) -> None:
    ids = [submit(store, key=str(number), run=run.id if number % 2 else None).id for number in range(6)]
    assert [entry.id for entry in what_ifs.recent(store, limit=3)] == ids[:2:-1]
    assert [entry.id for entry in what_ifs.recent(store, limit=3, offset=4)] == [ids[1], ids[0]]
    assert [entry.id for entry in what_ifs.recent(store, run=run.id)] == ids[5::-2]
    assert (what_ifs.count(store), what_ifs.count(store, run=run.id)) == (6, 3)
    assert [entry.id for entry in what_ifs.waiting(store, limit=2)] == ids[:2]


def test_a_proposal_names_a_what_if_of_its_own_run(store: Store, run: RunView) -> None:
    mine, other = submit(store, run=run.id).id, submit(store, key="o").id
    command = commands.submit(
        store, run.id, "propose", {"document": PLAN, "what_if": mine}, actor="ann", source="dashboard"
    )
    assert command.arguments["what_if"] == mine
    with pytest.raises(InputError, match=f"what_if must be one that started from run {run.id}, given {other}"):
        commands.submit(store, run.id, "propose", {"document": PLAN, "what_if": other}, actor="ann", source="dashboard")
