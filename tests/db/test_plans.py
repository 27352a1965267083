"""Plans: one row a key, one worker a plan, one active plan a run."""

from __future__ import annotations

import math
from threading import Barrier, Thread
from typing import Any

import pytest

from db import audit, plans, runs
from db.errors import InputError, TransitionError
from db.plans import PlanJob, PlanView
from db.runs import RunView
from db.store import Store
from tests.db.conftest import PLAN

ANSWER: dict[str, Any] = {
    "document": {**PLAN, "standby": [3]},
    "status": "ready",
    "reason": "faster",
    "predicted_s": 0.5,
    "current_s": 1.25,
    "bound_s": 0.4,
    "gap": 0.0,
    "solve_s": 0.02,
    "solver": "highs",
    "details": {"log": ["one"], "worst": math.inf},
}


def request(store: Store, key: str = "shift-1", **fields: Any) -> PlanView:
    return plans.request(
        store,
        1,
        **{"trigger": "shift", "rates": {3: 2.57}, "parent": 1, "requested_by": "controller", "key": key, **fields},
    )


def test_request_is_one_row_a_key(store: Store, run: RunView) -> None:
    plan = request(store, rates={3: 2.57, 5: math.inf}, seed=4)
    assert (plan.version, plan.status, plan.rates, plan.seed) == (2, "queued", {3: 2.57, 5: math.inf}, 4)
    assert (plan.document, plan.predicted_s, plan.solved_at) == (None, None, None)
    assert request(store, rates={}) == plan
    assert request(store, key="shift-2").version == 3
    assert plans.count(store, 1) == 3
    assert [entry.version for entry in plans.all_plans(store, 1)] == [3, 2, 1]
    assert [entry.version for entry in plans.all_plans(store, 1, limit=1, offset=1)] == [2]


