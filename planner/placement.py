"""From a draft to a plan: which device takes which place, so that the fewest bytes move.

Two assignment problems: groups of a kind to the stages that want that kind, then the devices of each
node to the seats of its groups. A device may take a seat if it is no slower and has no less memory
than the group's kind; so the plan is at least as fast as the draft, and equal devices may be permuted
freely. A device that keeps its layers and its slice moves nothing. It does not change the draft.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.diff import Place, places, received_layers
from planner.draft import Draft
from planner.matching import EXACT_SIZE, cheapest
from planner.plan import Pipeline, Plan, Stage
from planner.spec import ClusterSpec

_OTHER_PIPELINE = 1e-4  # layers that leaving one's pipeline counts as: breaks ties, never costs bytes
_SLOW = 1e-7  # layers that using a slow device counts as: of two equal choices the fast one works
_NOWHERE = Place(role="absent")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slot:
    """One stage of the draft, which wants a group of a kind; `pipeline_index` counts as in the draft."""

    pipeline_index: int
    kind: int
    layers: tuple[int, int]
    tp_degree: int


def live_devices(node: Sequence[int], rates: Mapping[int, float], cluster: ClusterSpec) -> list[int]:
    """The node's devices that have not failed, slowest first: the order that groupings refer to."""
    live = [device for device in node if math.isfinite(rates[device])]
    return sorted(live, key=lambda device: (-rates[device], cluster.memory_bytes[device], device))


def place(
    draft: Draft,
    *,
    cluster: ClusterSpec,
    rates: Mapping[int, float],
    current: Plan | None,
    tolerance: float = 0.0,
) -> Plan:
    """Chooses the devices of a draft.

    Args:
        rates: rate of every device; those of rate inf end in `failed`.
        current: the plan to move from; None or a plan of another model counts as nowhere.
        tolerance: by how much, relatively, a device may be slower than its group's kind.

    Returns:
        The plan; pipelines are numbered like the current ones with which they share most devices.
    """
    slots = _slots(draft)
    num_layers = sum(draft.pipelines[0][0].layers)
    old = places(current) if current is not None and current.num_layers == num_layers else {}
    seating = _Seating(draft, cluster, rates, old, tolerance)
    choices = [seating.choose(slots, {})]
    heirs = _heirs(slots, choices[0], old)
    if heirs and len(slots) <= EXACT_SIZE:
        choices.insert(0, seating.choose(slots, heirs))
        # Nodes are chosen before seats, which can miss; as if from nowhere is sometimes closer.
        choices.append(_Seating(draft, cluster, rates, {}, tolerance).choose(slots, {}))
        choices.sort(key=lambda members: seating.received_layers(slots, members))
    heirs = _heirs(slots, choices[0], old)
    return _plan(draft, slots, choices[0], heirs, cluster, rates)


