"""How a node may be cut: every useful way once, none that another one beats."""

from __future__ import annotations

import math

import pytest

from planner.groups import groupings
from planner.kinds import Instance
from tests.planner.brute_force import _cuts
from tests.planner.cases import tiny_profile


def _instance() -> Instance:
    return Instance(tiny_profile(), micro_batch_size=1, num_micro_batches=8)


def _groups(rates: list[float], sizes: tuple[int, ...] = (1, 2, 4)) -> set[tuple[tuple[int, float], ...]]:
    instance = _instance()
    devices = [(rate, 100.0) for rate in sorted(rates, reverse=True)]
    return {
        tuple(sorted((instance.kinds[kind].tp_degree, instance.kinds[kind].rate) for kind in grouping.kinds))
        for grouping in groupings(instance, devices, sizes)
    }


def test_a_healthy_node_of_four_has_one_grouping_for_each_multiset_of_sizes() -> None:
    assert len(_groups([1.0] * 4)) == 4 + 2 + 2 + 1 + 1  # 4, 3, 2, 1 and 0 devices in use


def test_a_straggler_may_stay_be_split_off_or_stand_by() -> None:
    found = _groups([2.57, 1.0, 1.0, 1.0])
    assert ((4, 2.57),) in found
    assert ((1, 2.57), (1, 1.0), (2, 1.0)) in {tuple(sorted(groups, key=lambda g: (g[0], -g[1]))) for groups in found}
    assert ((1, 1.0), (2, 1.0)) in found
    assert ((2, 1.0), (2, 2.57)) in found
    assert () in found


@pytest.mark.parametrize("rates", [[1.0, 1.5, 2.0, 3.0], [1.0, 1.0, 2.0, 3.0], [1.0, 1.0, 1.0, 5.0, 7.0]])
def test_every_other_cut_is_beaten_by_one_of_these(rates: list[float]) -> None:
    mine = _groups(rates)
    for cut in _cuts(tuple((rate, 100.0) for rate in rates), (1, 2, 4)):
        other = sorted((size, rate) for size, rate, _ in cut)
        assert any(_beats(list(groups), other) for groups in mine), other


def _beats(mine: list[tuple[int, float]], other: list[tuple[int, float]]) -> bool:
    """Whether both have groups of equal sizes and mine are no slower, one by one."""
    return [size for size, _ in mine] == [size for size, _ in other] and all(
        one <= two for (_, one), (_, two) in zip(mine, other, strict=True)
    )


def test_devices_with_less_memory_limit_their_group() -> None:
    instance = _instance()
    found = groupings(instance, [(1.0, 50.0), (1.0, 100.0)], (1, 2))
    pairs = [kind for grouping in found for kind in grouping.kinds if instance.kinds[kind].tp_degree == 2]
    assert {instance.kinds[kind].memory_bytes for kind in pairs} == {50.0}


def test_sizes_that_do_not_fill_a_node_leave_devices_standing_by() -> None:
    assert _groups([1.0, 1.0, 1.0], (2,)) == {((2, 1.0),), ()}
    assert _groups([], (1, 2)) == {()}


def test_many_equal_devices_are_no_burden() -> None:
    devices = [(3.0, 1.0), (2.0, 1.0), *[(1.0, 1.0)] * 14]
    found = groupings(_instance(), devices, (1, 2, 4))
    assert len(found) < 700
    assert math.isclose(max(sum(grouping.sizes) for grouping in found), 16)
