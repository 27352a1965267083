"""Upper level, first part: how the devices of one node may be cut into groups.

Within a node, groups of consecutive devices in order of rate are enough: exchanging a slower device
of one group for a faster one of another never helps, and the devices that stand by are the slowest.
So a grouping is a number of devices on standby and a sequence of power-of-two sizes.

Source: design of the project, section 5 (search, upper level).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.kinds import Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """One way to use a node.

    Args:
        kinds: indices of the kinds of its groups, ascending.
        sizes: group sizes, from the slowest devices to the fastest.
        num_standby: how many of the slowest devices stand by.
    """

    kinds: tuple[int, ...]
    sizes: tuple[int, ...]
    num_standby: int


def groupings(instance: Instance, devices: Sequence[tuple[float, float]], group_sizes: Sequence[int]) -> list[Grouping]:
    """Every way to use a node, those with equal kinds of groups once.

    Args:
        devices: `(rate, memory_bytes)` of the node's live devices, slowest first.
        group_sizes: sizes that may be used.

    Returns:
        Groupings, fewest standby devices first; the last one uses nothing.
    """
    found: dict[tuple[int, ...], Grouping] = {}
    sizes_first = tuple(sorted(group_sizes, reverse=True))
    for num_standby in range(len(devices) + 1):
        for sizes in _cuts(devices, num_standby, sizes_first):
            kinds = tuple(sorted(_kinds(instance, devices, num_standby, sizes)))
            if kinds not in found:
                found[kinds] = Grouping(kinds=kinds, sizes=sizes, num_standby=num_standby)
    return list(found.values())


def few_groupings(instance: Instance, options: Sequence[Grouping], most: int) -> list[Grouping]:
    """The groupings worth looking at where there are many nodes.

    Those with most speed, and for every group size the one that uses it most plainly; in the given order.

    Args:
        most: how many to keep of those with most speed.
    """

    def speed(grouping: Grouping) -> float:
        return sum(1 / instance.kinds[kind].layer_s for kind in grouping.kinds)

    kept = set(sorted(range(len(options)), key=lambda index: (-speed(options[index]), index))[:most])
    for size in sorted({size for grouping in options for size in grouping.sizes}):
        used = [grouping.sizes.count(size) for grouping in options]
        kept.add(used.index(max(used)))
    return [grouping for index, grouping in enumerate(options) if index in kept]


def _cuts(devices: Sequence[tuple[float, float]], start: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Sequences of sizes that use up the devices from `start`; among equal devices, larger sizes first only."""
    if start == len(devices):
        yield ()
        return
    is_even = devices[start] == devices[-1]
    for place, size in enumerate(sizes):
        if start + size <= len(devices):
            for rest in _cuts(devices, start + size, sizes[place:] if is_even else sizes):
                yield (size, *rest)


def _kinds(
    instance: Instance, devices: Sequence[tuple[float, float]], num_standby: int, sizes: Sequence[int]
) -> Iterator[int]:
    start = num_standby
    for size in sizes:
        group = devices[start : start + size]
        yield instance.kind(size, group[0][0], min(memory for _, memory in group))
        start += size
