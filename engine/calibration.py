"""Calibration: what one layer costs on healthy devices, measured before the first step.

All devices run a layer-shaped workload in node-local groups of every TP degree at once, so the
numbers contain the contention that training has. Medians over devices keep one device that is slow
already from spoiling the reference.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from db.run_config import RunConfig
from engine.clock import Clock, Work
from engine.collectives import all_gather
from engine.equipment import Equipment
from engine.memory import ElementBytes, parameter_bytes
from engine.model import Decoder
from engine.parameters import Place, parameters
from engine.precision import wide
from engine.tensor_parallel import TensorParallel
from planner.plan import GROUP_SIZES
from planner.spec import ModelProfile

REPETITIONS = 15
IN_FLIGHT_ENTRIES = 16
_LAYER_SHARE_OF_ACTIVATIONS = 12
"""Activation tensors of `[sequences, seq_len, hidden]` that a layer keeps for its backward, about.

With recomputation only the one layer that runs backward has them, every other one its input.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timing:
    compute_s: float
    comm_s: float
    forward_s: float
    head_s: float
    embed_s: float


def calibrate(config: RunConfig, decoder: Decoder, equipment: Equipment, sync: Callable[[], object]) -> ModelProfile:
    """Measures a profile; the same on every rank.

    Args:
        equipment: its groups, if they are used, are given the node-local ones of every degree.
        sync: one gradient sync and update on scratch tensors.

    Collective: all ranks of the world.
    """
    timings: dict[int, dict[int, _Timing]] = {}
    degrees = [degree for degree in GROUP_SIZES if degree <= config.parallel.max_tp]
    equipment.groups.prepare(team for degree in degrees for team in teams(config, degree))
    for size in config.train.micro_batch_sizes:
        timings[size] = {degree: _time_layer(config, decoder, equipment, size, degree) for degree in degrees}
    rows = timings[config.train.micro_batch_sizes[0]]
    first = rows[degrees[0]]
    activation = config.model.seq_len * config.model.hidden_size * decoder.dtype.itemsize
    element = ElementBytes(weight=decoder.dtype.itemsize, state=wide(decoder.dtype).itemsize)

    kept = 1 if config.train.recompute else _LAYER_SHARE_OF_ACTIVATIONS

    def held(*places: Place) -> float:
        return parameter_bytes(parameters(config.model), places, config.parallel.max_tp, element)

    return ModelProfile(
        num_layers=config.model.num_layers,
        compute_s={b: {n: timing.compute_s for n, timing in row.items()} for b, row in timings.items()},
        comm_s={b: {n: timing.comm_s for n, timing in row.items()} for b, row in timings.items()},
        forward_share=first.forward_s / first.compute_s,
        embed_s={b: {n: timing.embed_s for n, timing in row.items()} for b, row in timings.items()},
        head_s={b: {n: timing.head_s for n, timing in row.items()} for b, row in timings.items()},
        send_s=_time_send(config, decoder, equipment),
        sync_s=_agreed(_repeat(sync, equipment)),
        max_tp=config.parallel.max_tp,
        layer_bytes={
            b: tuple(
                held("layer") / config.model.num_layers + flights * b * activation * kept
                for flights in range(1, IN_FLIGHT_ENTRIES + 1)
            )
            for b in timings
        },
        first_extra_bytes=held("first", "ends"),
        last_extra_bytes=held("last", "ends"),
        reserve_bytes=max(timings) * activation * _LAYER_SHARE_OF_ACTIVATIONS if config.train.recompute else 0.0,
        provenance="measured",
    )


Flight = tuple[Tensor, Tensor | None]
"""Input and output of a layer; no output where it is computed again."""


class LayerProbe:
    """A layer-shaped workload with weights of its own: for calibration, and for devices on standby."""

    def __init__(self, config: RunConfig, decoder: Decoder, tp: TensorParallel) -> None:
        self._decoder, self._tp, self._is_recomputing = decoder, tp, config.train.recompute
        self._shape = (config.model.seq_len, config.model.hidden_size)
        generator = torch.Generator().manual_seed(0)
        self.weights: dict[str, Tensor] = {}
        for parameter in parameters(config.model):
            if parameter.layer <= 0:
                rows = parameter.shape[0] // (tp.degree if parameter.is_sliced else 1)
                values = torch.randn(rows, *parameter.shape[1:], generator=generator, dtype=torch.float64) * 0.02
                name = parameter.name.removeprefix("layers.0.")
                self.weights[name] = values.to(decoder.torch_device, decoder.dtype).requires_grad_()

    def run(self, num_sequences: int) -> None:
        """One layer forward and backward, forward twice if the run recomputes; collective in the group."""
        self.backward(self.forward(num_sequences))

    def forward(self, num_sequences: int) -> Flight:
        """One layer forward; the result keeps what its backward needs. Collective in the group."""
        self._tp.clock.configure(num_sequences=num_sequences, tp_degree=self._tp.degree)
        like = self._decoder
        x = torch.ones(num_sequences, *self._shape, dtype=like.dtype, device=like.torch_device, requires_grad=True)
        with torch.set_grad_enabled(not self._is_recomputing):
            y = self._decoder.layer(x, self.weights, self._tp)
        return x, None if self._is_recomputing else y

    def backward(self, flight: Flight) -> None:
        """The backward of what `forward` returned; collective in the group."""
        x, y = flight
        if y is None:
            y = self._decoder.layer(x, self.weights, self._tp)
        self._tp.clock.start(Work.BACKWARD)
        torch.autograd.backward(y, torch.ones_like(y))
        self._tp.clock.drop()

    def run_ends(self, num_sequences: int) -> None:
        """Embedding, head and loss, forward and backward; collective in the group."""
        tokens = torch.zeros(num_sequences, self._shape[0], dtype=torch.int64, device=self._decoder.torch_device)
        x = self._decoder.embed(tokens, self.weights, self._tp)
        loss = self._decoder.loss(x, tokens, self.weights, self._tp)
        self._tp.clock.start(Work.HEAD)
        torch.autograd.backward(loss)
        self._tp.clock.drop()


