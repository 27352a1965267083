"""Both lower-level problems against the same problems as integer programs."""

from __future__ import annotations

from collections.abc import Sequence

import pulp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.assign import assign_layers, assign_micro_batches

COSTS = st.floats(0.1, 10).map(lambda value: round(value, 3))


def _solve(problem: pulp.LpProblem) -> float | None:
    problem.solve(pulp.HiGHS(msg=False))
    return pulp.value(problem.objective) if problem.status == pulp.LpStatusOptimal else None


def _layers_program(
    layer_s: Sequence[float], extra_s: Sequence[float], caps: Sequence[int], num_layers: int
) -> float | None:
    problem = pulp.LpProblem("layers", pulp.LpMinimize)
    slowest = problem.add_variable("slowest", 0)
    counts = [problem.add_variable(f"layers_{j}", 1, max(1, cap), cat="Integer") for j, cap in enumerate(caps)]
    problem += slowest
    problem += pulp.lpSum(counts) == num_layers, "all_layers"
    for j, count in enumerate(counts):
        problem += layer_s[j] * count + extra_s[j] <= slowest, f"stage_{j}"
        problem += count <= caps[j], f"memory_{j}"
    return _solve(problem)


@settings(max_examples=60, deadline=None)
@given(
    stages=st.lists(st.tuples(COSTS, st.sampled_from([0.0, 0.5, 3.0]), st.integers(0, 9)), min_size=1, max_size=6),
    num_layers=st.integers(1, 20),
)
def test_layers_equal_the_integer_program(stages: list[tuple[float, float, int]], num_layers: int) -> None:
    layer_s, extra_s, caps = (list(column) for column in zip(*stages, strict=True))
    layers = assign_layers(layer_s, extra_s, caps, num_layers)
    expected = _layers_program(layer_s, extra_s, caps, num_layers)
    if layers is None:
        assert expected is None
        return
    assert sum(layers) == num_layers
    assert all(1 <= count <= cap for count, cap in zip(layers, caps, strict=True))
    slowest = max(y * count + extra for y, count, extra in zip(layer_s, layers, extra_s, strict=True))
    assert slowest == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(pipelines=st.lists(st.tuples(COSTS, st.integers(1, 4)), min_size=1, max_size=6), total=st.integers(1, 40))
def test_micro_batches_equal_the_integer_program(pipelines: list[tuple[float, int]], total: int) -> None:
    counts = assign_micro_batches(
        [lambda count, slowest=slowest: count * slowest for slowest, _ in pipelines],
        [minimum for _, minimum in pipelines],
        total,
    )
    problem = pulp.LpProblem("micro_batches", pulp.LpMinimize)
    longest = problem.add_variable("longest", 0)
    variables = [problem.add_variable(f"m_{i}", minimum, cat="Integer") for i, (_, minimum) in enumerate(pipelines)]
    problem += longest
    problem += pulp.lpSum(variables) == total, "all_micro_batches"
    for i, (slowest, _) in enumerate(pipelines):
        problem += slowest * variables[i] <= longest, f"pipeline_{i}"
    expected = _solve(problem)
    if counts is None:
        assert expected is None
        return
    assert sum(counts) == total
    assert all(count >= minimum for count, (_, minimum) in zip(counts, pipelines, strict=True))
    assert max(c * slowest for c, (slowest, _) in zip(counts, pipelines, strict=True)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("layer_s", "caps", "num_layers", "layers", "why"),
    [
        ([1.0, 1.0], [9, 9], 4, [2, 2], "equal stages share equally"),
        ([2.0, 1.0], [9, 9], 6, [2, 4], "a stage at half the speed gets half the layers"),
        ([12.0, 1.0], [9, 9], 6, [1, 5], "even a very slow stage holds one layer"),
        ([1.0, 1.0], [9, 1], 4, [3, 1], "memory caps the second"),
        ([1.0, 1.0], [2, 1], 4, None, "memory is too small for all"),
        ([1.0, 1.0], [9, 0], 4, None, "a stage that can hold nothing"),
        ([1.0, 1.0, 1.0], [9, 9, 9], 2, None, "more stages than layers"),
    ],
)
def test_layers(layer_s: list[float], caps: list[int], num_layers: int, layers: list[int] | None, why: str) -> None:
    assert assign_layers(layer_s, [0.0] * len(caps), caps, num_layers) == layers, why


def test_micro_batches_that_do_not_reach_the_minimums() -> None:
    assert assign_micro_batches([float, float], [3, 3], 5) is None
    assert assign_micro_batches([], [], 5) is None
