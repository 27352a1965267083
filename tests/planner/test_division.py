"""The local search's state: no group is ever lost or invented."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.divide import deal, first_division
from planner.division import Change, Division, Draftsman, plus, swaps, without
from planner.groups import Grouping, groupings
from planner.improve import Improver
from planner.kinds import Instance
from planner.recombine import Recombiner
from planner.sketch import Sketcher
from tests.planner.cases import tiny_profile

KINDS = st.lists(st.integers(0, 4), max_size=5).map(lambda kinds: tuple(sorted(kinds)))


def _instance() -> Instance:
    return Instance(
        tiny_profile(num_layers=12, memory_table=(1.0, 1.2, 1.4, 1.6)),
        micro_batch_size=1,
        num_micro_batches=24,
        rates=[1.0] * 16,
    )


def _nodes(instance: Instance, slow: Sequence[float] = (2.57, 1.0, 1.0, 1.0)) -> list[list[Grouping]]:
    healthy = groupings(instance, [(1.0, 100.0)] * 4, (1, 2, 4))
    return [groupings(instance, [(rate, 100.0) for rate in slow], (1, 2, 4)), healthy, healthy, healthy]


def _groups(division: Division, nodes: Sequence[Sequence[Grouping]]) -> tuple[Counter[int], Counter[int]]:
    """The groups in use or spare, and the groups that the nodes offer."""
    used = Counter(kind for kinds in division.pipelines for kind in kinds) + Counter(division.spare)
    offered = Counter(
        kind for options, option in zip(nodes, division.chosen, strict=True) for kind in options[option].kinds
    )
    return used, offered


@given(one=KINDS, other=KINDS)
def test_exchanges_keep_all_groups(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    for new_one, new_other in swaps(one, other):
        assert sorted(new_one + new_other) == sorted(one + other)
        assert list(new_one) == sorted(new_one)
        assert (new_one, new_other) != (one, other)


@given(kinds=KINDS, kind=st.integers(0, 4))
def test_adding_and_taking_away_are_inverse(kinds: tuple[int, ...], kind: int) -> None:
    assert without(plus(kinds, kind), kind) == kinds
    assert plus(kinds, kind) == tuple(sorted((*kinds, kind)))


def test_a_change_replaces_one_of_equal_pipelines() -> None:
    division = Division([(0, 0), (0, 0), (1,)], (2,), [0, 0])
    Change(gone=((0, 0), (1,)), come=((0,), (0, 1)), spare=(2,), node=1, option=3).apply(division)
    assert division.pipelines == [(0,), (0, 0), (0, 1)]
    assert division.chosen == [0, 3]


def test_a_draftsman_sees_its_own_edits() -> None:
    draftsman = Draftsman(Division([(0, 0), (1,)], (), [0]))
    draftsman.replace((1,), (1, 2))
    draftsman.replace((1, 2), (1, 2, 3))
    assert sorted(draftsman.types()) == [(0, 0), (1, 2, 3)]
    assert draftsman.change(0, 1) == Change(gone=((1,),), come=((1, 2, 3),), spare=(), node=0, option=1)


def test_dealing_is_even_and_respects_the_depth() -> None:
    instance = _instance()
    four, one = instance.kind(4, 1.0, 100.0), instance.kind(1, 1.0, 100.0)
    pipelines, spare = deal(instance, [four] * 4 + [one] * 4, 4)
    assert pipelines == [(four, one)] * 4
    assert spare == ()
    pipelines, spare = deal(instance, [one] * 7, 1)
    assert pipelines == [(one,) * 4]
    assert spare == (one,) * 3


def test_a_first_division_needs_a_group_for_each_pipeline() -> None:
    instance = _instance()
    nodes = _nodes(instance)
    division = first_division(instance, nodes, tp_degree=4, dp_degree=3, stage_s=6.0)
    assert division is not None
    assert division.num_pipelines == 3
    used, offered = _groups(division, nodes)
    assert used == offered
    assert first_division(instance, nodes, tp_degree=1, dp_degree=17, stage_s=6.0) is None


@given(kinds=st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=20), dp_degree=st.integers(1, 6))
def test_dealing_gives_each_pipeline_a_group(kinds: list[int], dp_degree: int) -> None:
    if len(kinds) < dp_degree:
        return
    instance = _instance()
    groups = [instance.kind(size, 1.0, 100.0) for size in kinds]
    pipelines, spare = deal(instance, groups, dp_degree)
    assert len(pipelines) == dp_degree
    assert all(1 <= len(part) <= instance.max_depth for part in pipelines)
    assert sorted([kind for part in pipelines for kind in part] + list(spare)) == sorted(groups)


@pytest.mark.parametrize("seed", range(4))
def test_local_search_gets_better_and_loses_nothing(seed: int) -> None:
    instance = _instance()
    nodes = _nodes(instance)
    improver = Improver(Sketcher(instance), nodes, total=24, seed=seed)
    start = first_division(instance, nodes, tp_degree=4, dp_degree=2, stage_s=6.0)
    assert start is not None
    before = improver.step_s(start)
    times = []
    for seconds, division in improver.run(start, max_rounds=20, is_over=lambda: False):
        times.append(seconds)
        used, offered = _groups(division, nodes)
        assert used == offered
        assert seconds == pytest.approx(improver.step_s(division))
        counts = improver.counts(division)
        assert counts is not None
        assert sum(counts) == 24
        assert all(count >= len(kinds) for count, kinds in zip(counts, division.pipelines, strict=True))
    assert times == sorted(times, reverse=True)
    assert times[-1] <= before


@pytest.mark.parametrize("dp_range", [(1, 4), (3, 3)])
def test_recombination_keeps_the_rules(dp_range: tuple[int, int]) -> None:
    instance = _instance()
    nodes = _nodes(instance)
    sketcher = Sketcher(instance)
    improver = Improver(sketcher, nodes, total=24, seed=0)
    start = first_division(instance, nodes, tp_degree=4, dp_degree=3, stage_s=6.0)
    assert start is not None
    for _ in improver.run(start, max_rounds=5, is_over=lambda: False):
        pass
    recombiner = Recombiner(sketcher, nodes, dp_range=dp_range, total=24)
    before = improver.step_s(start)
    for seconds, division in recombiner.run(improver, before, start, lambda: False):
        used, offered = _groups(division, nodes)
        assert used == offered
        assert dp_range[0] <= division.num_pipelines <= dp_range[1]
        assert seconds < before
        before = seconds


def test_recombination_finds_nothing_where_nothing_is_fast_enough() -> None:
    instance = _instance()
    nodes = _nodes(instance)
    sketcher = Sketcher(instance)
    start = first_division(instance, nodes, tp_degree=4, dp_degree=3, stage_s=6.0)
    assert start is not None
    step_s = Improver(sketcher, nodes, total=24, seed=0).step_s(start)
    assert Recombiner(sketcher, nodes, dp_range=(1, 4), total=24).division(step_s / 2, start.types) is None


@pytest.mark.parametrize("error", [KeyError, IndexError])
def test_a_solve_that_ends_at_its_node_limit_is_no_error(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """PuLP does not know HiGHS's status for it and raises."""

    def trip(*_: object) -> None:
        raise error("kSolutionLimit")

    monkeypatch.setattr("pulp.HiGHS.findSolutionValues", trip)
    instance = _instance()
    sketcher = Sketcher(instance)
    sketcher.of((instance.kind(4, 1.0, 100.0),))
    assert Recombiner(sketcher, _nodes(instance), dp_range=(1, 4), total=24).division(100.0, ()) is None


def test_more_than_ten_columns_keep_their_own_values() -> None:
    """Solvers that sort variables by name must not matter: 30 columns, of which exactly one is needed 3 times."""
    instance = _instance()
    nodes = _nodes(instance, slow=(1.0, 1.0, 1.0, 1.0))
    sketcher = Sketcher(instance)
    four, two = instance.kind(4, 1.0, 100.0), instance.kind(2, 1.0, 100.0)
    for number in range(1, 5):
        for other in range(5 - number):
            sketcher.of(tuple(sorted((*(four,) * number, *(two,) * other))))
    division = Recombiner(sketcher, nodes, dp_range=(4, 4), total=24).division(18.0, ())
    assert division is not None
    assert division.pipelines == [(four,)] * 4  # 6 micro-batches of 3 s each
