"""All that a switch needs and that follows from the two layouts: computed while the old plan still trains.

Pure: equal layouts give equal preparations on every rank. `engine.foresight` runs it in the
background, `engine.migration` carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.digest import Census, weight_census
from engine.groups import Ranks, needed_groups
from engine.layout import Layout, Span
from engine.rounds import BUCKET_BYTES, Cargo, Itinerary, itinerary
from engine.shard import STATES
from engine.transfers import Transfer, elements_sent, sent_by, transfers


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemBytes:
    """Bytes of one element: a weight, its gradient, and one of its master weight and moments."""

    weight: int
    gradient: int
    state: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """How to get from one layout to another.

    Args:
        arrivals: transfers by tensor name and parameter.
        bytes_moved: what all ranks together send.
        groups: process groups that the new layout needs.
        censuses: who holds copies of weights, in the old and the new layout.
    """

    old: Layout
    new: Layout
    arrivals: Mapping[str, Mapping[int, Sequence[Transfer]]]
    itinerary: Itinerary
    bytes_moved: int
    groups: frozenset[Ranks]
    censuses: tuple[Census, Census]
    node_of: Callable[[int], int]

    def primary(self, device: int, *, is_new: bool) -> frozenset[Span]:
        """The weights of which `device` is the first holder."""
        return self.censuses[is_new].primary.get(device, frozenset())


def prepare(
    old: Layout, new: Layout, node_of: Callable[[int], int], size: ItemBytes, bucket_bytes: int = BUCKET_BYTES
) -> Preparation:
    """Prepares the way from `old` to `new`.

    Args:
        node_of: the node of a device.
        bucket_bytes: what a round may bring to one rank; see `engine.rounds`.

    Raises:
        LayoutError: an element that `new` needs is held by nobody in `old`.
    """
    states = transfers(old.states, new.states, node_of)
    weigh = len(STATES) * size.state // size.weight
    busy = {device: count * weigh for device, count in sent_by(states).items()}
    weights = transfers(old.weights, new.weights, node_of, busy)
    state_cargo = Cargo(old=old.states, new=new.states, arrivals=_by_parameter(states), item_bytes=size.state)
    cargo = {
        "weight": Cargo(old=old.weights, new=new.weights, arrivals=_by_parameter(weights), item_bytes=size.weight),
        **dict.fromkeys(STATES, state_cargo),
    }
    return Preparation(
        old=old,
        new=new,
        arrivals={name: load.arrivals for name, load in cargo.items()},
        itinerary=itinerary(old, new, cargo, gradient_bytes=size.gradient, bucket_bytes=bucket_bytes),
        bytes_moved=elements_sent(weights) * size.weight + elements_sent(states) * size.state * len(STATES),
        groups=frozenset(needed_groups(new)),
        censuses=(weight_census(old), weight_census(new)),
        node_of=node_of,
    )


def reverse(there: Preparation) -> dict[str, Mapping[int, Sequence[Transfer]]]:
    """The transfers of the way back, by tensor name and parameter."""
    states = _by_parameter(transfers(there.new.states, there.old.states, there.node_of))
    weights = _by_parameter(transfers(there.new.weights, there.old.weights, there.node_of))
    return {"weight": weights, **dict.fromkeys(STATES, states)}


def _by_parameter(moves: Sequence[Transfer]) -> dict[int, list[Transfer]]:
    found: dict[int, list[Transfer]] = {}
    for move in moves:
        found.setdefault(move.span.parameter, []).append(move)
    return found