def test_concurrent_requests_with_one_key_give_one_row(store: Store, run: RunView) -> None:
    found: list[PlanView] = []
    threads = [Thread(target=lambda: found.append(request(store))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [plan.version for plan in found] == [2] * 4
    assert plans.count(store, 1) == 2


def test_add_brings_a_plan_ready_made(store: Store, run: RunView) -> None:
    fields: dict[str, Any] = {"trigger": "rollback", "rates": {}, "parent": 1, "requested_by": "ann", "key": "k"}
    plan = plans.add(store, 1, document=PLAN, status="approved", predicted_s=0.5, reason="back", **fields)
    assert (plan.status, plan.decided_by, plan.document, plan.parent) == ("approved", "ann", PLAN, 1)
    assert plans.add(store, 1, document={}, **fields) == plan
    with pytest.raises(InputError, match="ready or approved, given 'active'"):
        plans.add(store, 1, document=PLAN, status="active", **{**fields, "key": "other"})


def test_claim_hands_out_the_whole_job_once(store: Store, run: RunView) -> None:
    runs.set_profile(store, 1, {"num_layers": 16})
    plans.move(store, 1, 1, "active")
    request(store, seed=9)
    job = plans.claim(store, 1, 2, worker="w1")
    assert job == PlanJob(
        run=1,
        version=2,
        cluster={
            "nodes": [[0, 1, 2, 3], [4, 5, 6, 7]],
            "memory_bytes": {str(device): run.config.cluster.memory_bytes for device in range(8)},
        },
        profile={"num_layers": 16},
        train={"global_batch": 16, "micro_batch_sizes": [1], "dp_range": [1, 4], "max_tp": 4},
        rates={3: 2.57},
        current=PLAN,
        seed=9,
        time_limit_s=30.0,
    )
    assert plans.claim(store, 1, 2, worker="w2") is None
    plan = plans.get(store, 1, 2)
    assert (plan.status, plan.worker) == ("solving", "w1")
    runs.set_profile(store, 1, {"num_layers": 17})
    assert plans.job(store, 1, 2) == job  # as it was when it was claimed
    assert plans.job(store, 1, 1) is None


def test_two_concurrent_claims_have_one_winner(store: Store, run: RunView) -> None:
    runs.set_profile(store, 1, {})
    for version in range(2, 7):
        request(store, key=str(version))
        barrier = Barrier(4)
        jobs: list[PlanJob | None] = []

        def claim(version: int = version, barrier: Barrier = barrier, jobs: list[PlanJob | None] = jobs) -> None:
            barrier.wait()
            jobs.append(plans.claim(store, 1, version, worker="w"))

        threads = [Thread(target=claim) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(jobs) == 4
        assert sum(job is not None for job in jobs) == 1


def test_claim_of_what_is_decided_or_cannot_be_solved(store: Store, run: RunView) -> None:
    request(store)
    assert plans.claim(store, 1, 2, worker="w") is None
    plan = plans.get(store, 1, 2)
    assert (plan.status, plan.reason) == ("failed", "the run has no calibrated profile yet")
    assert plans.claim(store, 1, 2, worker="w") is None
    assert plans.claim(store, 1, 1, worker="w") is None


def test_solved_keeps_the_answer_and_the_first_one_only(store: Store, run: RunView) -> None:
    runs.set_profile(store, 1, {})
    request(store)
    plans.claim(store, 1, 2, worker="w")
    plan = plans.solved(store, 1, 2, **ANSWER)
    for name, value in ANSWER.items():
        assert getattr(plan, name) == value
    assert plan.solved_at is not None
    assert plans.solved(store, 1, 2, **{**ANSWER, "status": "failed", "reason": "again"}) == plan


def test_an_answer_that_comes_after_the_decision_changes_nothing(store: Store, run: RunView) -> None:
    runs.set_profile(store, 1, {})
    request(store)
    plans.claim(store, 1, 2, worker="w")
    rejected = plans.move(store, 1, 2, "rejected", actor="ann", reason="not now")
    assert plans.solved(store, 1, 2, **ANSWER) == rejected
    assert (rejected.decided_by, rejected.reason, rejected.document) == ("ann", "not now", None)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"status": "active"}, "given 'active'"), ({"document": None}, "a ready plan needs a document")],
)
def test_solved_refuses(store: Store, run: RunView, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plans.solved(store, 1, 1, **{**ANSWER, **change})


def test_the_active_plan_supersedes_the_former(store: Store, run: RunView) -> None:
    runs.set_profile(store, 1, {})
    plans.move(store, 1, 1, "active")
    assert runs.get(store, 1).active_plan_version == 1
    request(store)
    plans.claim(store, 1, 2, worker="w")
    plans.solved(store, 1, 2, **ANSWER)
    for status in ("approved", "switching", "active"):
        plans.move(store, 1, 2, status, actor="ann")
    assert plans.move(store, 1, 2, "active").status == "active"  # said twice
    first, second = plans.get(store, 1, 1), plans.get(store, 1, 2)
    assert (first.status, first.reason) == ("superseded", "plan 2 is active")
    assert (second.status, second.decided_by) == ("active", "ann")
    assert second.active_at is not None
    assert runs.get(store, 1).active_plan_version == 2
    plans.set_measured(store, 1, 2, 0.55)
    assert plans.get(store, 1, 2).measured_s == 0.55
    with pytest.raises(TransitionError, match="plan 1 of run 1 is superseded"):
        plans.move(store, 1, 1, "active")
    results = [(entry.target, entry.result) for entry in audit.entries(store, 1) if entry.action == "plan.status"]
    assert results[:3] == [("plan 2", "active"), ("plan 1", "superseded"), ("plan 2", "switching")]


@pytest.mark.parametrize("version", [2, 0, -3, 2**70])
def test_unknown_plan(store: Store, run: RunView, version: int) -> None:
    with pytest.raises(InputError, match=f"run 1 has no plan {version}, known versions: 1"):
        plans.get(store, 1, version)
    with pytest.raises(InputError, match="unknown run 5"):
        plans.get(store, 5, 1)


def many(store: Store, number: int) -> None:
    """Plans 2 to number + 1: every third rejected, predicted seconds that fall and rise."""
    for index in range(number):
        plans.add(
            store,
            1,
            document=PLAN,
            trigger="shift" if index % 2 else "command",
            rates={},
            parent=1,
            requested_by="ann",
            key=f"p{index}",
            predicted_s=None if index == 4 else math.nan if index == 5 else 1.0 + abs(index - 3) / 10,
        )
        if index % 3 == 0:
            plans.move(store, 1, index + 2, "rejected", actor="ann", reason="slow", decided_reason="no time")


@pytest.mark.parametrize(
    ("fields", "versions", "why"),
    [
        ({}, [9, 8, 7, 6, 5, 4, 3, 2, 1], "newest first"),
        ({"statuses": ("rejected",)}, [8, 5, 2], "every third"),
        ({"statuses": ("ready", "rejected"), "triggers": ("shift",)}, [9, 7, 5, 3], "both hold"),
        ({"triggers": ("nobody",)}, [], "none"),
        ({"sort": "predicted_s", "is_descending": False}, [5, 4, 3, 2, 8, 9, 7, 6, 1], "NaN is the largest, None last"),
        ({"sort": "predicted_s"}, [7, 9, 8, 2, 3, 4, 5, 6, 1], "None last here too; the newest first among equals"),
    ],
)
def test_plans_are_selected_sorted_and_counted(
    store: Store, run: RunView, fields: dict[str, Any], versions: list[int], why: str
) -> None:
    many(store, 8)
    chosen = plans.Selection(**fields)
    if fields.get("sort") == "predicted_s":
        found = [(plan.predicted_s, plan.version) for plan in plans.all_plans(store, 1, selection=chosen)]
        numbers = [value for value, _ in found if value is not None]
        assert [value for value, _ in found[len(numbers) :]] == [None, None], why
        finite = [value for value in numbers if not math.isnan(value)]
        assert finite == sorted(finite, reverse=chosen.is_descending)
        assert math.isnan(numbers[0 if chosen.is_descending else -1]), why
    else:
        assert [plan.version for plan in plans.all_plans(store, 1, selection=chosen)] == versions, why
    assert plans.count(store, 1, chosen) == len(versions)
    page = plans.all_plans(store, 1, selection=chosen, limit=2, offset=1)
    whole = plans.all_plans(store, 1, selection=chosen)
    assert [plan.version for plan in page] == [plan.version for plan in whole[1:3]]


def test_a_selection_refuses_what_is_not_sortable() -> None:
    with pytest.raises(InputError, match=r"sorted by one of version, .*, given 'document'"):
        plans.Selection(sort="document")


def test_triggers_and_versions(store: Store, run: RunView) -> None:
    many(store, 3)
    assert plans.triggers(store, 1) == ["command", "initial", "shift"]
    assert sorted(plans.of_versions(store, 1, [1, 3, 99, 2**70])) == [1, 3]
    assert plans.of_versions(store, 1, []) == {}


def test_a_decision_keeps_its_reason(store: Store, run: RunView) -> None:
    many(store, 2)
    rejected = plans.get(store, 1, 2)
    assert (rejected.reason, rejected.decided_reason, rejected.decided_by) == ("slow", "no time", "ann")
    plans.move(store, 1, 1, "active")
    plans.move(store, 1, 3, "approved", actor="ann", reason="saves 3 s", decided_reason="go")
    plans.move(store, 1, 3, "active")
    after = plans.add(
        store, 1, document=PLAN, trigger="rollback", rates={}, parent=1, requested_by="bob", key="r",
        status="approved", reason="rolled back to plan 1 by bob", decided_reason="it was calmer",
    )  # fmt: skip
    assert (after.decided_by, after.decided_reason) == ("bob", "it was calmer")
    plans.move(store, 1, 4, "active")
    assert (plans.get(store, 1, 3).reason, plans.get(store, 1, 3).decided_reason) == ("plan 4 is active", "go")
    story = [(entry.action, entry.result) for entry in audit.of_target(store, 1, "plan 3")]
    assert story == [
        ("plan.create", "ready"),
        ("plan.status", "approved"),
        ("plan.status", "active"),
        ("plan.status", "superseded"),
    ]


def test_plans_that_ran(store: Store, run: RunView) -> None:
    many(store, 2)
    assert plans.all_that_ran(store, 1) == []
    plans.move(store, 1, 1, "active")
    plans.move(store, 1, 3, "approved")
    plans.move(store, 1, 3, "active")
    plans.set_measured(store, 1, 3, 1.5)
    assert [(entry.version, entry.measured_s) for entry in plans.all_that_ran(store, 1)] == [(1, None), (3, 1.5)]
    assert [entry.version for entry in plans.all_that_ran(store, 1, limit=1)] == [3]
