"""Series of a run that do not grow with it: its steps from one on, and a device's rates, thinned."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from app.dashboard.reads.source import store
from db import history
from db.history import StepView

MAX_POINTS = 1200
"""Steps kept of one series; twice as many before it is thinned again."""


@dataclass
class StepSeries:
    """Steps of a run from one step on, grown at the end, thinned when long."""

    first_step: int | None = None
    steps: list[StepView] = field(default_factory=list)

    def extend(self, run: int, last_step: int | None) -> None:
        """Reads the steps that are new, or all of them anew, thinned by the store."""
        have = self.steps[-1].step if self.steps else None
        if last_step is None or (have is not None and have >= last_step):
            return
        if have is None or len(self.steps) > 2 * MAX_POINTS:
            self.steps = history.steps(store(), run, since_step=self.first_step, max_points=MAX_POINTS)
        else:
            self.steps = [*self.steps, *history.steps(store(), run, since_step=have + 1, max_points=MAX_POINTS)]


def thinned(rates: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most about `MAX_POINTS`: of every bucket the lowest and the highest rate, and every NaN run's ends."""
    if len(rates) <= MAX_POINTS:
        return rates
    width = math.ceil(2 * len(rates) / MAX_POINTS)
    kept: list[tuple[int, float]] = []
    for first in range(0, len(rates), width):
        bucket = rates[first : first + width]
        ordered = sorted(bucket, key=lambda entry: (math.isnan(entry[1]), entry[1]))
        kept.extend(sorted({ordered[0], ordered[-1]}))
    return kept
