"""What-ifs and proposals: asked, sent, answered by the worker, taken up by the controller; nothing waits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from db import audit, commands, plans, runs, what_ifs
from db.commands import CommandView
from db.run_config import RunConfig
from db.what_ifs import WhatIfView
from planner import presets, worker
from planner.control.what_ifs import QUEUED_LIMIT_S, RESEND_S, SOLVING_GRACE_S
from planner.errors import SpecError
from planner.plan import Plan, even_plan
from planner.validate import violations
from planner.worker import solve_what_if
from tests.planner.control_rig import Rig

Make = Callable[..., Rig]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Rig] = []

    def build(mode: str = "automatic") -> Rig:
        made.append(Rig(tmp_path, config=RunConfig.model_validate({"control": {"mode": mode}})))
        return made[-1]

    yield build
    for rig in made:
        rig.close()


@pytest.fixture
def rig(make: Make) -> Rig:
    """A run that trains."""
    rig = make()
    rig.start()
    rig.steps(8)
    return rig


def request(rates: dict[int, float], **fields: Any) -> dict[str, Any]:
    profile, train = presets.model("demo")
    cluster = presets.cluster("demo")
    current = even_plan(
        cluster.nodes, num_layers=16, num_micro_batches=16, micro_batch_size=1, dp_degree=2, tp_degree=2, pp_degree=2
    )
    return {
        "origin": "demo",
        "title": "demo",
        "cluster": cluster.to_json(),
        "profile": profile.to_json(),
        "train": train.to_json(),
        "rates": rates,
        "current": current.to_json(),
    } | fields


def ask(rig: Rig, rates: dict[int, float], key: str = "k", run: int | None = None, **fields: Any) -> WhatIfView:
    return what_ifs.submit(rig.store, request(rates, **fields), run=run, actor="ann", source="dashboard", key=key)


def end_run(rig: Rig) -> None:
    runs.set_status(rig.store, rig.run.id, "failed", reason="test")


def propose(rig: Rig, document: dict[str, Any], **arguments: Any) -> CommandView:
    return commands.submit(
        rig.store, rig.run.id, "propose", {"document": document} | arguments, actor="ann", source="dashboard"
    )


def test_the_worker_answers(rig: Rig) -> None:
    asked = ask(rig, {3: 2.57}, time_limit_s=20.0)
    limits: list[float] = []
    assert solve_what_if(rig.store, asked.id, worker="w1", on_limit=limits.append) == "done"
    done = what_ifs.get(rig.store, asked.id)
    assert limits == [20.0]
    assert done.result is not None
    assert done.result["status"] == "improved"
    assert done.result["plans"][0]["step_s"] < done.result["current_s"]
    assert done.seconds == done.result["seconds"]
    plan = Plan.from_json(done.result["plans"][0]["plan"])
    assert violations(plan, cluster=presets.cluster("demo"), num_layers=16, global_batch=16, max_tp=4) == []


def test_delivered_twice_solved_once(rig: Rig) -> None:
    asked = ask(rig, {3: 2.57})
    assert solve_what_if(rig.store, asked.id, worker="w1") == "done"
    first = what_ifs.get(rig.store, asked.id)
    assert solve_what_if(rig.store, asked.id, worker="w2") == "skipped"
    assert what_ifs.get(rig.store, asked.id) == first


def test_an_infeasible_question_is_answered_with_the_reason(rig: Rig) -> None:
    asked = ask(rig, dict.fromkeys(range(8), math.inf))
    assert solve_what_if(rig.store, asked.id, worker="w1") == "done"
    result = what_ifs.get(rig.store, asked.id).result
    assert result is not None
    assert (result["status"], result["plans"]) == ("infeasible", [])
    assert "devices: at least 1 must be alive" in result["reason"]


def test_a_malformed_problem_fails_with_the_reason(rig: Rig) -> None:
    asked = ask(rig, {77: 2.0})
    assert solve_what_if(rig.store, asked.id, worker="w1") == "failed"
    assert "SpecError: device must be one of" in what_ifs.get(rig.store, asked.id).error


@pytest.mark.parametrize("error", [SpecError("no"), ZeroDivisionError("by zero")])
def test_an_exception_fails_the_row(rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def broken(problem: object) -> object:
        raise error

    monkeypatch.setattr(worker, "_found", broken)
    asked = ask(rig, {})
    assert solve_what_if(rig.store, asked.id, worker="w1") == "failed"
    assert type(error).__name__ in what_ifs.get(rig.store, asked.id).error


def test_an_answer_to_a_cancelled_question_is_dropped(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, found = ask(rig, {3: 2.57}), worker._found

    def slow(problem: Any) -> Any:
        what_ifs.cancel(rig.store, asked.id, actor="bob")
        return found(problem)

    monkeypatch.setattr(worker, "_found", slow)
    assert solve_what_if(rig.store, asked.id, worker="w1") == "cancelled"


def test_the_controller_sends_it_on(rig: Rig) -> None:
    asked = ask(rig, {3: 2.57}, run=rig.run.id)
    rig.turn(1.0)
    assert rig.queue.what_ifs == [asked.id]
    assert what_ifs.get(rig.store, asked.id).status == "done"
    assert rig.statuses() == {1: "active"}, "nothing touches the run"
    assert rig.engine.bus.documents[rig.run.id].version == 1


def test_no_run_has_to_be_open(rig: Rig) -> None:
    end_run(rig)
    rig.turn()
    asked = ask(rig, {3: 2.57})
    rig.turn(1.0)
    assert what_ifs.get(rig.store, asked.id).status == "done"


def test_one_at_a_time_oldest_first(rig: Rig) -> None:
    rig.queue.is_working = False
    first, second = ask(rig, {3: 2.57}).id, ask(rig, {4: 2.57}, key="2").id
    rig.turn(1.0)
    what_ifs.claim(rig.store, first, worker="w1")
    rig.turn(RESEND_S + 1)
    assert rig.queue.what_ifs == [first]
    what_ifs.answered(rig.store, first, result={}, seconds=1.0)
    rig.turn(1.0)
    assert rig.queue.what_ifs == [first, second]


def test_sent_again_and_given_up(rig: Rig) -> None:
    rig.queue.is_working = False
    asked = ask(rig, {})
    rig.turn(1.0)
    rig.turn(1.0)
    assert rig.queue.what_ifs == [asked.id]
    rig.turn(RESEND_S + 0.1)
    assert rig.queue.what_ifs == [asked.id] * 2
    rig.turn(QUEUED_LIMIT_S)
    failed = what_ifs.get(rig.store, asked.id)
    assert (failed.status, failed.error) == ("failed", f"no worker took it within {QUEUED_LIMIT_S:.0f} s")


def test_what_waited_behind_another_is_not_given_up_for_it(rig: Rig) -> None:
    rig.queue.is_working = False
    first, second = ask(rig, {}).id, ask(rig, {}, key="2").id
    rig.turn(1.0)
    what_ifs.claim(rig.store, first, worker="w1")
    rig.clock.seconds += QUEUED_LIMIT_S + 1
    what_ifs.answered(rig.store, first, result={}, seconds=1.0)
    rig.turn(1.0)
    assert what_ifs.get(rig.store, second).status == "queued"
    assert rig.queue.what_ifs[-1] == second


def test_a_worker_that_does_not_answer(rig: Rig) -> None:
    rig.queue.is_working = False
    asked = ask(rig, {}, time_limit_s=5.0)
    rig.turn(1.0)
    what_ifs.claim(rig.store, asked.id, worker="w1")
    rig.turn(5.0 + SOLVING_GRACE_S + 1)
    assert what_ifs.get(rig.store, asked.id).error == "w1 did not answer within 35 s"


def test_a_broker_that_is_away_delays_it(rig: Rig) -> None:
    rig.bus.is_away = True
    rig.turn(1.0)
    asked = ask(rig, {})
    rig.turn(QUEUED_LIMIT_S + 1)
    assert (rig.queue.what_ifs, what_ifs.get(rig.store, asked.id).status) == ([], "queued")
    rig.bus.is_away = False
    rig.turn(1.0)
    assert what_ifs.get(rig.store, asked.id).status == "done"


def answer(rig: Rig) -> tuple[int, dict[str, Any]]:
    """A what-if of the run with device 3 slow: its id, and its best plan."""
    asked = ask(rig, {3: 2.57}, run=rig.run.id)
    rig.turn(1.0)
    result = what_ifs.get(rig.store, asked.id).result
    assert result is not None
    return asked.id, result["plans"][0]["plan"]


@pytest.mark.parametrize("mode", ["automatic", "manual", "off"])
def test_a_proposal_waits_for_approval_and_is_then_switched_to(make: Make, mode: str) -> None:
    rig = make(mode)
    rig.start()
    rig.steps(8)
    what_if, document = answer(rig)
    command = propose(rig, document, what_if=what_if, reason="node 0 is to be serviced")
    rig.steps(5)
    told = commands.get(rig.store, command.id)
    assert (told.status, told.result) == ("applied", "plan 2 is ready and waits for approval")
    plan = plans.get(rig.store, rig.run.id, 2)
    assert (plan.status, plan.trigger, plan.document, plan.parent) == ("ready", "what-if", document, 1)
    assert plan.reason == f"what-if {what_if} by ann: node 0 is to be serviced"
    assert (plan.requested_by, plan.details["what_if"]) == ("ann", what_if)
    assert plan.predicted_s is not None
    assert plan.current_s is not None
    assert rig.view().active_plan_version == 1, "nothing touches the run until it is approved"
    commands.submit(rig.store, rig.run.id, "approve", {"version": 2}, actor="bob", source="cli")
    rig.steps(4)
    assert rig.statuses() == {1: "superseded", 2: "active"}


def test_a_proposal_without_a_what_if_is_manual(rig: Rig) -> None:
    _, document = answer(rig)
    propose(rig, document)
    rig.turn()
    plan = plans.get(rig.store, rig.run.id, 2)
    assert (plan.trigger, plan.reason, plan.details) == ("manual", "proposed by ann", {})


def test_a_proposal_is_taken_up_once(rig: Rig) -> None:
    _, document = answer(rig)
    command = propose(rig, document)
    rig.turn()
    orders = rig.loop._controls[rig.run.id].orders
    orders._propose(command, rig.view())  # as if the controller had died before it said so
    assert rig.statuses() == {1: "active", 2: "ready"}


def changed(document: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return document | fields


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: plan | {"schema": 2}, "schema must be 1, given 2"),
        (lambda plan: plan | {"num_layers": 17}, "num_layers must be 16, given 17"),
        (lambda plan: plan | {"micro_batch_size": 2}, "global batch 16"),
        (lambda plan: plan | {"standby": [*plan["standby"], 8]}, r"devices must be of the cluster 0\.\.7, given \[8\]"),
        (lambda plan: plan | {"pipelines": []}, "at least 1 pipeline"),
    ],
)
def test_a_broken_proposal_is_refused(
    rig: Rig, change: Callable[[dict[str, Any]], dict[str, Any]], message: str
) -> None:
    _, document = answer(rig)
    command = propose(rig, change(document))
    rig.turn()
    told = commands.get(rig.store, command.id)
    assert told.status == "failed"
    assert message.replace("\\", "") in told.result
    assert rig.statuses() == {1: "active"}


def test_a_proposal_may_not_write_off_a_device_that_is_alive(rig: Rig) -> None:
    asked = ask(rig, {7: math.inf}, run=rig.run.id)
    rig.turn(1.0)
    result = what_ifs.get(rig.store, asked.id).result
    assert result is not None
    document = result["plans"][0]["plan"]
    assert document["failed"] == [7]
    refused = propose(rig, document)
    taken = propose(rig, document | {"failed": [], "standby": [*document["standby"], 7]})
    rig.turn()
    assert "alive may stand by instead of being failed, given [7]" in commands.get(rig.store, refused.id).result
    assert commands.get(rig.store, taken.id).status == "applied"


def test_a_proposal_may_not_count_on_a_device_that_has_failed(make: Make) -> None:
    rig = make("manual")
    rig.start()
    rig.steps(8)
    _, document = answer(rig)
    rig.steps(8, d3=math.inf)
    command = propose(rig, document)
    rig.turn()
    assert "devices that have failed cannot be active, given [3]" in commands.get(rig.store, command.id).result


def test_the_active_plan_cannot_be_proposed(rig: Rig) -> None:
    active = plans.get(rig.store, rig.run.id, 1).document
    assert active is not None
    command = propose(rig, active)
    rig.turn()
    assert commands.get(rig.store, command.id).result == "the proposed plan is what plan 1 runs already"


def test_before_the_calibration_nothing_can_be_proposed(make: Make) -> None:
    rig = make()
    rig.turn()
    active = plans.get(rig.store, rig.run.id, 1).document
    assert active is not None
    command = propose(rig, active)
    rig.turn()
    assert "not calibrated yet" in commands.get(rig.store, command.id).result


def test_a_waiting_proposal_does_not_hinder_the_loop(rig: Rig) -> None:
    _, document = answer(rig)
    propose(rig, document)
    rig.turn()
    commands.submit(rig.store, rig.run.id, "inject", {"devices": [5], "rate": 5.42}, actor="ann", source="dashboard")
    rig.steps(20)
    assert rig.statuses()[3] == "active"
    assert rig.statuses()[2] == "ready"
    assert any(entry.action == "plan.decision" and entry.target == "plan 2" for entry in audit.entries(rig.store))
