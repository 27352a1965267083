"""Upper level for larger clusters, second part: local search over divisions and groupings.

Starts from a division (`planner.divide`) and changes it a little at a time: groups change places between
pipelines or with the spare ones, or a node is cut in another way. Pipelines are judged by their
sketches, so a change costs microseconds; the results are arranged exactly afterwards.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
import random

from planner.groups import Grouping
from planner.sketch import Sketch, Sketcher

Kinds = tuple[int, ...]
_RELAXED = 0.3  # weight of what a pipeline could do with cut layers, besides what it can do with whole ones
_EXCHANGE_WORK, _RECUT_WORK = 0.004, 0.05  # effort of looking at one change, see Improver.work
_MANY = 1_000  # more pipelines than there are; one that does not fit outweighs all others
_KICKS = 4  # random changes, at most, after which the search descends again
_TOLERATED = 1.02  # how much worse than the best it may go on from,
_RETURN = 6  # until so many kicks have not helped


class Division:
    """A state of the search.

    Attributes:
        pipelines: kinds of each pipeline, ascending.
        spare: kinds of the groups that no pipeline uses, ascending.
        chosen: how each node is cut, as an index into its groupings.
    """

    __slots__ = ("chosen", "pipelines", "spare")

    def __init__(self, pipelines: Sequence[Kinds], spare: Kinds, chosen: Sequence[int]) -> None:
        self.pipelines = list(pipelines)
        self.spare = spare
        self.chosen = list(chosen)

    def copy(self) -> Division:
        return Division(self.pipelines, self.spare, self.chosen)


class Improver:
    """Local search for the division with the least step time.

    Args:
        nodes: groupings to choose from, node by node; equal nodes share the same list object.
        total: micro-batches to run.
        seed: of the random changes.
    """

    def __init__(self, sketcher: Sketcher, nodes: Sequence[Sequence[Grouping]], *, total: int, seed: int) -> None:
        self._sketcher = sketcher
        self._nodes = nodes
        self._total = total
        self._random = random.Random(seed)
        self._limit_s = math.inf
        self._values: dict[Kinds, tuple[int, float]] = {}
        self._differences: dict[tuple[int, int, int], tuple[Kinds, Kinds]] = {}
        self.work = 0.0  # effort so far in rough milliseconds, as in planner.arrange

    def step_s(self, pipelines: Sequence[Kinds]) -> float:
        """Least time in which the pipelines run all micro-batches, by their sketches; inf if they cannot."""
        counted = [(self._sketcher.of(kinds), number) for kinds, number in Counter(pipelines).items()]
        if any(not sketch.lines for sketch, _ in counted) or sum(len(kinds) for kinds in pipelines) > self._total:
            return math.inf
        speed = sum(number / sketch.each_s for sketch, number in counted)
        low = self._total / speed
        high = low + max(sketch.fill_s + (sketch.depth + 1) * sketch.each_s for sketch, _ in counted)
        while self._run(counted, high) < self._total:
            high *= 1.5
        while high - low > 1e-7 * high:
            middle = (low + high) / 2
            if self._run(counted, middle) < self._total:
                low = middle
            else:
                high = middle
        return max(sketch.seconds(max(sketch.depth, int(sketch.most(high) + 1e-6))) for sketch, _ in counted)

    def run(self, start: Division, *, max_rounds: int, is_over: Callable[[], bool]) -> Iterator[tuple[float, Division]]:
        """Better and better divisions with their times, the first one the start itself descended.

        Args:
            max_rounds: how often to kick and descend again without success before giving up.
        """
        best, best_s = start.copy(), self.step_s(start.pipelines)
        best, best_s = self._descend(best, best_s, is_over)
        yield best_s, best
        here, rounds = best, 0
        while rounds < max_rounds and not is_over():
            rounds += 1
            tried = here.copy()
            for _ in range(self._random.randint(1, _KICKS)):
                self._kick(tried)
            tried, seconds = self._descend(tried, self.step_s(tried.pipelines), is_over, aim_s=best_s)
            if seconds < best_s * (1 - 1e-9):
                best, best_s, here, rounds = tried, seconds, tried, 0
                yield best_s, best
            elif seconds <= best_s * _TOLERATED:
                here = tried
            elif rounds % _RETURN == 0:
                here = best

    def forget(self) -> None:
        """To be called after sketches were corrected."""
        self._values.clear()

    def counts(self, pipelines: Sequence[Kinds]) -> list[int]:
        """Micro-batches of each pipeline, for the time of `step_s`."""
        limit_s = self.step_s(pipelines) * (1 + 1e-6)
        if limit_s == math.inf:
            return [0] * len(pipelines)
        sketches = [self._sketcher.of(kinds) for kinds in pipelines]
        counts = [max(sketch.depth, int(sketch.most(limit_s) + 1e-9)) for sketch in sketches]
        slowest = [(-sketches[place].seconds(count), place) for place, count in enumerate(counts)]
        heapify(slowest)
        surplus = sum(counts) - self._total
        while surplus > 0 and slowest:
            _, place = heappop(slowest)
            if counts[place] > sketches[place].depth:
                counts[place] -= 1
                surplus -= 1
                heappush(slowest, (-sketches[place].seconds(counts[place]), place))
        return counts

    def _run(self, counted: Sequence[tuple[Sketch, int]], limit_s: float) -> int:
        return sum(number * int(sketch.most(limit_s) + 1e-9) for sketch, number in counted)

    def _descend(
        self, state: Division, seconds: float, is_over: Callable[[], bool], *, aim_s: float = math.inf
    ) -> tuple[Division, float]:
        """Changes the state as long as it gets closer to beating its own time, or `aim_s` if that is less."""
        while not is_over():
            self._aim(min(seconds, aim_s) * (1 - 1e-6))
            score = self._score(state)
            while score[0] < self._total:
                better = self._best_change(state, score)
                if better is None or is_over():
                    return state, seconds
                score = better
            before, seconds = seconds, self.step_s(state.pipelines)
            if seconds >= before:
                break
        return state, seconds

    def _aim(self, limit_s: float) -> None:
        if limit_s != self._limit_s:
            self._limit_s = limit_s
            self._values.clear()

    def _value(self, kinds: Kinds) -> tuple[int, float]:
        """Whole micro-batches within the limit, and a smoother measure of the same."""
        found = self._values.get(kinds)
        if found is None:
            if not kinds:
                found = (0, 0.0)
            else:
                sketch = self._sketcher.of(kinds)
                if math.isinf(self._limit_s):
                    found = (self._total, 1.0) if sketch.lines else (-self._total * _MANY, sketch.room - 1)
                else:
                    count = sketch.most(self._limit_s)
                    smooth = count + _RELAXED * self._limit_s * sketch.speed / sketch.work
                    found = (int(count + 1e-9), smooth if sketch.lines else sketch.room - 2)
            self._values[kinds] = found
            self.work += 0.005
        return found

    def _score(self, state: Division) -> tuple[int, float]:
        values = [self._value(kinds) for kinds in state.pipelines]
        return sum(whole for whole, _ in values), sum(smooth for _, smooth in values)

    def _best_change(self, state: Division, score: tuple[int, float]) -> tuple[int, float] | None:
        """Makes the best single change, if any is better, and returns the new score."""
        for changes, effort in ((self._exchanges(state), _EXCHANGE_WORK), (self._recuts(state), _RECUT_WORK)):
            best_gain, best_apply = (0, 1e-9), None
            for gain, apply in changes:
                self.work += effort
                if gain > best_gain:
                    best_gain, best_apply = gain, apply
            if best_apply is not None:
                best_apply()
                return score[0] + best_gain[0], score[1] + best_gain[1]
        return None

    def _exchanges(self, state: Division) -> Iterator[tuple[tuple[int, float], Callable[[], None]]]:
        """A group moves to another pipeline, or two groups change places; spare groups take part."""
        example: dict[Kinds, list[int]] = {}
        for place, kinds in enumerate(state.pipelines):
            example.setdefault(kinds, []).append(place)
        types = list(example.items())
        for number, (one, places) in enumerate(types):
            for other, other_places in types[number:]:
                if one is other and len(places) < 2:
                    continue
                a, b = places[0], other_places[1 if one is other else 0]
                old = self._sum(one, other)
                for new_one, new_other in _swaps(one, other):
                    yield self._gain(old, new_one, new_other), _Replace(state, a, new_one, b, new_other, None)
            old = self._value(one)
            for new_one, new_spare in _swaps(one, state.spare):
                if not new_one:
                    continue
                gain = self._value(new_one)
                yield (
                    (gain[0] - old[0], gain[1] - old[1]),
                    _Replace(state, places[0], new_one, None, (), new_spare),
                )

    def _sum(self, one: Kinds, other: Kinds) -> tuple[int, float]:
        a, b = self._value(one), self._value(other)
        return a[0] + b[0], a[1] + b[1]

    def _gain(self, old: tuple[int, float], one: Kinds, other: Kinds) -> tuple[int, float]:
        if not one or not other:
            return (-1, 0.0)
        new = self._sum(one, other)
        return new[0] - old[0], new[1] - old[1]

    def _recuts(self, state: Division) -> Iterator[tuple[tuple[int, float], Callable[[], None]]]:
        """A node is cut in another way; its new groups go where they help most."""
        seen: set[tuple[int, int]] = set()
        before = self._score(state)
        for node, options in enumerate(self._nodes):
            now = state.chosen[node]
            if len(options) < 2 or (id(options), now) in seen:
                continue
            seen.add((id(options), now))
            for option in range(len(options)):
                if option != now:
                    tried = self._recut(state, node, option)
                    if tried is not None:
                        after = self._score(tried)
                        yield (after[0] - before[0], after[1] - before[1]), _Become(state, tried)

    def _recut(self, state: Division, node: int, option: int) -> Division | None:
        options = self._nodes[node]
        gone, come = self._difference(options, state.chosen[node], option)
        tried = state.copy()
        tried.chosen[node] = option
        for kind in gone:
            if kind in tried.spare:
                tried.spare = _without(tried.spare, kind)
                continue
            places = [
                p for p in _distinct(tried.pipelines) if kind in tried.pipelines[p] and len(tried.pipelines[p]) > 1
            ]
            if not places:
                return None
            place = max(places, key=lambda p: self._change(tried.pipelines[p], _without(tried.pipelines[p], kind)))
            tried.pipelines[place] = _without(tried.pipelines[place], kind)
        for kind in come:
            places = _distinct(tried.pipelines)
            gain, place = max((self._change(tried.pipelines[p], _with(tried.pipelines[p], kind)), -p) for p in places)
            if gain > (0, 0.0):
                tried.pipelines[-place] = _with(tried.pipelines[-place], kind)
            else:
                tried.spare = _with(tried.spare, kind)
        return tried

    def _difference(self, options: Sequence[Grouping], now: int, option: int) -> tuple[Kinds, Kinds]:
        """Kinds of the groups that go and that come (the fastest first) if a node is cut in another way."""
        key = (id(options), now, option)
        found = self._differences.get(key)
        if found is None:
            before, after = Counter(options[now].kinds), Counter(options[option].kinds)
            kinds = self._sketcher.instance.kinds
            come = sorted((after - before).elements(), key=lambda kind: (kinds[kind].layer_s, kind))
            found = self._differences[key] = (tuple(sorted((before - after).elements())), tuple(come))
        return found

    def _change(self, old: Kinds, new: Kinds) -> tuple[int, float]:
        a, b = self._value(old), self._value(new)
        return b[0] - a[0], b[1] - a[1]

    def _kick(self, state: Division) -> None:
        """One random change: two groups exchanged, or a node cut in another way."""
        draw = self._random
        nodes = [node for node, options in enumerate(self._nodes) if len(options) > 1]
        if nodes and draw.random() < 0.3:
            node = draw.choice(nodes)
            option = draw.randrange(len(self._nodes[node]))
            if option != state.chosen[node]:
                tried = self._recut(state, node, option)
                if tried is not None:
                    _Become(state, tried)()
            return
        one = draw.randrange(len(state.pipelines))
        other = draw.randrange(len(state.pipelines) + 1)
        if other == one:
            return
        if other == len(state.pipelines):
            new_one, new_spare = draw.choice(list(_swaps(state.pipelines[one], state.spare)) or [(None, None)])
            if new_one:
                _Replace(state, one, new_one, None, (), new_spare)()
            return
        new_one, new_other = draw.choice(list(_swaps(state.pipelines[one], state.pipelines[other])) or [(None, None)])
        if new_one and new_other:
            _Replace(state, one, new_one, other, new_other, None)()


class _Replace:
    """A change that gives two pipelines, or one and the spare groups, other kinds."""

    __slots__ = ("new_one", "new_other", "new_spare", "one", "other", "state")

    def __init__(
        self, state: Division, one: int, new_one: Kinds, other: int | None, new_other: Kinds, new_spare: Kinds | None
    ) -> None:
        self.state, self.one, self.new_one = state, one, new_one
        self.other, self.new_other, self.new_spare = other, new_other, new_spare

    def __call__(self) -> None:
        self.state.pipelines[self.one] = self.new_one
        if self.other is not None:
            self.state.pipelines[self.other] = self.new_other
        if self.new_spare is not None:
            self.state.spare = self.new_spare


class _Become:
    """A change that makes a state equal to another one."""

    __slots__ = ("new", "state")

    def __init__(self, state: Division, new: Division) -> None:
        self.state, self.new = state, new

    def __call__(self) -> None:
        self.state.pipelines, self.state.spare, self.state.chosen = self.new.pipelines, self.new.spare, self.new.chosen


def _swaps(one: Kinds, other: Kinds) -> Iterator[tuple[Kinds, Kinds]]:
    """What two multisets become if a kind moves from one to the other, or two kinds change places."""
    for mine in (None, *sorted(set(one))):
        for theirs in (None, *sorted(set(other))):
            if mine != theirs:
                new_one, new_other = one, other
                if mine is not None:
                    new_one, new_other = _without(new_one, mine), _with(new_other, mine)
                if theirs is not None:
                    new_one, new_other = _with(new_one, theirs), _without(new_other, theirs)
                yield new_one, new_other


def _with(kinds: Kinds, kind: int) -> Kinds:
    place = next((index for index, value in enumerate(kinds) if value >= kind), len(kinds))
    return (*kinds[:place], kind, *kinds[place:])


def _without(kinds: Kinds, kind: int) -> Kinds:
    place = kinds.index(kind)
    return kinds[:place] + kinds[place + 1 :]


def _distinct(pipelines: Sequence[Kinds]) -> list[int]:
    """One place of each distinct pipeline."""
    found: dict[Kinds, int] = {}
    for place, kinds in enumerate(pipelines):
        found.setdefault(kinds, place)
    return list(found.values())
