"""The timeline of a drill, and commands, triggers and evidence in words."""

from __future__ import annotations

import math
from typing import Any

import pytest

from app.dashboard.acknowledgements import acknowledgements, progress, refusals, wording
from app.dashboard.charts import StepPoint
from app.dashboard.device_facts import evidence_words
from app.dashboard.drill import drill_stages
from app.dashboard.drill_line import drill_line, drill_summary
from app.dashboard.plan_table import trigger
from db.commands import CommandView
from db.plans import PlanView
from tests.app.story_rows import at, command, episode, plain, plan, switch


def points(*, after_s: float = 1.5, number: int = 5) -> list[StepPoint]:
    return [
        StepPoint(step=20 + index, at=at(20 + index), step_s=after_s, loss=2.0, plan_version=2, bound_s=1.4)
        for index in range(number)
    ]


def stages(asked: CommandView, **changes: Any) -> list[tuple[str, str]]:
    values: dict[str, Any] = {
        "episodes": [],
        "plans": [],
        "switches": [],
        "points": [],
        "mode": "automatic",
        "detected_at": {},
    }
    return [(stage.name, stage.state) for stage in drill_stages(asked, **(values | changes))]


SEEN = {"episodes": [episode(3, start=11)]}
READY = SEEN | {"plans": [plan(2, status="active", rates={3: 2.57}, created=16, solved_at=at(16.3), solve_s=0.3)]}


@pytest.mark.parametrize(
    ("asked", "changes", "name", "state"),
    [
        (command(status="pending", accepted_at=None, done_at=None, applied_step=None), {}, "accepted", "waiting"),
        (command(status="accepted", done_at=None, applied_step=None), {}, "applied", "waiting"),
        (command(status="failed", result="the run ended before"), {}, "accepted", "failed"),
        (command(), {}, "detected", "waiting"),
        (command(), {"until": at(12)}, "detected", "failed"),
        (command(), SEEN, "plan", "waiting"),
        (command(), SEEN | {"mode": "off"}, "plan", "failed"),
        (command(), SEEN | {"plans": [plan(2, status="queued", rates={3: 2.57}, created=16)]}, "plan v2", "waiting"),
        (command(), SEEN | {"plans": [plan(2, status="rejected", rates={3: 2.57}, created=16)]}, "plan v2", "failed"),
        (command(), READY, "switched", "waiting"),
        (command(), READY | {"switches": [switch(2, 20, outcome="rejected", reason="memory")]}, "switched", "failed"),
        (command(), READY | {"switches": [switch(2, 20)]}, "recovered", "waiting"),
        (command(), READY | {"switches": [switch(2, 20)], "points": points()}, "recovered", "done"),
        (command(), READY | {"switches": [switch(2, 20)], "points": points(after_s=3.0)}, "recovered", "failed"),
    ],
)
def test_drill_stops_where_it_is(asked: CommandView, changes: dict[str, Any], name: str, state: str) -> None:
    told = stages(asked, **changes)
    assert (name, state) in told
    before = told[: told.index((name, state))]
    assert all(entry == "done" for _, entry in before)


def test_drill_times_the_detection_from_the_audit() -> None:
    told = drill_stages(
        command(),
        episodes=[episode(3, start=11)],
        plans=[],
        switches=[],
        points=[],
        mode="automatic",
        detected_at={3: at(15)},
    )
    detected = next(stage for stage in told if stage.name == "detected")
    assert detected.at == at(15)
    assert "(+1)" in detected.note
    html = drill_line(told, now=at(60))
    assert "+5.0" in html
    assert "waiting" in html
    assert drill_summary(told) == "waits for the controller to ask for one"


def test_drill_summary_of_the_whole_story() -> None:
    told = drill_stages(
        command(), **(READY | {"switches": [switch(2, 20)], "points": points(), "mode": "automatic", "detected_at": {}})
    )
    assert plain(drill_summary(told)) == "from request to recovery in 13 s"


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (command(), "inject 2.57x on device 3"),
        (command(arguments={"devices": [3, 5], "rate": 5.42, "for_s": 60}), "inject 5.42x on devices 3 and 5 for 1 m"),
        (command(kind="clear", arguments={"devices": None}), "clear all injections"),
        (command(kind="rollback", arguments={"version": 2}), "roll back to plan v2"),
        (command(kind="approve", arguments={"version": 2}), "approve plan v2"),
        (command(kind="set_mode", arguments={"mode": "off"}), "set mode off"),
        (command(kind="pause", arguments={}), "pause"),
    ],
)  # fmt: skip
def test_commands_in_words(told: CommandView, words: str) -> None:
    assert plain(wording(told)) == words


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (command(status="pending"), "waits for the controller (by ada)"),
        (command(status="accepted"), "waits for the engine's next step boundary (by ada)"),
        (command(), "applied at step 10 (by ada)"),
        (command(applied_step=None, result="plan requested"), "done: plan requested (by ada)"),
        (command(status="failed", result="the run ended"), "failed: the run ended (by ada)"),
    ],
)
def test_a_write_says_what_became_of_it(told: CommandView, words: str) -> None:
    assert progress(told, now=at(12)) == words
    assert words.split(" (by")[0].replace("'", "&#x27;") in acknowledgements([told], now=at(12))


def test_late_commands_say_how_long_they_wait_and_old_ones_go() -> None:
    assert "already 1 m" in plain(progress(command(status="pending"), now=at(69)))
    assert acknowledgements([command()], now=at(600)) == ""
    assert "refused" in refusals(["refused"])
    assert refusals(["", ""]) == ""


@pytest.mark.parametrize(
    ("view", "parent", "words"),
    [
        (plan(1, trigger="initial"), None, "first plan"),
        (plan(2, rates={3: 2.57, 4: 1.01}), plan(1), "device 3: 1.00x → 2.57x"),
        (plan(3, rates={3: 1.0}), plan(2, rates={3: 2.57}), "recovered: device 3: 2.57x → 1.00x"),
        (plan(2, trigger="command", rates={3: 2.57}), plan(1), "manual: device 3: 1.00x → 2.57x"),
        (plan(4, trigger="rollback", parent=1), None, "back to v1"),
        (plan(2, rates={5: math.inf}), plan(1), "device 5: 1.00x → failed"),
    ],
)  # fmt: skip
def test_trigger_in_words(view: PlanView, parent: PlanView | None, words: str) -> None:
    assert plain(trigger(view, parent)) == words


def test_evidence_in_words() -> None:
    evidence = {
        "samples": {"3": [2.56, 2.58]},
        "window": 5,
        "threshold": 0.05,
        "level": {"3": 1.0},
        "reference": {"3": 1.0},
        "peers": {"count": 7, "median": 1.0, "highest": 1.02},
    }
    words = plain(evidence_words(evidence, 3))
    assert words == (
        "samples 2.56, 2.58; assumed 1.00; level before 1.00; "
        "7 peers at median 1.00, highest 1.02; threshold 5.0 %; window 5"
    )
    assert evidence_words({"anything": {"nested": [1, 2]}}, 3) == "anything {nested: 1, 2}"
