"""How fast every device was at any moment of a run, as far as the store knows it.

Built from episodes (when a device straggled) and from the rate snapshots of plans (a full vector at
the moment a plan was asked for); between two changes rates are constant. This gives the capacity
bound for the whole run without reading a single raw sample. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from app.dashboard.rate_colors import HEALTHY_BELOW
from planner.cost import capacity_bound_s

if TYPE_CHECKING:
    from db.episodes import EpisodeView
    from db.plans import PlanView


@dataclass(frozen=True, slots=True, kw_only=True)
class RateHistory:
    """Rates by time.

    Args:
        starts: when each span begins, ascending.
        spans: the stragglers of each span, `{device: rate}`; other devices are healthy.
        num_devices: devices of the run.
    """

    starts: tuple[datetime, ...]
    spans: tuple[Mapping[int, float], ...]
    num_devices: int

    def span(self, moment: datetime) -> int:
        """Index of the span that holds a moment; -1 before the first."""
        return bisect_right(self.starts, moment) - 1

    def at(self, moment: datetime) -> Mapping[int, float]:
        """The stragglers of a moment."""
        index = self.span(moment)
        return self.spans[index] if index >= 0 else {}

    def bound_s(self, moment: datetime, healthy_s: float | None) -> float | None:
        """The capacity bound of a moment; None without a healthy reference."""
        return bound_s(healthy_s, self.at(moment), self.num_devices)


def bound_s(healthy_s: float | None, stragglers: Mapping[int, float], num_devices: int) -> float | None:
    """healthy * N / sum(1/x) with all devices not named at 1; None without a healthy reference."""
    if healthy_s is None or num_devices < 1:
        return None
    rates = [*stragglers.values(), *([1.0] * (num_devices - len(stragglers)))]
    return capacity_bound_s(healthy_s, rates)


def rate_history(episodes: Sequence[EpisodeView], plans: Sequence[PlanView], num_devices: int) -> RateHistory:
    """Builds the history.

    Args:
        episodes: in any order; an open one lasts until now.
        plans: in any order; their rates refine an episode that was under way when they were made.
    """
    changes: list[tuple[datetime, int, float]] = []
    made = sorted(plans, key=lambda plan: plan.created_at)
    made_at = [plan.created_at for plan in made]
    for episode in episodes:
        changes.append((episode.start_at, episode.device, episode.rate))
        stop = None if episode.end_at is None else bisect_left(made_at, episode.end_at)
        for plan in made[bisect_right(made_at, episode.start_at) : stop]:
            rate = plan.rates.get(episode.device)
            if rate is not None and rate >= HEALTHY_BELOW:
                changes.append((plan.created_at, episode.device, rate))
        if episode.end_at is not None:
            changes.append((episode.end_at, episode.device, 1.0))
    changes.sort(key=lambda change: change[0])
    starts: list[datetime] = []
    spans: list[Mapping[int, float]] = []
    current: dict[int, float] = {}
    for moment, device, rate in changes:
        current = {**current, device: rate} if rate >= HEALTHY_BELOW else _without(current, device)
        if starts and starts[-1] == moment:
            spans[-1] = current
        else:
            starts.append(moment)
            spans.append(current)
    return RateHistory(starts=tuple(starts), spans=tuple(spans), num_devices=num_devices)


def _without(rates: Mapping[int, float], device: int) -> dict[int, float]:
    return {key: value for key, value in rates.items() if key != device}
