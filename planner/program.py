"""The division of groups into pipelines as an integer program.

For a fixed step time T the question is linear: which groups go into which pipeline, and how many
micro-batches does each run, such that every pipeline is done by T? T is bisected. Groups are counted
by kind, so the program grows with the number of distinct stragglers, not of devices. Layers are taken
as divisible here and memory by a necessary condition; `planner.arrange` decides exactly afterwards.

Source: Malleus (DOI 10.1145/3725322), section 4.3, the division of groups; here with the bubble of a
balanced pipeline, m - 1 + S slots of L / speed seconds each, in place of m slots.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import pulp

from planner.kinds import Instance

TOLERANCE = 0.01
"""The bisection ends when T is known this well; layers are whole numbers, so more would promise too much."""
MAX_OVER_IDEAL = 64.0
"""No division within so many times perfect balance counts as none: memory or depth forbid it."""
SOLVER_SECONDS = 2.0


class DivisionProgram:
    """The program for one multiset of groups and one number of pipelines.

    Args:
        counts: groups of each kind, by index into `instance.kinds`; all are placed.
        dp_degree: number of pipelines.
    """

    def __init__(self, instance: Instance, counts: Mapping[int, int], dp_degree: int) -> None:
        self._counts = dict(sorted(counts.items()))
        self._instance, self._dp_degree = instance, dp_degree
        self._speed = {kind: 1 / instance.kinds[kind].layer_s for kind in counts}

    def problem(self, step_s: float) -> tuple[pulp.LpProblem, list[dict[int, pulp.LpVariable]], list[pulp.LpVariable]]:
        """The program that asks for a division within `step_s`, with handles on its variables.

        Returns:
            The problem, `groups[pipeline][kind]`, and `micro_batches[pipeline]`.
        """
        instance, pipelines = self._instance, range(self._dp_degree)
        most = instance.num_micro_batches
        problem = pulp.LpProblem("division", pulp.LpMinimize)
        # groups[p][k]: groups of kind k in pipeline p
        # micro_batches[p]: what pipeline p runs in a step
        groups = [
            {
                kind: problem.add_variable(f"groups_{p}_{kind}", 0, count, cat=pulp.LpInteger)
                for kind, count in self._counts.items()
            }
            for p in pipelines
        ]
        micro_batches = [problem.add_variable(f"micro_batches_{p}", 1, most, cat=pulp.LpInteger) for p in pipelines]
        stages = [pulp.lpSum(groups[p].values()) for p in pipelines]
        problem += pulp.lpSum((p + 1) * micro_batches[p] for p in pipelines), "more_to_the_first_breaks_ties"
        for kind, count in self._counts.items():
            problem += pulp.lpSum(groups[p][kind] for p in pipelines) == count, f"all_groups_of_kind_{kind}"
        problem += pulp.lpSum(micro_batches) == most, "all_micro_batches"
        for p in pipelines:
            slots = micro_batches[p] + (stages[p] - 1 if instance.has_bubble else 0)
            speed = pulp.lpSum(self._speed[kind] * variable for kind, variable in groups[p].items())
            problem += slots * instance.num_layers <= (step_s - instance.sync_s) * speed, f"in_time_{p}"
            problem += stages[p] >= 1, f"not_empty_{p}"
            problem += stages[p] <= instance.max_depth, f"not_too_deep_{p}"
            problem += micro_batches[p] >= stages[p], f"enough_micro_batches_{p}"
            room = pulp.lpSum(instance.kinds[kind].caps[0] * variable for kind, variable in groups[p].items())
            problem += room >= instance.num_layers, f"fits_{p}"
            if p:
                problem += micro_batches[p - 1] >= micro_batches[p], f"order_{p}"
        return problem, groups, micro_batches

    def at(self, step_s: float) -> list[tuple[int, ...]] | None:
        """The kinds of each pipeline of a division within `step_s`; None if there is none."""
        problem, groups, micro_batches = self.problem(step_s)
        status = problem.solve(pulp.HiGHS(msg=False, threads=1, timeLimit=SOLVER_SECONDS))
        # A solve that ran into its limit still calls itself optimal; an infeasible one leaves garbage behind.
        if status != pulp.LpStatusOptimal or problem.sol_status != pulp.LpSolutionOptimal:
            return None
        found = [
            tuple(sorted(kind for kind, variable in row.items() for _ in range(round(variable.value()))))
            for row in groups
        ]
        placed = [kind for kinds in found for kind in kinds]
        total = sum(round(variable.value()) for variable in micro_batches)
        is_sound = total == self._instance.num_micro_batches and all(
            placed.count(kind) == count for kind, count in self._counts.items()
        )
        return found if is_sound else None

    def solve(self) -> tuple[float, list[tuple[int, ...]]] | None:
        """The division with the smallest step time, within `TOLERANCE`, and that time in seconds."""
        instance = self._instance
        if self._dp_degree > min(sum(self._counts.values()), instance.num_micro_batches):
            return None
        speed = sum(self._speed[kind] * count for kind, count in self._counts.items())
        ideal_s = instance.sync_s + instance.num_micro_batches * instance.num_layers / speed
        low = high = ideal_s
        while (best := self.at(high)) is None:
            low, high = high, high * 1.5
            if high > MAX_OVER_IDEAL * ideal_s:
                return None
        while high > low * (1 + TOLERANCE):
            middle = math.sqrt(low * high)
            found = self.at(middle)
            if found is None:
                low = middle
            else:
                high, best = middle, found
        return high, best
