"""Rates over a run's time and the headline figures made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest

from app.dashboard.headline import Headline, headline, healthy_reference, parsed, step_s_now
from app.dashboard.rate_history import RateHistory, bound_s, rate_history
from app.dashboard.snapshot import rate_points
from db.episodes import EpisodeView
from db.history import StepView
from planner.cost import plan_step_s
from planner.plan import Plan
from tests.app.seeded_run import absorbing_plan, config_of, profile_of
from tests.app.story_rows import BEGIN, at, episode, plan, step, switch
from tests.app.test_dashboard_drawings import initial_plan


def test_history_follows_episodes_and_the_plans_made_inside_them() -> None:
    history = rate_history(
        [episode(3, start=10, end=50), episode(5, start=30, rate=5.42)],
        [plan(2, rates={3: 3.75, 5: 1.0}, created=20), plan(3, rates={3: 1.0}, created=60)],
        8,
    )
    assert history.at(at(5)) == {}
    assert history.at(at(10)) == {3: 2.57}
    assert history.at(at(25)) == {3: 3.75}, "a plan made later knows the rate better"
    assert history.at(at(35)) == {3: 3.75, 5: 5.42}
    assert history.at(at(99)) == {5: 5.42}


def test_history_of_nothing() -> None:
    history = rate_history([], [], 8)
    assert history.at(BEGIN) == {}
    assert history.bound_s(BEGIN, 2.0) == 2.0
    assert history.bound_s(BEGIN, None) is None


@pytest.mark.parametrize(
    ("stragglers", "expected"),
    [({}, 1.0), ({0: 2.0}, 4 / 3.5), ({0: math.inf}, 4 / 3), (dict.fromkeys(range(4), math.inf), math.inf)],
)
def test_bound(stragglers: dict[int, float], expected: float) -> None:
    assert bound_s(1.0, stragglers, 4) == pytest.approx(expected)


def figures(
    steps: Sequence[StepView],
    *,
    episodes: Sequence[EpisodeView] = (),
    rates: Mapping[int, float] | None = None,
    best_healthy_s: float | None = None,
) -> Headline:
    slow = {3: 2.57}
    plans = [
        plan(1, status="superseded", document=initial_plan().to_json()),
        plan(2, document=absorbing_plan().to_json(), rates=slow, bound_s=bound_s(best_healthy_s, slow, 8)),
    ]
    return headline(
        steps,
        rate_history(episodes, plans, 8),
        rates or {},
        plans,
        [switch(2, 14)],
        active_version=2,
        profile=profile_of(config_of("x")),
    )


def test_healthy_reference_is_measured_where_it_can_be() -> None:
    calm = RateHistory(starts=(at(3),), spans=({3: 2.57},), num_devices=8)
    steps = [step(0, 9.0, phase="first"), step(1, 1.0), step(2, 1.2), step(3, 3.0)]
    assert healthy_reference(steps, calm) == (None, None), "two healthy steps are too few"
    more = [*steps[:3], step(2, 1.1, version=2), *steps[3:]]
    assert healthy_reference(more, calm) == (1.1, 1), "of two plans the one that most of them ran"
    assert healthy_reference([], calm) == (None, None)


def test_without_healthy_steps_the_reference_is_predicted_for_the_active_plan() -> None:
    now = figures([step(0, 9.0, phase="first"), step(1, 1.0, version=2)])
    assert now.healthy_s == plan_step_s(absorbing_plan(), profile_of(config_of("x")), {})
    assert not now.is_healthy_measured


def test_the_bound_is_made_of_the_best_healthy_plan_that_a_search_has_found() -> None:
    predicted_s = plan_step_s(initial_plan(), profile_of(config_of("x")), {})
    steps = [step(number, 1.0) for number in range(10)]
    better = figures(steps, rates={3: 2.57}, best_healthy_s=0.9 * predicted_s)
    assert better.healthy_s == 1.0
    assert better.capacity_s == pytest.approx(0.9)
    assert better.bound_s == pytest.approx(0.9 * 8 / (7 + 1 / 2.57))
    for best_healthy_s in (None, predicted_s, 1.2 * predicted_s):
        assert figures(steps, best_healthy_s=best_healthy_s).capacity_s == pytest.approx(1.0)


def test_step_time_now_is_of_the_present_plan_and_of_train_steps() -> None:
    assert step_s_now([]) is None
    assert step_s_now([step(0, 9.0), step(1, 3.0, version=2, phase="first"), step(2, 1.5, version=2)]) == 1.5
    assert step_s_now([step(0, 3.0, phase="first")]) == 3.0
    assert step_s_now([step(0, math.nan)]) is None


def test_lost_and_saved() -> None:
    steps = [step(number, 1.0) for number in range(10)]
    steps += [step(number, 3.0) for number in range(10, 14)]
    steps += [step(number, 1.5, version=2) for number in range(14, 34)]
    now = figures(steps, episodes=[episode(3, start=10)], rates={3: 2.57, 0: 1.0})
    assert now.healthy_s == 1.0
    assert now.lost_s == pytest.approx(4 * 2.0 + 20 * 0.5 + 0.5), "slow steps, and the pause of the switch"
    stay_s = plan_step_s(initial_plan(), profile_of(config_of("x")), {3: 2.57})
    assert now.saved_s == pytest.approx(20 * (stay_s - 1.5)), "only the steps after the switch"
    assert now.slowdown == pytest.approx(0.5)
    assert now.bound_s == pytest.approx(8 / (7 + 1 / 2.57))
    assert now.efficiency == pytest.approx(now.bound_s / 1.5)


def test_thinned_steps_stand_for_those_between() -> None:
    thin = [step(0, 1.0), step(1, 1.0), step(2, 1.0), step(100, 2.0), step(150, 2.0), step(199, 2.0)]
    now = figures(thin, episodes=[episode(3, start=50)])
    assert now.lost_s == pytest.approx(100 * 1.0 + 0.5)


def test_figures_of_an_empty_run() -> None:
    now = headline([], rate_history([], [], 8), {}, [], [], active_version=1, profile=None)
    assert (now.healthy_s, now.measured_s, now.bound_s, now.efficiency, now.lost_s) == (None, None, None, None, 0.0)


def test_odd_values_do_not_break_the_figures() -> None:
    now = figures([step(0, math.nan), step(1, math.inf)], rates={0: math.nan, 1: math.inf})
    assert now.measured_s is None
    assert now.efficiency is None


def test_samples_find_their_time_between_thinned_steps() -> None:
    steps = [step(0, 1.0), step(10, 1.0)]
    placed = rate_points([(0, 1.0), (5, 2.0), (10, 1.0), (12, math.nan)], steps)
    assert [entry.at for entry in placed] == [at(0), at(5), at(10), at(10)]
    assert rate_points([(0, 1.0)], []) == []


def test_a_malformed_document_is_no_plan() -> None:
    assert parsed(None) is None
    assert parsed({"schema": 99}) is None
    assert isinstance(parsed(initial_plan().to_json()), Plan)
