"""What else would make an infeasible problem feasible: the smallest change of each training setting.

`malleus plan` prints it after the reason of an infeasible result, which names the constraint that binds and
how much memory would do. One setting is changed at a time, and the search is asked for any plan at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from planner.plan import GROUP_SIZES
from planner.problem import problem_of
from planner.search import has_plan
from planner.spec import ClusterSpec, ModelProfile, TrainSpec, check_rates

_MOST_TRIES = 4  # of one setting


def relaxations(
    *,
    cluster: ClusterSpec,
    profile: ModelProfile,
    train: TrainSpec,
    rates: Mapping[int, float],
    is_over: Callable[[], bool],
) -> list[str]:
    """The options of `malleus plan` that would help, such as `--max-tp 4`, the smallest change of each.

    Args:
        is_over: asked now and then; True ends the search, and what is found by then is returned.
    """
    every = check_rates(rates, cluster)
    found: list[str] = []
    for changes in (_larger_tp(profile, train), _other_dp(cluster, train), _other_micro_batch(profile, train)):
        for option, changed in changes:
            if is_over():
                return found
            if has_plan(problem_of(cluster, profile, changed, every), is_over):
                found.append(option)
                break
    return found


def _larger_tp(profile: ModelProfile, train: TrainSpec) -> Iterator[tuple[str, TrainSpec]]:
    known = {degree for size in train.micro_batch_sizes for degree in profile.compute_s.get(size, {})}
    for degree in GROUP_SIZES:
        if degree > train.max_tp and degree in known:
            yield f"--max-tp {degree}", replace(train, max_tp=degree)


def _other_dp(cluster: ClusterSpec, train: TrainSpec) -> Iterator[tuple[str, TrainSpec]]:
    low, high = train.dp_range
    most = min(len(cluster.devices), train.global_batch)
    for distance in range(1, _MOST_TRIES + 1):
        for number in (low - distance, high + distance):
            if 1 <= number <= most:
                yield f"--dp {number}", replace(train, dp_range=(number, number))


def _other_micro_batch(profile: ModelProfile, train: TrainSpec) -> Iterator[tuple[str, TrainSpec]]:
    for size in sorted(set(profile.compute_s) - set(train.micro_batch_sizes))[:_MOST_TRIES]:
        if train.global_batch % size == 0:
            yield f"--micro-batch {size}", replace(train, micro_batch_sizes=(size,))
