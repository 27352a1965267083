"""Upper level for larger clusters: schemes, first divisions, local search, recombination, exact drafts.

`planner.search` calls it where there are too many combinations of groupings to try them all. Effort is
counted, not timed, so that equal input gives an equal result; it grows with the number of devices and with
the number of different nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

from planner.arrange import Arranger
from planner.divide import first_division
from planner.division import Division
from planner.draft import Draft, draft_near
from planner.groups import Grouping, few_groupings, groupings
from planner.improve import Improver
from planner.problem import Problem
from planner.recombine import Recombiner
from planner.schemes import Scheme, schemes

_MAX_SCHEMES = 8  # schemes that are started from
_BRIEFLY = 4  # schemes that a brief search starts from; it follows up one division
_SCHEME_SLACK = 1.25  # a scheme this much slower than the best one is not started from
_MANY_NODES = 24  # from here on only a few groupings of each node are looked at,
_FEW = 6  # so many, and the plain ones
_EFFORT = 200.0  # rough milliseconds of local search, and
_EFFORT_DEVICE = 0.5  # so many more for each device,
_EFFORT_WAY = 1.0  # and for each way to cut each class of equal nodes
_MAX_STOCK = 250  # pipelines of the fastest groups, the short ones first, that are looked at in any case
_MAX_LEADERS = 3  # divisions that are followed up
_MAX_RECOMBINED = 4  # recombinations of one division before it is arranged exactly
_MAX_ROUNDS = 6  # exact arrangements without improvement after which a division is left
_KICK_ROUNDS = 8  # kicks between two recombinations or exact arrangements


def wide_drafts(
    problem: Problem,
    *,
    limit_s: float,
    seed: int,
    is_over: Callable[[], bool],
    log: list[str],
    is_brief: bool = False,
) -> Iterator[Draft]:
    """Drafts that beat `limit_s`, each faster than those before it.

    Args:
        limit_s: step seconds that a draft must beat.
        seed: of the random part of the local search.
        is_over: asked now and then; True ends the search.
        log: receives a line for each part of the search.
        is_brief: from fewer schemes, and only follow up the most promising division.
    """
    desks = [_Desk(problem, index, seed) for index in range(len(problem.instances))]
    starts = _starts(schemes(problem, [desk.arranger.sketches for desk in desks]))[: _BRIEFLY if is_brief else None]
    num_ways = max(desk.num_ways for desk in desks)
    budget = _EFFORT + _EFFORT_DEVICE * problem.num_live + _EFFORT_WAY * num_ways
    found: list[_Found] = []
    for number, scheme in enumerate(starts):
        desk = desks[scheme.instance_index]
        item = desk.start(scheme, budget / 3 / len(starts), is_over)
        if item is None:
            continue
        found.append(_Found(step_s=item[0], index=scheme.instance_index, number=number, division=item[1]))
        log.append(
            f"b {desk.instance.micro_batch_size}, tp {scheme.tp_degree}, dp {scheme.dp_degree}: about {item[0]:.6g} s"
        )
        if is_over():
            break
    found.sort(key=lambda item: (item.step_s, item.number))
    for place, leader in enumerate(_leaders(found)[: 1 if is_brief else _MAX_LEADERS]):
        desk = desks[leader.index]
        division = leader.division
        most = _MAX_RECOMBINED if place == 0 and not is_brief else 1
        step_s, division = desk.recombine(leader.step_s, division, most, budget / 3 / _MAX_LEADERS, is_over)
        log.append(f"recombined: about {step_s:.6g} s")
        for draft in desk.exact(division, budget / 3, is_over):
            if draft.step_s < limit_s * (1 - 1e-9):
                limit_s = draft.step_s
                log.append(f"arranged exactly: {draft.step_s:.6g} s")
                yield draft
        if is_over():
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A division that local search ended with, at the desk of that index, and its time by sketches."""

    step_s: float
    index: int
    number: int
    division: Division


