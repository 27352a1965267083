"""The assignment problem: who takes which seat at the least total cost.

Used by `planner.placement`. Exact for up to a few hundred seats, greedy beyond.
"""

from __future__ import annotations

import math

import numpy as np

EXACT_SIZE = 300  # an exact answer takes about 0.1 s there


def cheapest(costs: np.ndarray) -> list[int]:
    """A column for each row, no column twice, such that the costs add up to as little as possible.

    Args:
        costs: shape (n, k) with n <= k; inf where a row may not take a column.

    Returns:
        The column of each row.

    Raises:
        ValueError: some row cannot have a column.
    """
    rows, columns = costs.shape
    if rows > columns:
        raise ValueError(f"needs at least as many columns as rows ({rows}), given {columns}")
    if rows == 0:
        return []
    finite = costs[np.isfinite(costs)]
    forbidden = 1.0 + 2 * (rows + 1) * (float(np.abs(finite).max()) if finite.size else 1.0)
    dense = np.where(np.isfinite(costs), costs, forbidden)
    chosen = _greedy(dense) if rows > EXACT_SIZE else _shortest_paths(dense)
    if any(not math.isfinite(costs[row, column]) for row, column in enumerate(chosen)):
        raise ValueError("no assignment avoids the forbidden pairs")
    return chosen


def _shortest_paths(costs: np.ndarray) -> list[int]:
    """Successive shortest augmenting paths with potentials (the Hungarian method), O(n^2 k).

    Source: Jonker and Volgenant, "A shortest augmenting path algorithm for dense and sparse linear
    assignment problems" (1987), without its initialisation.
    """
    rows, columns = costs.shape
    row_price = np.zeros(rows)
    column_price = np.zeros(columns)
    owner = np.full(columns, -1)
    for row in range(rows):
        distance = np.full(columns, math.inf)
        previous = np.full(columns, -1)
        is_done = np.zeros(columns, bool)
        current, column, length = row, -1, 0.0
        while True:
            reduced = length + costs[current] - row_price[current] - column_price
            closer = ~is_done & (reduced < distance)
            distance[closer] = reduced[closer]
            previous[closer] = column
            column = int(np.argmin(np.where(is_done, math.inf, distance)))
            length = float(distance[column])
            is_done[column] = True
            if owner[column] < 0:
                break
            current = int(owner[column])
        settled = is_done.copy()
        settled[column] = False
        row_price[row] += length
        row_price[owner[settled]] += length - distance[settled]
        column_price[settled] += distance[settled] - length
        while column >= 0:
            before = int(previous[column])
            owner[column] = owner[before] if before >= 0 else row
            column = before
    chosen = [-1] * rows
    for column, taker in enumerate(owner):
        if taker >= 0:
            chosen[int(taker)] = column
    return chosen


def _greedy(costs: np.ndarray) -> list[int]:
    rows, columns = costs.shape
    chosen = [-1] * rows
    is_taken = np.zeros(columns, bool)
    for place in np.argsort(costs, axis=None, kind="stable"):
        row, column = divmod(int(place), columns)
        if chosen[row] < 0 and not is_taken[column]:
            chosen[row] = column
            is_taken[column] = True
    return chosen
