"""A trace replayed in the event model: the plan that ran, with its own durations, operation by operation.

The same 1F1B recurrence as `planner.cost`, which knows one duration a stage; here each operation has
its own, for many steps at once. What-if questions are answered by replaying changed durations.
"""

from __future__ import annotations

import numpy as np

from planner.trace import Floats, Trace


def replay_s(trace: Trace, *, factor: Floats | None = None) -> Floats:
    """Seconds of every step as the event model has it.

    Args:
        factor: divides the durations, `(step, dp, stage, micro_batch)` or any shape that broadcasts to it.

    Returns:
        `(step,)`: the slowest pipeline, plus collectives and optimizer.
    """
    divisor = np.ones(1) if factor is None else factor
    makespan = makespans_s(trace.forward / divisor, trace.backward / divisor, send_s=trace.send_s)
    total: Floats = makespan.max(axis=1) + trace.sync_s
    return total


def replayed_step_s(trace: Trace) -> float:
    """Median seconds of a step in the event model; compare with `Trace.measured_s`."""
    return float(np.median(replay_s(trace)))


def makespans_s(forward: Floats, backward: Floats, *, send_s: float) -> Floats:
    """1F1B makespans of many pipelines at once.

    Args:
        forward, backward: seconds of each operation, `(..., stage, micro_batch)`.
        send_s: latency between stages, one way.

    Returns:
        `(...)`: seconds from the first forward to the last backward.

    Source: the recurrence of `planner.cost`.
    """
    *batch, num_stages, num_micro_batches = forward.shape
    free = np.zeros((*batch, num_stages))
    arrival = np.zeros((*batch, num_stages))
    for turn in range(num_micro_batches + num_stages - 1):
        if turn < num_micro_batches:
            ready = np.zeros(batch)
            for stage in range(num_stages):
                free[..., stage] = np.maximum(free[..., stage], ready) + forward[..., stage, turn]
                ready = free[..., stage] + send_s
        low = max(0, num_stages - 1 - turn)
        for stage in range(low, min(num_stages, num_micro_batches + num_stages - 1 - turn)):
            number = turn - (num_stages - 1 - stage)
            end = np.maximum(free[..., stage], arrival[..., stage]) + backward[..., stage, number]
            free[..., stage] = end
            if stage:
                arrival[..., stage - 1] = end + send_s
    result: Floats = free.max(axis=-1)
    return result
