"""Running measures of one device and of the step time, under one plan.

The bookkeeping below `planner.detect`: medians, levels, and how long each has been off. It neither names
causes nor decides anything.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from planner.cause import Cause

Change = Literal["slower", "faster", "recovered", "failed", "silent", "back"]


def over(rate: float, level: float) -> float:
    """The rate as a multiple of a level: 1 where both are infinite."""
    return 1.0 if rate == level else rate / level


@dataclass(slots=True, kw_only=True)
class DeviceTrack:
    """What is known of one device under the active plan."""

    assumed: float
    window: int
    level: float = field(init=False)
    samples: deque[float] = field(init=False)
    cause: Cause | None = None
    first_step: int = -1
    off_step: int = -1
    num_off: int = 0
    num_in_band: int = 0
    num_healthy: int = 0
    num_silent: int = 0
    is_silent: bool = False
    is_off_from_start: bool = True
    _is_up: bool = False

    def __post_init__(self) -> None:
        self.level = self.assumed
        self.samples = deque(maxlen=self.window)

    def add(self, rate: float, step: int) -> None:
        if math.isnan(rate):
            self.num_silent += 1
            return
        if not self.samples or math.isinf(rate) or math.isinf(self.samples[-1]):
            self.samples.clear()
            self.first_step = step
        self.samples.append(rate)
        self.num_silent = 0

    def go_silent(self) -> None:
        self.is_silent = True
        self.samples.clear()
        self.num_off = self.num_in_band = self.num_healthy = 0

    def median(self) -> float:
        return statistics.median(self.samples) if self.samples else math.nan

    def compare(self, step: int, threshold: float) -> None:
        """Counts how long running rate and latest sample have been off the level.

        A step without a sample changes nothing, and one back in the band does not count while the median
        is still off: three slow steps hold a median of five for three more.
        """
        if self.num_silent or not self.samples:
            return
        rate = self.median()
        ratio = over(rate, self.level)
        self.num_healthy = self.num_healthy + 1 if abs(rate - 1) <= threshold else 0
        if abs(ratio - 1) <= threshold:
            self.num_off, self.is_off_from_start = 0, False
            self.num_in_band += 1
            return
        is_up = ratio > 1
        if self.num_off and is_up != self._is_up:
            self.num_off = 0
        if not self.num_off and self.cause != "data":
            self.off_step = self._onset(step, threshold)
        self._is_up = is_up
        self.num_in_band = 0
        latest = over(self.samples[-1], self.level)
        if (latest > 1 + threshold) if is_up else (latest < 1 - threshold):
            self.num_off += 1

    def has_jumped(self, factor: float, steady: float, num_samples: int) -> bool:
        """Whether the last samples all left the level by more than a factor, one way, and agree with each other."""
        tail = list(self.samples)[-num_samples:]
        if self.num_silent or len(tail) < num_samples:
            return False
        ratios = [over(rate, self.level) for rate in tail]
        has_left = min(ratios) > factor or max(ratios) < 1 / factor
        return has_left and max(tail) <= min(tail) * (1 + steady)

    def is_calm(self, tolerance: float, num_samples: int) -> bool:
        """Whether the last samples, if any, are about at the level."""
        tail = list(self.samples)[-num_samples:]
        return not tail or abs(over(statistics.median(tail), self.level) - 1) <= tolerance

    def keep_last(self, num_samples: int) -> None:
        """Forgets what was before a jump."""
        while len(self.samples) > num_samples:
            self.samples.popleft()

    def _onset(self, step: int, threshold: float) -> int:
        """The step of the oldest sample of the unbroken off tail that turned the median."""
        tail = 0
        for value in reversed(self.samples):
            if abs(over(value, self.level) - 1) <= threshold:
                break
            tail += 1
        return step - max(tail, 1) + 1

    def change(self, threshold: float) -> Change:
        rate = self.median()
        if math.isinf(rate):
            return "failed"
        if abs(rate - 1) <= threshold:
            return "recovered"
        return "slower" if rate > self.level else "faster"

    def confirm(self, cause: Cause, threshold: float) -> None:
        """Takes the running rate as the new level, except where data is to blame: that will pass.

        A device known to be slow stays so when everyone slows down too.
        """
        if cause == "data":
            self.cause, self.level = cause, self.assumed
            return
        if cause != "everyone" or not self.is_shifted(threshold):
            self.cause = cause
        self.level = self.median()
        self.num_off = 0

    def is_shifted(self, threshold: float) -> bool:
        """Whether the device runs outside the band that the plan assumed, through its own fault."""
        return self.cause == "device" and abs(over(self.level, self.assumed) - 1) > threshold


@dataclass(slots=True, kw_only=True)
class PaceTrack:
    """Step time against its own start: where it grows and no rate does, waiting grew.

    Args:
        window, patience: steps of the running median, and in a row beyond the threshold.
        threshold: relative growth that counts.
        reference_s: running median when the watch began, `None` before.
    """

    window: int
    patience: int
    threshold: float
    samples: deque[float] = field(init=False)
    reference_s: float | None = None
    num_off: int = 0
    _is_named: bool = False

    def __post_init__(self) -> None:
        self.samples = deque(maxlen=self.window)

    def start_over(self) -> None:
        """The rates changed, so another step time is due."""
        self.samples.clear()
        self.reference_s, self.num_off, self._is_named = None, 0, False

    def has_grown(self, step_s: float) -> bool:
        """Takes a step; true once each time that the growth has lasted."""
        if not math.isfinite(step_s):
            return False
        self.samples.append(step_s)
        if len(self.samples) < self.window:
            return False
        pace = statistics.median(self.samples)
        if self.reference_s is None:
            self.reference_s = pace
        is_off = pace > self.reference_s * (1 + self.threshold)
        self.num_off = self.num_off + 1 if is_off else 0
        was_named, self._is_named = self._is_named, is_off and (self._is_named or self.num_off >= self.patience)
        return self._is_named and not was_named
