"""The headline figures of a run: efficiency, time lost to stragglers, time saved by switches.

Computed from steps, episodes and plans; every definition is the text of a tooltip below. Steps may be
thinned: each one stands for the steps up to the next. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median, mode
from typing import TYPE_CHECKING

from app.dashboard.rate_colors import HEALTHY_BELOW
from app.dashboard.rate_history import RateHistory, bound_s
from planner.cost import plan_step_s
from planner.errors import PlannerError
from planner.plan import Plan
from planner.spec import ModelProfile

if TYPE_CHECKING:
    from db.history import StepView, SwitchView
    from db.plans import PlanView

RECENT_STEPS = 10
"""Train steps whose median is "the step time now"."""

MIN_CALM_STEPS = 3
"""Healthy train steps needed before their median is believed."""

Predictions = dict[tuple[int, frozenset[tuple[int, float]]], "float | None"]
"""Predicted step seconds by plan version and stragglers."""

DEFINITIONS = {
    "step": "The last optimizer step that the engine has reported.",
    "loss": "Mean cross-entropy per token over the global batch, of the last step.",
    "step_s": f"Median wall time of the last {RECENT_STEPS} train steps under the active plan.",
    "bound": (
        "Capacity bound: healthy step time under the best plan known * devices / sum of 1/rate. "
        "A plan may be slightly faster."
    ),
    "efficiency": (
        "Capacity bound / measured step time. 100 %: all capacity is used as well as by the best healthy plan known."
    ),
    "lost": "Sum over steps with a straggler of (measured - healthy step time), plus the pauses of switches.",
    "saved": (
        "What the same steps would have taken under the run's first plan (predicted at the rates of each moment), "
        "minus what they took. Only steps after a switch count."
    ),
    "healthy_measured": "Healthy step time: median of the train steps in which every rate was below 1.05.",
    "healthy_predicted": "Healthy step time: predicted for the active plan at rate 1, since no healthy step is known.",
    "tokens": "Tokens of the global batch / step time.",
    "mfu": (
        "MFU (model FLOPs utilisation): floating-point operations that the model needs for a step, over what all "
        "devices could do in that time."
    ),
    "grad_norm": "Gradient norm: global norm of the gradient before clipping, of the last step.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The figures; None where there is not enough to say.

    Args:
        healthy_s: reference step time with every device healthy.
        is_healthy_measured: from healthy steps (else predicted from the profile).
        capacity_s: the same under the best healthy plan that the planner has found, which the bound is made of.
        measured_s: step time now.
        bound_s: capacity bound at the rates now.
        first_plan_s: predicted step time of the run's first plan at the rates now.
        mfu, grad_norm: of the last step; None if it did not report them.
    """

    healthy_s: float | None
    is_healthy_measured: bool
    capacity_s: float | None
    measured_s: float | None
    bound_s: float | None
    efficiency: float | None
    lost_s: float
    saved_s: float
    first_plan_s: float | None
    tokens_per_s: float | None
    mfu: float | None = None
    grad_norm: float | None = None

    @property
    def slowdown(self) -> float | None:
        """Measured over healthy, minus one: 0.07 is 7 % slower than healthy."""
        return _share(self.measured_s, self.healthy_s)

    @property
    def slowdown_of_first_plan(self) -> float | None:
        return _share(self.first_plan_s, self.healthy_s)


def headline(
    steps: Sequence[StepView],
    history: RateHistory,
    rates_now: Mapping[int, float],
    plans: Sequence[PlanView],
    switches: Sequence[SwitchView],
    *,
    active_version: int | None,
    profile: ModelProfile | None,
    predictions: Predictions | None = None,
) -> Headline:
    """Computes the figures.

    Args:
        steps: in step order, possibly down-sampled; the last ones should be complete.
        rates_now: measured rates of the last steps, by device.
        plans: of the run, any order; those without a document are ignored.
        predictions: under this profile, as earlier calls left them; grows.
    """
    documents = {plan.version: plan for plan in plans if plan.document is not None}
    known_s = {} if predictions is None else predictions

    def predicted_s(version: int | None, rates: Mapping[int, float]) -> float | None:
        """A long run has the same stragglers again and again."""
        if version is None or version not in documents:
            return None
        key = (version, frozenset(rates.items()))
        if key not in known_s:
            known_s[key] = _predicted(parsed(documents[version].document), profile, rates)
        return known_s[key]

    healthy_s, healthy_version = healthy_reference(steps, history)
    is_measured = healthy_s is not None
    if healthy_s is None:
        healthy_s, healthy_version = predicted_s(active_version, {}), active_version
    capacity_s = _of_best_plan(healthy_s, predicted_s(healthy_version, {}), best_healthy_s(plans, history.num_devices))
    stragglers = {device: rate for device, rate in rates_now.items() if not rate < HEALTHY_BELOW}
    known = {device: rate for device, rate in stragglers.items() if not math.isnan(rate)}
    measured_s = step_s_now(steps)
    bound_now = bound_s(capacity_s, known, history.num_devices)
    first_version = min(documents, default=None)
    lost_s, saved_s = _lost_and_saved(
        steps, history, healthy_s, first_version, lambda rates: predicted_s(first_version, rates)
    )
    return Headline(
        healthy_s=healthy_s,
        is_healthy_measured=is_measured,
        capacity_s=capacity_s,
        measured_s=measured_s,
        bound_s=bound_now,
        efficiency=bound_now / measured_s if bound_now and measured_s and math.isfinite(bound_now) else None,
        lost_s=lost_s + sum(switch.pause_s for switch in switches if switch.outcome == "applied"),
        saved_s=saved_s,
        first_plan_s=predicted_s(first_version, known),
        tokens_per_s=steps[-1].num_tokens / measured_s if steps and measured_s else None,
        mfu=_reported(steps[-1].mfu) if steps else None,
        grad_norm=_reported(steps[-1].grad_norm) if steps else None,
    )


