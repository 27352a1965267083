"""Why there is no plan: the constraint that binds, and the smallest relaxation that helps.

Called only after the search has found nothing. Constraints are relaxed one at a time and the problem
is asked again for any plan at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from planner.problem import Problem, problem_of
from planner.search import has_plan
from planner.spec import ClusterSpec


def why_infeasible(problem: Problem, is_over: Callable[[], bool]) -> str:
    """One sentence that names the constraint, what it asks for and what is given."""
    low = problem.dp_range[0]
    most = max(instance.num_micro_batches for instance in problem.instances)
    if problem.num_live == 0:
        return "devices: at least 1 must be alive, given 0"
    if low > problem.num_live:
        return f"dp: at least {low} pipelines need {low} live devices, given {problem.num_live}"
    if low > most:
        return f"dp: at least {low} pipelines need {low} micro-batches, given {most}"
    if _feasible(problem, 1e6, is_over):
        low_factor, high_factor = 1.0, 2.0
        while not _feasible(problem, high_factor, is_over):
            low_factor, high_factor = high_factor, 2 * high_factor
        while high_factor - low_factor > 0.005 * high_factor and not is_over():
            middle = (low_factor + high_factor) / 2
            if _feasible(problem, middle, is_over):
                high_factor = middle
            else:
                low_factor = middle
        return (
            f"memory: found no plan that fits; {math.ceil(high_factor * 100 - 100)} % more memory on every "
            "device would be enough"
        )
    if low > 1:
        train = replace(problem.train, dp_range=(1, problem.dp_range[1]))
        if has_plan(problem_of(problem.cluster, problem.profile, train, problem.rates), is_over):
            return f"dp: at least {low} pipelines are asked for, fewer would fit"
    return (
        f"no division of {problem.num_live} live devices into {problem.dp_range[0]}..{problem.dp_range[1]} pipelines "
        f"fits {problem.profile.num_layers} layers, at most {max(i.max_depth for i in problem.instances)} stages a "
        f"pipeline and {most} micro-batches"
    )


def _feasible(problem: Problem, factor: float, is_over: Callable[[], bool]) -> bool:
    """Whether there would be a plan with that many times the memory."""
    cluster = ClusterSpec(
        nodes=problem.cluster.nodes,
        memory_bytes={device: value * factor for device, value in problem.cluster.memory_bytes.items()},
    )
    return has_plan(problem_of(cluster, problem.profile, problem.train, problem.rates), is_over)
