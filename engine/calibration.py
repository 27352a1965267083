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
from engine.backend import Backend
from engine.clock import Clock, Work
from engine.collectives import all_gather
from engine.groups import Groups
from engine.model import Decoder
from engine.parameters import Parameter, parameters
from engine.tensor_parallel import TensorParallel
from planner.plan import GROUP_SIZES
from planner.spec import ModelProfile

REPETITIONS = 5
IN_FLIGHT_ENTRIES = 16
_LAYER_SHARE_OF_ACTIVATIONS = 12
"""Activation tensors of `[sequences, seq_len, hidden]` that a layer keeps for its backward, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timing:
    compute_s: float
    comm_s: float
    forward_s: float
    head_s: float
    embed_s: float


def calibrate(
    config: RunConfig,
    decoder: Decoder,
    clock: Clock,
    sync: Callable[[], None],
    backend: Backend | None = None,
    groups: Groups | None = None,
) -> ModelProfile:
    """Measures a profile; the same on every rank.

    Args:
        sync: one gradient sync and update on scratch tensors.
        backend: knows how to measure on its devices; emulated devices if none is given.
        groups: where the backend reduces in process groups, the owner of those made here.

    Collective: all ranks of the world.
    """
    backend, groups = backend or Backend(config), groups or Groups()
    timings: dict[int, dict[int, _Timing]] = {}
    degrees = [degree for degree in GROUP_SIZES if degree <= config.parallel.max_tp]
    if backend.has_tp_groups:
        groups.prepare(team for degree in degrees for team in teams(config, degree))
    for size in config.train.micro_batch_sizes:
        timings[size] = {
            degree: _time_layer(config, decoder, clock, size, degree, backend, groups) for degree in degrees
        }
    rows = timings[config.train.micro_batch_sizes[0]]
    first = rows[degrees[0]]
    activation = config.model.seq_len * config.model.hidden_size * _element_bytes(decoder.dtype)
    all_parameters = parameters(config.model)
    state_bytes = 5 * _element_bytes(decoder.dtype) / config.parallel.max_tp
    return ModelProfile(
        num_layers=config.model.num_layers,
        compute_s={b: {n: timing.compute_s for n, timing in row.items()} for b, row in timings.items()},
        comm_s={b: {n: timing.comm_s for n, timing in row.items()} for b, row in timings.items()},
        forward_share=first.forward_s / first.compute_s,
        embed_s={b: {n: timing.embed_s for n, timing in row.items()} for b, row in timings.items()},
        head_s={b: {n: timing.head_s for n, timing in row.items()} for b, row in timings.items()},
        send_s=_time_send(config, decoder, backend),
        sync_s=_agreed(_repeat(sync, backend)),
        max_tp=config.parallel.max_tp,
        layer_bytes={
            b: tuple(
                state_bytes * _elements(all_parameters, "layer") / config.model.num_layers
                + flights * b * activation * _LAYER_SHARE_OF_ACTIVATIONS
                for flights in range(1, IN_FLIGHT_ENTRIES + 1)
            )
            for b in timings
        },
        first_extra_bytes=state_bytes * _elements(all_parameters, "first"),
        last_extra_bytes=state_bytes * _elements(all_parameters, "last"),
        reserve_bytes=0.0,
        provenance="measured",
    )


class LayerProbe:
    """A layer-shaped workload with weights of its own: for calibration, and for devices on standby."""

    def __init__(self, config: RunConfig, decoder: Decoder, tp: TensorParallel) -> None:
        self._decoder, self._tp = decoder, tp
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
        """One layer forward and backward; collective in the group."""
        self.backward(self.forward(num_sequences))

    def forward(self, num_sequences: int) -> Tensor:
        """One layer forward; the result keeps what its backward needs. Collective in the group."""
        self._tp.clock.configure(num_sequences=num_sequences, tp_degree=self._tp.degree)
        like = self._decoder
        x = torch.ones(num_sequences, *self._shape, dtype=like.dtype, device=like.torch_device, requires_grad=True)
        return self._decoder.layer(x, self.weights, self._tp)

    def backward(self, y: Tensor) -> None:
        """The backward of what `forward` returned; collective in the group."""
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


def team_of(config: RunConfig, degree: int, rank: int) -> tuple[int, ...] | None:
    """The team of a rank; None for a device that is left over on its node."""
    return next((team for team in teams(config, degree) if rank in team), None)


def _time_layer(
    config: RunConfig, decoder: Decoder, clock: Clock, size: int, degree: int, backend: Backend, groups: Groups
) -> _Timing:
    rank = dist.get_rank()
    team = team_of(config, degree, rank)
    repeated = backend.repeated or _repeated
    own = [math.nan] * 5
    if team:
        probe = LayerProbe(config, decoder, backend.tensor_parallel(team, team.index(rank), clock, groups))
        layer, wall = repeated(clock, lambda: probe.run(size))
        ends, _ = repeated(clock, lambda: probe.run_ends(size))
        compute = layer[Work.FORWARD] + layer[Work.BACKWARD]
        own = [compute, max(0.0, wall - compute), layer[Work.FORWARD], ends[Work.HEAD], ends[Work.EMBED]]
    return _Timing(
        **dict(zip(("compute_s", "comm_s", "forward_s", "head_s", "embed_s"), _median_over_ranks(own), strict=True))
    )


def _repeated(clock: Clock, action: Callable[[], None]) -> tuple[dict[Work, float], float]:
    """Means over the repetitions: compute seconds by kind, and wall seconds.

    Means, because the clock lets a segment pay for the overshoot of another.
    """
    action()
    clock.settle()
    clock.take()
    started = time.perf_counter()
    for _ in range(REPETITIONS):
        action()
    wall = time.perf_counter() - started
    return {work: seconds / REPETITIONS for work, seconds in clock.take().items()}, wall / REPETITIONS


def _time_send(config: RunConfig, decoder: Decoder, backend: Backend) -> float:
    """One way of a boundary tensor between two ranks: half a round trip, median over pairs."""
    rank, size = dist.get_rank(), dist.get_world_size()
    peer = rank ^ 1
    if size == 1:
        return 0.0
    courier = backend.courier()
    shape = (config.train.micro_batch_sizes[0], config.model.seq_len, config.model.hidden_size)
    x = torch.zeros(shape, dtype=decoder.dtype, device=decoder.torch_device)

    def there_and_back() -> None:
        if peer >= size:
            return
        if rank < peer:
            courier.send(x, peer).wait()
            courier.post(x, peer).wait()
        else:
            courier.post(x, peer).wait()
            courier.send(x, peer).wait()

    return _agreed(_repeat(there_and_back, backend)) / 2


def _repeat(action: Callable[[], None], backend: Backend) -> float:
    seconds = []
    for _ in range(REPETITIONS + 1):
        dist.barrier()
        started = time.perf_counter()
        action()
        backend.synchronize()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def _agreed(value: float) -> float:
    return _median_over_ranks([value])[0]


def _median_over_ranks(values: list[float]) -> list[float]:
    mine = torch.tensor(values, dtype=torch.float64)
    everyone = all_gather(mine, dist.get_world_size())
    return [float(column[~column.isnan()].median()) for column in everyone.view(-1, len(values)).T]


def _elements(all_parameters: tuple[Parameter, ...], place: str) -> int:
    return sum(parameter.num_elements for parameter in all_parameters if parameter.place == place)


def _element_bytes(dtype: torch.dtype) -> int:
    return torch.empty(0, dtype=dtype).element_size()
