"""One pipeline: every arrangement tried as oracle, bounds that hold, and the order that theory asks for."""

from __future__ import annotations

import math
from itertools import combinations, combinations_with_replacement, pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.arrange import Arranger
from planner.cost import pipeline_makespan_s
from planner.kinds import Instance
from planner.table import makespans
from tests.planner.cases import SEARCHED, tiny_profile


def _instance(num_layers: int = 6, **changes: object) -> Instance:
    return Instance(tiny_profile(num_layers=num_layers, **changes), micro_batch_size=1, num_micro_batches=12)  # type: ignore[arg-type]


def _kinds(instance: Instance, groups: list[tuple[int, float]]) -> tuple[int, ...]:
    return tuple(sorted(instance.kind(size, rate, 100.0) for size, rate in groups))


def _oracle(instance: Instance, kinds: tuple[int, ...], count: int) -> float:
    best = math.inf
    for order in set(permutations(kinds)):
        for cuts in combinations(range(1, instance.num_layers), len(kinds) - 1):
            edges = (0, *cuts, instance.num_layers)
            layers = [stop - start for start, stop in pairwise(edges)]
            if all(number <= cap for number, cap in zip(layers, instance.caps(order), strict=True)):
                best = min(best, instance.pipeline_s(instance.stage_seconds(order, layers), count))
    return best


SIZES, RATES = (1, 2, 4), (1.0, 1.3, 2.57, 5.42)
GROUPS = st.lists(st.tuples(st.sampled_from(SIZES), st.sampled_from(RATES)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None, phases=SEARCHED)
@given(groups=GROUPS, count=st.integers(1, 12), memory=st.sampled_from([1.0, 7.0, 20.0]), head=st.sampled_from([0, 2]))
def test_small_pipelines_are_optimal(groups: list[tuple[int, float]], count: int, memory: float, head: float) -> None:
    instance = _instance(memory_table=(memory,) * 4, head_s={1: {1: head, 2: head / 2, 4: head / 4}}, send_s=0.01)
    kinds = _kinds(instance, groups)
    found = Arranger(instance).best(kinds, count)
    expected = _oracle(instance, kinds, count) if count >= len(kinds) else math.inf
    assert found.seconds == pytest.approx(expected)
    if math.isfinite(expected):
        assert sorted(found.kinds) == list(kinds)
        assert sum(found.layers) == 6


@settings(max_examples=40, deadline=None, phases=SEARCHED)
@given(groups=GROUPS, count=st.integers(4, 12), memory=st.sampled_from([1.0, 7.0]))
def test_local_search_is_valid(groups: list[tuple[int, float]], count: int, memory: float) -> None:
    instance = _instance(num_layers=9, memory_table=(memory,) * 4)
    kinds = _kinds(instance, groups)
    found = Arranger(instance, table_rows=0).best(kinds, count)
    assert found.seconds >= _oracle(instance, kinds, count) * (1 - 1e-9)
    if memory == 1.0:  # nothing binds
        assert found.layers
    if found.layers:
        assert sorted(found.kinds) == list(kinds)
        assert sum(found.layers) == 9
        assert found.seconds == instance.pipeline_s(instance.stage_seconds(found.kinds, found.layers), count)


def test_local_search_is_close_where_memory_does_not_bind() -> None:
    """All pipelines of up to four groups: two of them are 11.1 % over the optimum, all others at most 10 %."""
    over = []
    for depth in range(1, 5):
        for groups in combinations_with_replacement(product(SIZES, RATES), depth):
            instance = _instance(num_layers=9)
            kinds = _kinds(instance, list(groups))
            exact, local = Arranger(instance), Arranger(instance, table_rows=0)
            over += [local.best(kinds, count).seconds / exact.best(kinds, count).seconds for count in range(4, 13)]
    assert min(over) >= 1 - 1e-9
    assert max(over) <= 1.12
    assert sum(ratio > 1.1 for ratio in over) <= 2
    assert np.mean(over) <= 1.001


@settings(max_examples=60, deadline=None, phases=SEARCHED)
@given(groups=GROUPS, count=st.integers(1, 12))
def test_bounds_hold(groups: list[tuple[int, float]], count: int) -> None:
    instance = _instance(embed_s={1: {1: 0.5, 2: 0.25, 4: 0.125}}, send_s=0.02)
    kinds = _kinds(instance, groups)
    arranger = Arranger(instance)
    found = arranger.best(kinds, count)
    if math.isfinite(found.seconds):
        times = instance.stage_seconds(found.kinds, found.layers)
        assert instance.floor_s(times, count) <= found.seconds * (1 + 1e-9)
        assert arranger.relaxed_most(kinds, found.seconds, 12) >= count
        assert arranger.most(kinds, found.seconds, 12) >= count
        assert arranger.most(kinds, found.seconds * 0.999, 12) < count or len(kinds) > count


def test_the_slow_group_stands_first_and_holds_fewer_layers() -> None:
    instance = _instance(num_layers=4)
    found = Arranger(instance).best(_kinds(instance, [(1, 1.0), (1, 1.0), (1, 3.0)]), 12)
    assert instance.kinds[found.kinds[0]].rate == 3.0
    assert found.layers[0] == 1
    assert found.seconds == pytest.approx(12 * 3.0), "filling and draining of the others cost nothing"


def test_simulating_many_pipelines_at_once_equals_one_by_one() -> None:
    draw = np.random.default_rng(0)
    for depth in range(1, 7):
        times = draw.uniform(0.1, 3, (20, depth))
        for count in (1, 3, 9):
            together = makespans(times, count, 0.3, 0.05)
            single = [pipeline_makespan_s(list(row), count, forward_share=0.3, send_s=0.05) for row in times]
            assert together == pytest.approx(single)


def test_twelve_stages_keep_their_own_values() -> None:
    """More than ten stages: nothing may be ordered by name."""
    instance = _instance(num_layers=24, memory_table=(1.0,) * 12)
    kinds = _kinds(instance, [(1, 1.0 + number / 10) for number in range(12)])
    found = Arranger(instance).best(kinds, 12)
    assert sorted(found.kinds) == list(kinds)
    assert sum(found.layers) == 24
    assert found.seconds == instance.pipeline_s(instance.stage_seconds(found.kinds, found.layers), 12)
