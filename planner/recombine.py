"""Upper level for larger clusters: the division as an integer program over classes of equal groups.

For a fixed step time everything is linear: a pipeline made of given kinds runs so many micro-batches, groups
of a kind are interchangeable, and a node offers the groups of the way in which it is cut. So the program
chooses how often each known pipeline occurs and how often each class of equal nodes is cut in each way,
such that the micro-batches add up; bisection finds the least step time. The pipelines it chooses from are
those that the local search has looked at, the most efficient ones.

Source: Malleus (DOI 10.1145/3725322), section 4.3, upper-level problem; whole pipelines as columns instead
of one variable for each group and pipeline, so that what a pipeline does is exact and its size does not matter.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import pulp

from planner.division import Division, Kinds
from planner.groups import Grouping
from planner.improve import Improver
from planner.sketch import Sketcher

_MAX_COLUMNS = 120  # pipelines that the program may choose from
_MAX_NODES = 100  # of the solver's branch and bound: an effort limit that, unlike time, gives equal results
_REACH = 0.04  # how much faster, relatively, the first program tries to be
_ROUNDS = 3  # programs in a bisection


class Recombiner:
    """Looks for better divisions by recombining known pipelines.

    Args:
        nodes: groupings to choose from, node by node; equal nodes share the same list object.
        dp_range: fewest and most pipelines.
        total: micro-batches to run.
    """

    def __init__(
        self, sketcher: Sketcher, nodes: Sequence[Sequence[Grouping]], *, dp_range: tuple[int, int], total: int
    ) -> None:
        self._sketcher = sketcher
        self._nodes = nodes
        self._dp_range = dp_range
        self._total = total

    def run(
        self, improver: Improver, best_s: float, best: Division, is_over: Callable[[], bool]
    ) -> Iterator[tuple[float, Division]]:
        """Divisions with their times, each better than the ones before, by sketches.

        Args:
            best_s: seconds of the division `best`, without gradient sync.
        """
        low, high = best_s * (1 - _REACH), best_s
        for _ in range(_ROUNDS):
            if is_over():
                return
            middle = (low + high) / 2  # inf if the division does not fit yet: then any that does is wanted
            found = self.division(middle, best.types)
            seconds = improver.step_s(found) if found is not None else math.inf
            if found is not None and seconds < high * (1 - 1e-9):
                high = seconds
                yield seconds, found
            else:
                low = middle

    def division(self, limit_s: float, favoured: Iterable[Kinds]) -> Division | None:
        """A division that runs all micro-batches within the limit, if the program finds one.

        Args:
            favoured: pipelines that the program may choose from in any case.
        """
        columns = self._columns(limit_s, favoured)
        classes = self._classes()
        kinds = sorted({kind for column, _ in columns for kind in column})
        program = pulp.LpProblem("division", pulp.LpMaximize)
        # uses[c]: pipelines of column c; cuts[n, o]: nodes of class n that are cut in way o
        uses = [program.add_variable(f"uses_{c}", 0, cat="Integer") for c in range(len(columns))]
        cuts = {
            (n, o): program.add_variable(f"cuts_{n}_{o}", 0, len(members), cat="Integer")
            for n, (options, members) in enumerate(classes)
            for o in range(len(options))
        }
        program += _sum((use, count) for (_, count), use in zip(columns, uses, strict=True)), "micro_batches"
        program += _sum((use, count) for (_, count), use in zip(columns, uses, strict=True)) >= self._total, "enough"
        for kind in kinds:
            wanted = [
                (use, column.count(kind)) for (column, _), use in zip(columns, uses, strict=True) if kind in column
            ]
            offered = [
                (cut, -classes[n][0][o].kinds.count(kind))
                for (n, o), cut in cuts.items()
                if kind in classes[n][0][o].kinds
            ]
            program += _sum((*wanted, *offered)) <= 0, f"groups_{kind}"
        for n, (options, members) in enumerate(classes):
            program += _sum((cuts[n, o], 1) for o in range(len(options))) == len(members), f"nodes_{n}"
        program += _sum((use, 1) for use in uses) >= self._dp_range[0], "fewest_pipelines"
        program += _sum((use, 1) for use in uses) <= self._dp_range[1], "most_pipelines"
        if not _solve(program):
            return None
        numbers = [_whole(use) for use in uses]
        choice = {key: _whole(cut) for key, cut in cuts.items()}
        return self._checked(columns, classes, numbers, choice)

    def _columns(self, limit_s: float, favoured: Iterable[Kinds]) -> list[tuple[Kinds, int]]:
        """Known pipelines with what they run within the limit, the most efficient ones."""
        rated = []
        for column, sketch in self._sketcher.known():
            count = int(min(self._total, sketch.most(limit_s) + 1e-9))
            if count >= sketch.depth:
                ideal = min(self._total, limit_s * sketch.speed / sketch.work)
                rated.append((-count / ideal, column, count))
        rated.sort()
        wanted = set(favoured)
        chosen = rated[:_MAX_COLUMNS] + [entry for entry in rated[_MAX_COLUMNS:] if entry[1] in wanted]
        return [(column, count) for _, column, count in chosen]

    def _classes(self) -> list[tuple[Sequence[Grouping], list[int]]]:
        """Classes of equal nodes: their groupings, and which nodes they are."""
        classes: dict[int, tuple[Sequence[Grouping], list[int]]] = {}
        for node, options in enumerate(self._nodes):
            classes.setdefault(id(options), (options, []))[1].append(node)
        return list(classes.values())

    def _checked(
        self,
        columns: Sequence[tuple[Kinds, int]],
        classes: Sequence[tuple[Sequence[Grouping], list[int]]],
        numbers: Sequence[int],
        choice: dict[tuple[int, int], int],
    ) -> Division | None:
        """The solver's answer as a division, if it really keeps the rules."""
        pipelines = [column for (column, _), number in zip(columns, numbers, strict=True) for _ in range(number)]
        chosen = [0] * len(self._nodes)
        left: Counter[int] = Counter()
        for n, (options, members) in enumerate(classes):
            ways = [o for o in range(len(options)) for _ in range(choice[n, o])]
            if len(ways) != len(members):
                return None
            for node, way in zip(members, ways, strict=True):
                chosen[node] = way
                left.update(options[way].kinds)
        left.subtract(kind for column in pipelines for kind in column)
        runs = sum(count * number for (_, count), number in zip(columns, numbers, strict=True))
        low, high = self._dp_range
        if runs < self._total or min(left.values(), default=0) < 0 or not low <= len(pipelines) <= high:
            return None
        return Division(pipelines, tuple(sorted(left.elements())), chosen)


def _solve(program: pulp.LpProblem) -> bool:
    """Whether there is an answer to look at. It may still be garbage and must be checked."""
    try:
        program.solve(pulp.HiGHS(msg=False, threads=1, mip_max_nodes=_MAX_NODES))
    except (KeyError, IndexError):
        # PuLP has no name for the status of a solve that reached its node limit, and trips over it after it has
        # read the values; without any values it trips earlier.
        return all(variable.value() is not None for variable in program.variables())
    return program.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)


def _sum(terms: Iterable[tuple[pulp.LpVariable, float]]) -> pulp.LpAffineExpression:
    """The same as a sum of products, in a fraction of the time."""
    return pulp.LpAffineExpression(list(terms))


def _whole(variable: pulp.LpVariable) -> int:
    return round(variable.value() or 0.0)
