"""Traces: what is refused, the replay against the cost model, and causes that are known beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost import pipeline_makespan_s
from planner.errors import SpecError
from planner.replay import makespans_s, replay_s
from planner.trace import Trace, TraceShape, shape_of, trace_of
from planner.trace_cause import judge, stage_reference_s
from planner.trace_model import better_plan, trace_model
from planner.validate import violations
from tests.planner.synthetic_trace import Columns, columns, heavy_data

SHAPE = TraceShape(dp=3, pp=3, tp=2)
META = {"dp_size": 3, "pp_size": 3, "tp_size": 2, "vpp_size": 1, "dsp_size": 1, "world_size": 18}


def trace(**changes: Any) -> Trace:
    shape = TraceShape(dp=changes.get("dp", 3), pp=changes.get("pp", 3), tp=changes.get("tp", 2))
    return trace_of(columns(**changes), shape)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"dp_size": None}, "dp_size must be a whole number, given nothing"),
        ({"pp_size": "four"}, "pp_size must be a whole number, given 'four'"),
        ({"tp_size": 3}, r"tp_size must be one of \(1, 2, 4, 8\), given 3"),
        ({"dp_size": 0}, "dp_size must be at least 1, given 0"),
        ({"vpp_size": 2}, "vpp_size must be 1 .*given 2"),
        ({"world_size": 64}, "world_size must be dp_size x pp_size x tp_size = 18, given 64"),
    ],
)
def test_a_meta_document_that_does_not_fit_is_refused(change: dict[str, Any], expected: str) -> None:
    meta = {key: value for key, value in (META | change).items() if value is not None}
    with pytest.raises(SpecError, match=expected):
        shape_of(meta)


def _drop(name: str) -> Callable[[Columns], None]:
    def change(table: Columns) -> None:
        del table[name]

    return change


def _set(name: str, row: int, value: float) -> Callable[[Columns], None]:
    def change(table: Columns) -> None:
        if isinstance(value, float):
            table[name] = table[name].astype(float)
        table[name][row] = value

    return change


def _keep(keep: Callable[[Columns], Any]) -> Callable[[Columns], None]:
    def change(table: Columns) -> None:
        rows = keep(table)
        table.update({name: values[rows] for name, values in table.items()})

    return change


def _reverse_forwards(table: Columns) -> None:
    rows = np.flatnonzero((table["optype"] == "forward-compute") & (table["dp_rank"] == 1) & (table["stage"] == 2))[:6]
    table["start_ts"][rows] = table["start_ts"][rows][::-1].copy()


def _overlap(table: Columns) -> None:
    rows = (table["optype"] == "forward-compute") & (table["step"] == 13)
    table["duration"][rows] *= 30


def _send_backwards(table: Columns) -> None:
    """Two sends of one worker, the later one first."""
    row = int(np.flatnonzero((table["stage"] == 1) & (table["dp_rank"] == 0))[0])
    for sequence, start in ((0, 2.0), (1, 1.0)):
        values: dict[str, Any] = {
            "optype": "forward-send",
            "start_ts": start,
            "duration": 0.001,
            "seq_id": sequence,
            "mb_id": -1,
        }
        for name, column in table.items():
            table[name] = np.append(column, values.get(name, column[row]))


def _backward_first(table: Columns) -> None:
    rows = table["optype"] == "backward-compute"
    table["start_ts"][rows] -= 100.0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_drop("duration"), "missing duration"),
        (_keep(lambda table: slice(0, 0)), "at least one row, given none"),
        (_set("duration", 4, math.nan), "duration must be finite, given nan in row 4"),
        (_set("start_ts", 4, math.inf), "start_ts must be finite, given inf in row 4"),
        (_set("duration", 4, -0.5), "duration must not be negative, given -0.5 in row 4"),
        (_set("duration", 4, 0.0), "compute must be positive, given 0"),
        (_set("stage", 4, 0.5), "stage must be whole numbers, given 0.5 in row 4"),
        (_set("dp_rank", 4, 3), r"dp_rank must be 0..2 \(dp_size 3 of the meta file\), given 0..3"),
        (_keep(lambda table: table["stage"] != 2), r"stage must be 0..2 \(pp_size 3 of the meta file\), given 0..1"),
        (_set("rank", 4, 1), "rank must be one for each dp and stage"),
        (lambda table: table.update(rank=table["rank"] + 2), "rank must be the multiples of tp_size 2 below 18"),
        (_set("mb_id", 4, 10**9), "must count from 0 without gaps"),
        (_keep(lambda table: table["optype"] != "backward-compute"), "optype must include backward-compute"),
        (_keep(lambda table: np.arange(len(table["step"])) != 4), "every worker needs each micro-batch once a step"),
        (_reverse_forwards, "not monotonic: forward-compute must start in the order .* step 3, dp 1, stage 2"),
        (_overlap, "not monotonic: .* step 13"),
        (_send_backwards, "not monotonic: forward-send must start in the order of seq_id, .* step 3, dp 0, stage 1"),
        (_backward_first, "not monotonic: backward-compute must start after"),
        (lambda table: table.update(duration=np.array(["x"] * len(table["step"]))), "duration must be numbers"),
    ],
)
def test_columns_that_are_no_trace_are_refused(change: Callable[[Columns], None], expected: str) -> None:
    table = columns()
    change(table)
    with pytest.raises(SpecError, match=expected):
        trace_of(table, SHAPE)


def test_the_trace_is_arranged_by_step_and_worker() -> None:
    found = trace(workers={(1, 2): 2.0})
    assert found.steps == (3, 13, 23, 33, 43, 53)
    assert found.forward.shape == (6, 3, 3, 6)
    assert found.group(1, 2) == (14, 15)
    assert found.compute_s[:, 1, 2] == pytest.approx(2 * 6 * 0.3, rel=0.01)
    assert found.sync_s == pytest.approx(0.05)
    assert found.send_s == 0.0


@settings(max_examples=60, deadline=None)
@given(
    stages=st.lists(st.floats(0.1, 5.0), min_size=1, max_size=6),
    num_micro_batches=st.integers(1, 9),
    send_s=st.floats(0.0, 0.5),
)
def test_equal_operations_cost_what_the_cost_model_says(
    stages: list[float], num_micro_batches: int, send_s: float
) -> None:
    each = np.repeat(np.array(stages)[:, None], num_micro_batches, axis=1)
    expected = pipeline_makespan_s(stages, num_micro_batches, forward_share=0.25, send_s=send_s)
    assert makespans_s(each * 0.25, each * 0.75, send_s=send_s) == pytest.approx(expected)


def test_the_replay_gives_the_measured_steps() -> None:
    found = trace(workers={(1, 2): 2.0}, data=heavy_data)
    assert replay_s(found) == pytest.approx(found.step_s, rel=1e-6)


def test_a_slow_device_is_named_and_absorbed() -> None:
    found = trace(workers={(1, 0): 2.4})
    verdict = judge(found)
    assert verdict.cause == "device"
    (worker,) = verdict.slow
    assert (worker.dp, worker.stage, worker.devices) == (1, 0, found.group(1, 0))
    assert worker.rate == pytest.approx(2.4, rel=0.02)
    model = trace_model(found, verdict)
    result = better_plan(model)
    assert result.best is not None
    assert result.current_s is not None
    assert result.best.step_s < 0.75 * result.current_s
    assert not violations(
        result.best.plan,
        cluster=model.cluster,
        num_layers=model.profile.num_layers,
        global_batch=18,
        max_tp=2,
        profile=model.profile,
    )


def test_one_slow_device_of_two_peers_is_named() -> None:
    verdict = judge(trace(dp=2, pp=4, tp=1, workers={(0, 3): 1.6}))
    assert verdict.cause == "device"
    assert [(worker.dp, worker.stage) for worker in verdict.slow] == [(0, 3)]


def test_a_stage_heavy_in_all_pipelines_blames_no_device() -> None:
    found = trace(stages={2: 1.7})
    verdict = judge(found)
    assert (verdict.cause, verdict.slow) == ("stage", ())
    result = better_plan(trace_model(found, verdict))
    assert result.status == "improved"


def test_a_heavy_middle_stage_counts_as_more_layers() -> None:
    found = trace(pp=5, stages={2: 1.5})
    verdict = judge(found)
    assert verdict.cause == "stage"
    stages = trace_model(found, verdict).plan.pipelines[0].stages
    assert [stage.num_layers for stage in stages] == [8, 8, 12, 8, 8]


def test_a_slow_device_in_a_heavy_stage_is_still_told_apart() -> None:
    found = trace(stages={2: 1.2}, workers={(0, 2): 2.5})
    verdict = judge(found)
    assert verdict.cause == "device"
    assert verdict.slow[0].rate == pytest.approx(2.5, rel=0.02)
    assert stage_reference_s(found)[2] == pytest.approx(0.36, rel=0.02)


@pytest.mark.parametrize("pp", [1, 3])
def test_heavy_micro_batches_blame_no_device(pp: int) -> None:
    verdict = judge(trace(pp=pp, num_steps=8, data=heavy_data))
    assert (verdict.cause, verdict.slow) == ("data", ())
    assert verdict.evidence["steps_with_heavy_micro_batches"] == [13, 33, 53, 73]


def test_all_workers_slow_in_steps_that_come_and_go_is_data() -> None:
    verdict = judge(trace(num_steps=8, at_step=lambda step: 1.6 if step in (2, 5) else 1.0))
    assert (verdict.cause, verdict.slow) == ("data", ())
    assert verdict.evidence["steps_with_heavy_micro_batches"] == [23, 53]


def test_a_device_that_turns_slow_later_is_named_from_then_on() -> None:
    slow = frozenset(range(5, 9))
    verdict = judge(trace(num_steps=10, workers={(2, 1): 3.0}, slow_steps={(2, 1): slow}))
    assert verdict.cause == "device"
    assert verdict.slow[0].span == (5, 9)
    assert verdict.slow[0].rate == pytest.approx(3.0, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "nothing stands out"),  # a healthy job
        ({"num_steps": 2, "workers": {(1, 0): 2.4}}, "at least 3 steps are needed to tell, given 2"),
        ({"dp": 1, "stages": {2: 1.7}}, "has no peers"),  # a slow device, or heavy by design: nobody knows
        ({"dp": 1, "workers": {(0, 0): 2.0}}, "has no peers"),
        ({"dp": 1, "pp": 1}, "nothing stands out"),
        # everything slow alike for a while, whatever the micro-batch: power, heat, network
        ({"num_steps": 8, "at_step": lambda step: 1.5 if step > 4 else 1.0}, "nothing stands out"),
        (
            {"num_steps": 8, "workers": {(1, 0): 2.0}, "slow_steps": {(1, 0): frozenset({1, 5})}},
            "dp 1, stage 0 is slow against its peers in 25 % of the steps only",
        ),
    ],
)
def test_without_enough_evidence_the_cause_is_unknown(changes: dict[str, Any], reason: str) -> None:
    verdict = judge(trace(**changes))
    assert (verdict.cause, verdict.slow) == ("unknown", ())
    assert reason in verdict.reason


def test_relabelling_and_scaling_change_nothing_but_labels_and_scale() -> None:
    table = columns(workers={(1, 0): 2.4})
    former = judge(trace_of(table, SHAPE))
    for name in ("start_ts", "duration"):
        table[name] = table[name] * 10
    table["dp_rank"] = (table["dp_rank"] + 1) % 3
    scaled = judge(trace_of(table, SHAPE))
    assert (scaled.cause, scaled.slow[0].dp, scaled.slow[0].stage) == ("device", 2, 0)
    assert scaled.slow[0].rate == pytest.approx(former.slow[0].rate)
    assert scaled.slow[0].devices == former.slow[0].devices
