"""Upper level for larger clusters: local search over divisions and groupings.

Starts from a division (`planner.divide`) and changes it a little at a time: groups change places between
pipelines or with the spare ones, or a node is cut in another way. Pipelines are judged by their
sketches, so a change costs microseconds; the results are arranged exactly afterwards.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from planner.assign import assign_micro_batches
from planner.division import Change, Division, Draftsman, Kinds, plus, swaps, without
from planner.groups import Grouping
from planner.sketch import Sketch, Sketcher

Gain = tuple[int, float]  # whole micro-batches within the limit, and a smoother measure of the same

_RELAXED = 0.3  # weight of what a pipeline could do with cut layers, besides what it can do with whole ones
_EXCHANGE_WORK, _RECUT_WORK = 0.005, 0.05  # effort of looking at one change, see Improver.work
_MANY = 1_000  # more pipelines than there are; one that does not fit outweighs all others
_KICKS = 4  # random changes, at most, after which the search descends again
_RECUT_SHARE = 0.3  # of these changes, those that cut a node in another way
_TOLERATED = 1.02  # how much worse than the best it may go on from,
_RETURN = 6  # until so many kicks have not helped


class Improver:
    """Local search for the division with the least step time.

    Args:
        nodes: groupings to choose from, node by node; equal nodes share the same list object.
        total: micro-batches to run.
        seed: of the random changes.

    Attributes:
        work: effort so far in rough milliseconds, as in `planner.arrange`.
    """

    def __init__(self, sketcher: Sketcher, nodes: Sequence[Sequence[Grouping]], *, total: int, seed: int) -> None:
        self.work = 0.0
        self._sketcher = sketcher
        self._nodes = nodes
        self._open_nodes = [node for node, options in enumerate(nodes) if len(options) > 1]
        self._total = total
        self._random = random.Random(seed)
        self._limit_s = math.inf
        self._values: dict[Kinds, Gain] = {}
        self._steps: dict[tuple[Kinds, int], Gain] = {}
        self._differences: dict[tuple[int, int, int], tuple[Kinds, Kinds]] = {}

    def run(self, start: Division, *, max_rounds: int, is_over: Callable[[], bool]) -> Iterator[tuple[float, Division]]:
        """Better and better divisions with their times, the first one the start itself descended.

        Args:
            max_rounds: how often to kick and descend again without success before giving up.
        """
        best, best_s = self._descend(start.copy(), self.step_s(start), is_over)
        yield best_s, best
        here, rounds = best, 0
        while rounds < max_rounds and not is_over():
            rounds += 1
            tried = here.copy()
            for _ in range(self._random.randint(1, _KICKS)):
                self._kick(tried)
            tried, seconds = self._descend(tried, self.step_s(tried), is_over, aim_s=best_s)
            if seconds < best_s * (1 - 1e-9):
                best, best_s, here, rounds = tried, seconds, tried, 0
                yield best_s, best
            elif seconds <= best_s * _TOLERATED:
                here = tried
            elif rounds % _RETURN == 0:
                here = best

    def step_s(self, division: Division) -> float:
        """Least time in which the pipelines run all micro-batches, by their sketches; inf if they cannot."""
        counted = [(self._sketcher.of(kinds), number) for kinds, number in division.types.items()]
        if any(not sketch.lines for sketch, _ in counted):
            return math.inf
        if sum(sketch.depth * number for sketch, number in counted) > self._total:
            return math.inf
        low = self._total / sum(number / sketch.each_s for sketch, number in counted)
        high = low + max(sketch.fill_s + (sketch.depth + 1) * sketch.each_s for sketch, _ in counted)
        while _runs(counted, high) < self._total:
            high *= 1.5
        while high - low > 1e-7 * high:
            middle = (low + high) / 2
            if _runs(counted, middle) < self._total:
                low = middle
            else:
                high = middle
        return max(sketch.seconds(max(sketch.depth, int(sketch.most(high) + 1e-6))) for sketch, _ in counted)

    def counts(self, division: Division) -> list[int] | None:
        """Micro-batches of each of `division.pipelines`, by their sketches; None if they cannot run them all."""
        sketches = [self._sketcher.of(kinds) for kinds in division.pipelines]
        if any(not sketch.lines for sketch in sketches):
            return None
        return assign_micro_batches(
            [sketch.seconds for sketch in sketches], [sketch.depth for sketch in sketches], self._total
        )

    def forget(self) -> None:
        """To be called after sketches were corrected."""
        self._values.clear()
        self._steps.clear()

    def _descend(
        self, state: Division, seconds: float, is_over: Callable[[], bool], *, aim_s: float = math.inf
    ) -> tuple[Division, float]:
        """Changes the state as long as it gets closer to beating its own time, or `aim_s` if that is less."""
        while not is_over():
            self._aim(min(seconds, aim_s) * (1 - 1e-6))
            whole = self._whole(state)
            while whole < self._total:
                gain = self._best_change(state)
                if gain is None or is_over():
                    return state, self.step_s(state)
                whole += gain[0]
            before, seconds = seconds, self.step_s(state)
            if seconds >= before:
                break
        return state, seconds

    def _aim(self, limit_s: float) -> None:
        if limit_s != self._limit_s:
            self._limit_s = limit_s
            self.forget()

    def _whole(self, state: Division) -> int:
        return sum(number * self._value(kinds)[0] for kinds, number in state.types.items())

    def _value(self, kinds: Kinds) -> Gain:
        """What a pipeline is worth for the time that is aimed at."""
        found = self._values.get(kinds)
        if found is None:
            sketch = self._sketcher.of(kinds)
            if not sketch.lines:
                found = (-self._total * _MANY, sketch.room - 2)
            elif math.isinf(self._limit_s):
                found = (self._total, 1.0)
            else:
                count = sketch.most(self._limit_s)
                found = (int(count + 1e-9), count + _RELAXED * self._limit_s * sketch.speed / sketch.work)
            self._values[kinds] = found
            self.work += 0.005
        return found

    def _best_change(self, state: Division) -> Gain | None:
        """Makes the best single change, if any is better: an exchange, or, if none is, another cut of a node."""
        for changes, effort in ((self._exchanges(state), _EXCHANGE_WORK), (self._recuts(state), _RECUT_WORK)):
            best_gain: Gain = (0, 1e-9)
            best: Change | None = None
            for gain, change in changes:
                self.work += effort
                if gain > best_gain:
                    best_gain, best = gain, change
            if best is not None:
                best.apply(state)
                return best_gain
        return None

    def _exchanges(self, state: Division) -> Iterator[tuple[Gain, Change]]:
        """A group moves to another pipeline, or two groups change places; spare groups take part."""
        types = list(state.types.items())
        for number, (one, count) in enumerate(types):
            for other, _ in types[number if count > 1 else number + 1 :]:
                for new_one, new_other in swaps(one, other):
                    if new_one and new_other:
                        change = Change(gone=(one, other), come=(new_one, new_other), spare=state.spare)
                        yield self._gain(change), change
            for new_one, new_spare in swaps(one, state.spare):
                if new_one:
                    change = Change(gone=(one,), come=(new_one,), spare=new_spare)
                    yield self._gain(change), change

    def _recuts(self, state: Division) -> Iterator[tuple[Gain, Change]]:
        """A node is cut in another way; its new groups go where they help most."""
        seen: set[tuple[int, int]] = set()
        for node in self._open_nodes:
            options, now = self._nodes[node], state.chosen[node]
            if (id(options), now) not in seen:
                seen.add((id(options), now))
                for option in range(len(options)):
                    change = self._recut(state, node, option) if option != now else None
                    if change is not None:
                        yield self._gain(change), change

    def _recut(self, state: Division, node: int, option: int) -> Change | None:
        leaving, arriving = self._difference(self._nodes[node], state.chosen[node], option)
        draftsman = Draftsman(state)
        for kind in leaving:
            if kind in draftsman.spare:
                draftsman.spare = without(draftsman.spare, kind)
                continue
            users = [kinds for kinds in draftsman.types() if kind in kinds and len(kinds) > 1]
            if not users:
                return None
            user = max(users, key=lambda kinds: self._loss(kinds, kind))
            draftsman.replace(user, without(user, kind))
        for kind in arriving:
            user = max(draftsman.types(), key=lambda kinds: self._win(kinds, kind))
            if self._win(user, kind) > (0, 0.0):
                draftsman.replace(user, plus(user, kind))
            else:
                draftsman.spare = plus(draftsman.spare, kind)
        return draftsman.change(node, option)

    def _difference(self, options: Sequence[Grouping], now: int, option: int) -> tuple[Kinds, Kinds]:
        """Kinds of the groups that leave and that arrive (the fastest first) if a node is cut in another way."""
        key = (id(options), now, option)
        found = self._differences.get(key)
        if found is None:
            before, after = Counter(options[now].kinds), Counter(options[option].kinds)
            kinds = self._sketcher.instance.kinds
            arriving = sorted((after - before).elements(), key=lambda kind: (kinds[kind].layer_s, kind))
            found = self._differences[key] = (tuple(sorted((before - after).elements())), tuple(arriving))
        return found

    def _gain(self, change: Change) -> Gain:
        whole, smooth = 0, 0.0
        for sign, pipelines in ((1, change.come), (-1, change.gone)):
            for kinds in pipelines:
                value = self._value(kinds)
                whole, smooth = whole + sign * value[0], smooth + sign * value[1]
        return whole, smooth

    def _win(self, kinds: Kinds, kind: int) -> Gain:
        """What a pipeline gains with one more group of a kind."""
        found = self._steps.get((kinds, kind))
        if found is None:
            found = self._steps[kinds, kind] = self._step(kinds, plus(kinds, kind))
        return found

    def _loss(self, kinds: Kinds, kind: int) -> Gain:
        """What a pipeline gains, mostly less than nothing, without one of its groups."""
        found = self._steps.get((kinds, -1 - kind))
        if found is None:
            found = self._steps[kinds, -1 - kind] = self._step(kinds, without(kinds, kind))
        return found

    def _step(self, old: Kinds, new: Kinds) -> Gain:
        a, b = self._value(old), self._value(new)
        return b[0] - a[0], b[1] - a[1]

    def _kick(self, state: Division) -> None:
        """One random change: two groups exchanged, or a node cut in another way."""
        draw = self._random
        change: Change | None = None
        if self._open_nodes and draw.random() < _RECUT_SHARE:
            node = draw.choice(self._open_nodes)
            option = draw.randrange(len(self._nodes[node]))
            if option != state.chosen[node]:
                change = self._recut(state, node, option)
        else:
            one, other = _pick(draw, state.types), _pick(draw, state.types)
            if draw.random() * (state.num_pipelines + 1) < 1:
                moved = [pair for pair in swaps(one, state.spare) if pair[0]]
                if moved:
                    new_one, new_spare = draw.choice(moved)
                    change = Change(gone=(one,), come=(new_one,), spare=new_spare)
            elif one != other or state.types[one] > 1:
                moved = [pair for pair in swaps(one, other) if pair[0] and pair[1]]
                if moved:
                    change = Change(gone=(one, other), come=draw.choice(moved), spare=state.spare)
        if change is not None:
            change.apply(state)


def _runs(counted: Sequence[tuple[Sketch, int]], limit_s: float) -> int:
    return sum(number * int(sketch.most(limit_s) + 1e-9) for sketch, number in counted)


def _pick(draw: random.Random, types: Mapping[Kinds, int]) -> Kinds:
    """A random pipeline."""
    return draw.choices(list(types), weights=list(types.values()))[0]
