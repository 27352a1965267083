"""The state that local search works on: which pipelines there are, in kinds, and how every node is cut.

Equal pipelines are counted, not listed, so that its size grows with how many different ones there are. It
knows nothing of time; `planner.improve` judges and changes it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Kinds = tuple[int, ...]  # kinds of the groups of one pipeline (or of the spare groups), ascending


class Division:
    """A division of groups into pipelines.

    Attributes:
        types: how many pipelines there are of each multiset of kinds.
        spare: kinds of the groups that no pipeline uses.
        chosen: how each node is cut, as an index into its groupings.
    """

    __slots__ = ("chosen", "spare", "types")

    def __init__(self, pipelines: Sequence[Kinds], spare: Kinds, chosen: Sequence[int]) -> None:
        self.types = Counter(pipelines)
        self.spare = spare
        self.chosen = list(chosen)

    @property
    def pipelines(self) -> list[Kinds]:
        """Every pipeline, in a fixed order."""
        return [kinds for kinds in sorted(self.types) for _ in range(self.types[kinds])]

    @property
    def num_pipelines(self) -> int:
        return self.types.total()

    def copy(self) -> Division:
        new = Division((), self.spare, self.chosen)
        new.types = self.types.copy()
        return new


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What turns one division into another.

    Args:
        gone, come: pipelines that disappear and appear; equally many.
        spare: kinds of the spare groups afterwards.
        node, option: a node that is cut in another way, and how; None if none is.
    """

    gone: tuple[Kinds, ...]
    come: tuple[Kinds, ...]
    spare: Kinds
    node: int | None = None
    option: int = 0

    def apply(self, division: Division) -> None:
        division.types.update(self.come)
        for kinds in self.gone:
            division.types[kinds] -= 1
            if not division.types[kinds]:
                del division.types[kinds]
        division.spare = self.spare
        if self.node is not None:
            division.chosen[self.node] = self.option


class Draftsman:
    """Collects edits of single pipelines into one change, without touching the division."""

    __slots__ = ("_come", "_division", "_gone", "spare")

    def __init__(self, division: Division) -> None:
        self._division = division
        self._gone: list[Kinds] = []
        self._come: list[Kinds] = []
        self.spare = division.spare

    def types(self) -> Iterator[Kinds]:
        """The different pipelines as they would be by now."""
        for kinds, number in self._division.types.items():
            if number > self._gone.count(kinds):
                yield kinds
        yield from dict.fromkeys(self._come)

    def replace(self, old: Kinds, new: Kinds) -> None:
        """One pipeline `old` becomes `new`."""
        if old in self._come:
            self._come.remove(old)
        else:
            self._gone.append(old)
        self._come.append(new)

    def change(self, node: int, option: int) -> Change:
        return Change(gone=tuple(self._gone), come=tuple(self._come), spare=self.spare, node=node, option=option)


def swaps(one: Kinds, other: Kinds) -> Iterator[tuple[Kinds, Kinds]]:
    """What two multisets become if a kind moves from one to the other, or two kinds change places."""
    for mine in (None, *sorted(set(one))):
        for theirs in (None, *sorted(set(other))):
            if mine != theirs:
                new_one, new_other = one, other
                if mine is not None:
                    new_one, new_other = without(new_one, mine), plus(new_other, mine)
                if theirs is not None:
                    new_one, new_other = plus(new_one, theirs), without(new_other, theirs)
                yield new_one, new_other


def plus(kinds: Kinds, kind: int) -> Kinds:
    place = bisect_left(kinds, kind)
    return (*kinds[:place], kind, *kinds[place:])


def without(kinds: Kinds, kind: int) -> Kinds:
    place = bisect_left(kinds, kind)
    assert kinds[place] == kind
    return kinds[:place] + kinds[place + 1 :]
