"""What changes between two plans, device by device, in data and in sentences.

Command line, dashboard and audit show it; the controller weighs the bytes it estimates against the
gain. Either plan may be any valid one, and they may differ in everything. It does not compute the
transfers themselves: the engine does, from its own layouts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from planner.errors import PlanError
from planner.plan import Plan
from planner.spec import ModelProfile

Role = Literal["active", "standby", "failed", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a plan puts one device.

    Args:
        role: what the device does; the other fields are None, and layers empty, unless it is active.
        layers: `[first, stop)`.
        tp_rank: its place in the group, of `tp_degree`.
    """

    role: Role
    pipeline_index: int | None = None
    stage_index: int | None = None
    layers: tuple[int, int] = (0, 0)
    tp_rank: int | None = None
    tp_degree: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "role": self.role,
            "pipeline": self.pipeline_index,
            "stage": self.stage_index,
            "layers": list(self.layers),
            "tp_rank": self.tp_rank,
            "tp_degree": self.tp_degree,
        }

    def __str__(self) -> str:
        if self.role != "active":
            return self.role
        return (
            f"pipeline {self.pipeline_index} stage {self.stage_index}, "
            f"layers {self.layers[0]}-{self.layers[1] - 1}, TP {self.tp_degree}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChange:
    """One device that holds something else, or does something else, than before.

    Args:
        gained, lost: `[first, stop)` ranges of layers that are new to the device or leave it.
        moved_bytes: estimate of what it must receive; None without a profile.
    """

    device: int
    old: Place
    new: Place
    gained: tuple[tuple[int, int], ...]
    lost: tuple[tuple[int, int], ...]
    moved_bytes: float | None

    def to_json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "old": self.old.to_json(),
            "new": self.new.to_json(),
            "gained": [list(span) for span in self.gained],
            "lost": [list(span) for span in self.lost],
            "moved_bytes": self.moved_bytes,
        }

    def __str__(self) -> str:
        return f"device {self.device}: {self.old} -> {self.new}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDiff:
    """All that changes from one plan to another.

    Args:
        devices: the devices that change, in order of id.
        micro_batches: micro-batches of every pipeline, old and new.
        micro_batch_size: sequences of a micro-batch, old and new.
        moved_bytes: sum over devices; None without a profile.
    """

    devices: tuple[DeviceChange, ...]
    micro_batches: tuple[tuple[int, ...], tuple[int, ...]]
    micro_batch_size: tuple[int, int]
    moved_bytes: float | None

    @property
    def is_empty(self) -> bool:
        return not self.devices and len({*self.micro_batches}) == 1 and len({*self.micro_batch_size}) == 1

    def to_json(self) -> dict[str, Any]:
        return {
            "devices": [change.to_json() for change in self.devices],
            "micro_batches": [list(counts) for counts in self.micro_batches],
            "micro_batch_size": list(self.micro_batch_size),
            "moved_bytes": self.moved_bytes,
            "sentences": self.sentences(),
        }

    def sentences(self) -> list[str]:
        """One line a change, in the order in which a reader would ask; empty if nothing changes."""
        lines = []
        old_size, new_size = self.micro_batch_size
        if old_size != new_size:
            lines.append(f"micro-batch size {old_size} -> {new_size}")
        old, new = self.micro_batches
        if len(old) != len(new):
            lines.append(f"pipelines {len(old)} -> {len(new)}, micro-batches {list(old)} -> {list(new)}")
        else:
            lines.extend(
                f"pipeline {index}: {before} -> {after} micro-batches"
                for index, (before, after) in enumerate(zip(old, new, strict=True))
                if before != after
            )
        lines.extend(str(change) for change in self.devices)
        if self.moved_bytes:
            lines.append(f"moves about {self.moved_bytes / 1e6:.1f} MB")
        return lines


