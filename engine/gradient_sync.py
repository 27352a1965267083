"""Gradient sync between pipelines, and the way back: ZeRO-1 over slices.

For each bucket its owners (one a pipeline, two where its ends are tied) reduce-scatter the gradients, so that each
has the sum for its share; `engine.optimizer` updates the share's master weights; then the owners all-gather the new
weights. Replicated parameters are updated by the owner of each slice and then gathered inside the
TP group. By messages, a bucket starts as soon as the step's last backward has passed its layers, so it
travels while the earlier layers still compute. In process groups (GPUs) buckets follow the last backward one by one,
in an order that all ranks share: a rank has one collective in flight, and none crosses a message between stages.
Source: Rajbhandari et al. 2020 (ZeRO stage 1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.collectives import StartedAllGather, StartedReduceScatter, all_gather_in_group, reduce_scatter_in_group
from engine.groups import Groups
from engine.layout import Bucket, Span
from engine.links import Links
from engine.shard import Shard
from engine.step_trace import Recorder


class GradientSync:
    """Brings one rank's gradients to where they are used, and new weights to where they are needed.

    Collective: every computing rank calls `passed` from within its last backward (or not at all), then
    `reduce`, then `spread`. Buckets start in the layout's order on every rank, so any two owners send
    each other the same buckets in the same order.

    Args:
        links: for messages, where `groups` are not used.
        groups: has the owners of every bucket and the TP groups, if they are used.
    """

    def __init__(self, shard: Shard, links: Links, groups: Groups, recorder: Recorder | None = None) -> None:
        self._shard, self._links, self._groups, self._recorder = shard, links, groups, recorder or Recorder()
        self._buckets = [
            (tag, bucket) for tag, bucket in enumerate(shard.layout.buckets) if shard.device in bucket.owners
        ]
        self._started: list[StartedReduceScatter] = []

    def passed(self, layer: int) -> None:
        """The step's last backward has passed `layer` (-1: the embedding): starts what is complete by now."""
        while not self._groups.is_used and len(self._started) < len(self._buckets):
            tag, bucket = self._buckets[len(self._started)]
            if bucket.layer < layer:
                return
            ranks, device = bucket.owners, self._shard.device
            self._started.append(StartedReduceScatter(self._parts(bucket), ranks, device, self._links, tag))

    def reduce(self) -> list[Tensor]:
        """The gradient summed over pipelines, a tensor for each span of the shard's states. Collective."""
        device, master = self._shard.device, self._shard.states["master"]
        sums: list[Tensor] = []
        with self._recorder.span("reduce gradients", "sync"):
            self.passed(-1)
            for index, (_, bucket) in enumerate(self._buckets):
                if self._groups.is_used:
                    group = self._groups.of(bucket.owners)
                    share = reduce_scatter_in_group(self._parts(bucket), bucket.owners.index(device), group)
                else:
                    share = self._started[index].wait()
                sums += share.to(master.dtype).split([span.num_elements for span in bucket.share(device)])
        self._started.clear()
        return sums

    def spread(self) -> None:
        """New weights, from the master weights of each share, on every holder; gradients are zero again. Collective."""
        with self._recorder.span("gather weights", "sync"):
            self._gather_buckets()
            self._gather_replicated()
        torch._foreach_zero_(self._shard.grads.tensors)

    def _parts(self, bucket: Bucket) -> tuple[Tensor, ...]:
        return self._shard.grads.gather(bucket.spans).split(_lengths(bucket))

    def _gather_buckets(self) -> None:
        weights, master, device = self._shard.weights, self._shard.states["master"], self._shard.device
        started = []
        for tag, bucket in self._buckets:
            share = master.gather(bucket.share(device)).to(weights.dtype)
            if self._groups.is_used:
                whole = all_gather_in_group(share, _lengths(bucket), self._groups.of(bucket.owners))
                weights.scatter(bucket.spans, torch.cat(whole))
            else:
                gathering = StartedAllGather(share, _lengths(bucket), bucket.owners, device, self._links, tag)
                started.append((bucket, gathering))
        for bucket, gathering in started:
            weights.scatter(bucket.spans, torch.cat(gathering.wait()))

    def _gather_replicated(self) -> None:
        layout, weights, device = self._shard.layout, self._shard.weights, self._shard.device
        stage = layout.places[device].stage
        spans = [span for span in weights.spans if not layout.parameters[span.parameter].is_sliced]
        if not spans or stage.tp_degree == 1:
            return
        parts = [[_part(span, member, stage.tp_degree) for span in spans] for member in range(stage.tp_degree)]
        own = weights.gather(parts[stage.devices.index(device)])
        lengths = [len(own)] * stage.tp_degree
        ranks = tuple(sorted(stage.devices))  # the order of the members of a process group
        if self._groups.is_used:
            gathered = all_gather_in_group(own, lengths, self._groups.of(stage.devices))
        else:
            gathered = StartedAllGather(own, lengths, ranks, device, self._links, tag=0).wait()
        for rank, values in zip(ranks, gathered, strict=True):
            weights.scatter(parts[stage.devices.index(rank)], values)


def _lengths(bucket: Bucket) -> list[int]:
    """Elements of each owner's share, in order of the owners."""
    return [sum(span.num_elements for span in bucket.share(owner)) for owner in bucket.owners]


def _part(span: Span, member: int, degree: int) -> Span:
    part = span.num_elements // degree
    return Span(span.parameter, span.start + member * part, span.start + (member + 1) * part)
