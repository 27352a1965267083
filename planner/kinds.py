"""Kinds of groups, and one planning instance: everything the search needs to know, as plain numbers.

Groups of equal TP degree, rate and memory are interchangeable, so the search works on kinds and
never on devices; `planner.placement` picks the devices afterwards. An instance is a profile at one
micro-batch size under one cost model. It knows nothing of nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from planner.cost import pipeline_makespan_s
from planner.spec import ModelProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What groups have in common.

    Args:
        tp_degree: devices in the group.
        rate: the largest rate among them.
        memory_bytes: the smallest memory among them.
        layer_s: seconds of one layer and one micro-batch.
        embed_s, head_s: extra seconds as first and as last stage.
        caps: most layers that fit, by `[in_flight - 1]`, as a middle stage.
        first_caps, last_caps, only_caps: the same as first, last, and only stage.
    """

    tp_degree: int
    rate: float
    memory_bytes: float
    layer_s: float
    embed_s: float
    head_s: float
    caps: tuple[int, ...]
    first_caps: tuple[int, ...]
    last_caps: tuple[int, ...]
    only_caps: tuple[int, ...]


class Instance:
    """A profile at one micro-batch size, with the kinds of groups seen so far.

    Args:
        profile: costs and memory of the model.
        micro_batch_size: sequences in a micro-batch.
        num_micro_batches: micro-batches of a step, over all pipelines.
        rates: rates of all live devices, to know how many micro-batches a pipeline of some speed will run.
    """

    def __init__(
        self, profile: ModelProfile, *, micro_batch_size: int, num_micro_batches: int, rates: Sequence[float] = ()
    ) -> None:
        self.profile = profile
        self.micro_batch_size = micro_batch_size
        self.num_micro_batches = num_micro_batches
        self.num_layers = profile.num_layers
        self.forward_share = profile.forward_share
        self.send_s = profile.send_s
        self.sync_s = profile.sync_s
        self.table = profile.layer_bytes[micro_batch_size]
        self.max_depth = min(len(self.table), self.num_layers, num_micro_batches)
        self.kinds: list[Kind] = []
        self._index: dict[tuple[int, float, float], int] = {}
        degrees = profile.tp_degrees(micro_batch_size)
        self._speed = sum(max(1 / degree / self.layer_s(degree, rate) for degree in degrees) for rate in rates)

    def kind(self, tp_degree: int, rate: float, memory_bytes: float) -> int:
        """Index of the kind, which is made if it is new."""
        key = (tp_degree, rate, memory_bytes)
        found = self._index.get(key)
        if found is None:
            found = self._index[key] = len(self.kinds)
            self.kinds.append(self._make(*key))
        return found

    def layer_s(self, tp_degree: int, rate: float) -> float:
        """Seconds of one layer on a group; another cost model may override it."""
        size = self.micro_batch_size
        return self.profile.compute_s[size][tp_degree] * rate + self.profile.comm_s[size][tp_degree]

    def typical_count(self, speed: float, depth: int) -> int:
        """About how many micro-batches a pipeline of some speed (layers a second) and depth will run."""
        if self._speed <= 0:
            return min(2 * depth, self.num_micro_batches)
        return max(depth, min(self.num_micro_batches, round(self.num_micro_batches * speed / self._speed)))

    def with_rates(self, rates: Sequence[float]) -> Self:
        """The same instance for other rates, without any kinds yet."""
        return type(self)(
            self.profile,
            micro_batch_size=self.micro_batch_size,
            num_micro_batches=self.num_micro_batches,
            rates=rates,
        )

    @property
    def has_bubble(self) -> bool:
        """Whether filling and draining the pipeline takes time in this cost model."""
        return True

    def pipeline_s(self, stage_seconds: Sequence[float], num_micro_batches: int) -> float:
        """Seconds of one pipeline; another cost model may override it together with `has_bubble`."""
        return pipeline_makespan_s(
            stage_seconds, num_micro_batches, forward_share=self.forward_share, send_s=self.send_s
        )

    def floor_s(self, stage_seconds: Sequence[float], num_micro_batches: int) -> float:
        """A lower bound of `pipeline_s`, mostly within 2 %, in a fraction of its time.

        Stage j cannot start before the first forward has come through the stages before it, is busy
        for all its micro-batches, and then the last backward must go back through them. In between it
        waits at least twice: after its warm-up for the first gradient, and after its last forward for the
        last one, each time as long as the stages behind it take beyond the work that it has meanwhile.
        """
        if not self.has_bubble:
            return max(stage_seconds) * num_micro_batches
        count, share, hop_s = num_micro_batches, self.forward_share, 2 * self.send_s
        behind = sum(stage_seconds) + hop_s * (len(stage_seconds) - 1)
        before = floor = 0.0
        left = len(stage_seconds) - 1
        for seconds in stage_seconds:
            behind -= seconds
            own = before + seconds * count
            if count > left:
                wait = behind - left * seconds * share
                if wait > 0:
                    own += wait
                wait = behind - left * seconds * (1 - share)
                if wait > 0 and count > left + 1:
                    own += wait
            if own > floor:
                floor = own
            before += seconds + hop_s
            behind -= hop_s
            left -= 1
        return floor

    def caps(self, kinds: Sequence[int]) -> list[int]:
        """Most layers that fit on each stage of a pipeline of these kinds, in stage order."""
        depth = len(kinds)
        if depth == 1:
            return [self.kinds[kinds[0]].only_caps[0]]
        return [
            (kind.first_caps if place == 0 else kind.last_caps if place == depth - 1 else kind.caps)[depth - place - 1]
            for place, kind in enumerate(self.kinds[index] for index in kinds)
        ]

    def stage_seconds(self, kinds: Sequence[int], layers: Sequence[int]) -> list[float]:
        """Seconds of each stage for one micro-batch, forward + backward, in stage order."""
        seconds = [count * self.kinds[index].layer_s for index, count in zip(kinds, layers, strict=True)]
        seconds[0] += self.kinds[kinds[0]].embed_s
        seconds[-1] += self.kinds[kinds[-1]].head_s
        return seconds

    def _make(self, tp_degree: int, rate: float, memory_bytes: float) -> Kind:
        profile, size = self.profile, self.micro_batch_size
        share = profile.max_tp / tp_degree
        room = memory_bytes * (1 + 1e-12) - profile.reserve_bytes
        first, last = profile.first_extra_bytes * share, profile.last_extra_bytes * share

        def caps(extra: float) -> tuple[int, ...]:
            free = room - extra
            return tuple(_most(free, layer * share, self.num_layers) for layer in self.table)

        return Kind(
            tp_degree=tp_degree,
            rate=rate,
            memory_bytes=memory_bytes,
            layer_s=self.layer_s(tp_degree, rate),
            embed_s=profile.embed_s[size][tp_degree] * rate,
            head_s=profile.head_s[size][tp_degree] * rate,
            caps=caps(0.0),
            first_caps=caps(first),
            last_caps=caps(last),
            only_caps=caps(first + last),
        )


def _most(free_bytes: float, layer_bytes: float, limit: int) -> int:
    if free_bytes < 0:
        return 0
    if layer_bytes <= 0:
        return limit
    return min(limit, math.floor(free_bytes / layer_bytes * (1 + 1e-12)))