def diff(old: Plan, new: Plan, profile: ModelProfile | None = None) -> PlanDiff:
    """Compares two plans of the same model.

    A device counts as changed if its role, pipeline, stage, layers, TP rank or TP degree changes.

    Args:
        profile: if given, `moved_bytes` is estimated from its memory table (see `layer_state_bytes`).

    Raises:
        PlanError: the plans are of models with different numbers of layers.
    """
    if old.num_layers != new.num_layers:
        raise PlanError([f"plans of one model have equal num_layers, given {old.num_layers} and {new.num_layers}"])
    before, after = places(old), places(new)
    absent = Place(role="absent")
    changes = []
    for device in sorted({*before, *after}):
        was, now = before.get(device, absent), after.get(device, absent)
        if was == now:
            continue
        moved_bytes = None
        if profile is not None:
            moved_bytes = received_layers(was, now) * layer_state_bytes(profile, new.micro_batch_size)
        changes.append(
            DeviceChange(
                device=device,
                old=was,
                new=now,
                gained=_without(now.layers, was.layers),
                lost=_without(was.layers, now.layers),
                moved_bytes=moved_bytes,
            )
        )
    return PlanDiff(
        devices=tuple(changes),
        micro_batches=(
            tuple(pipeline.num_micro_batches for pipeline in old.pipelines),
            tuple(pipeline.num_micro_batches for pipeline in new.pipelines),
        ),
        micro_batch_size=(old.micro_batch_size, new.micro_batch_size),
        moved_bytes=None if profile is None else sum(change.moved_bytes or 0.0 for change in changes),
    )


def places(plan: Plan) -> dict[int, Place]:
    """Where the plan puts each of its devices."""
    found: dict[int, Place] = {}
    for pipeline_index, stage_index, stage in plan.places():
        for rank, device in enumerate(stage.devices):
            found[device] = Place(
                role="active",
                pipeline_index=pipeline_index,
                stage_index=stage_index,
                layers=stage.layers,
                tp_rank=rank,
                tp_degree=stage.tp_degree,
            )
    found.update({device: Place(role="standby") for device in plan.standby})
    found.update({device: Place(role="failed") for device in plan.failed})
    return found


def received_layers(old: Place, new: Place) -> float:
    """How many whole layers' worth of state a device must receive to go from one place to another.

    Member r of a group of n holds the slice [r/n, (r+1)/n) of each of its layers; what it held
    before of the same layer it keeps.
    """
    if new.tp_degree is None or new.tp_rank is None:
        return 0.0
    width = 1 / new.tp_degree
    num_layers = new.layers[1] - new.layers[0]
    if old.tp_degree is None or old.tp_rank is None:
        return num_layers * width
    low = max(new.tp_rank / new.tp_degree, old.tp_rank / old.tp_degree)
    high = min((new.tp_rank + 1) / new.tp_degree, (old.tp_rank + 1) / old.tp_degree)
    num_kept = max(0, min(new.layers[1], old.layers[1]) - max(new.layers[0], old.layers[0]))
    return num_layers * width - num_kept * max(0.0, high - low)


def layer_state_bytes(profile: ModelProfile, micro_batch_size: int) -> float:
    """Estimate of the bytes of one whole layer that move with it: all but its activations.

    The memory table is extrapolated to zero micro-batches in flight. Moments that are sharded over
    pipelines are counted as the table counts them, on each device.
    """
    table = profile.layer_bytes.get(micro_batch_size) or next(iter(profile.layer_bytes.values()))
    activations = table[1] - table[0] if len(table) > 1 else 0.0
    return max(table[0] - activations, 0.0) * profile.max_tp


def _without(span: tuple[int, int], other: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """The parts of `span` that are not in `other`."""

    def parts() -> Iterator[tuple[int, int]]:
        yield span[0], min(span[1], max(span[0], other[0]))
        yield max(span[0], min(span[1], other[1])), span[1]

    if other[0] >= other[1]:
        return (span,) if span[0] < span[1] else ()
    return tuple(part for part in parts() if part[0] < part[1])
