"""The alert line: one sentence in every situation."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from app.dashboard.alert import Situation, alert
from app.dashboard.headline import headline
from app.dashboard.rate_history import rate_history
from tests.app.story_rows import at, episode, plain, plan

CALM = headline([], rate_history([], [], 8), {}, [], [], active_version=1, profile=None)
SLOWED = replace(CALM, healthy_s=1.0, measured_s=1.07, first_plan_s=2.37)


def situation(**changes: Any) -> Situation:
    values: dict[str, Any] = {
        "run": 7, "mode": "automatic", "num_devices": 8, "node_of": {3: 0}, "rates": {0: 1.0, 3: 1.0}, "episodes": [],
        "plans": [plan(1)], "active_version": 1, "figures": CALM, "last_loss": 2.0, "patience_steps": 3, "now": at(60),
    }  # fmt: skip
    return Situation(**(values | changes))


SLOW = {"rates": {0: 1.0, 3: 2.57}, "episodes": [episode(3, start=11)]}


@pytest.mark.parametrize(
    ("changes", "level", "sentence"),
    [
        ({}, "calm", "All 8 devices run at healthy speed."),
        ({"num_devices": 1}, "calm", "The device runs at healthy speed."),
        ({"has_steps": False}, "calm", "No step has been reported yet."),
        ({"rates": {}}, "calm", "No device has measured its speed yet."),
        ({"last_loss": math.nan}, "bad", "The loss is NaN."),
        ({"rates": {3: math.nan}}, "watch", "Device 3 measured nothing in the last steps."),
        ({"rates": {3: 2.57}}, "watch", "Device 3 (node 0) measures 2.57x|It counts once it has lasted 3 steps."),
        (SLOW, "slow", "Device 3 (node 0) is 2.57x slow since 14:00:11 UTC. No plan absorbs it yet."),
        (
            SLOW | {"plans": [plan(3, rates={3: 2.57}), plan(1)], "active_version": 3, "figures": SLOWED},
            "slow",
            "Plan v3 absorbs it: +7.0 % step time instead of +137 %.",
        ),
        (SLOW | {"plans": [plan(2, status="solving"), plan(1)]}, "slow", "Plan v2 is being computed."),
        (
            SLOW | {"mode": "manual", "plans": [plan(2, status="ready", predicted_s=1.4, current_s=3.0), plan(1)]},
            "slow",
            "Plan v2 is ready: 1.40 s a step instead of 3.00 s; it waits for your approval.",
        ),
        (SLOW | {"mode": "off", "figures": SLOWED}, "slow", "Re-planning is off, so the run keeps plan v1."),
        (
            SLOW | {"plans": [plan(2, status="rejected", reason="no-better-plan"), plan(1)]},
            "slow",
            "Plan v2 was rejected: no-better-plan.",
        ),
        (
            SLOW | {"plans": [plan(2, status="rejected", reason="stay: 1.78 s -> 1.74 s a step"), plan(1)]},
            "slow",
            "Plan v2 was rejected: stay: 1.78 s → 1.74 s a step.",
        ),
        (
            {"rates": {3: math.inf}, "episodes": [episode(3, start=11, rate=math.inf)]},
            "bad",
            "Device 3 (node 0) has failed since 14:00:11 UTC.",
        ),
        (
            {"rates": {3: math.nan}, "episodes": [episode(3, start=11, rate=math.nan, cause="unknown")]},
            "slow",
            "Device 3 (node 0) has been silent since 14:00:11 UTC (cause: not enough evidence).",
        ),
        (
            {"rates": {3: 1.0}, "episodes": [episode(3, start=11)]},
            "slow",
            "It measures healthy speed again; that counts once it has lasted.",
        ),
        (
            {"rates": {3: 2.57, 5: 5.42}, "episodes": [episode(3, start=11), episode(5, start=20, rate=5.42)]},
            "slow",
            "Devices 3 and 5 are 2.57x and 5.42x slow since 14:00:11 UTC.",
        ),
        (
            {"rates": {3: 2.57}, "episodes": [episode(3, start=11, cause="data")]},
            "slow",
            "(cause: heavy micro-batches)",
        ),
    ],
)  # fmt: skip
def test_alert(changes: dict[str, Any], level: str, sentence: str) -> None:
    line = alert(situation(**changes))
    said = plain(f"{line.lead} {line.rest}")
    assert line.level == level
    for part in sentence.split("|"):
        assert part in said


def test_alert_links_to_what_matters() -> None:
    plans = [plan(3, rates={3: 2.57}), plan(1)]
    links = alert(situation(**SLOW, plans=plans, active_version=3)).links
    assert [(link.label, link.page, dict(link.params)) for link in links] == [
        ("evidence", "live", {"run": "7", "device": "3"}),
        ("plan v3", "plans", {"run": "7", "version": "3"}),
    ]
