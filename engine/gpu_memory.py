"""Memory of a layer on a real device, measured: what the planner's caps are made of.

    bytes of a device = layers * (parameters + in_flight * per_flight) + extras + reserve

Parameters and their states are counted (`engine.calibration`), since their sizes are known to the byte.
What a micro-batch in flight keeps is measured: the allocator's peak with 1, 2, 3 ... of them between
forward and backward grows by a constant, and what is left at zero is the working memory of one
backward, needed once a device whatever it holds. The reserve is that, what lies outside the
allocator (CUDA context, NCCL's buffers, other processes), and what the allocator keeps beyond what it
has given out.

All numbers are of a group of the largest TP degree. The planner scales them by `max_tp / n`, which
is right for cut tensors and too much for the uncut residual stream: smaller groups get a safe estimate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

from db.run_config import RunConfig
from engine.allocator import Allocator
from engine.calibration import Flight, team_probe
from engine.equipment import Equipment
from engine.errors import ConfigError
from engine.model import Decoder
from planner.spec import ModelProfile

MOST_IN_FLIGHT = 4


class Probe(Protocol):
    """A layer-shaped workload; `engine.calibration.LayerProbe` is one."""

    def forward(self, num_sequences: int) -> Flight:
        """One layer forward; the result keeps what its backward needs."""

    def backward(self, flight: Flight) -> None:
        """The backward of what `forward` returned."""

    def run_ends(self, num_sequences: int) -> None:
        """Embedding, head and loss, forward and backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """Bytes on each device of a group of the largest TP degree, for one micro-batch size.

    Args:
        per_flight: kept by one layer for each micro-batch in flight.
        working: needed beside that while one layer runs backward.
        ends: peak of embedding, head and loss.
        slack: kept by the allocator beyond what it had given out.
    """

    per_flight: float
    working: float
    ends: float
    slack: float


def with_memory(profile: ModelProfile, config: RunConfig, decoder: Decoder, equipment: Equipment) -> ModelProfile:
    """The profile with memory as measured on these devices; as it was where there is no allocator to ask.

    Collective: all ranks of the world.

    Args:
        equipment: its groups still hold the TP groups that calibration has made.

    Raises:
        ConfigError: the devices would be full before the first layer; on all ranks alike.
    """
    allocator = equipment.backend.allocator()
    if allocator is None:
        return profile
    probe = team_probe(config, decoder, equipment, config.parallel.max_tp)
    measured, outside = {}, 0.0
    for size in config.train.micro_batch_sizes:
        mine = measure(probe, size, allocator) if probe else None
        measured[size], outside = agreed(mine, float(allocator.outside()))
    profile = with_activations(profile, measured, outside)
    check_reserve(config.cluster.memory_bytes, profile.reserve_bytes)
    return profile


def measure(probe: Probe, num_sequences: int, allocator: Allocator) -> Activations:
    """Runs a layer with growing numbers of micro-batches in flight. Collective in the probe's group."""
    _fly(probe, num_sequences, 1)
    probe.run_ends(num_sequences)
    peaks, slack = [], 0.0
    for number in range(1, MOST_IN_FLIGHT + 1):
        peaks.append(_peak(allocator, lambda number=number: _fly(probe, num_sequences, number)))  # type: ignore[misc]
        slack = max(slack, float(allocator.slack()))
    per_flight, working = line(peaks)
    ends = _peak(allocator, lambda: probe.run_ends(num_sequences))
    return Activations(per_flight=per_flight, working=working, ends=ends, slack=slack)


def line(peaks: Sequence[float]) -> tuple[float, float]:
    """Slope and start of the straight line through peaks at 1, 2, 3 ... by least squares; neither is negative."""
    count = len(peaks)
    assert count > 1, f"a line needs two points, given {count}"
    middle, mean = (count + 1) / 2, sum(peaks) / count
    spread = sum((number - middle) ** 2 for number in range(1, count + 1))
    slope = sum((number - middle) * (peak - mean) for number, peak in enumerate(peaks, start=1)) / spread
    return max(0.0, slope), max(0.0, mean - max(0.0, slope) * middle)


def agreed(mine: Activations | None, outside: float) -> tuple[Activations, float]:
    """The largest of each number over all ranks. Collective: the world.

    Args:
        mine: None where this rank is in no group that measured.
        outside: bytes in use beside the allocator on this rank's device.
    """
    names = [field.name for field in dataclasses.fields(Activations)]
    row = torch.tensor([*(getattr(mine, name) if mine else 0.0 for name in names), outside], dtype=torch.float64)
    dist.all_reduce(row, op=dist.ReduceOp.MAX)
    *values, most = row.tolist()
    return Activations(**dict(zip(names, values, strict=True))), most


def with_activations(profile: ModelProfile, measured: dict[int, Activations], outside: float) -> ModelProfile:
    """The profile with measured bytes in place of estimated ones.

    Args:
        profile: its `layer_bytes` grow by a constant a flight, so what they are at none is what a
            layer's parameters and states take.
        measured: by micro-batch size.
        outside: bytes in use beside the allocator.
    """
    layer_bytes = {}
    for size, row in profile.layer_bytes.items():
        held = max(0.0, 2 * row[0] - row[1]) if len(row) > 1 else row[0]
        per_flight = measured[size].per_flight
        layer_bytes[size] = tuple(held + flights * per_flight for flights in range(1, len(row) + 1))
    return dataclasses.replace(
        profile,
        layer_bytes=layer_bytes,
        last_extra_bytes=profile.last_extra_bytes + max(item.ends for item in measured.values()),
        reserve_bytes=outside + max(item.working + item.slack for item in measured.values()),
    )


def check_reserve(memory_bytes: float, reserve: float) -> None:
    """Refuses a configuration whose devices would be full before the first layer.

    Raises:
        ConfigError: `cluster.memory_bytes` does not even hold the reserve.
    """
    if memory_bytes <= reserve:
        raise ConfigError(
            f"cluster.memory_bytes must be more than the {reserve:.4g} that context, communication and working memory "
            f"take on a device, given {memory_bytes:.4g}"
        )


def _fly(probe: Probe, num_sequences: int, number: int) -> None:
    flights = [probe.forward(num_sequences) for _ in range(number)]
    while flights:
        probe.backward(flights.pop(0))


def _peak(allocator: Allocator, action: Callable[[], None]) -> float:
    allocator.start_peak()
    before = allocator.allocated()
    action()
    return float(max(0, allocator.peak() - before))
