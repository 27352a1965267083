"""Small traces made up for tests: 1F1B steps of a job in which something can be slow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from planner.cost import Event, timeline
from planner.plan import Pipeline, Plan, Stage
from planner.spec import ModelProfile

FORWARD_S, BACKWARD_S = 0.1, 0.2
Columns = dict[str, Any]


def columns(
    *,
    dp: int = 3,
    pp: int = 3,
    tp: int = 2,
    num_micro_batches: int = 6,
    num_steps: int = 6,
    workers: Mapping[tuple[int, int], float] | None = None,
    stages: Mapping[int, float] | None = None,
    data: Callable[[int, int, int], float] = lambda step, dp, micro_batch: 1.0,
    at_step: Callable[[int], float] = lambda step: 1.0,
    slow_steps: Mapping[tuple[int, int], frozenset[int]] | None = None,
) -> Columns:
    """Columns of a trace.

    Args:
        workers: factor by (dp, stage).
        stages: factor by stage.
        data: factor of a micro-batch by (step, dp, micro-batch).
        at_step: factor of everything in a step.
        slow_steps: steps in which a factor of `workers` holds; all if a worker is not named.
    """
    random = np.random.default_rng(7)
    rows: list[tuple[Any, ...]] = []
    for step in range(num_steps):
        step_end = 0.0
        for replica in range(dp):
            seconds: dict[tuple[str, int, int], float] = {}
            for stage in range(pp):
                factor = (stages or {}).get(stage, 1.0) * at_step(step)
                if step in (slow_steps or {}).get((replica, stage), range(num_steps)):
                    factor *= (workers or {}).get((replica, stage), 1.0)
                for number in range(num_micro_batches):
                    noise = factor * data(step, replica, number) * random.uniform(0.995, 1.005)
                    seconds["forward", stage, number] = FORWARD_S * noise
                    seconds["backward", stage, number] = BACKWARD_S * noise
            end_of: dict[tuple[str, int, int], float] = {}
            free = [0.0] * pp
            for event in _order(pp, num_micro_batches):
                key = (event.kind, event.stage_index, event.micro_batch)
                before = event.stage_index + (-1 if event.kind == "forward" else 1)
                ready = end_of.get((event.kind, before, event.micro_batch), 0.0)
                begin = max(free[event.stage_index], ready)
                free[event.stage_index] = end_of[key] = begin + seconds[key]
                rank = (event.stage_index * dp + replica) * tp
                rows.append(
                    (
                        replica,
                        event.stage_index,
                        rank,
                        10 * step + 3,
                        f"{event.kind}-compute",
                        begin,
                        seconds[key],
                        key[2],
                    )
                )
            step_end = max(step_end, *free)
        rows += [
            (replica, stage, (stage * dp + replica) * tp, 10 * step + 3, "grads-reduce-scatter", step_end, 0.05, -1)
            for replica in range(dp)
            for stage in range(pp)
        ]
    names = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "mb_id")
    found = {name: np.array([row[index] for row in rows]) for index, name in enumerate(names)}
    zeros = np.zeros(len(rows), dtype=np.int64)
    return found | {"seq_id": found["mb_id"], "mc": zeros, "gmc": zeros}


def heavy_data(step: int, dp: int, micro_batch: int) -> float:
    """Every other step has a few long sequences in each pipeline."""
    return 2.5 if step % 2 and micro_batch in (dp, dp + 2) else 1.0


def _order(pp: int, num_micro_batches: int) -> list[Event]:
    """The order of events of an even pipeline, taken from the planner's own timeline."""
    table = {1: {1: 3.0}}
    nothing = {1: {1: 0.0}}
    profile = ModelProfile(
        num_layers=pp,
        compute_s=table,
        comm_s=nothing,
        forward_share=1 / 3,
        embed_s=nothing,
        head_s=nothing,
        send_s=0.0,
        sync_s=0.0,
        max_tp=1,
        layer_bytes={1: (1.0,)},
        first_extra_bytes=0.0,
        last_extra_bytes=0.0,
        reserve_bytes=0.0,
    )
    stages = tuple(Stage(devices=(stage,), layers=(stage, stage + 1)) for stage in range(pp))
    pipeline = Pipeline(num_micro_batches=num_micro_batches, stages=stages)
    return timeline(Plan(num_layers=pp, micro_batch_size=1, pipelines=(pipeline,)), profile, {})
