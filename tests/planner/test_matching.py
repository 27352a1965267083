"""The assignment problem against every permutation."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest

from planner import matching
from planner.matching import cheapest


@pytest.mark.parametrize("seed", range(30))
def test_equals_the_best_permutation(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows = int(draw.integers(1, 6))
    columns = rows + int(draw.integers(0, 3))
    costs = draw.choice([0.0, 0.25, 1.0, 3.0], (rows, columns)) + draw.random((rows, columns)).round(1)
    chosen = cheapest(costs)
    assert len(set(chosen)) == rows
    total = sum(costs[row, column] for row, column in enumerate(chosen))
    best = min(sum(costs[r, c] for r, c in enumerate(order)) for order in permutations(range(columns), rows))
    assert total == pytest.approx(best)


def test_forbidden_pairs_are_avoided_or_refused() -> None:
    costs = np.array([[0.0, math.inf], [0.0, 5.0]])
    assert cheapest(costs) == [0, 1]
    with pytest.raises(ValueError, match="forbidden"):
        cheapest(np.array([[0.0, math.inf], [0.0, math.inf]]))
    with pytest.raises(ValueError, match=r"columns as rows \(2\), given 1"):
        cheapest(np.zeros((2, 1)))
    assert cheapest(np.zeros((0, 3))) == []


def test_many_rows_are_assigned_greedily(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "EXACT_SIZE", 2)
    assert cheapest(np.array([[3.0, 1.0, 9.0], [1.0, 9.0, 9.0], [9.0, 9.0, 2.0]])) == [1, 0, 2]
