"""Commands: refused before anything is written, once per key, applied when the engine says so."""

from __future__ import annotations

import math
from typing import Any

import pytest

from db import audit, commands, plans, recorder, runs
from db.errors import InputError, TransitionError
from db.messages import Failure
from db.runs import RunView
from db.store import Store
from tests.db.conftest import PLAN
from tests.db.telemetry import batch, hello, state, step


def submit(store: Store, kind: str, arguments: dict[str, Any] | None = None, **fields: Any) -> commands.CommandView:
    return commands.submit(store, 1, kind, arguments or {}, **{"actor": "ann", "source": "cli", **fields})


@pytest.mark.parametrize(
    ("kind", "arguments", "kept"),
    [
        ("inject", {"devices": [5, 3, 3], "rate": 2.57}, {"devices": [3, 5], "rate": 2.57, "for_s": None}),
        ("inject", {"devices": [0], "rate": 3, "for_s": 60}, {"devices": [0], "rate": 3.0, "for_s": 60.0}),
        ("clear", {}, {"devices": None}),
        ("clear", {"devices": [7]}, {"devices": [7]}),
        ("pause", {}, {}),
        ("resume", {}, {}),
        ("stop", {}, {}),
        ("checkpoint", {}, {}),
        ("replan", {}, {}),
        ("set_mode", {"mode": "manual"}, {"mode": "manual"}),
        ("reject", {"version": 1}, {"version": 1, "reason": ""}),
        ("reject", {"version": 1, "reason": " too\nrisky "}, {"version": 1, "reason": "too risky"}),
        ("propose", {"document": PLAN}, {"document": PLAN, "reason": "", "what_if": None}),
        ("propose", {"document": PLAN, "reason": " a\nb "}, {"document": PLAN, "reason": "a b", "what_if": None}),
    ],
)
def test_submit(store: Store, run: RunView, kind: str, arguments: dict[str, Any], kept: dict[str, Any]) -> None:
    command = submit(store, kind, arguments)
    assert (command.kind, command.arguments, command.status) == (kind, kept, "pending")
    assert (command.actor, command.source, command.result) == ("ann", "cli", "")
    assert commands.get(store, command.id) == command
    assert commands.pending(store) == [command]
    entry = audit.entries(store, 1)[0]
    assert (entry.actor, entry.source, entry.action, entry.result) == ("ann", "cli", f"command.{kind}", "pending")


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("dance", {}, "kind must be one of inject, .*, given 'dance'"),
        ("inject", {"devices": [9], "rate": 2.0}, r"device must be 0\.\.7, given 9"),
        ("inject", {"devices": [-1], "rate": 2.0}, r"device must be 0\.\.7, given -1"),
        ("inject", {"devices": [1.5], "rate": 2.0}, r"device must be 0\.\.7, given 1.5"),
        ("inject", {"devices": [True], "rate": 2.0}, r"device must be 0\.\.7, given True"),
        ("inject", {"devices": [], "rate": 2.0}, r"devices must be a list of 0\.\.7, given \[\]"),
        ("inject", {"devices": "3", "rate": 2.0}, r"devices must be a list of 0\.\.7, given '3'"),
        ("inject", {"rate": 2.0}, r"devices must be a list of 0\.\.7, given None"),
        ("inject", {"devices": [1], "rate": 0}, "rate must be a positive finite number, given 0"),
        ("inject", {"devices": [1], "rate": -2.0}, "given -2.0"),
        ("inject", {"devices": [1], "rate": math.nan}, "given nan"),
        ("inject", {"devices": [1], "rate": math.inf}, "given inf"),
        ("inject", {"devices": [1], "rate": "fast"}, "given 'fast'"),
        ("inject", {"devices": [1], "rate": True}, "given True"),
        ("inject", {"devices": [1], "rate": 2.0, "for_s": 0}, "for_s must be a positive finite number, given 0"),
        ("inject", {"devices": [1], "rate": 2.0, "colour": 1}, r"among \(devices, rate, for_s\), given 'colour'"),
        ("fail", {}, r"device must be 0\.\.7, given None"),
        ("fail", {"device": 8}, r"device must be 0\.\.7, given 8"),
        ("fail", {"device": True}, r"device must be 0\.\.7, given True"),
        ("fail", {"device": 3}, "run 1 must be training when a device is to fail, it is pending"),
        ("fail", {"device": 3, "attempt": "a"}, r"among \(device\), given 'attempt'"),
        ("clear", {"devices": [8]}, r"device must be 0\.\.7, given 8"),
        ("pause", {"now": True}, r"among \(\), given 'now'"),
        ("set_mode", {"mode": "turbo"}, "mode must be one of automatic, manual, off, given 'turbo'"),
        ("approve", {}, "version must be a plan version, given None"),
        ("approve", {"version": 4}, "run 1 has no plan 4, known versions: 1"),
        ("approve", {"version": 2**70}, "run 1 has no plan"),
        ("approve", {"version": 1}, "plan 1 is approved, expected one that is ready"),
        ("reject", {"version": 1, "reason": 7}, "reason must be a text, given 7"),
        ("reject", {"version": 1, "reason": "x" * 501}, "reason must have at most 500 characters, given 501"),
        ("rollback", {"version": 1}, "plan 1 is approved, expected one that is superseded"),
        ("propose", {}, "document must be a plan, given None"),
        ("propose", {"document": {"schema": 1}}, "document must be a plan, given {'schema': 1}"),
        ("propose", {"document": PLAN, "reason": "x" * 501}, "reason must have at most 500 characters"),
        ("propose", {"document": PLAN, "reason": 3}, "reason must be a text, given 3"),
        ("propose", {"document": PLAN, "what_if": 7}, "what_if must be one that started from run 1, given 7"),
    ],
)
def test_refused_with_nothing_written(
    store: Store, run: RunView, kind: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        submit(store, kind, arguments)
    assert "\n" not in str(caught.value)
    assert commands.pending(store) == []
    assert len(audit.entries(store)) == 1


def test_unknown_or_ended_run(store: Store, run: RunView) -> None:
    with pytest.raises(InputError, match="unknown run 4, known runs: 1"):
        commands.submit(store, 4, "pause", {}, actor="ann", source="cli")
    command = submit(store, "pause", key="k")
    runs.set_status(store, 1, "finished")
    with pytest.raises(InputError, match=r"run 1 has ended \(finished\)"):
        submit(store, "pause")
    assert submit(store, "pause", key="k") == command  # asked before it ended


def test_one_command_a_key(store: Store, run: RunView) -> None:
    command = submit(store, "pause", key="k")
    assert submit(store, "pause", key="k") == command
    assert submit(store, "pause").id != command.id
    assert submit(store, "pause").id != command.id
    assert len(commands.recent(store, 1, 10)) == 3
    with pytest.raises(InputError, match="key must have 1 to 200 characters, given 201"):
        submit(store, "pause", key="k" * 201)


def test_the_life_of_a_command(store: Store, run: RunView) -> None:
    first, second = submit(store, "inject", {"devices": [3], "rate": 2.0}), submit(store, "pause")
    assert [command.id for command in commands.pending(store)] == [first.id, second.id]
    commands.accept(store, first.id, desired_version=2)
    accepted = commands.accept(store, second.id, desired_version=3)
    assert (accepted.status, accepted.desired_version) == ("accepted", 3)
    assert accepted.accepted_at is not None
    assert commands.pending(store) == []
    assert commands.apply_observed(store, 1, 1, 10) == []
    applied = commands.apply_observed(store, 1, 2, 11)
    assert [(command.id, command.status, command.applied_step) for command in applied] == [(first.id, "applied", 11)]
    assert commands.apply_observed(store, 1, 2, 12) == []
    assert [command.id for command in commands.apply_observed(store, 1, 9, 13)] == [second.id]
    assert [command.id for command in commands.recent(store, 1, 1)] == [second.id]
    with pytest.raises(TransitionError, match="is applied"):
        commands.accept(store, first.id, desired_version=4)


def test_a_checkpoint_waits_for_its_answer_not_for_a_version(store: Store, run: RunView) -> None:
    command = submit(store, "checkpoint")
    version, request = runs.request_checkpoint(store, 1)
    assert (version, request, runs.desired(store, 1).checkpoint) == (2, 1, 1)
    accepted = commands.accept(store, command.id, desired_version=version, request=request)
    assert (accepted.status, accepted.request) == ("accepted", 1)
    assert commands.apply_observed(store, 1, 9, 5) == []
    assert commands.waiting(store, 1, "checkpoint") == [accepted]
    version, request = runs.request_checkpoint(store, 1)
    commands.ask_again(store, command.id, desired_version=version, request=request)
    assert (commands.get(store, command.id).request, runs.desired(store, 1).checkpoint) == (2, 2)
    done = commands.finish(store, command.id, ok=True, result="saved to /there", step=12)
    assert (done.status, done.result, done.applied_step) == ("applied", "saved to /there", 12)
    assert commands.waiting(store, 1, "checkpoint") == []
    commands.ask_again(store, command.id, desired_version=9, request=9)  # too late: it has its answer
    assert commands.get(store, command.id) == done


def test_a_failure_is_meant_for_the_attempt_that_is_heard(store: Store, run: RunView) -> None:
    recorder.record(store, 1, batch(hello(0)))
    with pytest.raises(InputError, match="run 1 must be training when a device is to fail, it is starting"):
        submit(store, "fail", {"device": 3})
    recorder.record(store, 1, batch(state(1, "training")))
    with pytest.raises(InputError, match="must have done a step since it was started, it has done none"):
        submit(store, "fail", {"device": 3})
    recorder.record(store, 1, batch(step(2)))
    command = submit(store, "fail", {"device": 3}, key="k")
    assert command.arguments == {"device": 3, "attempt": "a1"}
    assert runs.desired(store, 1).failure is None, "nobody has accepted it"
    with pytest.raises(InputError, match=rf"device 3 of run 1 is to fail already \(command {command.id}\)"):
        submit(store, "fail", {"device": 4})
    assert submit(store, "fail", {"device": 3}, key="k") == command
    commands.accept(store, command.id, desired_version=runs.change(store, 1))
    document = runs.desired(store, 1)
    assert document.failure == Failure(attempt="a1", device=3)
    assert document.read_by("a1") == document
    assert document.read_by("a2").failure is None
    assert commands.apply_observed(store, 1, 2, 7, attempt="a2") == [], "it was meant for another"
    assert commands.apply_observed(store, 1, 2, 7) == []
    (applied,) = commands.apply_observed(store, 1, 2, 7, attempt="a1")
    assert (applied.status, applied.applied_step) == ("applied", 7)
    assert runs.desired(store, 1) == document, "a version of the document says one thing"
    runs.change(store, 1, is_stopping=True)
    with pytest.raises(InputError, match="it is asked to stop"):
        submit(store, "fail", {"device": 4})


def test_an_attempt_that_has_done_nothing_is_not_made_to_fail(store: Store, run: RunView) -> None:
    recorder.record(store, 1, batch(hello(0), step(1), hello(0, attempt="a2"), state(1, "training", attempt="a2")))
    with pytest.raises(InputError, match="must have done a step since it was started"):
        submit(store, "fail", {"device": 3})
    recorder.record(store, 1, batch(step(2, attempt="a2")))
    assert submit(store, "fail", {"device": 3}).arguments["attempt"] == "a2"


def test_finish(store: Store, run: RunView) -> None:
    done = commands.finish(store, submit(store, "replan").id, ok=True, result="plan 2 asked for")
    assert (done.status, done.result) == ("applied", "plan 2 asked for")
    failed = commands.finish(store, submit(store, "replan").id, ok=False, result="no profile")
    assert (failed.status, failed.result) == ("failed", "no profile")
    assert failed.done_at is not None
    accepted = commands.accept(store, submit(store, "pause").id, desired_version=None)
    assert commands.apply_observed(store, 1, 100, 1) == []  # carried by no version
    assert commands.finish(store, accepted.id, ok=True, result="").status == "applied"
    with pytest.raises(TransitionError, match="is applied"):
        commands.finish(store, accepted.id, ok=False, result="")
    with pytest.raises(InputError, match="unknown command 99"):
        commands.finish(store, 99, ok=True, result="")


def test_a_ready_plan_can_be_approved_and_a_superseded_one_brought_back(store: Store, run: RunView) -> None:
    fields: dict[str, Any] = {"trigger": "t", "rates": {}, "parent": 1, "requested_by": "ann"}
    plans.add(store, 1, document=PLAN, key="a", **fields)
    assert submit(store, "approve", {"version": 2}).arguments == {"version": 2, "reason": ""}
    plans.move(store, 1, 1, "active")
    plans.move(store, 1, 2, "approved")
    plans.move(store, 1, 2, "active")
    command = submit(store, "rollback", {"version": 1, "reason": "it was faster"})
    assert command.arguments == {"version": 1, "reason": "it was faster"}
    assert audit.entries(store, 1)[0].detail["arguments"]["reason"] == "it was faster"
