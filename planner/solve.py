"""The planner's public entry: rates in, ranked plans out.

Worker, command line and bench call `solve`. It is pure and deterministic: equal input gives an equal
result, except that a time limit (counted with the caller's clock) may cut the search short. Every plan
it returns has passed `planner.validate`. It does not decide whether moving is worth it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from planner.cost import capacity_bound_s, plan_step_s
from planner.diff import diff
from planner.draft import Draft
from planner.errors import SpecError
from planner.explain import why_infeasible
from planner.placement import place
from planner.plan import Plan
from planner.problem import Problem, problem_of
from planner.search import find_drafts
from planner.spec import ClusterSpec, ModelProfile, TrainSpec, check_rates
from planner.validate import violations

Status = Literal["improved", "no-better-plan", "time-limited", "infeasible"]

_MAX_PLANS = 5
_HEALTHY_SHARE = 0.25  # share of the time limit that the bound may take
_ALIKE = 0.005  # devices whose rates differ by less may be swapped to move fewer bytes
_LOSS = 0.001  # and the step may become slower by as much for it


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPlan:
    """A valid plan and what it costs.

    Args:
        step_s: predicted seconds of a step under the given rates.
        moved_bytes: estimate of what devices must receive, coming from the current plan; 0 without one.
        is_current: this is the plan that runs now.
    """

    plan: Plan
    step_s: float
    moved_bytes: float
    is_current: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "plan": self.plan.to_json(),
            "step_s": self.step_s,
            "moved_bytes": self.moved_bytes,
            "is_current": self.is_current,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveResult:
    """What the search found.

    Args:
        status: `improved` (the first plan beats the current one, or there is none), `no-better-plan`
            (the first plan is the current one), `time-limited` (the search was cut short; the first plan
            is the best so far), `infeasible` (no plan exists, or none was found in time; `plans` is empty).
        plans: fastest first.
        current_s: predicted step seconds of staying; inf if the current plan cannot run (a device
            failed, memory), None without a current plan.
        bound_s: see `planner.cost.capacity_bound_s`.
        healthy_s: step seconds of the best plan found with every device healthy.
        gap: relative distance of the first plan from the bound; may be slightly negative.
        seconds: what the search took by the caller's clock; 0 without one.
        log: what happened, a line each, with the seconds at which it was done where there is a clock.
        reason: why the status is what it is, one sentence.
    """

    status: Status
    plans: tuple[RankedPlan, ...]
    current_s: float | None
    bound_s: float
    healthy_s: float
    gap: float
    seconds: float
    log: tuple[str, ...]
    reason: str

    @property
    def best(self) -> RankedPlan | None:
        return self.plans[0] if self.plans else None

    def to_json(self) -> dict[str, Any]:
        """Ready for `json.dumps`; numbers that are not finite become strings (`"Infinity"`)."""
        return {
            "status": self.status,
            "plans": [ranked.to_json() for ranked in self.plans],
            "current_s": _number(self.current_s),
            "bound_s": _number(self.bound_s),
            "healthy_s": _number(self.healthy_s),
            "gap": _number(self.gap),
            "seconds": self.seconds,
            "log": list(self.log),
            "reason": self.reason,
        }


def solve(
    *,
    cluster: ClusterSpec,
    profile: ModelProfile,
    train: TrainSpec,
    rates: Mapping[int, float],
    current: Plan | None = None,
    seed: int = 0,
    time_limit_s: float = 30.0,
    clock: Callable[[], float] | None = None,
) -> SolveResult:
    """Searches for the fastest valid plan under the given rates.

    Args:
        cluster: nodes, devices, memory.
        profile: costs of the model.
        train: global batch and the ranges to search.
        rates: straggling rate by device; devices not named are healthy, inf means failed.
        current: the plan that runs now; the search must beat it, and new plans stay close to it.
        seed: of the random part of the search.
        time_limit_s: seconds after which the search ends with the best plan so far.
        clock: seconds on any scale, for example `time.monotonic`; without one there is no time limit.

    Raises:
        SpecError: unknown devices, rates that are not positive, or a profile without any of the
            micro-batch sizes or TP degrees that `train` asks for.
    """
    every = check_rates(rates, cluster)
    problem = problem_of(cluster, profile, train, every)
    _check_profile(problem)
    started = clock() if clock is not None else 0.0

    def has_passed(share: float) -> bool:
        return clock is not None and clock() - started > share * time_limit_s

    def is_over() -> bool:
        return has_passed(1.0)

    log = _Log(clock, started)
    # First, so that the bound stays honest if time is short.
    healthy_s = _healthy_s(problem, seed, lambda: has_passed(_HEALTHY_SHARE))
    log.append(f"healthy cluster: best {healthy_s:.6g} s")
    current_s = _current_s(problem, current, log)
    limit_s = current_s if current_s is not None else math.inf
    drafts = list(find_drafts(problem, limit_s=limit_s, seed=seed, is_over=is_over, log=log))
    ranked = _ranked(problem, drafts, current, current_s, log)
    log.append(f"devices chosen and plans checked: {len(ranked)} plans")
    healthy_s = min([healthy_s, *(item.step_s for item in ranked)])
    bound_s = capacity_bound_s(healthy_s, every)
    was_cut = is_over()
    status: Status
    if not ranked:
        status, reason = "infeasible", "time limit reached before any plan was found" if was_cut else ""
        reason = reason or why_infeasible(problem, is_over)
    elif was_cut:
        status, reason = "time-limited", f"stopped after {time_limit_s:g} s; the first plan is the best so far"
    elif ranked[0].is_current:
        status, reason = "no-better-plan", "no plan is predicted to be faster than the current one"
    else:
        status = "improved"
        reason = f"predicted step {ranked[0].step_s:.3f} s" + (
            f" instead of {current_s:.3f} s" if current_s is not None else ""
        )
    return SolveResult(
        status=status,
        plans=tuple(ranked),
        current_s=current_s,
        bound_s=bound_s,
        healthy_s=healthy_s,
        gap=ranked[0].step_s / bound_s - 1 if ranked and 0 < bound_s < math.inf else math.inf,
        seconds=clock() - started if clock is not None else 0.0,
        log=tuple(log),
        reason=reason,
    )


def _check_profile(problem: Problem) -> None:
    train, profile = problem.train, problem.profile
    if not problem.instances:
        raise SpecError(
            f"micro_batch_sizes must name one that the profile knows {sorted(profile.compute_s)}, "
            f"given {list(train.micro_batch_sizes)}"
        )
    if not any(problem.group_sizes):
        size = problem.instances[0].micro_batch_size
        raise SpecError(
            f"max_tp must be at least the profile's smallest TP degree {min(profile.tp_degrees(size))}, "
            f"given {train.max_tp}"
        )


class _Log(list[str]):
    """Lines with the seconds since `started` in front, where there is a clock."""

    def __init__(self, clock: Callable[[], float] | None, started: float) -> None:
        super().__init__()
        self._clock, self._started = clock, started

    def append(self, line: str) -> None:
        super().append(line if self._clock is None else f"{self._clock() - self._started:.3f} s: {line}")


def _current_s(problem: Problem, current: Plan | None, log: list[str]) -> float | None:
    """Step seconds of the current plan; inf if it cannot run."""
    if current is None:
        return None
    broken = violations(
        current,
        cluster=problem.cluster,
        num_layers=problem.profile.num_layers,
        global_batch=problem.train.global_batch,
        profile=problem.profile,
    )
    if broken:
        log.append("the current plan cannot run: " + "; ".join(broken))
        return math.inf
    return plan_step_s(current, problem.profile, problem.rates)


def _ranked(
    problem: Problem, drafts: Sequence[Draft], current: Plan | None, current_s: float | None, log: list[str]
) -> list[RankedPlan]:
    """The drafts as checked plans with their exact cost, and the current plan among them, fastest first."""
    found: list[RankedPlan] = []
    if current is not None and current_s is not None and math.isfinite(current_s):
        kept = _with_failures(current, problem)
        found.append(RankedPlan(plan=kept, step_s=current_s, moved_bytes=0.0, is_current=kept == current))
    for draft in sorted(drafts, key=lambda draft: draft.step_s)[:_MAX_PLANS]:
        ranked = None
        for tolerance in (_ALIKE, 0.0) if current is not None else (0.0,):
            plan = place(
                draft,
                cluster=problem.cluster,
                rates=problem.rates,
                current=current,
                tolerance=tolerance,
            )
            step_s = plan_step_s(plan, problem.profile, problem.rates)
            if step_s <= draft.step_s * (1 + (_LOSS if tolerance else 1e-9)):
                moved = diff(current, plan, problem.profile).moved_bytes if current is not None else 0.0
                ranked = RankedPlan(plan=plan, step_s=step_s, moved_bytes=moved or 0.0, is_current=False)
                break
        assert ranked is not None, "a placement without tolerance costs what its draft costs"
        broken = violations(
            ranked.plan,
            cluster=problem.cluster,
            num_layers=problem.profile.num_layers,
            global_batch=problem.train.global_batch,
            max_tp=problem.train.max_tp,
            profile=problem.profile,
        )
        if broken:
            log.append("dropped a plan that breaks rules: " + "; ".join(broken))
        elif all(ranked.plan != other.plan for other in found):
            found.append(ranked)
    return sorted(found, key=lambda ranked: (ranked.step_s, ranked.moved_bytes))[:_MAX_PLANS]


def _with_failures(current: Plan, problem: Problem) -> Plan:
    """The same plan with devices that failed while standing by among the failed ones."""
    lost = {device for device in current.standby if math.isinf(problem.rates[device])}
    if not lost:
        return current
    return replace(
        current,
        standby=tuple(device for device in current.standby if device not in lost),
        failed=tuple(sorted({*current.failed, *lost})),
    )


def _healthy_s(problem: Problem, seed: int, is_over: Callable[[], bool]) -> float:
    """Step seconds of the best plan for the whole cluster in health; inf if there is none."""
    healthy = problem_of(problem.cluster, problem.profile, problem.train, dict.fromkeys(problem.rates, 1.0))
    drafts = find_drafts(healthy, limit_s=math.inf, seed=seed, is_over=is_over, log=[], is_brief=True)
    return min((draft.step_s for draft in drafts), default=math.inf)


def _number(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
