"""1F1B as data: order, depth and freedom from deadlock, without processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.schedule import one_f_one_b, parse, receivers_of, sender_of, show


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
