"""A production trace as arrays: what each worker computed, in every recorded step.

Made from the columns of a table with one row a recorded operation (`app.trace_file` reads the file);
`planner.replay` runs it through the event model, `planner.trace_cause` judges it and `planner.trace_model`
turns it into what the planner takes. A row speaks for a whole tensor-parallel group, called a worker here.
Only plain 1F1B traces are understood: equal micro-batches in every pipeline, no interleaving.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import SpecError
from planner.plan import GROUP_SIZES

Floats = NDArray[np.float64]

COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mb_id")
FORWARD, BACKWARD = "forward-compute", "backward-compute"
_POINT_TO_POINT = ("forward-send", "forward-recv", "backward-send", "backward-recv")
_CLOCK_S = 2e-3  # operations of one worker may overlap by as much: the resolution of the recorded clock


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceShape:
    """How the job was laid out: `dp` pipelines of `pp` stages, each on a group of `tp` devices."""

    dp: int
    pp: int
    tp: int

    def __post_init__(self) -> None:
        for name in ("dp", "pp"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name}_size must be at least 1, given {getattr(self, name)}")
        if self.tp not in GROUP_SIZES:
            raise SpecError(f"tp_size must be one of {GROUP_SIZES}, given {self.tp}")

    @property
    def num_devices(self) -> int:
        return self.dp * self.pp * self.tp


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The recorded steps.

    Args:
        steps: their numbers in the job, ascending; there may be gaps.
        ranks: first device of each worker, `[dp][stage]`; its group is the `tp` devices from there.
        forward, backward: seconds of own compute, `(step, dp, stage, micro_batch)`.
        step_s: measured seconds of each step, from its first operation to its last.
        sync_s: seconds of collectives and optimizer in each step without waiting for the slowest.
        send_s: latency of handing a micro-batch to the next stage.
    """

    shape: TraceShape
    steps: tuple[int, ...]
    ranks: tuple[tuple[int, ...], ...]
    forward: Floats
    backward: Floats
    step_s: Floats
    sync_s: Floats
    send_s: float

    @property
    def num_micro_batches(self) -> int:
        """Of one pipeline."""
        return int(self.forward.shape[3])

    @property
    def compute_s(self) -> Floats:
        """Own compute of each worker in each step, seconds, `(step, dp, stage)`."""
        total: Floats = (self.forward + self.backward).sum(axis=3)
        return total

    @property
    def measured_s(self) -> float:
        """Median seconds of a step."""
        return float(np.median(self.step_s))

    def group(self, dp: int, stage: int) -> tuple[int, ...]:
        """Device ids of a worker."""
        first = self.ranks[dp][stage]
        return tuple(range(first, first + self.shape.tp))


def shape_of(meta: Mapping[str, Any]) -> TraceShape:
    """The layout that a trace's meta document states.

    Raises:
        SpecError: a size is missing or not a whole number, sizes contradict each other, or the job
            was interleaved or sequence-parallel.
    """
    sizes = {}
    for name in ("dp_size", "pp_size", "tp_size", "vpp_size", "dsp_size", "world_size"):
        value = meta.get(name, 1 if name in ("vpp_size", "dsp_size") else None)
        if isinstance(value, bool) or not isinstance(value, int):
            raise SpecError(f"{name} must be a whole number, given {'nothing' if value is None else repr(value)}")
        sizes[name] = value
    for name in ("vpp_size", "dsp_size"):
        if sizes[name] != 1:
            raise SpecError(f"{name} must be 1 (other schedules are not understood), given {sizes[name]}")
    shape = TraceShape(dp=sizes["dp_size"], pp=sizes["pp_size"], tp=sizes["tp_size"])
    if sizes["world_size"] != shape.num_devices:
        raise SpecError(
            f"world_size must be dp_size x pp_size x tp_size = {shape.num_devices}, given {sizes['world_size']}"
        )
    return shape


