"""What must move between two layouts: computed, not negotiated.

Every rank computes the same list from the two layouts, so no one asks anyone. Each element reaches
each new holder exactly once, from the nearest copy: the holder itself, a device of the same node,
or whoever has sent least so far. Nothing is sent here; `engine.mover` does that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.errors import LayoutError
from engine.layout import Holdings, Span


@dataclass(frozen=True, slots=True)
class Transfer:
    """`span` goes from device `source` to device `target`; equal ones mean a local copy."""

    source: int
    target: int
    span: Span


def transfers(
    old: Holdings, new: Holdings, node_of: Callable[[int], int], sent: Mapping[int, int] | None = None
) -> tuple[Transfer, ...]:
    """The moves that turn the holdings `old` into `new`, in an order that all ranks agree on.

    Args:
        sent: elements that devices send anyway; counted when the one who has sent least is chosen.

    Raises:
        LayoutError: an element that `new` needs is held by nobody in `old`.
    """
    sections = _sections(old)
    load = dict.fromkeys(old, 0) | dict(sent or {})
    node = {device: node_of(device) for device in {*old, *new}}
    moves: list[Transfer] = []
    for target in sorted(new):
        kept = set(old.get(target, ()))
        for span in new[target]:
            if span in kept:
                moves.append(Transfer(target, target, span))
            else:
                moves += _arrivals(span, target, sections.get(span.parameter), node, load)
    return tuple(moves)


def elements_sent(moves: Sequence[Transfer]) -> int:
    """Elements that cross from one device to another."""
    return sum(move.span.num_elements for move in moves if move.source != move.target)


def sent_by(moves: Sequence[Transfer]) -> dict[int, int]:
    """Elements that each device sends to others."""
    sent: dict[int, int] = {}
    for move in moves:
        if move.source != move.target:
            sent[move.source] = sent.get(move.source, 0) + move.span.num_elements
    return sent


_Sections = tuple[list[int], list[dict[int, int]]]
"""A parameter cut where any holder's span begins or ends: the edges, and for each section its holders in
ascending order, with the start of the span in which they hold it."""


def _sections(holdings: Holdings) -> dict[int, _Sections]:
    held: dict[int, list[tuple[int, int, int]]] = {}
    for device in sorted(holdings):
        for span in holdings[device]:
            held.setdefault(span.parameter, []).append((span.start, span.stop, device))
    sections = {}
    for parameter, rows in held.items():
        edges = sorted({edge for start, stop, _ in rows for edge in (start, stop)})
        holders: list[dict[int, int]] = [{} for _ in edges[1:]]
        for start, stop, device in rows:
            for number in range(bisect_left(edges, start), bisect_left(edges, stop)):
                holders[number][device] = start
        sections[parameter] = (edges, holders)
    return sections


def _arrivals(
    span: Span, target: int, sections: _Sections | None, node: Mapping[int, int], load: dict[int, int]
) -> list[Transfer]:
    """The pieces of one new span, neighbours out of one held span joined."""
    edges, holders = sections or ([], [])
    arrivals: list[Transfer] = []
    start, held = span.start, -1
    number = bisect_right(edges, start) - 1
    while start < span.stop:
        able = holders[number] if 0 <= number < len(holders) else {}
        if not able:
            raise LayoutError(f"no device holds elements from {start} of {span}, which device {target} needs")
        stop = min(span.stop, edges[number + 1])
        source = target if target in able else _nearest(able, node[target], node, load)
        if source != target:
            load[source] += stop - start
        last = arrivals[-1] if arrivals else None
        if last and last.source == source and able[source] == held:
            arrivals[-1] = Transfer(source, target, Span(span.parameter, last.span.start, stop))
        else:
            arrivals.append(Transfer(source, target, Span(span.parameter, start, stop)))
        start, held, number = stop, able[source], number + 1
    return arrivals


def _nearest(able: Iterable[int], home: int, node: Mapping[int, int], load: Mapping[int, int]) -> int:
    near = [device for device in able if node[device] == home] or able
    return min(near, key=load.__getitem__)  # the lowest number among equals: holders are ascending
