"""The named situations: which devices are slow, by how much, and when.

Pure data for the demo, the tests and the dashboard's drill page; they are played through command
rows, as a person would. Source of the rates: 1, 2, 3 and 8 co-running jobs (Malleus, SIGMOD 2025).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from db.errors import InputError

JOBS_1, JOBS_2, JOBS_3, JOBS_8 = 2.57, 3.75, 5.42, 12.53

DESCRIPTIONS = {
    "S0": "no straggler",
    "S1": "one device 2.57x slow",
    "S2": "one device 5.42x slow",
    "S3": "two devices on different nodes, 2.57x and 5.42x slow",
    "S4": "three devices, on as many nodes as there are, 2.57x, 3.75x and 5.42x slow",
    "S5": "every device of one node 2.57x slow",
    "S6": "two devices of one node 3.75x and 12.53x slow, one of another node 2.57x",
}
DRIFT = ("S0", "S1", "S3", "S0", "S2")
"""Situations that follow one another in one run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """One injection.

    Args:
        offset_steps: steps after the situation's start.
        device: device id.
        rate: straggling rate, above 1.
    """

    offset_steps: int = 0
    device: int
    rate: float


def stragglers(name: str, nodes: Sequence[Sequence[int]]) -> tuple[Straggler, ...]:
    """The injections of a situation, by offset.

    Devices are taken from the end of a node: a node's first device often has extra work as it is.

    Args:
        name: one of `DESCRIPTIONS`.
        nodes: device ids of every node.

    Raises:
        InputError: an unknown name, or a cluster that is too small for it.
    """
    if name not in DESCRIPTIONS:
        raise InputError(f"situation must be one of {', '.join(DESCRIPTIONS)}, given {name}")
    slow = _slow(name, nodes)
    return tuple(Straggler(device=device, rate=rate) for device, rate in slow.items())


def rates(name: str, nodes: Sequence[Sequence[int]]) -> dict[int, float]:
    """The rates of the slow devices once a situation is complete; see `stragglers`."""
    return {straggler.device: straggler.rate for straggler in stragglers(name, nodes)}


def difference(former: Mapping[int, float], rates: Mapping[int, float]) -> tuple[dict[float, list[int]], list[int]]:
    """What to ask for to get from one set of slow devices to another.

    Returns:
        The devices to inject, by rate, and the devices to clear.
    """
    injected: dict[float, list[int]] = {}
    for device, rate in sorted(rates.items()):
        if former.get(device) != rate:
            injected.setdefault(rate, []).append(device)
    return injected, sorted(set(former) - set(rates))


def _slow(name: str, nodes: Sequence[Sequence[int]]) -> dict[int, float]:
    if name == "S1":
        return {_pick(name, nodes, 0, 0): JOBS_1}
    if name == "S2":
        return {_pick(name, nodes, 0, 0): JOBS_3}
    if name == "S3":
        return {_pick(name, nodes, 0, 0): JOBS_1, _pick(name, nodes, 1, 0): JOBS_3}
    if name == "S4":
        rates = (JOBS_1, JOBS_2, JOBS_3)
        return {_pick(name, nodes, index % len(nodes), index // len(nodes)): rate for index, rate in enumerate(rates)}
    if name == "S5":
        return dict.fromkeys(nodes[0], JOBS_1)
    if name == "S6":
        return {
            _pick(name, nodes, 0, 0): JOBS_2,
            _pick(name, nodes, 0, 1): JOBS_8,
            _pick(name, nodes, 1, 0): JOBS_1,
        }
    return {}


def _pick(name: str, nodes: Sequence[Sequence[int]], node: int, position: int) -> int:
    if node >= len(nodes):
        raise InputError(f"situation {name} needs at least {node + 1} nodes, given {len(nodes)}")
    if position >= len(nodes[node]):
        raise InputError(f"situation {name} needs at least {position + 1} devices on a node, given {len(nodes[node])}")
    return nodes[node][-1 - position]
