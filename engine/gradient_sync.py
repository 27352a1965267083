"""Gradient sync between pipelines, and the way back: ZeRO-1 over slices.

For each bucket its owners (one a pipeline, two where its ends are tied) reduce-scatter the gradients, so that each
has the sum for its share; `engine.optimizer` updates the share's master weights; then the owners all-gather the new
weights. Replicated parameters are updated by the owner of each slice and then gathered inside the
TP group. A bucket starts as soon as the step's last backward has passed its layers, so its messages
travel while the earlier layers still compute.
Source: Rajbhandari et al. 2020 (ZeRO stage 1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.collectives import StartedAllGather, StartedReduceScatter
from engine.layout import Bucket, Span
from engine.links import Links
from engine.shard import Shard
from engine.step_trace import Recorder


class GradientSync:
    """Brings one rank's gradients to where they are used, and new weights to where they are needed.

    Collective: every computing rank calls `passed` from within its last backward (or not at all), then
    `reduce`, then `spread`. Buckets start in the layout's order on every rank, so any two owners send
    each other the same buckets in the same order.
    """

    def __init__(self, shard: Shard, links: Links, recorder: Recorder | None = None) -> None:
        self._shard, self._links, self._recorder = shard, links, recorder or Recorder()
        self._buckets = [
            (tag, bucket) for tag, bucket in enumerate(shard.layout.buckets) if shard.device in bucket.owners
        ]
        self._started: list[StartedReduceScatter] = []

    def passed(self, layer: int) -> None:
        """The step's last backward has passed `layer` (-1: the embedding): starts what is complete by now."""
        while len(self._started) < len(self._buckets):
            tag, bucket = self._buckets[len(self._started)]
            if bucket.layer < layer:
                return
            self._started.append(self._start(tag, bucket))

    def reduce(self) -> list[Tensor]:
        """The gradient summed over pipelines, a tensor for each span of the shard's states. Collective."""
        master = self._shard.states["master"]
        parts: list[Tensor] = []
        with self._recorder.span("reduce gradients", "sync"):
            self.passed(-1)
            for (_, bucket), started in zip(self._buckets, self._started, strict=True):
                share = started.wait().to(master.dtype)
                parts += share.split([span.num_elements for span in bucket.share(self._shard.device)])
        self._started.clear()
        return parts

    def spread(self) -> None:
        """New weights, from the master weights of each share, on every holder; gradients are zero again. Collective."""
        with self._recorder.span("gather weights", "sync"):
            self._gather_buckets()
            self._gather_replicated()
        torch._foreach_zero_(self._shard.grads.tensors)

    def _start(self, tag: int, bucket: Bucket) -> StartedReduceScatter:
        parts = self._shard.grads.gather(bucket.spans).split(_lengths(bucket))
        return StartedReduceScatter(parts, bucket.owners, self._shard.device, self._links, tag)

    def _gather_buckets(self) -> None:
        weights, master, device = self._shard.weights, self._shard.states["master"], self._shard.device
        started = []
        for tag, bucket in self._buckets:
            share = master.gather(bucket.share(device)).to(weights.dtype)
            started.append(StartedAllGather(share, _lengths(bucket), bucket.owners, device, self._links, tag))
        for (_, bucket), gathering in zip(self._buckets, started, strict=True):
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
        gathering = StartedAllGather(own, lengths, stage.devices, device, self._links, tag=0)
        for part, values in zip(parts, gathering.wait(), strict=True):
            weights.scatter(part, values)


def _lengths(bucket: Bucket) -> list[int]:
    """Elements of each owner's share, in order of the owners."""
    return [sum(span.num_elements for span in bucket.share(owner)) for owner in bucket.owners]


def _part(span: Span, member: int, degree: int) -> Span:
    part = span.num_elements // degree
    return Span(span.parameter, span.start + member * part, span.start + (member + 1) * part)