def trace_of(columns: Mapping[str, Any], shape: TraceShape) -> Trace:
    """Checks the columns of a trace and arranges them by step, worker and micro-batch.

    Args:
        columns: arrays of equal length by name; see `COLUMNS`. Others are ignored.

    Raises:
        SpecError: the first problem found, with what was expected and what was given.
    """
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise SpecError(f"a trace needs the columns {', '.join(COLUMNS)}; missing {', '.join(missing)}")
    if not len(columns["step"]):
        raise SpecError("a trace needs at least one row, given none")
    kinds = np.asarray(columns["optype"]).astype(str)
    start, duration = _times(columns, "start_ts"), _times(columns, "duration")
    if (duration < 0).any():
        raise SpecError(f"duration must not be negative, given {duration.min():g} in row {int(duration.argmin())}")
    numbers = {name: _whole(columns, name) for name in ("dp_rank", "stage", "rank", "step", "seq_id", "mb_id")}
    _check_workers(numbers, shape)
    steps, step_index = np.unique(numbers["step"], return_inverse=True)
    where = _Rows(kinds, start, duration, numbers["dp_rank"], numbers["stage"], numbers["mb_id"], step_index)
    forward, forward_at = where.operations(FORWARD, steps, shape)
    backward, backward_at = where.operations(BACKWARD, steps, shape)
    if forward.shape != backward.shape:
        raise SpecError(
            f"{BACKWARD} must have the {forward.shape[3]} micro-batches of {FORWARD}, given {backward.shape[3]}"
        )
    _check_order(steps, (forward_at, forward), (backward_at, backward))
    where.check_transfers(numbers["seq_id"], steps)
    return Trace(
        shape=shape,
        steps=tuple(int(step) for step in steps),
        ranks=_ranks(numbers, shape),
        forward=forward,
        backward=backward,
        step_s=where.spans(len(steps)),
        sync_s=where.sync(len(steps)),
        send_s=where.send_s(),
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows, column by column."""

    kinds: NDArray[np.str_]
    start: Floats
    duration: Floats
    dp: NDArray[np.int64]
    stage: NDArray[np.int64]
    micro_batch: NDArray[np.int64]
    step: NDArray[np.intp]

    def operations(self, kind: str, steps: NDArray[np.int64], shape: TraceShape) -> tuple[Floats, Floats]:
        """Durations and starts of one kind, `(step, dp, stage, micro_batch)`; each must be there exactly once."""
        rows = self.kinds == kind
        if not rows.any():
            raise SpecError(f"optype must include {kind}, given {', '.join(np.unique(self.kinds))}")
        number = self.micro_batch[rows]
        if number.min() < 0:
            raise SpecError(f"mb_id of {kind} must not be negative, given {number.min()}")
        if number.max() >= len(number):
            raise SpecError(f"mb_id of {kind} must count from 0 without gaps, given {number.max()}")
        size = (len(steps), shape.dp, shape.pp, int(number.max()) + 1)
        if size[0] * size[1] * size[2] * size[3] > 2 * len(number) + 1000:
            raise SpecError(f"{kind} must have {size[3]} micro-batches in every step and worker, most are missing")
        place = (self.step[rows], self.dp[rows], self.stage[rows], number)
        count = np.zeros(size, dtype=np.int64)
        np.add.at(count, place, 1)
        if (count != 1).any():
            step, dp, stage, at = np.argwhere(count != 1)[0]
            raise SpecError(
                f"every worker needs each micro-batch once a step: step {steps[step]} has {count[step, dp, stage, at]} "
                f"{kind} of micro-batch {at} at dp {dp}, stage {stage}"
            )
        seconds, begun = np.zeros(size), np.zeros(size)
        seconds[place], begun[place] = self.duration[rows], self.start[rows]
        if seconds.min() <= 0:
            raise SpecError(f"duration of {kind} must be positive, given {seconds.min():g}")
        return seconds, begun

    def check_transfers(self, sequence: NDArray[np.int64], steps: NDArray[np.int64]) -> None:
        """Sends and receives of one kind and worker start in the order of their `seq_id`."""
        for kind in _POINT_TO_POINT:
            rows = np.flatnonzero(self.kinds == kind)
            rows = rows[np.lexsort((sequence[rows], self.stage[rows], self.dp[rows], self.step[rows]))]
            before, after = rows[:-1], rows[1:]
            is_same = (
                (self.step[before] == self.step[after])
                & (self.dp[before] == self.dp[after])
                & (self.stage[before] == self.stage[after])
            )
            bad = after[is_same & (self.start[after] < self.start[before] - _CLOCK_S)]
            if len(bad):
                raise SpecError(
                    f"times are not monotonic: {kind} must start in the order of seq_id, given otherwise at "
                    f"step {steps[self.step[bad[0]]]}, dp {self.dp[bad[0]]}, stage {self.stage[bad[0]]}"
                )

    def spans(self, num_steps: int) -> Floats:
        first, last = np.full(num_steps, np.inf), np.full(num_steps, -np.inf)
        np.minimum.at(first, self.step, self.start)
        np.maximum.at(last, self.step, self.start + self.duration)
        return last - first

    def sync(self, num_steps: int) -> Floats:
        """Sum over collectives and optimizer of the shortest one recorded: who arrives last does not wait."""
        total = np.zeros(num_steps)
        for kind in np.unique(self.kinds):
            if kind in (FORWARD, BACKWARD, *_POINT_TO_POINT):
                continue
            rows = self.kinds == kind
            least = np.full(num_steps, np.inf)
            np.minimum.at(least, self.step[rows], self.duration[rows])
            total += np.where(np.isfinite(least), least, 0.0)
        return total

    def send_s(self) -> float:
        """The fastest tenth of all transfers waits for nobody."""
        rows = np.isin(self.kinds, _POINT_TO_POINT)
        return float(np.quantile(self.duration[rows], 0.1)) if rows.any() else 0.0


def _times(columns: Mapping[str, Any], name: str) -> Floats:
    try:
        values = np.asarray(columns[name]).astype(np.float64)
    except (TypeError, ValueError):
        raise SpecError(f"{name} must be numbers of seconds, given {np.asarray(columns[name]).dtype}") from None
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise SpecError(f"{name} must be finite, given {values[bad[0]]} in row {bad[0]} and {len(bad) - 1} others")
    return values


def _whole(columns: Mapping[str, Any], name: str) -> NDArray[np.int64]:
    try:
        values = np.asarray(columns[name]).astype(np.float64)
    except (TypeError, ValueError):
        raise SpecError(f"{name} must be whole numbers, given {np.asarray(columns[name]).dtype}") from None
    bad = np.flatnonzero(~np.isfinite(values) | (values != np.floor(values)) | (np.abs(values) > 2**52))
    if len(bad):
        raise SpecError(f"{name} must be whole numbers, given {values[bad[0]]:g} in row {bad[0]}")
    return values.astype(np.int64)


def _check_workers(numbers: Mapping[str, NDArray[np.int64]], shape: TraceShape) -> None:
    for name, size, label in (("dp_rank", shape.dp, "dp_size"), ("stage", shape.pp, "pp_size")):
        found = np.unique(numbers[name])
        if found[0] != 0 or found[-1] != size - 1 or len(found) != size:
            raise SpecError(
                f"{name} must be 0..{size - 1} ({label} {size} of the meta file), "
                f"given {found[0]}..{found[-1]}, {len(found)} of them"
            )


def _ranks(numbers: Mapping[str, NDArray[np.int64]], shape: TraceShape) -> tuple[tuple[int, ...], ...]:
    """First device of each worker; the groups must tile the devices."""
    table = np.full((shape.dp, shape.pp), -1, dtype=np.int64)
    table[numbers["dp_rank"], numbers["stage"]] = numbers["rank"]
    other = np.flatnonzero(table[numbers["dp_rank"], numbers["stage"]] != numbers["rank"])
    if len(other):
        row = int(other[0])
        dp, stage = int(numbers["dp_rank"][row]), int(numbers["stage"][row])
        raise SpecError(
            f"rank must be one for each dp and stage, given {numbers['rank'][row]} and {table[dp, stage]} "
            f"at dp {dp}, stage {stage}"
        )
    if sorted(table.ravel().tolist()) != list(range(0, shape.num_devices, shape.tp)):
        raise SpecError(
            f"rank must be the multiples of tp_size {shape.tp} below {shape.num_devices}, one a worker, "
            f"given {sorted(table.ravel().tolist())}"
        )
    return tuple(tuple(row) for row in table.tolist())


def _check_order(steps: NDArray[np.int64], forward: tuple[Floats, Floats], backward: tuple[Floats, Floats]) -> None:
    """Each worker runs one operation at a time, micro-batches in order, a forward before its backward."""
    for kind, (start, _) in ((FORWARD, forward), (BACKWARD, backward)):
        _refuse_first(np.diff(start, axis=3) < -_CLOCK_S, steps, f"{kind} must start in the order of its micro-batches")
    early = backward[0] < forward[0] + forward[1] - _CLOCK_S
    _refuse_first(early, steps, f"{BACKWARD} must start after the {FORWARD} of its micro-batch has ended")
    start = np.concatenate([forward[0], backward[0]], axis=3)
    end = np.concatenate([forward[0] + forward[1], backward[0] + backward[1]], axis=3)
    order = np.argsort(start, axis=3, kind="stable")
    start, end = np.take_along_axis(start, order, axis=3), np.take_along_axis(end, order, axis=3)
    _refuse_first(start[..., 1:] < end[..., :-1] - _CLOCK_S, steps, "operations of one worker must not overlap in time")


def _refuse_first(bad: NDArray[np.bool_], steps: NDArray[np.int64], rule: str) -> None:
    if bad.any():
        step, dp, stage, _ = np.argwhere(bad)[0]
        raise SpecError(
            f"times are not monotonic: {rule}, given otherwise at step {steps[step]}, dp {dp}, stage {stage}"
        )
