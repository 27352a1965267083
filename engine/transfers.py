"""What must move between two layouts: computed, not negotiated.

Every rank computes the same list from the two layouts, so no one asks anyone. Each element reaches
each new holder exactly once, from the nearest copy: the holder itself, a device of the same node,
or whoever has sent least so far. Nothing is sent here; `engine.migration` does that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from engine.errors import LayoutError
from engine.layout import Holdings, Span


@dataclass(frozen=True, slots=True)
class Transfer:
    """`span` goes from device `source` to device `target`; equal ones mean a local copy."""

    source: int
    target: int
    span: Span


def transfers(old: Holdings, new: Holdings, node_of: Callable[[int], int]) -> tuple[Transfer, ...]:
    """The moves that turn the holdings `old` into `new`, in an order that all ranks agree on.

    Raises:
        LayoutError: an element that `new` needs is held by nobody in `old`.
    """
    holders: dict[int, list[tuple[Span, int]]] = {}
    for device in sorted(old):
        for span in old[device]:
            holders.setdefault(span.parameter, []).append((span, device))
    sent: dict[int, int] = dict.fromkeys(old, 0)
    moves: list[Transfer] = []
    for target in sorted(new):
        for span in new[target]:
            sources = [(held, device) for held, device in holders.get(span.parameter, []) if _overlap(held, span)]
            for piece in _pieces(span, [held for held, _ in sources]):
                able = [device for held, device in sources if held.start <= piece.start and piece.stop <= held.stop]
                if not able:
                    raise LayoutError(f"no device holds elements {piece}, which device {target} needs")
                source = min(able, key=lambda device: _distance(device, target, node_of, sent))
                if source != target:
                    sent[source] += piece.num_elements
                moves.append(Transfer(source, target, piece))
    return tuple(moves)


def elements_sent(moves: tuple[Transfer, ...]) -> int:
    """Elements that cross from one device to another."""
    return sum(move.span.num_elements for move in moves if move.source != move.target)


def _overlap(one: Span, other: Span) -> bool:
    return one.start < other.stop and other.start < one.stop


def _pieces(span: Span, held: list[Span]) -> list[Span]:
    cuts = {span.start, span.stop}
    for other in held:
        cuts |= {cut for cut in (other.start, other.stop) if span.start < cut < span.stop}
    edges = sorted(cuts)
    return [Span(span.parameter, start, stop) for start, stop in pairwise(edges)]


def _distance(device: int, target: int, node_of: Callable[[int], int], sent: dict[int, int]) -> tuple[int, int, int]:
    if device == target:
        return (0, 0, device)
    return (1 if node_of(device) == node_of(target) else 2, sent[device], device)
