"""1F1B as data: order, depth and freedom from deadlock, without processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.schedule import forward_only, one_f_one_b, parse, receivers_of, sender_of, show
from planner.cost import timeline
from planner.plan import Pipeline, Plan, Stage
from planner.spec import ModelProfile

ONE = {1: {1: 1.0}}
PROFILE = ModelProfile(
    num_layers=1,
    compute_s=ONE,
    comm_s={1: {1: 0.0}},
    forward_share=0.3,
    embed_s={1: {1: 0.1}},
    head_s={1: {1: 0.2}},
    send_s=0.01,
    sync_s=0.0,
    max_tp=1,
    layer_bytes={1: (1.0,)},
    first_extra_bytes=0.0,
    last_extra_bytes=0.0,
    reserve_bytes=0.0,
)


@pytest.mark.parametrize(
    ("stage_index", "num_stages", "count", "expected"),
    [
        (0, 1, 2, "F0 B0 F1 B1"),  # one stage alternates at once
        (0, 2, 3, "F0 F1 B0 F2 B1 B2"),  # one warm-up forward before the last stage's
        (1, 2, 3, "F0 B0 F1 B1 F2 B2"),  # the last stage never waits with a backward
        (0, 3, 3, "F0 F1 F2 B0 B1 B2"),  # as many micro-batches as stages: no steady phase left
    ],
)
def test_known_schedules(stage_index: int, num_stages: int, count: int, expected: str) -> None:
    assert show(one_f_one_b(stage_index, num_stages, count)) == expected


@given(st.integers(1, 8), st.integers(0, 12))
def test_schedules_run_to_the_end_without_deadlock(num_stages: int, extra: int) -> None:
    count = num_stages + extra
    queues = [list(one_f_one_b(index, num_stages, count)) for index in range(num_stages)]
    depth = [0] * num_stages
    done: set[tuple[str, int, int]] = set()
    progress = True
    while progress:
        progress = False
        for index, queue in enumerate(queues):
            while queue:
                action = queue[0]
                neighbour = index - 1 if action.kind == "F" else index + 1
                at_end = neighbour in (-1, num_stages)
                if not at_end and (action.kind, neighbour, action.micro_batch) not in done:
                    break
                done.add((action.kind, index, action.micro_batch))
                depth[index] += 1 if action.kind == "F" else -1
                assert depth[index] <= min(count, num_stages - index)
                queue.pop(0)
                progress = True
    assert not any(queues)
    assert depth == [0] * num_stages


@given(st.integers(1, 6), st.integers(0, 6), st.data())
def test_text_form_reads_back(num_stages: int, extra: int, data: st.DataObject) -> None:
    actions = one_f_one_b(data.draw(st.integers(0, num_stages - 1)), num_stages, num_stages + extra)
    assert parse(show(actions)) == actions


@given(st.integers(1, 5), st.integers(0, 6))
def test_the_planner_counts_with_the_same_schedule(num_stages: int, extra: int) -> None:
    count = num_stages + extra
    layers = [(index, index + 1) for index in range(num_stages)]
    stages = tuple(Stage(devices=(index,), layers=span) for index, span in enumerate(layers))
    pipeline = Pipeline(num_micro_batches=count, stages=stages)
    plan = Plan(num_layers=num_stages, micro_batch_size=1, pipelines=(pipeline,))
    events = timeline(plan, PROFILE, {0: 2.0})
    for index in range(num_stages):
        own = sorted((event for event in events if event.stage_index == index), key=lambda event: event.start_s)
        planned = " ".join(f"{event.kind[0].upper()}{event.micro_batch}" for event in own)
        assert planned == show(one_f_one_b(index, num_stages, count))


@pytest.mark.parametrize("count", [1, 5])
def test_an_evaluation_only_runs_forward(count: int) -> None:
    assert show(forward_only(count)) == " ".join(f"F{index}" for index in range(count))


@pytest.mark.parametrize("degrees", [(1, 4), (4, 1), (2, 4), (4, 2), (2, 2), (8, 1), (1, 1)])
def test_every_receiver_has_one_sender(degrees: tuple[int, int]) -> None:
    num_senders, num_receivers = degrees
    served = [index for sender in range(num_senders) for index in receivers_of(sender, num_senders, num_receivers)]
    assert sorted(served) == list(range(num_receivers))
    for index in range(num_receivers):
        assert index in receivers_of(sender_of(index, num_receivers, num_senders), num_senders, num_receivers)


def test_fewer_micro_batches_than_stages_are_refused() -> None:
    with pytest.raises(ValueError, match="a pipeline of 3 stages needs as many micro-batches, given 2"):
        one_f_one_b(0, 3, 2)


def test_a_stage_outside_the_pipeline_is_refused() -> None:
    with pytest.raises(ValueError, match="stage_index must be in"):
        one_f_one_b(3, 3, 4)


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(ValueError, match="'X1'"):
        parse("F0 X1")