class _Seating:
    """Which devices sit where, given where they sat before (`old`)."""

    def __init__(
        self,
        draft: Draft,
        cluster: ClusterSpec,
        rates: Mapping[int, float],
        old: Mapping[int, Place],
        tolerance: float,
    ) -> None:
        self._draft = draft
        self._kinds = draft.kinds
        self._memory = cluster.memory_bytes
        self._rates = rates
        self._old = old
        self._slack = 1 + tolerance
        self._nodes = [live_devices(node, rates, cluster) for node in cluster.nodes]

    def choose(self, slots: Sequence[_Slot], heirs: Mapping[int, int]) -> list[tuple[int, ...]]:
        """Devices of each slot in TP order; `heirs` maps new pipelines to the old ones they continue."""
        slots_of: dict[int, list[int]] = {}
        for slot, node in self._node_of_slots(slots, heirs).items():
            slots_of.setdefault(node, []).append(slot)
        members: list[tuple[int, ...]] = [()] * len(slots)
        for node, mine in slots_of.items():
            devices = self._nodes[node]
            seats = [(slot, rank) for slot in mine for rank in range(slots[slot].tp_degree)]
            costs = np.zeros((len(devices), len(devices)))
            for row, device in enumerate(devices):
                for column, (slot, rank) in enumerate(seats):
                    costs[row, column] = self._cost(device, slots[slot], rank, heirs)
            taker = {column: devices[row] for row, column in enumerate(cheapest(costs))}
            group: dict[int, list[int]] = {}
            for column, (slot, _) in enumerate(seats):
                group.setdefault(slot, []).append(taker[column])
            for slot, chosen in group.items():
                members[slot] = tuple(chosen) if self._old else tuple(sorted(chosen))
        return members

    def received_layers(self, slots: Sequence[_Slot], members: Sequence[tuple[int, ...]]) -> float:
        """Layers that the devices would have to receive, in whole layers."""
        return sum(
            received_layers(
                self._old.get(device, _NOWHERE),
                Place(role="active", layers=slot.layers, tp_rank=rank, tp_degree=slot.tp_degree),
            )
            for slot, devices in zip(slots, members, strict=True)
            for rank, device in enumerate(devices)
        )

    def _node_of_slots(self, slots: Sequence[_Slot], heirs: Mapping[int, int]) -> dict[int, int]:
        """The node of each slot: groups of each kind go where their node's devices bring the most along."""
        found: dict[int, int] = {}
        for kind in sorted({slot.kind for slot in slots}):
            wanted = [index for index, slot in enumerate(slots) if slot.kind == kind]
            offered = [
                node for node, grouping in enumerate(self._draft.groupings) for _ in range(grouping.kinds.count(kind))
            ]
            if not self._old:
                found.update(zip(wanted, offered, strict=False))
                continue
            costs = self._node_costs([slots[index] for index in wanted], offered, heirs)
            found.update({slot: offered[column] for slot, column in zip(wanted, cheapest(costs), strict=True)})
        return found

    def _node_costs(self, wanted: Sequence[_Slot], offered: Sequence[int], heirs: Mapping[int, int]) -> np.ndarray:
        """Cost of each node for each slot, computed once for each class of equal slots and equal nodes."""
        slot_class: dict[tuple[object, ...], int] = {}
        node_class: dict[tuple[object, ...], int] = {}
        slot_keys = [(slot.layers, heirs.get(slot.pipeline_index)) for slot in wanted]
        node_keys = [self._node_key(node, bool(heirs)) for node in offered]
        slot_ids = [slot_class.setdefault(key, len(slot_class)) for key in slot_keys]
        node_ids = [node_class.setdefault(key, len(node_class)) for key in node_keys]
        examples = dict(zip(slot_ids, wanted, strict=True))
        hosts = dict(zip(node_ids, offered, strict=True))
        table = np.array(
            [[self._group_cost(hosts[b], examples[a], heirs) for b in range(len(hosts))] for a in range(len(examples))]
        )
        return table[np.ix_(slot_ids, node_ids)]

    def _node_key(self, node: int, with_pipelines: bool) -> tuple[object, ...]:
        key = []
        for device in self._nodes[node]:
            old = self._old.get(device, _NOWHERE)
            where = (old.layers, old.tp_rank, old.tp_degree, old.pipeline_index if with_pipelines else None)
            key.append((self._rates[device], self._memory[device], where))
        return tuple(key)

    def _group_cost(self, node: int, slot: _Slot, heirs: Mapping[int, int]) -> float:
        """What the node's best devices for the slot would have to receive, taken greedily."""
        free = set(self._nodes[node])
        total = 0.0
        for rank in range(slot.tp_degree):
            cost, device = min((self._cost(device, slot, rank, heirs), device) for device in sorted(free))
            total += cost
            free.discard(device)
        return total

    def _cost(self, device: int, slot: _Slot, rank: int, heirs: Mapping[int, int]) -> float:
        kind = self._kinds[slot.kind]
        rate = self._rates[device]
        if rate > kind.rate * self._slack or self._memory[device] < kind.memory_bytes:
            return math.inf
        old = self._old.get(device, _NOWHERE)
        new = Place(role="active", layers=slot.layers, tp_rank=rank, tp_degree=slot.tp_degree)
        cost = received_layers(old, new) + _SLOW * rate
        if heirs and old.pipeline_index != heirs.get(slot.pipeline_index, -1):
            cost += _OTHER_PIPELINE
        return cost


def _slots(draft: Draft) -> list[_Slot]:
    slots = []
    for pipeline_index, (arrangement, _) in enumerate(draft.pipelines):
        start = 0
        for kind, count in zip(arrangement.kinds, arrangement.layers, strict=True):
            slots.append(
                _Slot(
                    pipeline_index=pipeline_index,
                    kind=kind,
                    layers=(start, start + count),
                    tp_degree=draft.kinds[kind].tp_degree,
                )
            )
            start += count
    return slots


def _heirs(slots: Sequence[_Slot], members: Sequence[tuple[int, ...]], old: Mapping[int, Place]) -> dict[int, int]:
    """Which old pipeline each new one continues: the pairs that share most devices, one to one."""
    shared: Counter[tuple[int, int]] = Counter()
    for slot, devices in zip(slots, members, strict=True):
        for device in devices:
            was = old.get(device, _NOWHERE).pipeline_index
            if was is not None:
                shared[slot.pipeline_index, was] += 1
    heirs: dict[int, int] = {}
    for (new, was), _ in sorted(shared.items(), key=lambda item: (-item[1], item[0])):
        if new not in heirs and was not in heirs.values():
            heirs[new] = was
    return heirs


def _plan(
    draft: Draft,
    slots: Sequence[_Slot],
    members: Sequence[tuple[int, ...]],
    heirs: Mapping[int, int],
    cluster: ClusterSpec,
    rates: Mapping[int, float],
) -> Plan:
    stages: dict[int, list[Stage]] = {}
    for slot, devices in zip(slots, members, strict=True):
        stages.setdefault(slot.pipeline_index, []).append(Stage(devices=devices, layers=slot.layers))
    last = len(draft.pipelines) + max(heirs.values(), default=0)
    order = sorted(stages, key=lambda index: (heirs.get(index, last), index))
    active = {device for devices in members for device in devices}
    failed = tuple(sorted(device for device in cluster.devices if math.isinf(rates[device])))
    return Plan(
        num_layers=sum(draft.pipelines[0][0].layers),
        micro_batch_size=draft.micro_batch_size,
        pipelines=tuple(
            Pipeline(num_micro_batches=draft.pipelines[index][1], stages=tuple(stages[index])) for index in order
        ),
        standby=tuple(device for device in sorted(cluster.devices) if device not in active and device not in failed),
        failed=failed,
    )
