"""The report of a drill from rows written by hand, and how it is drawn and downloaded."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest

from app.dashboard.downloads import csv_text, json_text
from app.dashboard.drill import as_drill, drill_stages
from app.dashboard.drill_card import drill_card, report_rows
from app.dashboard.schedule_lanes import next_entry, schedule_lanes, span_s
from app.dashboard.situation_cards import situation_cards
from app.drill_report import DrillReport, drill_report
from db.injections import InjectionView
from db.schedule import Entry
from tests.app.story_rows import at, command, plain, plan, step, switch
from tests.app.test_phase_figures import EVEN, MOVED, PROFILE


def injected(device: int, rate: float, *, step: int | None, cleared: float | None = None, by: int = 1) -> InjectionView:
    return InjectionView(
        id=by * 100 + device,
        run=7,
        device=device,
        rate=rate,
        status="cleared" if cleared is not None else "active",
        command=by,
        desired_version=2,
        requested_at=at(9.3),
        until_at=None,
        applied_at=None if step is None else at(step - 0.9),
        applied_step=step,
        cleared_at=None if cleared is None else at(cleared),
    )


# A step a second: 5 to 9 healthy, device 1 slow from 10, a plan asked for at 14.2, switched before 16.
STEPS = [
    *(step(number, 0.8, loss=3.0) for number in range(5, 10)),
    *(step(number, 1.0, loss=2.5) for number in range(10, 16)),
    step(16, 0.9, version=2, phase="switch", loss=2.4),
    *(step(number, 0.5, version=2, loss=2.0) for number in range(17, 24)),
]
PLANS = [
    plan(2, created=14.2, solved_at=at(14.9), solve_s=0.3, document=MOVED, rates={1: 2.0}),
    plan(1, document=EVEN),
]


def report(**changes: Any) -> DrillReport | None:
    values: dict[str, Any] = {
        "name": "drill",
        "injections": [injected(1, 2.0, step=10)],
        "steps": STEPS,
        "plans": PLANS,
        "switches": [switch(2, 16)],
        "num_devices": 4,
        "profile": PROFILE,
        "healthy_s": None,
    }
    return drill_report(command(), **(values | changes))


def test_a_drill_that_was_replanned() -> None:
    found = report()
    assert found is not None
    assert (found.first_step, found.last_step, found.is_over) == (10, 23, False)
    assert found.detect_steps == 5  # 10 to 14
    assert found.detect_s == pytest.approx(14.2 - 9.0)
    assert (found.plan_s, found.solve_s) == (pytest.approx(0.7), 0.3)
    assert (found.switch_steps, found.switch_s) == (1, pytest.approx(1.1))  # step 15 went by; the switch came at 16
    assert (found.before_step_s, found.during_step_s, found.after_step_s) == (0.8, 1.0, 0.5)
    assert found.bound_step_s == pytest.approx(0.8 * 4 / 3.5)
    assert found.efficiency == pytest.approx(0.8 * 4 / 3.5 / 0.5)
    assert (found.loss_before, found.loss_after) == (2.5, 2.4)
    assert found.lost_s == pytest.approx(0.5 + 6 * 0.2 + 0.1)  # the pause, six slow steps, the switch's own


def test_the_predicted_bound_is_that_of_the_best_healthy_plan_too() -> None:
    def predicted_bound_s(best_healthy_s: float | None) -> float:
        found = report(best_healthy_s=best_healthy_s)
        assert found is not None
        (slow,) = [phase.figures for phase in found.phases if phase.rates and phase.figures is not None]
        return slow.predicted_bound_s

    first_s = predicted_bound_s(None) * 3.5 / 4
    assert predicted_bound_s(0.9 * first_s) == pytest.approx(0.9 * first_s * 4 / 3.5)
    assert predicted_bound_s(1.1 * first_s) == pytest.approx(first_s * 4 / 3.5)


def test_it_is_over_when_all_is_cleared_or_the_next_one_begins() -> None:
    cleared = report(injections=[injected(1, 2.0, step=10, cleared=18.0)])
    assert cleared is not None
    assert (cleared.is_over, cleared.last_step) == (True, 18)
    followed = report(until=at(13))
    assert followed is not None
    assert (followed.end_at, followed.last_step, followed.num_switches) == (at(13), 13, 0)
    assert followed.after_step_s is followed.efficiency is followed.loss_before is None


def test_before_the_engine_has_it_there_is_no_report() -> None:
    assert report(injections=[injected(1, 2.0, step=None)]) is None
    assert report(injections=[injected(1, 2.0, step=10, by=8)]) is None


def test_phases_follow_the_stragglers() -> None:
    """Device 1 until 13.5, device 2 from step 12 on: alone, both, the second alone."""
    found = report(
        injections=[injected(1, 2.0, step=10, cleared=13.5), injected(2, 3.0, step=12)],
        steps=[step(number, 1.0) for number in range(5, 20)],
        switches=[],
    )
    assert found is not None
    spans = [(phase.rates, phase.first_step, phase.last_step) for phase in found.phases]
    assert spans == [({1: 2.0}, 10, 11), ({1: 2.0, 2: 3.0}, 12, 14), ({2: 3.0}, 15, 19)]


def test_without_a_profile_there_are_times_but_no_bound() -> None:
    found = report(profile=None)
    assert found is not None
    assert found.before_step_s == 0.8
    assert found.bound_step_s is found.efficiency is None
    assert "this run has none" in drill_card(found, now=at(60))


def test_the_card_and_its_downloads_say_the_same() -> None:
    found = report(injections=[injected(1, 2.0, step=10, cleared=18.0)])
    assert found is not None
    said = plain(drill_card(found, now=at(60)))
    for text in (
        "5.20 s (5 steps)",
        "1.10 s (1 step)",
        "183 %",
        "2.50 \u2192 2.40",
        "in 9 steps",
        "ended 14:00:18 UTC",
    ):
        assert text in said
    rows = list(csv.DictReader(io.StringIO(csv_text(report_rows(found)))))
    assert (rows[0]["efficiency"], rows[0]["phase_rates"]) == (str(found.efficiency), "1=2")
    told = json.loads(json_text(found.to_json()))
    assert told["detect_s"] == found.detect_s
    assert told["phases"][0]["figures"]["plan"].startswith("4: 0x3 1x1")


def test_a_play_is_one_drill_of_all_its_devices() -> None:
    entries = [
        {"at_s": 0.0, "device": 3, "rate": 2.57, "for_s": None},
        {"at_s": 9.0, "device": 3, "rate": 1.0, "for_s": None},
        {"at_s": 5.0, "device": 1, "rate": 2.0, "for_s": None},
    ]
    asked = command(
        "play", status="accepted", arguments={"name": "x", "entries": entries}, done_at=None, applied_step=None
    )
    drill = as_drill(asked, [injected(3, 2.57, step=12), injected(1, 2.0, step=None)])
    assert drill.arguments["devices"] == [1, 3]
    assert (drill.status, drill.applied_step) == ("applied", 12)
    rows: dict[str, Any] = {"episodes": [], "plans": [], "switches": [], "points": [], "mode": "automatic"}
    waiting = next(stage for stage in drill_stages(drill, **rows, detected_at={}) if stage.state == "waiting")
    assert waiting.name == "detected"
    assert as_drill(replace(asked, kind="inject"), []).kind == "inject"


ENTRIES = (
    Entry(at_s=0.0, device=3, rate=2.57, for_s=30.0),
    Entry(at_s=20.0, device=5, rate=5.42),
    Entry(at_s=60.0, device=5, rate=1.0),
)


def test_lanes_are_to_scale() -> None:
    html = plain(schedule_lanes(ENTRIES, elapsed_s=30.0))
    assert span_s(ENTRIES) == pytest.approx(72.0)
    assert "left:27.78%;width:55.56%" in html  # 20 to 60 of 72 s: healthy again at 60
    assert 'left:41.67%"></i>' in html
    assert html.count("bar-lane") == 2
    assert next_entry(ENTRIES, 30.0) == ENTRIES[2]
    assert next_entry(ENTRIES, 60.0) is None
    assert schedule_lanes(()) == ""


def test_lanes_of_many_devices_are_cut() -> None:
    many = [Entry(at_s=0.0, device=device, rate=2.0) for device in range(40)]
    assert "and 24 more devices" in schedule_lanes(many)


def test_cards_show_this_cluster_and_what_it_is_too_small_for() -> None:
    html = plain(situation_cards(((0, 1), (2, 3)), chosen="S3"))
    assert "device 1 2.57x, device 3 5.42x" in html
    assert html.count('aria-pressed="true"') == 1
    lonely = situation_cards(((0,),))
    assert "situation S3 needs at least 2 nodes, given 1" in lonely
    assert lonely.count("<button") == 3  # S1, S2 and S5
