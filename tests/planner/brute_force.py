"""Exhaustive planner for tiny clusters: the oracle of the search. Shares no code with it.

Tries every way to cut every node into groups (any devices, not only neighbours in order of rate),
every division of the groups into pipelines, every order, every split of the layers, every split of the
micro-batches, and simulates each pipeline operation by operation. Slow on purpose: up to 8 devices
and about 6 layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations, permutations

import numpy as np

from planner.spec import ClusterSpec, ModelProfile, TrainSpec

Group = tuple[int, float, float]  # TP degree, largest rate, smallest memory


def best_step_s(cluster: ClusterSpec, profile: ModelProfile, train: TrainSpec, rates: Mapping[int, float]) -> float:
    """Step seconds of the fastest valid plan; inf if there is none."""
    return min(
        _best_of_size(cluster, profile, train, rates, size)
        for size in train.micro_batch_sizes
        if size in profile.compute_s
    )


def _best_of_size(
    cluster: ClusterSpec, profile: ModelProfile, train: TrainSpec, rates: Mapping[int, float], size: int
) -> float:
    total = train.global_batch // size
    low, high = train.dp_range
    sizes = [degree for degree in profile.compute_s[size] if degree <= train.max_tp]

    @cache
    def pipeline(groups: tuple[Group, ...]) -> np.ndarray:
        """Fastest makespan of these groups for 0, 1, ... micro-batches."""
        found = np.full(total + 1, math.inf)
        depth = len(groups)
        if depth > profile.num_layers or depth > len(profile.layer_bytes[size]):
            return found
        times = list(_stage_times(profile, size, groups))
        if times:
            for count in range(depth, total + 1):
                found[count] = _simulate(np.array(times), count, profile.forward_share, profile.send_s).min()
        return found

    @cache
    def divide(groups: tuple[Group, ...], num_pipelines: int) -> np.ndarray:
        """Fastest slowest pipeline, by micro-batches to run, with exactly so many pipelines."""
        found = np.full(total + 1, math.inf)
        if not groups or num_pipelines == 0:
            if not groups and num_pipelines == 0:
                found[0] = 0.0
            return found
        first, others = groups[0], groups[1:]
        seen = set()
        for number in range(len(others) + 1):
            for taken in combinations(range(len(others)), number):
                part = (first, *(others[index] for index in taken))
                if part in seen:
                    continue
                seen.add(part)
                mine = pipeline(part)
                if not np.isfinite(mine).any():
                    continue
                rest = divide(tuple(g for i, g in enumerate(others) if i not in taken), num_pipelines - 1)
                for count in range(1, total + 1):
                    if math.isfinite(mine[count]):
                        found[count:] = np.minimum(found[count:], np.maximum(mine[count], rest[: total + 1 - count]))
        return found

    choices: set[tuple[Group, ...]] = {()}
    for node in cluster.nodes:
        live = [(rates.get(device, 1.0), cluster.memory_bytes[device]) for device in node]
        live = [entry for entry in live if math.isfinite(entry[0])]
        options = set(_cuts(tuple(live), tuple(sizes)))
        choices = {tuple(sorted(one + other)) for one in choices for other in options}
    best = math.inf
    for groups in choices:
        for num_pipelines in range(low, min(high, len(groups)) + 1):
            best = min(best, float(divide(groups, num_pipelines)[total]))
    return best + profile.sync_s


def _cuts(devices: tuple[tuple[float, float], ...], sizes: tuple[int, ...]) -> Iterator[tuple[Group, ...]]:
    """Every set of groups of these devices; devices left out stand by."""
    if not devices:
        yield ()
        return
    first, others = devices[0], devices[1:]
    yield from _cuts(others, sizes)
    for size in sizes:
        for taken in combinations(range(len(others)), size - 1):
            members = [first, *(others[index] for index in taken)]
            group = (size, max(rate for rate, _ in members), min(memory for _, memory in members))
            for rest in _cuts(tuple(d for i, d in enumerate(others) if i not in taken), sizes):
                yield tuple(sorted((group, *rest)))


def _stage_times(profile: ModelProfile, size: int, groups: tuple[Group, ...]) -> Iterator[list[float]]:
    """Stage seconds of every order and every split of layers that fits in memory."""
    depth, table = len(groups), profile.layer_bytes[size]
    for order in set(permutations(groups)):
        for cuts in combinations(range(1, profile.num_layers), depth - 1):
            edges = (0, *cuts, profile.num_layers)
            times = []
            for place, (degree, rate, memory) in enumerate(order):
                layers = edges[place + 1] - edges[place]
                held = table[depth - place - 1] * layers
                seconds = layers * (profile.compute_s[size][degree] * rate + profile.comm_s[size][degree])
                if place == 0:
                    held += profile.first_extra_bytes
                    seconds += profile.embed_s[size][degree] * rate
                if place == depth - 1:
                    held += profile.last_extra_bytes
                    seconds += profile.head_s[size][degree] * rate
                if held * profile.max_tp / degree + profile.reserve_bytes > memory * (1 + 1e-12):
                    break
                times.append(seconds)
            else:
                yield times


def _simulate(times: np.ndarray, count: int, forward_share: float, send_s: float) -> np.ndarray:
    """Makespans of 1F1B, all rows of `times` (pipelines, stages) at once, one operation after the other."""
    depth = times.shape[1]
    done: dict[tuple[str, int, int], np.ndarray] = {}
    todo = []
    for stage in range(depth):
        warm_up = min(count, depth - stage)
        steady = [
            operation
            for index in range(count)
            for operation in (("B", index), ("F", index + warm_up))
            if operation[0] == "B" or operation[1] < count
        ]
        todo.append([*(("F", index) for index in range(warm_up)), *steady])
    free = [np.zeros(len(times)) for _ in range(depth)]
    while any(todo):
        for stage in range(depth):
            while todo[stage]:
                kind, index = todo[stage][0]
                start = free[stage]
                if kind == "F" and stage > 0:
                    if ("F", stage - 1, index) not in done:
                        break
                    start = np.maximum(start, done["F", stage - 1, index] + send_s)
                if kind == "B" and stage < depth - 1:
                    if ("B", stage + 1, index) not in done:
                        break
                    start = np.maximum(start, done["B", stage + 1, index] + send_s)
                share = forward_share if kind == "F" else 1 - forward_share
                free[stage] = done[kind, stage, index] = start + times[:, stage] * share
                todo[stage].pop(0)
    return np.asarray(np.maximum.reduce(free))