class _Desk:
    """All that works on one micro-batch size. Times include gradient sync."""

    def __init__(self, problem: Problem, index: int, seed: int) -> None:
        self.instance = problem.instances[index]
        self.arranger = Arranger(self.instance)
        total = self.instance.num_micro_batches
        self._nodes = _options(problem, index)
        self.num_ways = sum(len(options) for options in {id(options): options for options in self._nodes}.values())
        self._improver = Improver(self.arranger.sketches, self._nodes, total=total, seed=seed)
        self._stock(problem)
        self._recombiner = Recombiner(self.arranger.sketches, self._nodes, dp_range=problem.dp_range, total=total)

    def _stock(self, problem: Problem) -> None:
        """Has a look at short pipelines of the fastest groups, so that recombination may choose from them."""
        fastest: dict[float, float] = {}
        for node in problem.nodes:
            for rate, memory in node:
                fastest[memory] = min(rate, fastest.get(memory, math.inf))
        sizes = sorted({size for options in self._nodes for grouping in options for size in grouping.sizes})
        kinds = sorted(self.instance.kind(size, rate, memory) for memory, rate in fastest.items() for size in sizes)
        num_columns = 0
        for depth in range(1, self.instance.max_depth + 1):
            num_columns += math.comb(len(kinds) + depth - 1, depth)
            if num_columns > _MAX_STOCK:
                return
            for column in combinations_with_replacement(kinds, depth):
                self.arranger.sketches.of(column)

    def start(self, scheme: Scheme, effort: float, is_over: Callable[[], bool]) -> tuple[float, Division] | None:
        """The division that a scheme leads to, and its time; None if there are not enough groups for it."""
        division = first_division(
            self.instance,
            self._nodes,
            tp_degree=scheme.tp_degree,
            dp_degree=scheme.dp_degree,
            stage_s=scheme.stage_s * 1.1,
        )
        return self._improve(division, 0, self._stop(effort, is_over)) if division is not None else None

    def recombine(
        self, step_s: float, division: Division, most: int, effort: float, is_over: Callable[[], bool]
    ) -> tuple[float, Division]:
        """Recombination and local search in turn, at most so often, until neither helps."""
        stop = self._stop(effort, is_over)
        for _ in range(most):
            before = step_s
            for seconds, better in self._recombiner.run(
                self._improver, step_s - self.instance.sync_s, division, is_over
            ):
                step_s, division = seconds + self.instance.sync_s, better
            improved_s, improved = self._improve(division, _KICK_ROUNDS, stop)
            if improved_s < step_s:
                step_s, division = improved_s, improved
            if step_s >= before * (1 - 1e-9) or stop():
                break
        return step_s, division

    def exact(self, division: Division, effort: float, is_over: Callable[[], bool]) -> Iterator[Draft]:
        """Exact arrangement and local search in turn.

        The search believes its sketches, which are mostly a little too good. So what it ends with is arranged
        exactly, the sketches of these pipelines are corrected, and it goes on from there.
        """
        stop = self._stop(effort, is_over)
        best, best_s, rounds = division, math.inf, 0
        while rounds < _MAX_ROUNDS:
            draft = self._draft(division)
            rounds += 1
            if draft is not None and draft.step_s < best_s * (1 - 1e-9):
                best_s, best, rounds = draft.step_s, division, 0
                yield draft
            if stop():
                return
            promised_s, division = self._improve(best, _KICK_ROUNDS, stop)
            if promised_s >= best_s * (1 - 1e-6):
                again = self._recombiner.division((best_s - self.instance.sync_s) * (1 - 1e-3), best.types)
                if again is None:
                    return
                division = again

    def _improve(self, division: Division, kicks: int, stop: Callable[[], bool]) -> tuple[float, Division]:
        *_, (seconds, found) = self._improver.run(division, max_rounds=kicks, is_over=stop)
        return seconds + self.instance.sync_s, found

    def _draft(self, division: Division) -> Draft | None:
        """The division arranged exactly; corrects the sketches of its pipelines."""
        chosen = [options[option] for options, option in zip(self._nodes, division.chosen, strict=True)]
        counts = self._improver.counts(division)
        draft = draft_near(self.arranger, chosen, division.pipelines, counts) if counts is not None else None
        sketches = self.arranger.sketches
        if draft is not None:
            for kinds, (arrangement, count) in zip(division.pipelines, draft.pipelines, strict=True):
                sketches.of(kinds).correct(count, arrangement.seconds)
        else:
            for kinds in division.types:
                if self.arranger.best(kinds, self.instance.num_micro_batches).seconds == math.inf:
                    sketches.of(kinds).correct(len(kinds), math.inf)
        self._improver.forget()
        return draft

    def _stop(self, effort: float, is_over: Callable[[], bool]) -> Callable[[], bool]:
        end = self.arranger.work + self._improver.work + effort
        return lambda: self.arranger.work + self._improver.work > end or is_over()


def _options(problem: Problem, index: int) -> list[list[Grouping]]:
    """Groupings of each node; equal nodes share one list."""
    instance, sizes = problem.instances[index], problem.group_sizes[index]
    known: dict[tuple[tuple[float, float], ...], list[Grouping]] = {}
    for node in sorted(set(problem.nodes)):  # kinds are numbered as they are met: in an order without labels
        options = groupings(instance, node, sizes)
        known[node] = few_groupings(instance, options, _FEW) if len(problem.nodes) >= _MANY_NODES else options
    return [known[node] for node in problem.nodes]


def _starts(ranked: Sequence[Scheme]) -> list[Scheme]:
    """The schemes to start from: near the best; if these are few, also such as do not fit in memory as they are."""
    fitting = [scheme for scheme in ranked if math.isfinite(scheme.step_s)]
    near = [scheme for scheme in fitting if scheme.step_s <= fitting[0].step_s * _SCHEME_SLACK]
    others = [scheme for scheme in ranked if not math.isfinite(scheme.step_s)]
    return [*near, *others][:_MAX_SCHEMES]


def _leaders(found: Sequence[_Found]) -> list[_Found]:
    """The best division for each number of pipelines, as local search keeps that."""
    best: dict[tuple[int, int], _Found] = {}
    for item in found:
        best.setdefault((item.index, item.division.num_pipelines), item)
    return list(best.values())
