"""Figures of phases from rows written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from app.phase_figures import Reference, medians, phase_figures, plan_line, span_s
from app.phases import Phase, is_settled
from app.situations import DRIFT, difference, rates
from planner.plan import Plan, even_plan
from planner.spec import ModelProfile
from tests.app.story_rows import at, plan, step, switch

NODES = ((0, 1), (2, 3))
SLOW = {1: 2.0}
EVEN = even_plan(
    NODES, num_layers=4, num_micro_batches=4, micro_batch_size=1, dp_degree=2, tp_degree=1, pp_degree=2
).to_json()
MOVED = EVEN | {
    "pipelines": [
        {"num_micro_batches": 4, "stages": [{"devices": [0], "layers": [0, 3]}, {"devices": [1], "layers": [3, 4]}]}
    ],
    "standby": [2, 3],
}
PROFILE = ModelProfile(
    num_layers=4, compute_s={1: {1: 1.0}}, comm_s={1: {1: 0.0}}, forward_share=0.5, embed_s={1: {1: 0.0}},
    head_s={1: {1: 0.0}}, send_s=0.0, sync_s=0.0, max_tp=1, layer_bytes={1: (1.0, 1.0)}, first_extra_bytes=0.0,
    last_extra_bytes=0.0, reserve_bytes=0.0,
)  # fmt: skip
REFERENCE = Reference(num_devices=4, healthy_s=7.0, predicted_healthy_s=6.0, profile=PROFILE)


def _figures(phase: Phase, **rows: Any) -> dict[str, Any]:
    return phase_figures(phase, REFERENCE, **({"plans": [], "switches": []} | rows)).to_json()


def test_a_phase_that_was_replanned() -> None:
    """Steps of a second each, at their own second: slow 10-14, asked at 14.2, switched before 17, settled after 18."""
    steps = [step(number, 1.0) for number in range(10, 16)]
    steps[0] = step(10, 1.0, phase="switch")  # the change came with a boundary that counts for nothing
    steps += [step(16, 9.0, version=2, phase="switch")]
    steps += [step(number, 0.5 + 0.01 * number, version=2) for number in range(17, 24)]
    made = plan(2, created=14.2, solved_at=at(14.9), solve_s=0.3, document=MOVED, rates={1: 1.98})
    figures = _figures(
        Phase(name="S1", rates=SLOW, base_version=1, first_step=10, settled_step=18, is_settled=True),
        steps=steps,
        plans=[made, plan(1, document=EVEN)],
        switches=[switch(2, 16), switch(3, 16, outcome="rejected"), switch(1, 3)],
    )
    assert figures["num_steps"] == 5  # 19 to 23
    assert figures["step_s"] == pytest.approx(0.71)
    assert (figures["min_step_s"], figures["max_step_s"]) == pytest.approx((0.69, 0.73))
    assert figures["bound_s"] == pytest.approx(7.0 * 4 / 3.5)
    assert figures["efficiency"] == pytest.approx(8.0 / 0.71)
    assert figures["predicted_bound_s"] == pytest.approx(6.0 * 4 / 3.5)
    assert figures["predicted_step_s"] == pytest.approx(4 * 3 + 0.5 + 0.5)  # 1F1B by hand: stage 0 waits twice
    assert figures["straggling_step_s"] == 1.0
    assert figures["detect_steps"] == 4  # 11 to 14
    assert figures["detect_s"] == pytest.approx(14.2 - 9.0)
    assert figures["solve_s"] == 0.3
    assert figures["plan_s"] == pytest.approx(0.7)
    assert (figures["num_switches"], figures["pause_s"], figures["bytes_moved"]) == (1, 0.5, 2_000_000)
    assert figures["settle_s"] == pytest.approx(19 - 0.69 - 9)
    assert figures["plan"] == "4: 0x3 1x1 | standby 2 3"


def test_a_phase_that_kept_its_plan() -> None:
    figures = _figures(
        Phase(name="S1", rates=SLOW, first_step=3, settled_step=3, is_settled=True),
        steps=[step(number, 4.0) for number in range(3, 9)],
        plans=[plan(1, document=EVEN)],
    )
    assert figures["step_s"] == 4.0
    assert figures["num_steps"] == 5
    nothing = ("straggling_step_s", "detect_steps", "detect_s", "solve_s", "plan_s", "settle_s")
    assert [figures[name] for name in nothing] == [None] * len(nothing)
    assert (figures["num_switches"], figures["pause_s"], figures["bytes_moved"]) == (0, 0, 0)


def test_a_phase_without_a_step_has_no_figure() -> None:
    figures = _figures(Phase(name="S1", rates=SLOW, first_step=3), steps=[])
    assert figures["step_s"] is None
    assert figures["efficiency"] is None
    assert figures["plan"] is None
    assert figures["bound_s"] == pytest.approx(8.0)


def test_the_plan_of_a_later_phase_is_not_this_phases() -> None:
    figures = _figures(
        Phase(name="S1", rates=SLOW, first_step=3, last_step=8),
        steps=[step(number, 1.0) for number in range(3, 9)],
        plans=[plan(2, created=30, document=MOVED), plan(1, document=EVEN)],
    )
    assert figures["detect_steps"] is None


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([plan(1, rates={})], False),  # healthy is what the first plan is for
        ([plan(2, rates={0: 1.0, 1: 1.9}), plan(1, status="superseded")], True),
        ([plan(2, rates={1: 1.7}), plan(1, status="superseded")], False),  # too far off: another shift is to come
        ([plan(2, rates={1: 2.0, 3: 1.5}), plan(1)], False),  # it blames a healthy device too
        ([plan(2, rates={1: 2.0}, status="rejected"), plan(1)], True),  # nothing better
        ([plan(3, status="queued"), plan(2, rates={1: 2.0})], False),  # something is on its way
        ([plan(3, status="failed"), plan(2, rates={1: 2.0})], True),
        ([plan(1, status="approved")], False),
        ([], False),
    ],
)
def test_when_a_phase_has_settled(found: list[Any], expected: bool) -> None:
    assert is_settled(found, SLOW) is expected


def test_span_counts_pauses_and_what_was_run_last() -> None:
    first = [step(number, 0.8) for number in range(5, 9)]
    assert span_s(first, 5, 4) == pytest.approx(3.8)
    again = step(8, 0.8)
    again = type(again)(**{name: getattr(again, name) for name in again.__slots__} | {"at": at(40)})
    assert span_s([*first, again], 5, 4) == pytest.approx(40 - 5 + 0.8)
    assert span_s(first, 6, 4) is None
    assert span_s(first, 6, 0) is None


def test_medians_of_runs() -> None:
    rows = [
        {"step_s": value, "plan": f"plan {value}", "is_settled": True, "detect_s": None} for value in (3.0, 1.0, 2.0)
    ]
    assert medians(rows) == {"step_s": 2.0, "plan": "plan 3.0", "is_settled": True, "detect_s": None}
    assert medians(rows[:1]) == rows[0]


def test_what_to_ask_for_between_situations() -> None:
    nodes = ((0, 1, 2, 3), (4, 5, 6, 7))
    former: dict[int, float] = {}
    asked = []
    for name in DRIFT:
        asked.append(difference(former, rates(name, nodes)))
        former = rates(name, nodes)
    assert asked == [
        ({}, []),
        ({2.57: [3]}, []),
        ({5.42: [7]}, []),
        ({}, [3, 7]),
        ({5.42: [3]}, []),
    ]
    assert difference({3: 2.57}, {3: 5.42, 4: 5.42}) == ({5.42: [3, 4]}, [])


def test_a_plan_in_one_line() -> None:
    assert plan_line(Plan.from_json(EVEN)) == "2: 0x2 1x2 | 2: 2x2 3x2"
