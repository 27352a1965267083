"""The recorder: everything once, whatever is repeated, late, foreign or malformed."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from db import audit, checkpoints, history, plans, recorder, runs
from db.errors import InputError
from db.messages import DeviceInfo, Telemetry, utc_now
from db.recorder import Recorded
from db.runs import RunView
from db.store import Store
from tests.db.conftest import PLAN
from tests.db.telemetry import (
    START,
    batch,
    checkpoint,
    evaluation,
    hello,
    observed,
    profile,
    state,
    step,
    switch,
)


def counts(recorded: Recorded) -> tuple[int, int, int, int]:
    return recorded.num_new, recorded.num_duplicate, recorded.num_stale, recorded.num_invalid


def story() -> list[Telemetry]:
    """An attempt from its first message to its last."""
    return [
        hello(0),
        state(1, "calibrating"),
        profile(2),
        state(3, "training"),
        step(4, 0, phase="first"),
        step(5, 1, desired_version=1),
        switch(6, step=2),
        step(7, 2, plan_version=2, loss=1.5, step_s=0.25, desired_version=2),
        state(8, "finished"),
    ]


def test_a_whole_attempt(store: Store, run: RunView) -> None:
    assert recorder.cursor(store, 1) == "0-0"
    assert counts(recorder.record(store, 1, batch(*story()))) == (9, 0, 0, 0)
    seen = runs.get(store, 1)
    assert (seen.status, seen.attempt, seen.step, seen.loss, seen.step_s) == ("finished", "a1", 2, 1.5, 0.25)
    assert (seen.observed_version, seen.applied_version, seen.profile) == (2, 0, {"num_layers": 16})
    assert seen.last_seen_at == START + timedelta(seconds=8)
    assert recorder.cursor(store, 1) == "1008-0"
    assert [(view.step, view.phase, view.samples) for view in history.steps(store, 1)] == [
        (0, "first", (0, 16)),
        (1, "train", (16, 32)),
        (2, "train", (32, 48)),
    ]
    assert len(history.samples(store, 1)) == 3 * 8
    device = history.devices(store, 1)[5]
    assert (device.rank, device.pid, device.host, device.backend) == (5, 105, "h", "emulated")
    moved = history.switches(store, 1)
    assert [(view.plan_version, view.outcome, view.digests_equal, view.phases) for view in moved] == [
        (2, "applied", True, {"migrate": 0.2})
    ]
    before, after = history.switch_digests(store, 1, moved[0].id)
    assert before == after == {"layers.0.w": {"weight": "ab", "exp_avg": "cd"}}
    actions = [(entry.action, entry.result) for entry in reversed(audit.entries(store, 1))]
    assert actions == [
        ("run.create", "pending"),
        ("run.attempt", "a1"),
        ("run.hello", "torch 2"),
        ("run.status", "starting"),
        ("run.status", "calibrating"),
        ("run.status", "training"),
        ("plan.switch", "applied"),
        ("run.status", "finished"),
    ]


def test_a_repeated_batch_changes_nothing(store: Store, run: RunView) -> None:
    messages = batch(*story())
    recorder.record(store, 1, messages)
    before = (runs.get(store, 1), history.steps(store, 1), history.samples(store, 1), history.switches(store, 1))
    entries = audit.entries(store, 1)
    assert counts(recorder.record(store, 1, messages)) == (0, 9, 0, 0)
    assert counts(recorder.record(store, 1, batch(*story()[4:], *story()[4:]))) == (0, 10, 0, 0)
    after = (runs.get(store, 1), history.steps(store, 1), history.samples(store, 1), history.switches(store, 1))
    assert after == before
    assert audit.entries(store, 1) == entries


def test_repetition_within_a_batch(store: Store, run: RunView) -> None:
    messages = [message for message in story() for _ in range(2)]
    assert counts(recorder.record(store, 1, batch(*messages))) == (9, 9, 0, 0)


def test_a_step_that_comes_late_is_kept_and_turns_nothing_back(store: Store, run: RunView) -> None:
    recorder.record(store, 1, batch(hello(0), step(3), step(1)))
    assert counts(recorder.record(store, 1, batch(step(2), state(0, "paused")))) == (1, 1, 0, 0)
    assert [view.step for view in history.steps(store, 1)] == [1, 2, 3]
    assert (runs.get(store, 1).step, runs.get(store, 1).status) == (3, "training")


def test_messages_of_another_attempt_are_stale(store: Store, run: RunView) -> None:
    recorder.record(store, 1, batch(hello(0), state(1, "training"), step(2)))
    stale: list[Telemetry] = [step(3, attempt="a0"), state(9, "failed", attempt="a0"), switch(4, attempt="a0")]
    assert counts(recorder.record(store, 1, batch(*stale))) == (0, 0, 3, 0)
    seen = runs.get(store, 1)
    assert (seen.num_stale, seen.status, seen.step, seen.attempt) == (3, "training", 2, "a1")
    assert history.switches(store, 1) == []


def test_a_new_attempt_begins_with_hello_and_repeats_steps(store: Store, run: RunView) -> None:
    recorder.record(store, 1, batch(hello(0), state(1, "training"), step(2, 5), step(3, 6), step(4, 7)))
    again: list[Telemetry] = [
        hello(0, attempt="a2"),
        step(5, 8, attempt="a1"),  # the former attempt's last words
        hello(0, attempt="a1"),  # and its first, delivered again
        state(1, "calibrating", attempt="a2"),
        step(2, 6, attempt="a2", rates=(9.0,) * 8),
    ]
    assert counts(recorder.record(store, 1, batch(*again))) == (3, 0, 2, 0)
    seen = runs.get(store, 1)
    assert (seen.attempt, seen.status, seen.step, seen.num_stale) == ("a2", "training", 6, 2)
    assert [(view.step, view.attempt) for view in history.steps(store, 1)] == [(5, "a1"), (6, "a2")]
    assert {view.rate for view in history.samples(store, 1, since_step=6, until_step=6)} == {9.0}
    statuses = [entry.result for entry in audit.entries(store, 1) if entry.action == "run.status"]
    assert statuses == ["training", "calibrating", "starting", "lost", "training", "starting"]


def test_what_a_new_attempt_undoes_is_gone(store: Store, run: RunView) -> None:
    """It goes on from step 3: what the first one did of steps 3 to 6 is in no weights."""
    first: list[Telemetry] = [hello(0), *(step(seq, seq, rates=(2.0,) * 8) for seq in range(1, 7))]
    evaluations = [evaluation(7, 2), evaluation(8, 3), evaluation(9, 6)]
    recorder.record(store, 1, batch(*first, *evaluations))
    again: list[Telemetry] = [state(0, "starting", attempt="a2"), hello(1, attempt="a2")]
    recorder.record(store, 1, batch(*again))
    assert [view.step for view in history.steps(store, 1)] == [1, 2, 3, 4, 5, 6], "until it has trained"
    resumed = batch(step(2, 3, attempt="a2"), evaluation(3, 3, attempt="a2", loss=1.0))
    assert counts(recorder.record(store, 1, resumed)) == (2, 0, 0, 0)
    assert counts(recorder.record(store, 1, resumed)) == (0, 2, 0, 0)
    kept = [(1, "a1"), (2, "a1"), (3, "a2")]
    assert [(view.step, view.attempt) for view in history.steps(store, 1)] == kept
    assert sorted({(view.step, view.rate) for view in history.samples(store, 1)}) == [(1, 2.0), (2, 2.0), (3, 1.0)]
    assert [(view.step, view.attempt) for view in history.evaluations(store, 1)] == [(2, "a1"), (3, "a2")]
    assert {view.step for view in history.latest_rates(store, 1).values()} == {3}
    undone = next(entry for entry in audit.entries(store, 1) if entry.action == "run.resume")
    assert (undone.target, undone.result) == ("step 3", "steps 3 to 6 of an earlier attempt are void")
    recorder.record(store, 1, batch(step(4, 4, attempt="a2"), step(5, 5, attempt="a2")))
    assert [view.step for view in history.steps(store, 1)] == [1, 2, 3, 4, 5]
    assert len([entry for entry in audit.entries(store, 1) if entry.action == "run.resume"]) == 1


def test_attempts_within_one_batch_supersede_each_other(store: Store, run: RunView) -> None:
    """A controller that was away reads three attempts at once: as if it had heard them one by one."""
    story: list[Telemetry] = [
        hello(0),
        *(step(seq, seq) for seq in range(1, 7)),
        hello(0, attempt="a2"),
        step(1, 3, attempt="a2"),
        step(2, 4, attempt="a2"),
        hello(0, attempt="a3"),
        step(1, 4, attempt="a3"),
    ]
    recorder.record(store, 1, batch(*story))
    expected = [(1, "a1"), (2, "a1"), (3, "a2"), (4, "a3")]
    assert [(view.step, view.attempt) for view in history.steps(store, 1)] == expected
    assert (runs.get(store, 1).num_attempts, runs.get(store, 1).step) == (3, 4)
    assert len(history.samples(store, 1)) == 4 * 8


def test_checkpoints_and_evaluations_are_recorded_once(store: Store, run: RunView) -> None:
    story: list[Telemetry] = [
        hello(0),
        evaluation(1, 4, loss=math.nan),
        evaluation(2, 8, loss=math.inf),
        checkpoint(3, 4),
        checkpoint(4, 8, outcome="failed", reason="no space left", num_bytes=0),
        checkpoint(5, 12, request=2),
        checkpoint(6, 16),
    ]
    assert counts(recorder.record(store, 1, batch(*story))) == (7, 0, 0, 0)
    found = checkpoints.all_checkpoints(store, 1)
    assert [(view.step, view.status, view.reason) for view in found] == [
        (16, "saved", ""),
        (12, "saved", ""),
        (8, "failed", "no space left"),
        (4, "removed", ""),  # the run keeps two
    ]
    assert (found[1].num_bytes, found[1].pause_s, found[1].seconds, found[1].request) == (2**40, 0.05, 1.5, 2)
    assert [view.step for view in checkpoints.saved(store, 1)] == [16, 12]
    losses = [(view.step, str(view.loss), view.num_tokens, view.seconds) for view in history.evaluations(store, 1)]
    assert losses == [(4, "nan", 4096, 0.75), (8, "inf", 4096, 0.75)]
    assert [view.step for view in history.evaluations(store, 1, since_step=5)] == [8]
    assert counts(recorder.record(store, 1, batch(*story, *story))) == (0, 14, 0, 0)
    assert checkpoints.all_checkpoints(store, 1) == found
    saved = [(entry.target, entry.result) for entry in audit.entries(store, 1) if entry.action == "checkpoint"]
    assert saved == [("step 16", "saved"), ("step 12", "saved"), ("step 8", "failed"), ("step 4", "saved")]


def test_a_checkpoint_that_is_written_over_counts_once(store: Store, run: RunView) -> None:
    recorder.record(store, 1, batch(hello(0), checkpoint(1, 4), checkpoint(2, 8)))
    recorder.record(store, 1, batch(hello(0, attempt="a2"), checkpoint(1, 8, attempt="a2")))
    found = [(view.step, view.attempt, view.status) for view in checkpoints.all_checkpoints(store, 1)]
    assert found == [(8, "a2", "saved"), (8, "a1", "removed"), (4, "a1", "saved")]


def test_the_first_answer_to_a_request(store: Store, run: RunView) -> None:
    failed = checkpoint(2, 8, request=2, outcome="failed")
    recorder.record(store, 1, batch(hello(0), checkpoint(1, 4), failed, checkpoint(3, 9, request=3)))
    answers = [checkpoints.answer(store, 1, request) for request in (1, 2, 3, 4)]
    assert [None if view is None else (view.step, view.status) for view in answers] == [
        (8, "failed"),
        (8, "failed"),
        (9, "saved"),
        None,
    ]


def test_nan_and_infinity_survive(store: Store, run: RunView) -> None:
    rates = (math.nan, math.inf, *(1.0,) * 6)
    extras = {"grad_norm": math.inf, "learning_rate": 3e-4, "mfu": math.nan}
    message = step(1, rates=rates, compute_s=rates, loss=math.nan, step_s=math.inf, **extras)
    recorder.record(store, 1, batch(hello(0), message))
    seen = runs.get(store, 1)
    assert seen.loss is not None
    assert math.isnan(seen.loss)
    assert seen.step_s == math.inf
    latest = history.latest_rates(store, 1)
    assert math.isnan(latest[0].rate)
    assert (latest[1].rate, latest[2].rate) == (math.inf, 1.0)
    stored = history.steps(store, 1)[0]
    assert math.isnan(stored.loss)
    assert (stored.grad_norm, stored.learning_rate, str(stored.mfu)) == (math.inf, 3e-4, "nan")
    assert stored.tokens_per_s == 0.0
    assert history.samples(store, 1, devices=[1])[0].compute_s == math.inf


@pytest.mark.parametrize(
    "message",
    [
        step(1, rates=(1.0,) * 7),
        step(1, compute_s=(1.0,) * 9),
        step(1, 2**63),
        step(1, num_tokens=2**80),
        step(1, samples=(0, 2**63)),
        step(2**64, 1),
        step(1, run=2),
        step(1, attempt="a" * 65),
        hello(1, devices=(DeviceInfo(device=8, node=2, rank=8, pid=1, host="h", backend="e"),)),
    ],
)
def test_what_is_not_of_this_run_is_refused_and_the_rest_kept(store: Store, run: RunView, message: Telemetry) -> None:
    assert counts(recorder.record(store, 1, batch(hello(0), message, step(3)))) == (2, 0, 0, 1)
    assert runs.get(store, 1).num_invalid == 1
    assert [view.step for view in history.steps(store, 1)] == [3]


def test_an_empty_vector_of_text_and_odd_text_do_not_break_the_batch(store: Store, run: RunView) -> None:
    recorder.record(store, 1, batch(hello(0), state(1, "failed", reason="rank 3:\x00 \u2603 'quoted' %s")))
    assert runs.get(store, 1).reason == "rank 3:\ufffd \u2603 'quoted' %s"
    assert counts(recorder.record(store, 1, [])) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("states", "status"),
    [
        (["starting", "calibrating", "training", "paused", "training"], "training"),
        (["training"], "training"),  # the ones before were dropped
        (["training", "calibrating"], "training"),  # cannot be: ignored
        (["finished", "training"], "finished"),  # the end is final
        (["stopped", "failed"], "stopped"),
    ],
)
def test_status_follows_the_engine(store: Store, run: RunView, states: list[str], status: str) -> None:
    messages: list[Telemetry] = [hello(0), *(state(seq, name) for seq, name in enumerate(states, start=1))]
    recorder.record(store, 1, batch(*messages))
    assert runs.get(store, 1).status == status


def test_a_lost_run_that_is_heard_again_trains(store: Store, run: RunView) -> None:
    recorder.record(store, 1, batch(hello(0), step(1)))
    runs.set_status(store, 1, "lost", reason="silent for 10 s")
    recorder.record(store, 1, batch(step(2)))
    assert (runs.get(store, 1).status, runs.get(store, 1).reason) == ("training", "")


def test_the_engines_own_reason_replaces_that_of_its_launcher(store: Store, run: RunView) -> None:
    recorder.record(store, 1, batch(hello(0), step(1)))
    runs.engine_exited(store, 1, 1)
    recorder.record(store, 1, batch(step(2), state(3, "failed", reason="device 3: out of memory")))
    assert (runs.get(store, 1).status, runs.get(store, 1).reason) == ("failed", "device 3: out of memory")
    assert runs.get(store, 1).step == 2


def test_a_failure_that_a_launcher_watches_does_not_end_the_run(store: Store, run: RunView) -> None:
    runs.watch_engine(store, 1, max_restarts=1)
    recorder.record(store, 1, batch(hello(0), step(1), state(2, "failed", reason="device 3 is gone")))
    assert (runs.get(store, 1).status, runs.get(store, 1).reason) == ("lost", "the engine failed: device 3 is gone")
    assert runs.engine_lost(store, 1, 1, delay_s=2.0)
    seen = runs.get(store, 1)
    expected = "the engine failed: device 3 is gone; started again in 2 s (1 of 1)"
    assert (seen.status, seen.reason, seen.num_restarts) == ("lost", expected, 1)
    recorder.record(store, 1, batch(state(0, "starting", attempt="a2"), hello(1, attempt="a2")))
    seen = runs.get(store, 1)
    assert (seen.status, seen.reason, seen.num_attempts) == ("starting", "", 2)
    recorder.record(store, 1, batch(state(2, "failed", reason="again", attempt="a2")))
    assert not runs.engine_lost(store, 1, 1, delay_s=6.0)
    runs.engine_exited(store, 1, 1, why="it was started again once before")
    seen = runs.get(store, 1)
    assert (seen.status, seen.reason) == ("failed", "again; it was started again once before")
    restart = next(entry for entry in audit.entries(store, 1) if entry.action == "run.restart")
    assert (restart.actor, restart.target) == ("launcher", "attempt 2")
    assert restart.result == "started again in 2 s (1 of 1)"
    assert (restart.detail["exit_code"], restart.detail["step"]) == (1, 1)


def test_last_words_that_come_late_tell_why_and_end_nothing(store: Store, run: RunView) -> None:
    runs.watch_engine(store, 1, max_restarts=1)
    recorder.record(store, 1, batch(hello(0), step(1)))
    assert runs.engine_lost(store, 1, 137, delay_s=2.0)
    assert runs.get(store, 1).reason == "the engine exited with status 137; started again in 2 s (1 of 1)"
    recorder.record(store, 1, batch(state(2, "failed", reason="rank 3 is gone")))
    seen = runs.get(store, 1)
    expected = "the engine failed: rank 3 is gone; started again in 2 s (1 of 1)"
    assert (seen.status, seen.reason) == ("lost", expected)
    runs.engine_exited(store, 1, 9)  # the next one died without a word
    assert (runs.get(store, 1).status, runs.get(store, 1).reason) == ("failed", "the engine exited with status 9")


def test_a_restart_forgets_the_plan_that_was_on_its_way(store: Store, run: RunView) -> None:
    fields: dict[str, Any] = {"trigger": "t", "rates": {}, "parent": 1, "requested_by": "ann"}
    plans.add(store, 1, document=PLAN, key="a", **fields)
    plans.move(store, 1, 1, "active")
    version = runs.change(store, 1, target_plan_version=2)
    runs.watch_engine(store, 1, max_restarts=3)
    assert runs.engine_lost(store, 1, 1, delay_s=2.0)
    document = runs.desired(store, 1)
    assert (document.plan_version, document.version) == (1, version + 1)


@pytest.mark.parametrize("is_stopping", [True, False])
def test_a_run_that_is_to_stop_or_has_ended_is_not_started_again(store: Store, run: RunView, is_stopping: bool) -> None:
    runs.watch_engine(store, 1, max_restarts=3)
    if is_stopping:
        runs.change(store, 1, is_stopping=True)
    else:
        runs.set_status(store, 1, "finished")
    assert not runs.engine_lost(store, 1, 137, delay_s=2.0)
    assert runs.get(store, 1).num_restarts == 0


def test_the_version_that_is_read_and_the_one_that_is_applied(store: Store, run: RunView) -> None:
    def versions() -> tuple[int, int]:
        view = runs.get(store, 1)
        return view.observed_version, view.applied_version

    recorder.record(store, 1, batch(hello(0), step(1, desired_version=1), observed(2, 2, desired_version=1)))
    assert versions() == (2, 1)
    recorder.record(store, 1, batch(step(3, desired_version=1), step(4, desired_version=2)))
    assert versions() == (2, 2)
    recorder.record(store, 1, batch(hello(0, attempt="a2")))
    assert versions() == (0, 0)


def test_a_clock_ahead_of_ours_is_not_seen_in_the_future(store: Store, run: RunView) -> None:
    recorder.record(store, 1, batch(hello(0, at=utc_now() + timedelta(hours=1))))
    seen_at: Any = runs.get(store, 1).last_seen_at
    assert seen_at <= utc_now()


def test_unknown_run(store: Store) -> None:
    with pytest.raises(InputError, match="unknown run 1, known runs: none"):
        recorder.record(store, 1, batch(hello(0)))
