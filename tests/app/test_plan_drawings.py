"""Drawings of the Plans page: list, story, arrows, predictions, replays; in the odd cases too."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.dashboard import calibration, flow_arrows, plan_changes, plan_facts, plan_story, plan_table
from app.dashboard.palette import LIGHT
from app.dashboard.plan_story import PlanStory
from app.dashboard.replay_result import replay_result
from app.dashboard.replays import ReplayView
from app.dashboard.table import Sorting
from db.audit import AuditView
from db.plans import SORTS, PlanRun
from planner.flows import Flow
from tests.app.seeded_run import absorbing_plan, config_of, profile_of, standby_plan
from tests.app.story_rows import at, episode, plain, plan, switch

NOW = at(1000)
NODES = ((0, 1, 2, 3), (4, 5, 6, 7))


# -- the list


@pytest.mark.parametrize(
    ("fields", "before", "said", "why"),
    [
        ({"rates": {3: 2.57}}, {}, "device 3: 1.00x \u2192 2.57x", "a device turned slow"),
        ({"rates": {3: 1.0}}, {3: 2.57}, "recovered: device 3: 2.57x \u2192 1.00x", "back to healthy"),
        ({"rates": {3: 1.8}}, {3: 2.57}, "device 3: 2.57x \u2192 1.80x", "better, not healthy"),
        ({"rates": {3: 1.0, 5: 5.42}}, {3: 2.57}, "device 3: 2.57x \u2192 1.00x, device 5: 1.00x \u2192 5.42x", "both"),
        ({"rates": {3: math.inf}}, {}, "device 3: 1.00x \u2192 failed", "it failed"),
        ({"rates": {3: math.nan}}, {}, "device 3: 1.00x \u2192 ?", "unknown is not healthy"),
        ({"trigger": "command"}, {}, "manual", "a person asked"),
        ({"trigger": "rollback", "parent": 1}, {}, "back to v1", "which version it returns to"),
        ({"trigger": "initial"}, {}, "first plan", "the run began with it"),
    ],
)
def test_trigger(fields: dict[str, Any], before: dict[int, float], said: str, why: str) -> None:
    assert plain(plan_table.trigger(plan(4, **fields), plan(1, rates=before))) == said, why


def test_every_sortable_head_is_a_column_of_the_store() -> None:
    html = plan_table.plan_table([plan(1)], {}, {}, ticked=[], now=NOW, sorting=Sorting(column="gap"))
    assert {column.sort for column in plan_table.COLUMNS if column.sort} <= set(SORTS)
    assert html.count("aria-sort=") == sum(bool(column.sort) for column in plan_table.COLUMNS)
    assert 'aria-sort="descending"' in html


def test_the_list_says_who_decided_and_why() -> None:
    decided = plan(2, decided_by="ada", decided_reason='"quick" & safe')
    html = plan_table.plan_table([decided], {}, {}, ticked=[2], now=NOW)
    assert "controller" in html
    assert "decided by ada: &quot;quick&quot; &amp; safe" in html
    assert "No plan is like this" in plan_table.plan_table([], {}, {}, ticked=[], now=NOW, empty="No plan is like this")


def test_a_record_has_what_a_spreadsheet_needs() -> None:
    row = plan_table.record(plan(2, decided_reason="go", rates={3: math.inf}), switch(2, 10))
    assert (row["decided_reason"], row["bytes_moved"], row["pause_s"]) == ("go", 2_000_000, 0.5)
    assert plan_table.record(plan(2), None)["bytes_moved"] is None


# -- what happened


def entry(action: str, result: str, *, actor: str = "controller", seconds: float = 0.0, **detail: Any) -> AuditView:
    return AuditView(
        id=1,
        at=at(seconds),
        run=7,
        actor=actor,
        source="",
        action=action,
        target="plan 2",
        result=result,
        detail=detail,
    )


def test_a_story_tells_decisions_with_their_reasons() -> None:
    told = PlanStory(
        entries=[
            entry("plan.create", "queued", reason=""),
            entry("plan.decision", "stay", reason="stay: nothing to gain"),
            entry("plan.status", "approved", actor="<ada>", reason="saves 3 s", decided_reason="go"),
        ],
        switches=[],
        num_digests=0,
        steps=None,
    )
    html = plan_story.story_lines(plan(2), told, now=NOW)
    assert "asked for" in html
    assert "weighed: stay" in html
    assert "stay: nothing to gain" in html
    assert "&lt;ada&gt;" in html
    assert "go; saves 3 s" in html


def test_a_story_gives_a_reason_once_to_lines_that_follow_each_other() -> None:
    why = "move: 3.73 s -> 2.02 s a step"
    told = PlanStory(
        entries=[
            entry("plan.decision", "move", reason=why),
            entry("plan.status", "approved", reason=why, decided_reason=why),
            entry("plan.status", "superseded", reason="plan 3 is active"),
            entry("plan.status", "approved", reason=why),
        ],
        switches=[],
        num_digests=0,
        steps=None,
    )
    html = plan_story.story_lines(plan(2), told, now=NOW)
    assert html.count("move: 3.73 s → 2.02 s a step") == 2
    assert html.count("<b>approved</b>") == 2


def test_a_decision_that_the_head_explains_is_not_explained_again() -> None:
    why = "move: 3.73 s -> 2.02 s a step"
    automatic = plan(2, reason=why, decided_by="controller", decided_reason=why)
    assert "move: 3.73 s → 2.02 s a step" in plan_facts.plan_head(automatic, 2)
    assert "Because" not in plan_facts.plan_facts(automatic, None, now=NOW)
    by_hand = replace(automatic, decided_by="ada", decided_reason="the night -> is long")
    assert "Because" in plan_facts.plan_facts(by_hand, None, now=NOW)
    assert "the night → is long" in plan_facts.plan_facts(by_hand, None, now=NOW)


def test_phases_are_to_scale_and_digests_are_a_verdict() -> None:

    moved = replace(switch(2, 95), phases={"prepare": 0.1, "migrate": 0.3, "verify": math.nan})
    html = plan_story.switch_phases(moved, 12)
    assert "flex-grow:0.2500" in html
    assert "flex-grow:0.7500" in html
    assert "verify" not in html, "a phase that was not measured has no width"
    assert "digests equal over 12 tensors" in html
    assert "digests differ" in plan_story.switch_phases(replace(moved, digests_equal=False), 0)
    assert "rank 4: out" in plan_story.switch_phases(switch(2, 95, outcome="rejected", reason="rank 4: out"), 0)
    assert plan_story.switch_phases(None, 0) == ""


@pytest.mark.parametrize(
    ("start", "end", "is_answered", "why"),
    [
        (50, None, True, "it was open"),
        (50, 99, True, "it had just ended: the plan answers the recovery"),
        (50, 60, True, "within two minutes"),
        (150, None, False, "it began later"),
    ],
)
def test_episodes_that_a_plan_answers(start: float, end: float | None, is_answered: bool, why: str) -> None:
    found = plan_story.answered_episodes(plan(2, created=100), [episode(3, start=start, end=end)])
    assert bool(found) is is_answered, why
    old = episode(3, start=1, end=2)
    assert plan_story.answered_episodes(plan(2, created=900), [old]) == []


def test_links_lead_to_episodes_and_steps() -> None:
    told = PlanStory(entries=[], switches=[], num_digests=0, steps=(95, 1154, 1060))
    html = plain(plan_story.plan_links(plan(2, created=100), told, [episode(3, start=90)], now=NOW))
    assert 'href="live?run=7&amp;device=3"' in html
    assert "steps 95-1,154" in html
    empty = plan_story.plan_links(plan(2), PlanStory(entries=[], switches=[], num_digests=0, steps=None), [], now=NOW)
    assert "no episode was open" in empty
    assert "no step has run" in empty


def test_rates_are_a_grid() -> None:
    html = plan_facts.plan_rates(plan(2, rates={0: 1.0, 3: 2.57, 5: math.inf}), standby_plan(), NODES)
    assert html.count("cell-id") == 8
    assert "2 of 3 not healthy" in html
    assert "<button" not in html
    assert "Made for healthy devices" in plan_facts.plan_rates(plan(1), None, NODES)


def test_runners_up_offer_their_maps() -> None:
    runner = {"plan": absorbing_plan().to_json(), "step_s": 2.2, "moved_bytes": 0.0}
    second = plan(2, predicted_s=2.0, details={"runners_up": [runner, {"plan": "odd"}, "odd"]})
    html = plain(plan_facts.runners_up(second, None))
    assert "runner=2" in html
    assert "+10 %" in html
    assert ">hide<" in plan_facts.runners_up(second, 2)
    assert plan_facts.runner_up(second, 2) == absorbing_plan()
    assert plan_facts.runner_up(second, 3) is None
    assert plan_facts.runner_up(second, 9) is None
    assert plan_facts.runners_up(plan(1), None) == ""


def test_a_rollback_says_what_it_returns_to() -> None:
    html = plan_facts.plan_head(plan(4, trigger="rollback", parent=1), 4)
    assert "returns to" in html
    assert "version=1" in html


def test_the_verdict_is_the_controllers() -> None:
    changes = plan_changes.changes_of(standby_plan(), absorbing_plan(), profile_of(config_of("x")))
    assert changes is not None
    facts: dict[str, Any] = {"num_done": 100, "num_steps": 2000}
    assert "would say move" in plan_changes.verdict(changes, [], stay_s=4.0, move_s=2.4, **facts)
    assert "would say stay" in plan_changes.verdict(changes, [], stay_s=2.4, move_s=2.4, **facts)
    assert "no step is left" in plan_changes.verdict(changes, [], stay_s=4.0, move_s=2.4, num_done=9, num_steps=9)
    assert "cannot run" in plan_changes.verdict(changes, [], stay_s=math.inf, move_s=2.4, **facts)
    assert plan_changes.verdict(changes, [], stay_s=None, move_s=2.4, **facts) == ""


# -- what moves


def flow(source: int, target: int, **fields: Any) -> Flow:
    values: dict[str, Any] = {"layers": (3, 4, 5), "num_layers": 1.5, "num_bytes": 192_000.0, "is_within_node": True}
    return Flow(source=source, target=target, **(values | fields))


def test_an_arrow_says_layers_and_bytes() -> None:
    moved = [flow(0, 3), flow(4, 1, layers=(8,), num_layers=1.0, is_within_node=False)]
    html = plain(flow_arrows.flow_arrows(moved, rates={3: 2.57}, nodes=NODES))
    assert "1.50 layers · 192 kB" in html
    assert "1 layer · 192 kB" in html
    assert html.count('class="arrow crossing"') == 1
    assert "layers 3-5" in html
    assert "2 links · about 192 kB within nodes · about 192 kB between nodes" in html
    assert "No layer" in flow_arrows.flow_arrows([], rates={}, nodes=NODES)


def test_arrows_without_a_profile_count_layers() -> None:
    html = flow_arrows.flow_arrows([flow(0, 3, num_bytes=None, is_within_node=None)], rates={}, nodes=())
    assert "1.50 layers" in html
    assert "kB" not in html


def test_many_links_become_arrows_between_nodes() -> None:
    moved = [flow(source, target) for source in range(8) for target in range(8) if source != target]
    html = flow_arrows.flow_arrows(moved, rates={}, nodes=NODES)
    assert html.count('class="arrow') - html.count('class="arrow-') - html.count('class="arrows"') == 4
    assert "node 0" in html
    assert len(flow_arrows.records(moved)) == 56


# -- predicted against measured


def ran(version: int, predicted_s: float | None, measured_s: float | None, bound_s: float | None = 1.0) -> PlanRun:
    return PlanRun(
        version=version,
        active_at=at(100 * version),
        predicted_s=predicted_s,
        measured_s=measured_s,
        bound_s=bound_s,
    )


def test_outcomes_need_both_numbers() -> None:
    found = calibration.outcomes(
        [ran(1, None, 2.0), ran(2, 2.0, 2.2), ran(3, 2.0, None), ran(4, math.inf, 2.0), ran(5, 2.0, math.nan)],
        predicted_s={1: 1.9},
    )
    assert [entry.version for entry in found] == [1, 2]
    assert found[0].until_at == at(200)
    assert found[1].error == pytest.approx(0.1)


def test_the_figure_has_no_holes_and_keeps_the_worst() -> None:
    found = calibration.outcomes([ran(number, 2.0, 3.0 if number == 1234 else 2.02) for number in range(1, 10_001)])
    figure = calibration.figure(found, palette=LIGHT, revision="r")
    json.dumps(figure, allow_nan=False)
    drawn = figure["data"][2]
    assert len(drawn["x"]) <= calibration.MAX_POINTS
    assert 1234 in drawn["x"]
    assert "within" in calibration.summary(found, 10_000)
    single = calibration.figure(calibration.outcomes([ran(1, 2.0, 2.0, None)]), palette=LIGHT, revision="r")
    json.dumps(single, allow_nan=False)
    assert "yet" in calibration.summary([], 3)


@pytest.mark.parametrize(
    ("episodes", "measured", "num_steps", "said"),
    [
        ([episode(5, start=250, rate=5.42)], 4.0, 60, "device 5 slowed to 5.42x while it ran"),
        ([episode(3, start=100, end=250)], 1.5, 60, "device 3 recovered while it ran"),
        ([episode(3, start=20, end=30), episode(4, start=900)], 3.0, 60, "no rate changed that explains it: the step"),
        ([], 3.0, 2, "only 2 steps ran"),
        ([episode(5, start=250)], 1.5, 60, "no rate changed that explains it: the step is faster"),
        ([], 0.5, 60, "faster than the bound"),
        ([], 1.5, None, "the step is faster than the profile says"),
    ],
)  # fmt: skip
def test_large_errors_are_explained(episodes: list[Any], measured: float, num_steps: int | None, said: str) -> None:
    first, _ = calibration.outcomes([ran(2, 2.0, measured), ran(4, 2.0, 2.0)])
    assert said in plain(calibration.explanation(first, episodes, num_steps))
    html = calibration.large_errors([first], episodes, {2: num_steps or 60}, run=7, now=NOW)
    assert "version=2" in html
    assert "No error" in calibration.large_errors([], [], {}, run=7, now=NOW)


# -- replays


def replay(state: Any, **fields: Any) -> ReplayView:
    return ReplayView(id=1, name="<b>.json", state=state, started_at=datetime.now(UTC), **({"outcome": {}} | fields))


def test_a_replay_says_same_or_what_differs() -> None:
    now = datetime.now(UTC) + timedelta(seconds=3)
    assert "searching again" in replay_result(replay("running"), now=now)
    same = replay_result(replay("same", outcome={"run": 7, "version": 3, "seconds": 0.4}), now=now)
    assert "plan v3 of run 7 comes out again" in same
    assert "&lt;b&gt;.json" in same
    differences = [
        {"what": "plan", "recorded": absorbing_plan().to_json(), "replayed": None},
        {"what": "bound", "recorded": 1.25, "replayed": 1.5},
    ]
    html = replay_result(
        replay("different", outcome={"run": 7, "version": 3, "differences": differences, "cut_short": True}), now=now
    )
    assert "<td>1.25</td><td>1.5</td>" in html
    assert "7 micro-batches: 3 layers" in html
    assert "time limit" in html
    assert "not replayed, no luck" in replay_result(replay("failed", problem="no luck"), now=now)
    assert "no longer known" in replay_result(None, now=now)
