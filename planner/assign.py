"""Lower level: layers of each stage and micro-batches of each pipeline, exactly.

Both are min-max problems over integers with monotone costs, so the smallest threshold that leaves
room for everything is the optimum. The same two problems as integer programs are the oracle in the
tests.

Source: Malleus (DOI 10.1145/3725322), section 4.2, lower-level problem; solved here by threshold
search instead of an integer program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace


def assign_layers(
    layer_s: Sequence[float], extra_s: Sequence[float], caps: Sequence[int], num_layers: int
) -> list[int] | None:
    """Layers of each stage such that the slowest stage is as fast as it can be.

    Args:
        layer_s: seconds of one layer on each stage.
        extra_s: seconds that the stage takes besides its layers.
        caps: most layers of each stage.
        num_layers: layers to distribute; every stage gets at least one.

    Returns:
        Layers of each stage, or None if they do not fit.
    """
    if min(caps) < 1 or sum(caps) < num_layers or len(caps) > num_layers:
        return None
    layers = _without_excess(layer_s, extra_s, caps, num_layers)
    costs = [count * seconds + extra for count, seconds, extra in zip(layers, layer_s, extra_s, strict=True)]
    # Adding a layer where the result is smallest is optimal: the threshold grows no faster than it must.
    for _ in range(num_layers - sum(layers)):
        best, place = min(
            (costs[index] + layer_s[index], index) for index in range(len(caps)) if layers[index] < caps[index]
        )
        layers[place] += 1
        costs[place] = best
    return layers


def _without_excess(
    layer_s: Sequence[float], extra_s: Sequence[float], caps: Sequence[int], num_layers: int
) -> list[int]:
    """Layers that every optimum has at least: those below the threshold of the problem with cut layers."""
    speed = sum(1 / seconds for seconds in layer_s)
    threshold = (num_layers + sum(e / s for e, s in zip(extra_s, layer_s, strict=True))) / speed * (1 - 1e-12)
    layers = [
        min(cap, max(1, int((threshold - extra) / seconds)))
        for seconds, extra, cap in zip(layer_s, extra_s, caps, strict=True)
    ]
    return layers if sum(layers) <= num_layers else [1] * len(caps)


def assign_micro_batches(
    seconds: Sequence[Callable[[int], float]], minimums: Sequence[int], num_micro_batches: int
) -> list[int] | None:
    """Micro-batches of each pipeline such that the slowest pipeline is as fast as it can be.

    Args:
        seconds: of each pipeline, its time for m micro-batches; does not decrease with m.
        minimums: fewest micro-batches of each pipeline (its number of stages).
        num_micro_batches: micro-batches to distribute.

    Returns:
        Micro-batches of each pipeline, or None if there are fewer than the minimums need.
    """
    counts = list(minimums)
    if not counts or sum(counts) > num_micro_batches:
        return None
    following = [(cost(counts[place] + 1), place) for place, cost in enumerate(seconds)]
    heapify(following)
    for _ in range(num_micro_batches - sum(counts)):
        _, place = following[0]
        counts[place] += 1
        heapreplace(following, (seconds[place](counts[place] + 1), place))
    return counts