def healthy_reference(steps: Sequence[StepView], history: RateHistory) -> tuple[float | None, int | None]:
    """The healthy step time as measured, and the plan that most such steps ran; None for both if they are too few."""
    calm = [step for step in steps if step.phase == "train" and math.isfinite(step.step_s) and not history.at(step.at)]
    if len(calm) < MIN_CALM_STEPS:
        return None, None
    return median(step.step_s for step in calm), mode(step.plan_version for step in calm)


def best_healthy_s(plans: Sequence[PlanView], num_devices: int) -> float | None:
    """Predicted healthy step of the best plan that the newest search knew, from its bound; None before any search."""
    searched = [plan for plan in plans if plan.bound_s is not None and math.isfinite(plan.bound_s)]
    newest = max(searched, key=lambda plan: plan.version, default=None)
    if newest is None or newest.bound_s is None:
        return None
    over_healthy = bound_s(1.0, newest.rates, num_devices)
    return newest.bound_s / over_healthy if over_healthy else None


def step_s_now(steps: Sequence[StepView]) -> float | None:
    """Median of the last train steps under the plan of the last step."""
    if not steps:
        return None
    version = steps[-1].plan_version
    recent: list[float] = []
    for step in reversed(steps):
        if step.plan_version != version or len(recent) == RECENT_STEPS:
            break
        if step.phase == "train" and math.isfinite(step.step_s):
            recent.append(step.step_s)
    if recent:
        return median(recent)
    return steps[-1].step_s if math.isfinite(steps[-1].step_s) else None


def parsed(document: Mapping[str, object] | None) -> Plan | None:
    """A stored plan document as a plan; None if there is none or it is malformed."""
    if document is None:
        return None
    try:
        return Plan.from_json(document)
    except PlannerError:
        return None


def _lost_and_saved(
    steps: Sequence[StepView],
    history: RateHistory,
    healthy_s: float | None,
    first_version: int | None,
    predicted_s: Callable[[Mapping[int, float]], float | None],
) -> tuple[float, float]:
    if healthy_s is None:
        return 0.0, 0.0
    lost_s = saved_s = 0.0
    for stragglers, version, values, num_steps in _stretches(steps, history):
        typical_s = median(values)
        lost_s += num_steps * max(typical_s - healthy_s, 0.0)
        if version == first_version:
            continue
        stay_s = predicted_s(stragglers)
        if stay_s is not None and math.isfinite(stay_s):
            saved_s += num_steps * max(stay_s - typical_s, 0.0)
    return lost_s, saved_s


def _stretches(
    steps: Sequence[StepView], history: RateHistory
) -> Iterator[tuple[Mapping[int, float], int, list[float], int]]:
    """Runs of steps with the same stragglers (at least one) under the same plan.

    Yields stragglers, plan version, finite step seconds, and the number of steps that they stand for:
    thinning keeps extremes, so a stretch is judged by its median, not its sum.
    """
    following = [*(step.step for step in steps[1:]), steps[-1].step + 1] if steps else []
    weighed = zip(steps, following, strict=True)
    for (_, version), group in groupby(weighed, key=lambda pair: (history.span(pair[0].at), pair[0].plan_version)):
        members = list(group)
        stragglers = history.at(members[0][0].at)
        values = [step.step_s for step, _ in members if math.isfinite(step.step_s)]
        if stragglers and values:
            yield stragglers, version, values, sum(max(after - step.step, 1) for step, after in members)


def _predicted(plan: Plan | None, profile: ModelProfile | None, rates: Mapping[int, float]) -> float | None:
    if plan is None or profile is None:
        return None
    try:
        return plan_step_s(plan, profile, rates)
    except PlannerError:
        return None


def _of_best_plan(healthy_s: float | None, predicted_s: float | None, best_s: float | None) -> float | None:
    """A healthy step time, less by as much as the best plan is predicted to be faster than the one that ran."""
    if healthy_s is None or predicted_s is None or best_s is None:
        return healthy_s
    return healthy_s * min(best_s / predicted_s, 1.0)


def _reported(value: float) -> float | None:
    return None if math.isnan(value) else value


def _share(value: float | None, reference: float | None) -> float | None:
    if value is None or not reference or not math.isfinite(value):
        return None
    return value / reference - 1