def teams(config: RunConfig, degree: int) -> list[tuple[int, ...]]:
    """The node-local groups of a TP degree that calibration measures in."""
    return [node[first : first + degree] for node in config.nodes for first in range(0, len(node) - degree + 1, degree)]


def team_probe(config: RunConfig, decoder: Decoder, equipment: Equipment, degree: int) -> LayerProbe | None:
    """A probe in this rank's node-local group of a degree; None for a device that is left over on its node."""
    rank = dist.get_rank()
    team = next((team for team in teams(config, degree) if rank in team), None)
    return LayerProbe(config, decoder, equipment.tensor_parallel(team, team.index(rank))) if team else None


def _time_layer(config: RunConfig, decoder: Decoder, equipment: Equipment, size: int, degree: int) -> _Timing:
    probe = team_probe(config, decoder, equipment, degree)
    repeated, clock = equipment.backend.repeated or _repeated, equipment.clock
    own = [math.nan] * 5
    if probe:
        layer, wall = repeated(clock, lambda: probe.run(size))
        ends, _ = repeated(clock, lambda: probe.run_ends(size))
        compute = layer[Work.FORWARD] + layer[Work.BACKWARD]
        forward = layer[Work.FORWARD] / (2 if config.train.recompute else 1)
        own = [compute, max(0.0, wall - compute), forward, ends[Work.HEAD], ends[Work.EMBED]]
    return _Timing(
        **dict(zip(("compute_s", "comm_s", "forward_s", "head_s", "embed_s"), _median_over_ranks(own), strict=True))
    )


def _repeated(clock: Clock, action: Callable[[], None]) -> tuple[dict[Work, float], float]:
    """Compute seconds by kind, means over the repetitions, and wall seconds of one repetition.

    Means, because the clock lets a segment pay for the overshoot of another; what the wall adds to them
    (collectives) is a median, since one moment of a busy machine would spoil its mean.
    """
    action()
    clock.settle()
    clock.take()
    totals = dict.fromkeys(Work, 0.0)
    others = []
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        action()
        wall = time.perf_counter() - started
        seconds = clock.take()
        others.append(wall - sum(seconds.values()))
        totals = {work: totals[work] + seconds[work] for work in Work}
    means = {work: seconds / REPETITIONS for work, seconds in totals.items()}
    return means, sum(means.values()) + statistics.median(others)


def _time_send(config: RunConfig, decoder: Decoder, equipment: Equipment) -> float:
    """One way of a boundary tensor between two ranks: half a round trip, median over pairs."""
    rank, size = dist.get_rank(), dist.get_world_size()
    peer = rank ^ 1
    if size == 1:
        return 0.0
    links = equipment.links
    shape = (config.train.micro_batch_sizes[0], config.model.seq_len, config.model.hidden_size)
    x = torch.zeros(shape, dtype=decoder.dtype, device=decoder.torch_device)

    def there_and_back() -> None:
        if peer >= size:
            return
        arriving = links.post(torch.empty_like(x), peer)
        if rank < peer:
            links.send(x, peer).wait()
            arriving.wait()
        else:
            arriving.wait()
            links.send(x, peer).wait()

    return _agreed(_repeat(there_and_back, equipment)) / 2


def _repeat(action: Callable[[], object], equipment: Equipment) -> float:
    seconds = []
    for _ in range(REPETITIONS + 1):
        dist.barrier()
        started = time.perf_counter()
        action()
        equipment.backend.synchronize()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def _agreed(value: float) -> float:
    return _median_over_ranks([value])[0]


def _median_over_ranks(values: list[float]) -> list[float]:
    mine = torch.tensor(values, dtype=torch.float64)
    everyone = all_gather(mine, dist.get_world_size())
    return [float(column[~column.isnan()].median()) for column in everyone.view(-1, len(values)).T]
