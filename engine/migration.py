"""Moving a job to another plan at a step boundary: prepare, vote, migrate, verify, commit or keep.

The old shard stays whole until the new one is verified, so whatever goes wrong before the commit
leaves every rank on the old plan. Transfers are computed by every rank from the two layouts.
Progress: transfers go in rounds of bounded buckets; all ranks walk the same rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from engine.agreement import vote
from engine.digest import shard_digests
from engine.groups import Groups, needed_groups
from engine.layout import Layout, Span
from engine.shard import Shard
from engine.spans import SpanTensors
from engine.transfers import Transfer, elements_sent, transfers

BUCKET_ELEMENTS = 1 << 20


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a switch did; equal on every rank.

    Args:
        shard: the shard to go on with, the old one if `reason` is not empty.
        phases: seconds by phase on this rank.
    """

    shard: Shard
    reason: str = ""
    bytes_moved: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    digests_before: dict[str, dict[str, str]] = field(default_factory=dict)
    digests_after: dict[str, dict[str, str]] = field(default_factory=dict)


def migrate(old: Shard, make_layout: Callable[[], Layout], groups: Groups, node_of: Callable[[int], int]) -> Outcome:
    """Moves the job from the layout of `old` to another.

    Args:
        make_layout: builds the new layout; a ValueError it raises is a refusal of the plan, with
            its message as the reason.

    Collective: all ranks of the world, at a step boundary.
    """
    outcome = Outcome(shard=old)
    started = time.perf_counter()
    new, problem = _prepare(old, make_layout)
    reason = vote(problem)
    outcome.phases["prepare"] = time.perf_counter() - started
    if reason or new is None:
        outcome.reason = reason
        return outcome
    groups.prepare(needed_groups(new.layout))
    outcome.digests_before = shard_digests(old)
    diverged = [name for name, row in outcome.digests_before.items() if "diverged" in row.values()]
    if diverged:
        groups.retain(needed_groups(old.layout))
        outcome.reason = f"replicas of {', '.join(diverged)} differ already, nothing is moved"
        return outcome
    moved = time.perf_counter()
    outcome.phases["prepare"] = moved - started
    weights = transfers(old.layout.weights, new.layout.weights, node_of)
    states = transfers(old.layout.states, new.layout.states, node_of)
    for name, target in new.tensors().items():
        moves = weights if name == "weight" else states
        source = old.tensors()[name]
        _move(moves, source, target, old.device)
        outcome.bytes_moved += elements_sent(moves) * target.dtype.itemsize
    outcome.phases["migrate"] = time.perf_counter() - moved
    verified = time.perf_counter()
    outcome.digests_after = shard_digests(new)
    outcome.phases["verify"] = time.perf_counter() - verified
    if outcome.digests_after != outcome.digests_before:
        groups.retain(needed_groups(old.layout))
        outcome.reason = "digests differ after the migration; the old plan is kept"
        return outcome
    groups.retain(needed_groups(new.layout))
    new.num_updates = old.num_updates
    outcome.shard = new
    return outcome


def _prepare(old: Shard, make_layout: Callable[[], Layout]) -> tuple[Shard | None, str]:
    dtype, state_dtype = old.weights.dtype, old.states["master"].dtype
    try:
        return Shard(make_layout(), old.device, dtype, state_dtype, old.torch_device), ""
    except (ValueError, RuntimeError, MemoryError) as error:
        return None, str(error) or type(error).__name__


def _move(moves: tuple[Transfer, ...], source: SpanTensors, target: SpanTensors, device: int) -> None:
    for move in moves:
        if move.source == move.target == device:
            target.view(move.span).copy_(source.view(move.span))
    streams: dict[tuple[int, int], list[Span]] = {}
    for move in moves:
        if move.source != move.target:
            streams.setdefault((move.source, move.target), []).append(move.span)
    chunks = {pair: _chunks(spans) for pair, spans in sorted(streams.items())}
    for number in range(max((len(parts) for parts in chunks.values()), default=0)):
        turn = [(pair, parts[number]) for pair, parts in chunks.items() if number < len(parts)]
        _round(turn, source, target, device)


def _round(
    turn: list[tuple[tuple[int, int], list[Span]]], source: SpanTensors, target: SpanTensors, device: int
) -> None:
    operations, arrivals = [], []
    for (sender, receiver), spans in turn:
        if device == sender:
            operations.append(dist.P2POp(dist.isend, source.gather(spans), receiver))
        elif device == receiver:
            size = sum(span.num_elements for span in spans)
            landing: Tensor = torch.empty(size, dtype=target.dtype, device=target.torch_device)
            operations.append(dist.P2POp(dist.irecv, landing, sender))
            arrivals.append((spans, landing))
    if operations:
        for request in dist.batch_isend_irecv(operations):
            request.wait()
    for spans, landing in arrivals:
        target.scatter(spans, landing)


def _chunks(spans: list[Span]) -> list[list[Span]]:
    """The spans of one pair cut into buckets of at most `BUCKET_ELEMENTS`."""
    chunks: list[list[Span]] = [[]]
    room = BUCKET_ELEMENTS
    for span in spans:
        start = span.start
        while start < span.stop:
            if not room:
                chunks.append([])
                room = BUCKET_ELEMENTS
            stop = min(span.stop, start + room)
            chunks[-1].append(Span(span.parameter, start, stop))
            room -= stop - start
            start = stop
    return chunks
