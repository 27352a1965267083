"""Break-even: when a move pays, and what the sentence says."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from planner.decide import PAUSE_S, Move, decide, expected_steps, pause_s


def weigh(**changes: Any) -> Any:
    return decide(**({"stay_s": 1.1, "move_s": 0.7, "num_steps": 200, "num_bytes": 4e6} | changes))


@pytest.mark.parametrize(
    ("changes", "is_worth", "words"),
    [
        ({}, True, "1.100 s -> 0.700 s a step over 200 steps saves 80.0 s"),
        ({"num_steps": 1}, False, "saves 0.4 s, moving costs about 0.54 s"),  # the pause is longer than the gain
        ({"num_steps": 0}, False, "no step is left"),
        ({"move_s": 1.1}, False, "nothing to gain"),
        ({"move_s": 1.2}, False, "nothing to gain"),
        ({"move_s": 1.09, "num_steps": 10**6}, False, "within what predictions miss"),
        ({"stay_s": math.inf}, True, "the present plan cannot run"),
        ({"move_s": math.inf}, False, "the new plan cannot run"),
        ({"stay_s": math.inf, "move_s": math.inf}, False, "the new plan cannot run"),
        ({"num_bytes": 1e12}, False, "stay:"),  # 10 000 s of moving
        ({"history": [Move(num_bytes=4e6, pause_s=200.0)]}, False, "1 earlier switch measured"),
        ({"history": [Move(num_bytes=4e6, pause_s=0.1)] * 2, "num_steps": 1}, True, "2 earlier switches measured"),
    ],
)
def test_decisions(changes: dict[str, Any], is_worth: bool, words: str) -> None:
    decision = weigh(**changes)
    assert decision.is_worth is is_worth
    assert words in decision.reason
    assert decision.reason.startswith("move" if is_worth else "stay")
    json.dumps(decision.to_json())


def test_pause_grows_with_bytes_and_learns_from_switches() -> None:
    assert pause_s(0) == PAUSE_S
    assert pause_s(1e9) > pause_s(1e6)
    measured = [Move(num_bytes=0, pause_s=PAUSE_S * factor) for factor in (2.0, 2.2, 50.0)]
    assert pause_s(0, measured) == pytest.approx(2.2 * PAUSE_S), "one odd switch does not matter"
    assert pause_s(1e8, [Move(num_bytes=0, pause_s=math.nan)]) == pause_s(1e8), "what was not measured is not used"


@pytest.mark.parametrize(
    ("num_remaining", "num_done", "num_shifts", "expected"),
    [
        (1000, 20, 0, 220),  # a first shift: as long as it has been quiet, plus the prior
        (50, 20, 0, 50),  # never more than the rest of the run
        (10**6, 1000, 11, 100),  # a run that shifts all the time
        (0, 100, 1, 0),
        (-3, 100, 1, 0),
    ],
)
def test_expected_steps(num_remaining: int, num_done: int, num_shifts: int, expected: int) -> None:
    assert expected_steps(num_remaining=num_remaining, num_done=num_done, num_shifts=num_shifts) == expected
