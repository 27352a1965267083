"""What a told story comes to, in figures: the one object that `malleus demo --json` prints.

Everything is read back from SQL; a figure that was not measured is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from app.story import Story
from db import history, injections, plans, runs
from planner.cost import capacity_bound_s

MOST_OVER_BOUND = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Medians are over steps of phase `train`, in seconds.

    Args:
        plans_applied: plans that the job moved to after the one it started with.
        bound_step_s: capacity bound with these stragglers.
        efficiency: bound over recovered.
        detect_s: from the engine's first slow step boundary to the request for the first plan applied.
        plan_s: from request to solved, queueing included; the longest of the applied plans.
        switch_s: from solved to active in the engine; the longest.
        bytes_moved, digests_equal: over all switches that were applied.
        samples_consumed: sequences trained on; None if an id was skipped or repeated.
    """

    run: int
    plans_applied: int
    healthy_step_s: float | None
    straggling_step_s: float | None
    recovered_step_s: float | None
    bound_step_s: float | None
    efficiency: float | None
    detect_s: float | None
    plan_s: float | None
    switch_s: float | None
    bytes_moved: int
    digests_equal: bool | None
    samples_consumed: int | None
    loss_first: float | None
    loss_last: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def is_recovered(self) -> bool:
        """Whether the job came back close to the bound with its state intact."""
        if self.recovered_step_s is None or self.bound_step_s is None or self.digests_equal is False:
            return False
        return self.recovered_step_s <= MOST_OVER_BOUND * self.bound_step_s

    @property
    def is_cost_measured(self) -> bool:
        """Whether the straggler's cost without a new plan is known."""
        return self.healthy_step_s is not None and self.straggling_step_s is not None


def measure(story: Story) -> Figures:
    """Reads a story's figures back from SQL, whatever part of it was told."""
    store, run = story.store, story.run
    steps = history.steps(store, run, max_points=100_000)
    base, start, applied = story.base_version, story.start_step, story.applied_step
    active = runs.get(store, run).active_plan_version
    healthy = (
        None if start is None else _median(step.step_s for step in story.steps(until_step=start, plan_version=base))
    )
    straggling = recovered = None
    if applied is not None:
        straggling = _median(step.step_s for step in story.steps(since_step=applied + 1, plan_version=base))
        if not story.stragglers:
            straggling, recovered = None, straggling
        elif active != base:
            recovered = _median(step.step_s for step in story.steps(since_step=applied + 1, plan_version=active))
    bound = None if healthy is None else capacity_bound_s(healthy, _rates(story))
    switches = [switch for switch in history.switches(store, run) if switch.outcome == "applied"]
    return Figures(
        run=run,
        plans_applied=len(switches),
        healthy_step_s=healthy,
        straggling_step_s=straggling,
        recovered_step_s=recovered,
        bound_step_s=bound,
        efficiency=None if bound is None or recovered is None else bound / recovered,
        **_durations(story),
        bytes_moved=sum(switch.bytes_moved for switch in switches),
        digests_equal=all(switch.digests_equal for switch in switches) if switches else None,
        samples_consumed=_samples(step.samples for step in steps),
        loss_first=steps[0].loss if steps else None,
        loss_last=steps[-1].loss if steps else None,
    )


def _rates(story: Story) -> Mapping[int, float]:
    config = runs.get(story.store, story.run).config
    slow = {straggler.device: straggler.rate for straggler in story.stragglers}
    return {device: slow.get(device, 1.0) for node in config.nodes for device in node}


def _durations(story: Story) -> dict[str, float | None]:
    applied = [
        plan
        for plan in plans.all_plans(story.store, story.run)
        if plan.active_at is not None and plan.version > (story.base_version or 0) > 0
    ]
    begun = [
        item.applied_at for item in injections.all_injections(story.store, story.run) if item.applied_at is not None
    ]
    first = min((plan.created_at for plan in applied), default=None)
    return {
        "detect_s": (first - min(begun)).total_seconds() if first is not None and begun else None,
        "plan_s": max(
            ((plan.solved_at - plan.created_at).total_seconds() for plan in applied if plan.solved_at), default=None
        ),
        "switch_s": max(
            (
                (plan.active_at - plan.solved_at).total_seconds()
                for plan in applied
                if plan.active_at and plan.solved_at
            ),
            default=None,
        ),
    }


def _median(values: Iterable[float]) -> float | None:
    found = [value for value in values if value == value]  # NaN: not measured
    return median(found) if found else None


def _samples(ranges: Iterable[tuple[int, int]]) -> int | None:
    """How many ids `[0, n)` the steps consumed, if they did so without gap or repeat."""
    expected = 0
    for first, stop in ranges:
        if first != expected:
            return None
        expected = stop
    return expected
