"""The control loop on a bench: what follows from what, without waiting for anything."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from db import audit, checkpoints, commands, episodes, heartbeats, history, injections, plans, recorder, runs
from db.commands import CommandView
from db.errors import StoreError
from db.messages import Hello, State
from db.run_config import RunConfig
from planner.control.errors import LeaseError
from planner.control.lease import STALE_S, Lease
from planner.control.planning import QUEUED_LIMIT_S, RESEND_S, SOLVING_GRACE_S
from planner.control.run import SILENCE_S
from planner.plan import Plan
from planner.worker import solve_plan
from tests.planner.control_rig import FakeEngine, Rig, create_run

NAN = math.nan
Make = Callable[..., Rig]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Rig] = []

    def build(mode: str = "automatic", num_steps: int = 1000) -> Rig:
        config = RunConfig.model_validate({"control": {"mode": mode}, "train": {"num_steps": num_steps}})
        made.append(Rig(tmp_path, config=config))
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


def submit(rig: Rig, kind: str, **arguments: Any) -> CommandView:
    return commands.submit(rig.store, rig.run.id, kind, arguments, actor="ann", source="cli")


def inject(rig: Rig, device: int, rate: float, for_s: float | None = None) -> CommandView:
    return submit(rig, "inject", devices=[device], rate=rate, for_s=for_s)


def actions(rig: Rig) -> list[tuple[str, str]]:
    return [(entry.action, entry.result) for entry in reversed(audit.entries(rig.store, rig.run.id, limit=1000))]


# -- a run begins, trains and ends


def test_a_pending_run_gets_its_document(make: Make) -> None:
    rig = make()
    rig.turn()
    document = rig.bus.documents[rig.run.id]
    assert (document.version, document.plan_version, document.paused, document.stop) == (1, 1, False, False)
    assert rig.statuses() == {1: "approved"}


def test_the_first_step_makes_the_first_plan_active(make: Make) -> None:
    rig = make()
    rig.start()
    assert rig.view().status == "training"
    rig.steps(1)
    assert rig.statuses() == {1: "active"}
    assert rig.view().active_plan_version == 1
    assert rig.view().profile is not None


def test_a_healthy_run_asks_for_nothing(rig: Rig) -> None:
    rig.steps(30)
    assert rig.statuses() == {1: "active"}
    assert rig.queue.sent == []
    assert episodes.all_episodes(rig.store, rig.run.id) == []
    assert plans.get(rig.store, rig.run.id, 1).measured_s == 1.0


def test_the_end_closes_everything(rig: Rig) -> None:
    rig.queue.is_working = False
    inject(rig, 3, 2.57)
    rig.steps(8)
    assert rig.statuses()[2] == "queued"
    left = submit(rig, "pause")
    runs.engine_exited(rig.store, rig.run.id, 1)
    rig.turn()
    assert rig.view().status == "failed"
    assert rig.statuses()[2] == "failed"
    assert [episode.is_open for episode in episodes.all_episodes(rig.store, rig.run.id)] == [False]
    assert injections.open_injections(rig.store, rig.run.id) == []
    assert "ended" in commands.get(rig.store, left.id).result
    assert commands.get(rig.store, left.id).status == "failed"


def test_the_last_words_are_read_after_the_end(rig: Rig) -> None:
    for _ in range(5):
        rig.engine.take_step()
    runs.engine_exited(rig.store, rig.run.id, 0)
    rig.turn()
    assert rig.view().step == 12
    assert rig.view().status == "finished"


def test_what_ended_while_nobody_looked_is_closed(rig: Rig) -> None:
    inject(rig, 3, 2.57)
    rig.steps(6)
    rig.engine.take_step()
    runs.engine_exited(rig.store, rig.run.id, 0)
    rig.loop = rig.new_loop()
    rig.turn()
    assert rig.view().step == rig.engine.step - 1
    assert not episodes.all_episodes(rig.store, rig.run.id)[0].is_open


# -- the loop: shift, plan, decision, switch


def test_a_straggler_leads_to_a_switch_and_its_recovery_to_another(rig: Rig) -> None:
    inject(rig, 3, 2.57)
    rig.steps(8)
    assert rig.statuses() == {1: "superseded", 2: "active"}
    plan = plans.get(rig.store, rig.run.id, 2)
    assert (plan.trigger, plan.requested_by, plan.decided_by, plan.parent) == ("shift", "controller", "controller", 1)
    assert plan.rates == {**dict.fromkeys(range(8), 1.0), 3: 2.57}
    assert plan.reason.startswith("move: ")
    assert plan.predicted_s is not None
    assert plan.current_s is not None
    assert plan.predicted_s < plan.current_s
    (episode,) = episodes.all_episodes(rig.store, rig.run.id)
    assert (episode.device, episode.start_step, episode.cause, episode.rate) == (3, 9, "device", 2.57)
    rig.steps(20)
    assert rig.statuses() == {1: "superseded", 2: "active"}, "the new plan assumes the rate: no further shift"
    assert episodes.all_episodes(rig.store, rig.run.id)[0].is_open, "it is slow still, whatever the plan"
    submit(rig, "clear", devices=None)
    rig.steps(12)
    assert rig.statuses() == {1: "superseded", 2: "superseded", 3: "active"}
    (episode,) = episodes.all_episodes(rig.store, rig.run.id)
    assert episode.end_step is not None
    assert len(history.switches(rig.store, rig.run.id)) == 2
    assert {("plan.decision", "move"), ("verdict", "slower (device)"), ("verdict", "recovered (device)")} <= set(
        actions(rig)
    )


def test_the_switch_follows_within_three_rounds_of_the_verdict(rig: Rig) -> None:
    inject(rig, 3, 2.57)
    rig.steps(3)  # one takes the command up, three make a jump
    assert rig.statuses() == {1: "active"}
    while rig.statuses().get(2) is None:
        rig.steps(1)
    for _ in range(2):
        rig.turn()
    assert rig.statuses()[2] == "switching"
    assert rig.bus.documents[rig.run.id].plan_version == 2


def test_several_stragglers_make_one_plan(rig: Rig) -> None:
    submit(rig, "inject", devices=[0], rate=3.75)
    submit(rig, "inject", devices=[1], rate=12.53)
    inject(rig, 6, 2.57)
    rig.steps(30)
    assert rig.statuses() == {1: "superseded", 2: "active"}
    assert plans.get(rig.store, rig.run.id, 2).rates == {**dict.fromkeys(range(8), 1.0), 0: 3.75, 1: 12.53, 6: 2.57}


def test_heavy_data_and_everyone_lead_to_no_plan(rig: Rig) -> None:
    rig.steps(20, **{f"d{device}": 1.5 for device in range(8)})
    rig.steps(20)
    assert rig.statuses() == {1: "active"}
    assert {episode.cause for episode in episodes.all_episodes(rig.store, rig.run.id)} == {"everyone"}
    assert all(not episode.is_open for episode in episodes.all_episodes(rig.store, rig.run.id))


def test_a_silent_device_is_an_unknown_episode(rig: Rig) -> None:
    rig.steps(12, d5=NAN)
    (episode,) = episodes.all_episodes(rig.store, rig.run.id)
    assert (episode.device, episode.cause, episode.is_open) == (5, "unknown", True)
    assert math.isnan(episode.rate)
    rig.steps(6)
    assert not episodes.all_episodes(rig.store, rig.run.id)[0].is_open
    assert rig.statuses() == {1: "active"}


def test_staying_is_a_decision_with_a_reason(make: Make) -> None:
    rig = make(num_steps=16)  # too few steps are left to gain anything
    rig.start()
    rig.steps(8)
    inject(rig, 3, 1.1)
    rig.steps(7)
    assert rig.statuses() == {1: "active", 2: "rejected"}
    assert plans.get(rig.store, rig.run.id, 2).reason.startswith("stay: ")
    assert ("plan.decision", "stay") in actions(rig)


def test_never_two_plans_in_flight(rig: Rig) -> None:
    rig.queue.is_working = False
    inject(rig, 3, 2.57)
    rig.steps(8)
    inject(rig, 6, 5.42)
    rig.steps(8)
    assert rig.statuses() == {1: "active", 2: "queued"}
    refused = submit(rig, "replan")
    rig.turn()
    assert commands.get(rig.store, refused.id).result == "no plan can be asked for: plan 2 is queued"
    rig.queue.is_working = True
    rig.clock.seconds += RESEND_S + 1
    rig.steps(20)
    assert rig.statuses() == {1: "superseded", 2: "rejected", 3: "active"}
    assert plans.get(rig.store, rig.run.id, 2).reason.startswith("stay: "), "made for rates that are no more"
    assert plans.get(rig.store, rig.run.id, 3).rates[6] == 5.42


def test_mode_off_plans_nothing_and_manual_waits(make: Make) -> None:
    rig = make(mode="off")
    rig.start()
    rig.steps(8)
    inject(rig, 3, 2.57)
    rig.steps(10)
    assert rig.statuses() == {1: "active"}
    assert len(episodes.all_episodes(rig.store, rig.run.id)) == 1
    submit(rig, "set_mode", mode="manual")
    rig.steps(3)
    assert rig.statuses() == {1: "active", 2: "ready"}
    assert ("plan.decision", "waiting") in actions(rig)
    inject(rig, 6, 5.42)
    rig.steps(10)
    assert rig.statuses() == {1: "active", 2: "rejected", 3: "ready"}, "the waiting plan was out of date"
    approval = submit(rig, "approve", version=3, reason="nights are long")
    rig.steps(3)
    assert rig.statuses()[3] == "active"
    assert commands.get(rig.store, approval.id).status == "applied"
    approved = plans.get(rig.store, rig.run.id, 3)
    assert (approved.decided_by, approved.decided_reason) == ("ann", "nights are long")
    assert ("approved", "nights are long") in [
        (entry.result, entry.detail.get("decided_reason")) for entry in audit.of_target(rig.store, rig.run.id, "plan 3")
    ]


# -- the engine's answers


def test_a_refused_plan_is_rejected_and_the_target_goes_back(rig: Rig) -> None:
    rig.engine.refusal = "device 3 has too little memory"
    inject(rig, 3, 2.57)
    rig.steps(20)
    assert rig.statuses() == {1: "active", 2: "rejected"}, "and no second plan: nothing has changed since"
    assert "too little memory" in plans.get(rig.store, rig.run.id, 2).reason
    assert rig.view().target_plan_version == 1
    assert rig.bus.documents[rig.run.id].plan_version == 1


def test_a_refused_approval_fails_the_command(make: Make) -> None:
    rig = make(mode="manual")
    rig.start()
    rig.steps(8)
    inject(rig, 3, 2.57)
    rig.steps(8)
    rig.engine.refusal = "no"
    approval = submit(rig, "approve", version=2, reason="try it")
    rig.steps(3)
    found = commands.get(rig.store, approval.id)
    assert (found.status, found.result) == ("failed", "refused by the engine: no")
    plan = plans.get(rig.store, rig.run.id, 2)
    assert (plan.status, plan.reason) == ("rejected", "refused by the engine: no")
    assert (plan.decided_by, plan.decided_reason) == ("ann", "try it"), "a refusal is not a decision"


@pytest.mark.parametrize("refusal", ["", "no"])
def test_steps_tell_what_a_lost_answer_did_not(rig: Rig, refusal: str) -> None:
    rig.engine.is_mute_about_switches, rig.engine.refusal = True, refusal
    inject(rig, 3, 2.57)
    rig.steps(16)
    assert rig.statuses()[2] == ("rejected" if refusal else "active")
    assert rig.view().target_plan_version == (1 if refusal else 2)


def test_a_new_attempt_starts_over(rig: Rig) -> None:
    rig.steps(2, d3=2.57)
    rig.engine = FakeEngine(rig.bus, rig.run.id, rig.clock, attempt="b")
    rig.engine.start()
    rig.turn()
    rig.steps(2, d3=2.57)
    assert rig.statuses() == {1: "active"}, "what the first attempt saw does not count"
    rig.steps(4, d3=2.57)
    assert rig.statuses()[2] in ("switching", "active")


def test_messages_of_an_older_attempt_are_stale(rig: Rig) -> None:
    old = rig.engine
    rig.engine = FakeEngine(rig.bus, rig.run.id, rig.clock, attempt="b")
    rig.engine.start()
    rig.steps(10)
    for _ in range(10):
        old.take_step(d3=9.0)
        rig.steps(1)
    assert rig.statuses() == {1: "active"}
    assert rig.view().num_stale >= 10


def test_a_new_attempt_may_start_with_the_plan_that_was_coming(rig: Rig) -> None:
    inject(rig, 3, 2.57)
    while rig.statuses().get(2) != "switching":
        rig.steps(1)
    rig.engine = FakeEngine(rig.bus, rig.run.id, rig.clock, attempt="b")
    rig.engine.start()
    rig.steps(2)
    assert rig.statuses() == {1: "superseded", 2: "active"}


# -- an engine that died is started again


def test_a_restart_goes_on_with_the_active_plan_and_the_injections(rig: Rig) -> None:
    inject(rig, 3, 2.57)
    while rig.statuses().get(2) != "active":
        rig.steps(1)
    rig.steps(2)
    last = rig.engine.step - 1
    rig.restart(attempt="b", step=10)
    document = rig.bus.documents[rig.run.id]
    assert (document.plan_version, document.injections[0].device) == (2, 3)
    assert (rig.engine.plan_version, rig.engine.rates) == (2, {3: 2.57})
    assert rig.view().num_attempts == 2
    rig.steps(1)
    assert (rig.view().status, rig.view().step) == ("training", 10)
    assert history.steps(rig.store, rig.run.id)[-1].step == 10 < last
    rig.steps(12)
    assert rig.statuses() == {1: "superseded", 2: "active"}
    assert [injection.status for injection in injections.open_injections(rig.store, rig.run.id)] == ["active"]
    assert [plan.attempt for plan in history.steps(rig.store, rig.run.id)][9:11] == ["a", "b"]


def test_a_restart_gives_up_the_plan_that_was_coming(rig: Rig) -> None:
    inject(rig, 3, 2.57)
    while rig.statuses().get(2) != "switching":
        rig.steps(1)
    rig.restart(attempt="b", step=8)
    assert rig.engine.plan_version == 1
    assert rig.statuses() == {1: "active", 2: "rejected"}
    rejected = plans.get(rig.store, rig.run.id, 2)
    assert rejected.reason == "the engine ended before it had moved to it"
    rig.steps(10)
    assert rig.statuses()[3] == "active", "it is still slow, and planned for again"


def test_a_restart_clears_what_the_detector_had_seen(rig: Rig) -> None:
    rig.steps(2, d3=2.57)  # one step more and it would be a shift
    rig.restart(attempt="b", step=9)
    rig.steps(2, d3=2.57)
    assert rig.statuses() == {1: "active"}


def test_a_plan_that_is_solved_while_the_engine_is_away_waits_for_it(rig: Rig) -> None:
    rig.queue.is_working = False
    inject(rig, 3, 2.57)
    while rig.statuses().get(2) != "queued":
        rig.steps(1)
    runs.watch_engine(rig.store, rig.run.id, max_restarts=10)
    assert runs.engine_lost(rig.store, rig.run.id, 1, delay_s=2.0)
    solve_plan(rig.store, rig.run.id, 2, worker="worker")
    for _ in range(5):
        rig.turn()
    assert rig.statuses() == {1: "active", 2: "ready"}
    assert rig.view().target_plan_version == 1
    rig.restart(attempt="b", step=9)
    assert rig.engine.plan_version == 1
    rig.steps(8)
    assert rig.statuses()[2] in ("active", "rejected"), "decided once it trains"


def test_a_failure_that_the_engine_reports_leaves_the_run_to_its_launcher(rig: Rig) -> None:
    runs.watch_engine(rig.store, rig.run.id, max_restarts=1)
    rig.engine.send(State, state="failed", step=rig.engine.step, reason="rank 3 is gone")
    rig.turn()
    assert (rig.view().status, rig.view().reason) == ("lost", "the engine failed: rank 3 is gone")
    rig.restart(attempt="b", step=4)
    rig.steps(1)
    assert (rig.view().status, rig.view().step) == ("training", 4)


def test_a_device_fails_in_one_attempt_only(rig: Rig) -> None:
    runs.watch_engine(rig.store, rig.run.id, max_restarts=10)
    command = submit(rig, "fail", device=3)
    rig.steps(3)
    done = commands.get(rig.store, command.id)
    assert (done.status, done.applied_step) == ("applied", rig.engine.step - 1)
    assert rig.engine.num_deaths == 1
    assert (rig.view().status, rig.view().reason) == ("lost", "the engine failed: device 3 failed on request")
    rig.restart(attempt="b", step=4)
    assert rig.bus.documents[rig.run.id].failure is not None, "the document still says it"
    inject(rig, 5, 2.57)  # a newer document says it too
    rig.steps(8)
    assert (rig.view().status, rig.view().step, rig.engine.num_deaths) == ("training", 11, 0)
    rig.loop = rig.new_loop()
    rig.steps(1)
    assert rig.engine.num_deaths == 0
    assert [result for action, result in actions(rig) if action == "command.fail"] == ["pending", "accepted", "applied"]
    again = submit(rig, "fail", device=3)
    rig.steps(2)
    assert (commands.get(rig.store, again.id).status, rig.engine.num_deaths) == ("applied", 1)


def test_last_words_that_come_with_the_next_attempt_are_heard(rig: Rig) -> None:
    runs.watch_engine(rig.store, rig.run.id, max_restarts=10)
    command = submit(rig, "fail", device=3)
    rig.turn()
    rig.engine.take_step()  # it dies, and nobody listens until it is started again
    rig.engine = FakeEngine(rig.bus, rig.run.id, rig.clock, attempt="b")
    rig.engine.send(State, state="starting")
    rig.engine.start()
    rig.turn()
    assert commands.get(rig.store, command.id).status == "applied"


def test_last_words_that_were_recorded_but_not_acted_on(rig: Rig) -> None:
    runs.watch_engine(rig.store, rig.run.id, max_restarts=10)
    command = submit(rig, "fail", device=3)
    rig.turn()
    rig.engine.take_step()
    cursor = recorder.cursor(rig.store, rig.run.id)
    batch = [(stream_id, message) for _, stream_id, message in rig.bus.read({rig.run.id: cursor})]
    recorder.record(rig.store, rig.run.id, batch)  # and then the controller was killed
    rig.loop = rig.new_loop()
    rig.turn()
    assert commands.get(rig.store, command.id).status == "applied"


@pytest.mark.parametrize("is_accepted", [False, True])
def test_a_failure_that_an_attempt_did_not_live_to_obey_is_not_obeyed_by_the_next(rig: Rig, is_accepted: bool) -> None:
    command = submit(rig, "fail", device=3)
    if is_accepted:
        rig.turn()
    rig.engine = FakeEngine(rig.bus, rig.run.id, rig.clock, attempt="b")
    rig.engine.start()
    rig.turn()
    rig.steps(3)
    done = commands.get(rig.store, command.id)
    assert (done.status, done.result) == ("failed", "the engine was started anew before it had obeyed")
    assert rig.engine.num_deaths == 0


def test_a_failure_without_a_launcher_ends_the_run(rig: Rig) -> None:
    command = submit(rig, "fail", device=3)
    rig.steps(2)
    assert (rig.view().status, rig.view().reason) == ("failed", "device 3 failed on request")
    assert commands.get(rig.store, command.id).status == "applied"


# -- commands


def test_a_checkpoint_is_applied_when_it_is_saved(rig: Rig) -> None:
    rig.engine.is_saving = False
    command = submit(rig, "checkpoint")
    rig.steps(3)
    waiting = commands.get(rig.store, command.id)
    assert (waiting.status, waiting.request) == ("accepted", 1), "a version that carries it is no checkpoint"
    rig.engine.save()  # one that was due anyway and answers nothing
    rig.turn()
    assert commands.get(rig.store, command.id).status == "accepted"
    rig.engine.is_saving = True
    rig.steps(1)
    done = commands.get(rig.store, command.id)
    expected = ("applied", 11, f"saved to /runs/{rig.run.id}/checkpoints/step-11")
    assert (done.status, done.applied_step, done.result) == expected
    statuses = [result for action, result in actions(rig) if action == "command.checkpoint"]
    assert statuses == ["pending", "accepted", "applied"]


def test_a_checkpoint_that_fails_says_why(rig: Rig) -> None:
    rig.engine.checkpoint_problem = "no space left on device"
    command = submit(rig, "checkpoint")
    rig.steps(2)
    done = commands.get(rig.store, command.id)
    assert (done.status, done.result, done.applied_step) == ("failed", "no space left on device", None)


def test_one_checkpoint_answers_all_that_asked_before_it(rig: Rig) -> None:
    asked = [submit(rig, "checkpoint") for _ in range(3)]
    rig.turn()
    rig.steps(1)
    assert [commands.get(rig.store, command.id).status for command in asked] == ["applied"] * 3
    assert len(checkpoints.all_checkpoints(rig.store, rig.run.id)) == 1


def test_a_checkpoint_that_a_dead_engine_owed_is_asked_of_the_next(rig: Rig) -> None:
    rig.engine.is_saving = False
    command = submit(rig, "checkpoint")
    rig.steps(1)
    rig.restart(attempt="b", step=8)
    rig.steps(2)
    done = commands.get(rig.store, command.id)
    assert (done.status, done.request) == ("applied", 2)


def test_a_checkpoint_that_was_recorded_but_not_acted_on(rig: Rig) -> None:
    rig.engine.is_saving = False
    command = submit(rig, "checkpoint")
    rig.steps(1)
    rig.engine.save(1)
    cursor = recorder.cursor(rig.store, rig.run.id)
    batch = [(stream_id, message) for _, stream_id, message in rig.bus.read({rig.run.id: cursor})]
    recorder.record(rig.store, rig.run.id, batch)  # and then the controller was killed
    rig.loop = rig.new_loop()
    rig.turn()
    assert commands.get(rig.store, command.id).status == "applied"


def test_a_run_that_ends_fails_the_checkpoint_it_owes(rig: Rig) -> None:
    rig.engine.is_saving = False
    command = submit(rig, "checkpoint")
    rig.steps(1)
    rig.engine.send(State, state="finished", step=rig.engine.step)
    rig.turn()
    done = commands.get(rig.store, command.id)
    assert (done.status, done.result) == ("failed", "the run ended before (finished)")


def test_a_command_is_applied_when_the_engine_has_it(rig: Rig) -> None:
    command = inject(rig, 3, 2.57)
    rig.turn()
    accepted = commands.get(rig.store, command.id)
    assert (accepted.status, accepted.desired_version) == ("accepted", 2)
    assert [injection.status for injection in injections.open_injections(rig.store, rig.run.id)] == ["requested"]
    rig.steps(1)
    assert commands.get(rig.store, command.id).status == "applied"
    assert [injection.status for injection in injections.open_injections(rig.store, rig.run.id)] == ["active"]
    assert rig.engine.rates == {3: 2.57}


def test_timed_injections_expire(rig: Rig) -> None:
    inject(rig, 3, 1.02, for_s=30)
    inject(rig, 4, 1.02)
    rig.steps(2)
    assert set(rig.engine.rates) == {3, 4}
    rig.clock.seconds += 31
    rig.steps(2)
    assert set(rig.engine.rates) == {4}


def test_pause_resume_and_stop(rig: Rig) -> None:
    pause = submit(rig, "pause")
    rig.turn()
    rig.steps(2)
    assert rig.view().status == "paused"
    assert commands.get(rig.store, pause.id).status == "applied"
    submit(rig, "resume")
    rig.turn()
    rig.engine.send(State, state="training", step=rig.engine.step)
    rig.steps(1)
    assert rig.view().status == "training"
    stop = submit(rig, "stop")
    rig.turn()
    rig.steps(2)
    assert rig.view().status == "stopped"
    assert commands.get(rig.store, stop.id).status == "applied"


def test_rollback_is_a_new_version_that_holds(rig: Rig) -> None:
    inject(rig, 3, 2.57)
    rig.steps(12)
    assert rig.statuses() == {1: "superseded", 2: "active"}
    command = submit(rig, "rollback", version=1, reason="it lost less")
    rig.steps(20)
    assert rig.statuses() == {1: "superseded", 2: "superseded", 3: "active"}, "no plan is made against it"
    plan = plans.get(rig.store, rig.run.id, 3)
    assert (plan.trigger, plan.parent, plan.requested_by) == ("rollback", 1, "ann")
    assert (plan.decided_by, plan.decided_reason) == ("ann", "it lost less")
    assert plan.document == plans.get(rig.store, rig.run.id, 1).document
    assert commands.get(rig.store, command.id).status == "applied"


def test_reject_and_replan(make: Make) -> None:
    rig = make(mode="manual")
    rig.start()
    rig.steps(8)
    inject(rig, 3, 2.57)
    rig.steps(8)
    submit(rig, "reject", version=2, reason="the node goes down at noon")
    rig.steps(8)
    assert rig.statuses() == {1: "active", 2: "rejected"}
    rejected = plans.get(rig.store, rig.run.id, 2)
    assert (rejected.decided_by, rejected.reason) == ("ann", "rejected by ann")
    assert rejected.decided_reason == "the node goes down at noon"
    again = submit(rig, "replan")
    rig.steps(2)
    assert rig.statuses()[3] == "ready"
    assert commands.get(rig.store, again.id).status == "applied"
    assert plans.get(rig.store, rig.run.id, 3).requested_by == "ann"


def test_a_proposal_waits_for_a_person_even_in_automatic_mode(rig: Rig) -> None:
    document = plans.get(rig.store, rig.run.id, 1).document
    assert document is not None
    plans.add(
        rig.store, rig.run.id, document=document, trigger="proposal", rates={}, parent=1, requested_by="ann", key="p"
    )
    rig.steps(5)
    assert rig.statuses() == {1: "active", 2: "ready"}
    inject(rig, 3, 2.57)
    rig.steps(10)
    assert rig.statuses() == {1: "superseded", 2: "ready", 3: "active"}, "and does not block the controller's own"


def test_a_command_that_cannot_be_done_says_why(make: Make) -> None:
    rig = make()
    early = commands.submit(rig.store, rig.run.id, "replan", {}, actor="ann", source="cli")
    rig.turn()
    found = commands.get(rig.store, early.id)
    assert found.status == "failed"
    assert "not calibrated yet" in found.result


# -- the broker, the database and the worker come and go


def test_a_broker_that_forgot_everything_is_told_again(rig: Rig) -> None:
    rig.bus.documents.clear()
    rig.turn(1.1)
    assert rig.bus.documents[rig.run.id].version == rig.view().desired_version


def test_an_older_document_is_replaced(rig: Rig) -> None:
    old = rig.bus.documents[rig.run.id]
    submit(rig, "pause")
    rig.turn()
    rig.bus.documents[rig.run.id] = old
    rig.turn(1.1)
    assert rig.bus.documents[rig.run.id].paused


def test_nothing_is_written_without_a_change(rig: Rig) -> None:
    number = len(rig.bus.published)
    rig.steps(30)
    assert len(rig.bus.published) == number


def test_a_reused_id_does_not_inherit_a_channel(make: Make) -> None:
    rig = make()
    rig.bus.documents[rig.run.id] = runs.desired(rig.store, rig.run.id).model_copy(update={"version": 9})
    foreign = FakeEngine(rig.bus, rig.run.id, rig.clock, attempt="foreign")
    foreign.send(Hello, devices=(), num_parameters=1, torch_version="2")
    rig.start()
    rig.steps(1)
    assert rig.view().attempt == "a"
    assert rig.bus.documents[rig.run.id].version == 1


def test_a_broker_outage_loses_nothing_and_is_said_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    rig.bus.is_away = True
    command = submit(rig, "pause")
    for _ in range(30):
        rig.turn(1.0)
    assert heartbeats.all_beats(rig.store)["controller"].detail["broker"] == "away"
    assert commands.get(rig.store, command.id).status == "accepted"
    assert rig.view().status == "training", "its silence is the broker's, not the engine's"
    rig.bus.is_away = False
    rig.turn(1.0)
    rig.turn(1.0)
    assert rig.bus.documents[rig.run.id].paused
    assert rig.view().status == "training"
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("planner.control")]
    assert [line.split(",")[0] for line in lines] == ["the broker is away", "the broker is back"]


def test_a_database_outage_is_said_once_and_the_loop_goes_on(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    left = [StoreError("database postgresql://db: gone")] * 3
    open_runs = runs.open_runs

    def flaky(store: Any) -> Any:
        if left:
            raise left.pop()
        rig.stop.set()
        return open_runs(store)

    monkeypatch.setattr(runs, "open_runs", flaky)
    rig.stop.clear()
    monkeypatch.setattr(rig.stop, "wait", lambda seconds=None: False)
    rig.loop.run()
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("planner.control")]
    assert [line.split(",")[0] for line in lines] == ["the database is away", "the database is back"]


def test_trouble_with_one_run_is_not_the_others(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    second = create_run(rig.store, RunConfig())
    rig.turn()
    broken = rig.loop._controls[rig.run.id]
    monkeypatch.setattr(broken, "tick", lambda view: 1 / 0)
    other = FakeEngine(rig.bus, second.id, rig.clock, attempt="x")
    other.start()
    for _ in range(3):
        other.take_step()
        rig.clock.seconds += 0.2
        rig.loop.tick()
    assert rig.loop.num_errors == 3
    assert len(rig.loop._troubles) == 1, "a traceback once"
    assert runs.get(rig.store, second.id).status == "training"


def test_silence_makes_a_run_lost_and_a_word_brings_it_back(rig: Rig) -> None:
    for _ in range(int(SILENCE_S) + 2):
        rig.turn(1.0)
    assert rig.view().status == "lost"
    assert "no telemetry for" in rig.view().reason
    rig.steps(1)
    assert rig.view().status == "training"


def test_slow_steps_are_no_silence(rig: Rig) -> None:
    rig.engine.take_step(d3=20.0)  # a step of 20 s
    rig.turn()
    for _ in range(30):
        rig.turn(1.0)
    assert rig.view().status == "training"


def test_a_plan_that_nobody_takes_fails_and_is_asked_for_once_more(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("db.plans.utc_now", rig.clock.now)
    rig.queue.is_working = False
    inject(rig, 3, 2.57)
    rig.steps(8)
    assert rig.queue.sent == [(rig.run.id, 2)]
    rig.turn(RESEND_S + 1)
    assert rig.queue.sent == [(rig.run.id, 2)] * 2, "the row is the truth, the task a hint that may be repeated"
    engine_speaks(rig, QUEUED_LIMIT_S)
    assert rig.statuses() == {1: "active", 2: "failed", 3: "queued"}
    engine_speaks(rig, QUEUED_LIMIT_S + 5)
    assert rig.statuses() == {1: "active", 2: "failed", 3: "failed"}, "once more, not for ever"
    engine_speaks(rig, 120)
    assert len(rig.statuses()) == 3
    rig.queue.is_working = True
    heartbeats.beat(rig.store, "worker", {})
    rig.steps(10)
    assert rig.statuses()[4] == "active", "a worker came back, so it is worth asking again"


def test_a_worker_that_does_not_answer(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("db.plans.utc_now", rig.clock.now)
    rig.queue.is_working = False
    inject(rig, 3, 2.57)
    rig.steps(8)
    assert plans.claim(rig.store, rig.run.id, 2, worker="w1") is not None
    engine_speaks(rig, 30.0 + SOLVING_GRACE_S + 5)
    assert rig.statuses() == {1: "active", 2: "failed", 3: "queued"}
    assert plans.get(rig.store, rig.run.id, 2).reason == "w1 did not answer within 60 s"


def engine_speaks(rig: Rig, seconds: float) -> None:
    """Time passes while the engine trains on."""
    for _ in range(int(seconds) + 1):
        rig.engine.take_step()
        rig.turn(1.0)


# -- restarts, lease, process


def test_a_new_controller_goes_on_where_the_old_one_was(rig: Rig) -> None:
    inject(rig, 3, 2.57)
    while rig.statuses().get(2) != "switching":
        rig.steps(1)
    rig.loop = rig.new_loop()
    rig.steps(2)
    assert rig.statuses() == {1: "superseded", 2: "active"}
    rig.loop = rig.new_loop()
    rig.steps(12)
    assert rig.statuses() == {1: "superseded", 2: "active"}
    assert len(episodes.all_episodes(rig.store, rig.run.id)) == 1
    submit(rig, "clear", devices=None)
    rig.loop = rig.new_loop()
    rig.steps(12)
    assert not episodes.all_episodes(rig.store, rig.run.id)[0].is_open


@pytest.mark.parametrize("outcome", ["applied", "rejected"])
def test_an_answer_that_was_recorded_but_not_acted_on(rig: Rig, outcome: str) -> None:
    """The controller died between recording a switch and drawing the conclusion."""
    rig.engine.refusal = "no" if outcome == "rejected" else ""
    inject(rig, 3, 2.57)
    while rig.statuses().get(2) != "switching":
        rig.steps(1)
    rig.engine.take_step()
    cursor = recorder.cursor(rig.store, rig.run.id)
    recorder.record(rig.store, rig.run.id, [(i, message) for _, i, message in rig.bus.read({rig.run.id: cursor})])
    rig.loop = rig.new_loop()
    rig.steps(6)
    assert rig.statuses()[2] == ("active" if outcome == "applied" else "rejected")
    if outcome == "rejected":
        assert plans.get(rig.store, rig.run.id, 2).reason == "refused by the engine: no"


def test_heartbeat_and_canary(rig: Rig) -> None:
    rig.steps(10)
    beat = heartbeats.all_beats(rig.store)["controller"]
    assert beat.detail["broker"] == "ok"
    assert beat.detail["num_runs"] == 1
    assert beat.detail["lag_s"] is not None
    number = rig.queue.num_canaries
    for _ in range(10):
        rig.turn(1.0)
    assert rig.queue.num_canaries == number + 2


def test_only_one_controller_acts(rig: Rig, tmp_path: Path) -> None:
    clock = rig.context.clock
    heartbeats.beat(rig.store, "controller", {})  # the one on the bench is gone
    first, second = Lease(rig.store, tmp_path, clock), Lease(rig.store, tmp_path, clock)
    first.acquire(wait_s=0, wait=lambda seconds: False)
    with pytest.raises(LeaseError, match=r"another controller acts for .*: process \d+"):
        second.acquire(wait_s=0, wait=lambda seconds: False)
    third = Lease(rig.store, tmp_path / "elsewhere", clock)
    first.renew({})
    for _ in range(3):
        with pytest.raises(LeaseError, match="another controller acts for this store"):
            third.acquire(wait_s=0, wait=lambda seconds: False)
        rig.clock.seconds += STALE_S - 1
        first.renew({})
    rig.clock.seconds += STALE_S + 1
    with pytest.raises(LeaseError):
        third.acquire(wait_s=0, wait=lambda seconds: False)  # another beat since it looked last
    rig.clock.seconds += STALE_S + 1
    third.acquire(wait_s=0, wait=lambda seconds: False)  # none any more
    with pytest.raises(LeaseError):
        first.renew({})
    first.release()
    third.release()
    second.acquire(wait_s=0, wait=lambda seconds: False)  # released: at once
    second.release()


def test_the_process_refuses_a_missing_database_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "planner.controller"],
        env={"MALLEUS_HOME": str(tmp_path), "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "malleus up" in done.stderr


def test_plans_that_switch_are_valid_documents(rig: Rig) -> None:
    inject(rig, 3, 2.57)
    rig.steps(10)
    document = plans.get(rig.store, rig.run.id, 2).document
    assert document is not None
    assert 3 in {*Plan.from_json(document).active, *Plan.from_json(document).standby}
