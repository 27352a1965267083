"""The pure parts of the What-if page: origins, drafts in addresses, answers, comparison, memory bars, timelines."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from app.dashboard import palette
from app.dashboard import quantities as q
from app.dashboard.memory_bars import largest_share, memory_bars
from app.dashboard.what_if_answer import Answer, answer_of, proposal
from app.dashboard.what_if_comparison import choices, comparison, figures, gap_words, lead, move_facts
from app.dashboard.what_if_draft import FAILED, RATE, edited_rate
from app.dashboard.what_if_origin import PRESETS, Origin, as_request, preset_origin, request_origin, run_name, run_of
from app.dashboard.what_if_timeline import LANE_NAMES_PX, step_timeline
from db.errors import InputError
from planner.plan import Plan
from planner.solve import solve
from planner.spec import ClusterSpec
from planner.validate import memory_by_device, violations
from tests.app.seeded_run import standby_plan
from tests.app.story_rows import plain


def answered(origin: Origin, rates: dict[int, float], *, is_brief: bool = False) -> Answer:
    request = as_request(origin, origin.train, rates)
    result = solve(
        cluster=origin.cluster,
        profile=origin.profile,
        train=origin.train,
        rates=rates,
        current=origin.current,
        time_limit_s=5.0,
    )
    found = answer_of(request, result.to_json())
    assert found is not None
    return found


@pytest.fixture(scope="module")
def demo() -> Answer:
    return answered(preset_origin("demo"), {3: 2.57})


@pytest.mark.parametrize("name", PRESETS)
def test_presets_start_from_a_uniform_plan_that_fits_or_from_none(name: str) -> None:
    origin = preset_origin(name)
    assert origin.rates == {}
    if origin.current is None:
        return
    assert (
        violations(
            origin.current,
            cluster=origin.cluster,
            num_layers=origin.profile.num_layers,
            global_batch=origin.train.global_batch,
            max_tp=origin.train.max_tp,
            profile=origin.profile,
        )
        == []
    )
    shapes = {
        (len(pipeline.stages), *(stage.tp_degree for stage in pipeline.stages)) for pipeline in origin.current.pipelines
    }
    assert len(shapes) == 1


def test_most_presets_have_a_plan_in_use() -> None:
    assert {name for name in PRESETS if preset_origin(name).current is not None} >= {"demo", "32b-64", "70b-64"}


def test_names_of_origins() -> None:
    assert run_of(run_name(12)) == 12
    assert run_of("70b-64") is None
    assert run_of("run-x") is None
    with pytest.raises(InputError, match="given 'nothing'"):
        preset_origin("nothing")


def test_a_request_leads_back_to_its_origin() -> None:
    origin = preset_origin("demo")
    request = as_request(origin, origin.train, {3: 2.57, 4: 1.0, 5: math.inf})
    assert request.rates == {3: 2.57, 5: math.inf}
    again = request_origin(request, None)
    assert (again.cluster, again.profile, again.train) == (origin.cluster, origin.profile, origin.train)
    assert (again.current, again.name, again.rates) == (origin.current, "demo", request.rates)


@pytest.mark.parametrize(
    ("rate", "edits", "expected"),
    [
        (1.0, {RATE: 2.5}, 2.5),
        (2.5, {FAILED: True}, math.inf),
        (math.inf, {FAILED: False}, 1.0),
        (math.inf, {RATE: 2.0}, math.inf),  # the tick still stands
        (math.inf, {RATE: 2.0, FAILED: False}, 2.0),
        (2.5, {RATE: None}, 1.0),  # an emptied cell
        (2.5, {RATE: 0.0}, 1.0),
        (2.5, {}, 2.5),
    ],
)
def test_edits_of_the_table(rate: float, edits: dict[str, Any], expected: float) -> None:
    assert edited_rate(rate, edits) == expected


def test_an_answer_in_words_and_figures(demo: Answer) -> None:
    best = demo.choices[0]
    assert "instead of" in plain(lead(demo, best, "The uniform plan"))
    assert "less" in plain(lead(demo, best, "The uniform plan"))
    said = plain(figures(demo, best))
    assert demo.capacity == pytest.approx(7 + 1 / 2.57)
    assert "7.39 of 8 devices" in said
    assert "Solver" in said
    table = comparison(demo, best, names=("The uniform plan", "Found"))
    assert "Sequences per second" in table
    move = demo.move_to(best)
    assert move is not None
    assert "Expected pause" in move_facts(move)
    assert choices(demo, 0).count("tick-box") == len(demo.choices)


def test_staying_is_the_best(demo: Answer) -> None:
    best = demo.choices[0]
    current = replace(best, is_current=True)
    assert demo.move_to(current) is None
    assert "is the best there is" in lead(demo, current, "Plan v1")


def test_a_plan_that_cannot_run_and_no_plan_at_all() -> None:
    dead = answered(preset_origin("demo"), {0: math.inf})
    assert dead.current_s == math.inf
    assert "cannot run like this" in lead(dead, dead.choices[0], "Plan v1")
    assert "cannot run" in comparison(dead, dead.choices[0], names=("a", "b"))
    move = dead.move_to(dead.choices[0])
    assert move is not None
    assert "at once" in move_facts(move)
    nothing = answered(preset_origin("demo"), dict.fromkeys(range(8), math.inf))
    assert nothing.choices == ()
    assert "There is no plan" in lead(nothing, None, "Plan v1")
    assert "∞" in figures(nothing, None)


@pytest.mark.parametrize(("gap", "words"), [(0.02, "2.0"), (-0.042, "4.2"), (0.0, "0"), (None, q.UNKNOWN)])
def test_gap_words(gap: float | None, words: str) -> None:
    assert words in gap_words(gap)
    assert ("below" in gap_words(gap)) == (gap is not None and gap < 0)


@pytest.mark.parametrize("broken", [{}, {"status": "improved"}, {"plans": [{"plan": {"schema": 9}}]}])
def test_an_answer_that_cannot_be_read(broken: dict[str, Any]) -> None:
    origin = preset_origin("demo")
    assert answer_of(as_request(origin, origin.train, {}), broken) is None


def test_memory_bars_agree_with_the_rules() -> None:
    origin = preset_origin("demo")
    assert origin.current is not None
    needed = memory_by_device(origin.current, origin.profile)
    largest = max(needed.values())
    tight = ClusterSpec(nodes=origin.cluster.nodes, memory_bytes=dict.fromkeys(range(8), largest * 0.99))
    rules = {"num_layers": 16, "global_batch": 16, "profile": origin.profile}
    assert violations(origin.current, cluster=tight, **rules)  # type: ignore[arg-type]
    over = memory_bars(origin.current, tight, origin.profile)
    num_over = sum(value > largest * 0.99 for value in needed.values())
    assert over.count("memory-row over") == num_over > 0
    assert "more than there is" in over
    fits = ClusterSpec(nodes=origin.cluster.nodes, memory_bytes=dict.fromkeys(range(8), largest))
    assert not violations(origin.current, cluster=fits, **rules)  # type: ignore[arg-type]
    assert "memory-row over" not in memory_bars(origin.current, fits, origin.profile)
    assert largest_share(origin.current, fits, origin.profile) == 1.0


def test_memory_of_devices_without_work_and_of_an_unknown_size() -> None:
    origin = preset_origin("demo")
    drawn = memory_bars(standby_plan(), origin.cluster, origin.profile)
    assert drawn.count("memory-row none") == 2
    document = standby_plan().to_json() | {"micro_batch_size": 7}
    assert memory_by_device(Plan.from_json(document), origin.profile) == {}


def test_many_devices_have_small_bars() -> None:
    nodes = tuple(tuple(range(8 * node, 8 * node + 8)) for node in range(32))
    cluster = ClusterSpec(nodes=nodes, memory_bytes=dict.fromkeys(range(256), 1e7))
    drawn = memory_bars(standby_plan(), cluster, preset_origin("demo").profile)
    assert "memory compact" in drawn
    assert drawn.count("memory-row") == 256


def test_timelines_share_their_axis(demo: Answer) -> None:
    assert demo.current is not None
    for colors in (palette.LIGHT, palette.DARK):
        drawn = step_timeline(demo.current, demo.profile, demo.rates, colors, end_s=3.0)
        assert drawn is not None
        layout = drawn[0]["layout"]
        assert layout["xaxis"]["range"] == pytest.approx([0, 3.03])
        assert layout["margin"]["l"] == LANE_NAMES_PX
        assert layout["font"]["color"] == colors.muted
    assert step_timeline(demo.current, demo.profile, {0: math.inf}, palette.LIGHT, end_s=3.0) is None


def test_a_long_timeline_shows_the_slowest_pipelines() -> None:
    origin = preset_origin("32b-64")
    assert origin.current is not None
    drawn = step_timeline(origin.current, origin.profile, {63: 3.0}, palette.LIGHT, end_s=1.0)
    assert drawn is not None
    assert len(drawn[0]["layout"]["yaxis"]["categoryarray"]) <= sum(
        len(pipeline.stages) for pipeline in origin.current.pipelines
    )


def test_what_is_alive_stands_by_in_a_proposal() -> None:
    plan = standby_plan()
    assert proposal(plan, [5]) == plan
    alive = proposal(plan, [])
    assert (alive.standby, alive.failed) == ((3, 5), ())
