"""Who holds what under a plan: a pure function from plan and parameters to spans of elements.

Everything later (gradient sync, ZeRO-1, migration, digests) speaks of spans: contiguous ranges of a
parameter's flattened elements. Groups of different TP degree meet without special cases because all
of them own whole fine slices: member r of an n-group owns slices `[r*T/n, (r+1)*T/n)` of T.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.errors import LayoutError
from engine.parameters import Parameter
from planner.plan import Plan, Stage

NUM_BUCKETS = 64
"""Into about how many buckets a large model's gradients are cut, before owners cut them further."""
MIN_BUCKET_ELEMENTS = 1 << 16
MAX_BUCKET_ELEMENTS = 1 << 24


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Elements `[start, stop)` of the flattened parameter with index `parameter`."""

    parameter: int
    start: int
    stop: int

    @property
    def num_elements(self) -> int:
        return self.stop - self.start


Holdings = Mapping[int, tuple[Span, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Consecutive slices with the same owners: one in each pipeline, two of weights tied across its ends.

    The owners reduce-scatter the bucket's gradients, each updates its share (ZeRO-1), and they
    all-gather the new weights. Shares are equally long; the last one may be padded.

    Args:
        owners: devices, ascending, which is their order in a process group.
        spans: what the bucket holds, in canonical order.
        layer: the lowest layer it holds a part of: a backward that has passed it has all of the
            bucket's gradients. -1 for the embedding.
    """

    owners: tuple[int, ...]
    spans: tuple[Span, ...]
    layer: int
    num_elements: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_elements", sum(span.num_elements for span in self.spans))

    @property
    def share_elements(self) -> int:
        """Length of one owner's share, padding included."""
        return -(-self.num_elements // len(self.owners))

    def share(self, device: int) -> tuple[Span, ...]:
        """The spans whose optimizer state `device` keeps."""
        position = self.owners.index(device)
        low, high = position * self.share_elements, (position + 1) * self.share_elements
        spans, offset = [], 0
        for span in self.spans:
            start, stop = max(low, offset), min(high, offset + span.num_elements)
            if start < stop:
                spans.append(Span(span.parameter, span.start + start - offset, span.start + stop - offset))
            offset += span.num_elements
        return tuple(spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a device computes."""

    pipeline_index: int
    stage_index: int
    tp_rank: int
    stage: Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Everything that follows from a plan about who holds what.

    Args:
        places: computing devices and where they compute; standby devices are absent.
        weights: spans that a device holds to compute with (replicated ones on every member).
        buckets: gradient-sync units in the order in which a backward completes them, from the last
            layer down, the same for all owners; every element is in exactly one.
        states: spans whose master weights and moments a device keeps; each element exactly once.
    """

    plan: Plan
    parameters: tuple[Parameter, ...]
    num_slices: int
    places: Mapping[int, Place]
    weights: Holdings
    buckets: tuple[Bucket, ...]
    states: Holdings


def layout(plan: Plan, parameters: Sequence[Parameter], num_slices: int) -> Layout:
    """Lays a (valid) plan out.

    Args:
        num_slices: fine slices T of every tensor, the run's largest TP degree.

    Raises:
        LayoutError: a group is larger than T, or a tensor does not divide into T slices.
    """
    for parameter in parameters:
        if parameter.shape[0] % num_slices:
            raise LayoutError(
                f"{parameter.name} must divide into {num_slices} slices, its first dimension is {parameter.shape[0]}"
            )
    places = {}
    for pipeline_index, stage_index, stage in plan.places():
        if num_slices % stage.tp_degree:
            raise LayoutError(f"a group may have at most {num_slices} devices, given {list(stage.devices)}")
        for tp_rank, device in enumerate(stage.devices):
            places[device] = Place(pipeline_index=pipeline_index, stage_index=stage_index, tp_rank=tp_rank, stage=stage)
    buckets = _buckets(plan, parameters, num_slices)
    return Layout(
        plan=plan,
        parameters=tuple(parameters),
        num_slices=num_slices,
        places=places,
        weights={device: _held(place, plan, parameters) for device, place in places.items()},
        buckets=buckets,
        states={
            device: tuple(span for bucket in buckets if device in bucket.owners for span in bucket.share(device))
            for device in places
        },
    )


def bucket_bound(parameters: Sequence[Parameter]) -> int:
    """Most elements of a bucket, unless a single slice is larger: an even part of the model within bounds.

    Small enough that the first buckets travel while most layers still compute, large enough that
    their number stays far below that of the parameters.
    """
    total = sum(parameter.num_elements for parameter in parameters)
    return min(MAX_BUCKET_ELEMENTS, max(MIN_BUCKET_ELEMENTS, total // NUM_BUCKETS))


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Adjacent spans joined; the order is kept."""
    result: list[Span] = []
    for span in spans:
        last = result[-1] if result else None
        if last and last.parameter == span.parameter and last.stop == span.start:
            result[-1] = Span(last.parameter, last.start, span.stop)
        else:
            result.append(span)
    return tuple(result)


def _held(place: Place, plan: Plan, parameters: Sequence[Parameter]) -> tuple[Span, ...]:
    spans = []
    degree = place.stage.tp_degree
    for parameter in parameters:
        if not parameter.is_on(place.stage.layers, plan.num_layers):
            continue
        if parameter.is_sliced:
            part = parameter.num_elements // degree
            spans.append(Span(parameter.index, place.tp_rank * part, (place.tp_rank + 1) * part))
        else:
            spans.append(Span(parameter.index, 0, parameter.num_elements))
    return tuple(spans)


def _buckets(plan: Plan, parameters: Sequence[Parameter], num_slices: int) -> tuple[Bucket, ...]:
    """Walks down from the last layer; a bucket that has reached its bound is closed, its owners get another."""
    bound = bucket_bound(parameters)
    filling: dict[tuple[int, ...], list[Span]] = {}
    buckets: list[Bucket] = []

    def close(owners: tuple[int, ...]) -> None:
        spans = filling.pop(owners)
        layer = min(_depth(parameters[span.parameter], plan.num_layers) for span in spans)
        buckets.append(Bucket(owners=owners, spans=merged(sorted(spans)), layer=layer))

    for parameter in sorted(parameters, key=lambda one: (-_depth(one, plan.num_layers), one.index)):
        stages = [stage for _, _, stage in plan.places() if parameter.is_on(stage.layers, plan.num_layers)]
        part = parameter.num_elements // num_slices
        for number in range(num_slices):
            owners = tuple(sorted(stage.devices[number * stage.tp_degree // num_slices] for stage in stages))
            size = sum(span.num_elements for span in filling.setdefault(owners, []))
            if size and size + part > bound:
                close(owners)
            filling.setdefault(owners, []).append(Span(parameter.index, number * part, (number + 1) * part))
    for owners in tuple(filling):
        close(owners)
    return tuple(sorted(buckets, key=lambda bucket: (-bucket.layer, bucket.owners, bucket.spans)))


def _depth(parameter: Parameter, num_layers: int) -> int:
    """The layer whose backward completes the parameter's gradient; past the last one for norm and head."""
    return {"first": -1, "ends": -1, "layer": parameter.layer, "last": num_layers}[parameter.place]
