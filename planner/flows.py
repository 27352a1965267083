"""From which device to which device the layers of one plan go on the way to the next, and about how much.

An estimate from the two plans and the profile, by the rule that the engine follows with its exact layouts: what a
device holds already stays; the rest comes from the nearest copy, a device of the same node first, among equals
the one that sends least so far. The command line and the dashboard show it; nothing is moved by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from planner.diff import Place, layer_state_bytes, places
from planner.errors import PlanError
from planner.plan import Plan
from planner.spec import ModelProfile

Held = dict[int, list[tuple[Fraction, Fraction, int]]]
"""Of every layer the slices `[low, high)` of it and the device that holds each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What one device sends to another.

    Args:
        layers: those of which it sends all or a slice, ascending.
        num_layers: how many whole layers that amounts to.
        num_bytes: estimate; None without a profile.
        is_within_node: None where the nodes are unknown.
    """

    source: int
    target: int
    layers: tuple[int, ...]
    num_layers: float
    num_bytes: float | None
    is_within_node: bool | None

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "target": self.target,
            "layers": list(self.layers),
            "num_layers": self.num_layers,
            "num_bytes": self.num_bytes,
            "is_within_node": self.is_within_node,
        }


def flows(
    old: Plan, new: Plan, *, nodes: Sequence[Sequence[int]] = (), profile: ModelProfile | None = None
) -> list[Flow]:
    """The transfers between two plans of one model, by source and target.

    Slices that no active device of the old plan holds (it has failed) come from nowhere: they are left out.

    Args:
        nodes: the devices of each node.

    Raises:
        PlanError: the plans are of models with different numbers of layers.
    """
    if old.num_layers != new.num_layers:
        raise PlanError([f"plans of one model have equal num_layers, given {old.num_layers} and {new.num_layers}"])
    node_of = {device: index for index, devices in enumerate(nodes) for device in devices}
    held = _held(old, set(new.failed))
    load: dict[int, Fraction] = {}
    found: dict[tuple[int, int], dict[int, Fraction]] = {}
    for target, place in sorted(places(new).items()):
        for layer in range(*place.layers):
            for low, high in _pieces(_slice(place), held.get(layer, [])):
                source = _source(target, low, held.get(layer, []), node_of, load)
                if source is None or source == target:
                    continue
                load[source] = load.get(source, Fraction()) + high - low
                sent = found.setdefault((source, target), {})
                sent[layer] = sent.get(layer, Fraction()) + high - low
    layer_bytes = None if profile is None else layer_state_bytes(profile, new.micro_batch_size)
    return [
        Flow(
            source=source,
            target=target,
            layers=tuple(sorted(sent)),
            num_layers=float(sum(sent.values())),
            num_bytes=None if layer_bytes is None else float(sum(sent.values())) * layer_bytes,
            is_within_node=_is_within(source, target, node_of),
        )
        for (source, target), sent in sorted(found.items())
    ]


def _held(plan: Plan, gone: set[int]) -> Held:
    held: Held = {}
    for device, place in sorted(places(plan).items()):
        if device not in gone:
            for layer in range(*place.layers):
                held.setdefault(layer, []).append((*_slice(place), device))
    return held


def _slice(place: Place) -> tuple[Fraction, Fraction]:
    """Member r of a group of n holds [r/n, (r+1)/n) of each of its layers."""
    assert place.tp_rank is not None
    assert place.tp_degree is not None
    return Fraction(place.tp_rank, place.tp_degree), Fraction(place.tp_rank + 1, place.tp_degree)


def _pieces(
    wanted: tuple[Fraction, Fraction], held: list[tuple[Fraction, Fraction, int]]
) -> list[tuple[Fraction, Fraction]]:
    """The wanted slice, cut wherever a holder begins or ends."""
    low, high = wanted
    edges = {low, high, *(edge for start, stop, _ in held for edge in (start, stop) if low < edge < high)}
    return list(pairwise(sorted(edges)))


def _source(
    target: int,
    low: Fraction,
    held: list[tuple[Fraction, Fraction, int]],
    node_of: Mapping[int, int],
    load: Mapping[int, Fraction],
) -> int | None:
    able = [device for start, stop, device in held if start <= low < stop]
    if not able or target in able:
        return target if able else None
    near = [device for device in able if target in node_of and node_of.get(device) == node_of[target]] or able
    return min(near, key=lambda device: (load.get(device, 0), device))


def _is_within(source: int, target: int, node_of: Mapping[int, int]) -> bool | None:
    if source not in node_of or target not in node_of:
        return None
    return node_of[source] == node_of[target]
