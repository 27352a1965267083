"""Whether a better plan is worth moving to: gain per step x steps to come, against the cost of moving.

Pure arithmetic. The controller asks before it approves a plan by itself, and shows the same sentence to a
person who has to approve. Doing nothing is an answer too, with its reason. It compares times it is given
and does not predict step times (see `planner.cost`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# What is assumed until a run has measured its own switches, and lived through its own shifts.
PAUSE_S = 0.5
BYTES_PER_S = 100e6
STEPS_BEFORE_SHIFT = 200
LEAST_GAIN = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An earlier switch of this run, as measured."""

    num_bytes: float
    pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do with a plan, and why.

    Args:
        gain_s: seconds saved a step; infinite where the present plan cannot run at all.
        num_steps: steps that the gain is expected to last.
        saving_s, cost_s: gain over those steps, and the pause that the move is expected to cost.
        reason: one sentence.
    """

    is_worth: bool
    gain_s: float
    num_steps: int
    saving_s: float
    cost_s: float
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def decide(
    *,
    stay_s: float,
    move_s: float,
    num_steps: int,
    num_bytes: float,
    history: Sequence[Move] = (),
    least_gain: float = LEAST_GAIN,
) -> Decision:
    """Weighs a move.

    Args:
        stay_s, move_s: predicted seconds of a step under the present plan and under the other, both at
            the rates measured now; inf for a plan that cannot run.
        num_steps: steps that the gain is expected to last (see `expected_steps`).
        num_bytes: estimate of what would have to move.
        least_gain: share of `stay_s` below which a gain is within what predictions miss.
    """
    cost_s = pause_s(num_bytes, history)
    gain_s = 0.0 if math.isinf(stay_s) and math.isinf(move_s) else stay_s - move_s
    saving_s = gain_s * num_steps if num_steps > 0 else 0.0
    known = f"{len(history)} earlier switch{'es' if len(history) != 1 else ''}" if history else "no earlier switch"
    cost = f"moving costs about {cost_s:.2f} s ({num_bytes / 1e6:.1f} MB, {known} measured)"
    if math.isinf(move_s):
        is_worth, reason = False, "stay: the new plan cannot run at the rates measured now"
    elif num_steps <= 0:
        is_worth, reason = False, "stay: no step is left to gain from"
    elif math.isinf(stay_s):
        is_worth, reason = True, f"move: the present plan cannot run at the rates measured now, {cost}"
    elif gain_s <= 0:
        is_worth = False
        reason = f"stay: {stay_s:.3f} s a step now, {move_s:.3f} s after a move, nothing to gain"
    elif gain_s < least_gain * stay_s:
        is_worth = False
        reason = (
            f"stay: {gain_s:.3f} s of {stay_s:.3f} s a step is less than {least_gain:.0%}, within what predictions miss"
        )
    else:
        is_worth = saving_s > cost_s
        reason = (
            f"{'move' if is_worth else 'stay'}: {stay_s:.3f} s -> {move_s:.3f} s a step over {num_steps} steps "
            f"saves {saving_s:.1f} s, {cost}"
        )
    return Decision(
        is_worth=is_worth, gain_s=gain_s, num_steps=num_steps, saving_s=saving_s, cost_s=cost_s, reason=reason
    )


def pause_s(num_bytes: float, history: Sequence[Move] = ()) -> float:
    """Expected pause of a switch: a fixed part and one by bytes, scaled to what this run has measured.

    The scale is the median of measured over expected, so that one odd switch does not matter.
    """
    expected = _unscaled_pause_s(num_bytes)
    factors = [
        move.pause_s / _unscaled_pause_s(move.num_bytes)
        for move in history
        if math.isfinite(move.pause_s) and move.pause_s >= 0
    ]
    return expected * statistics.median(factors) if factors else expected


def expected_steps(*, num_remaining: int, num_done: int, num_shifts: int) -> int:
    """How many steps the present rates are expected to last: at most the rest of the run.

    The steps so far, with `STEPS_BEFORE_SHIFT` added as prior knowledge, over the shifts so far (this one
    not counted) plus one. A run whose rates change all the time gains little from any single move.
    """
    lasting = (num_done + STEPS_BEFORE_SHIFT) // (num_shifts + 1)
    return max(0, min(num_remaining, lasting))


def _unscaled_pause_s(num_bytes: float) -> float:
    return PAUSE_S + max(num_bytes, 0.0) / BYTES_PER_S
