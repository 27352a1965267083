"""Gradient sync between pipelines, and the way back: ZeRO-1 over slices.

For each bucket its owners (one a pipeline, two where its ends are tied) reduce-scatter the gradients, so that each
has the sum for its share; `engine.optimizer` updates the share's master weights; then the owners all-gather the new
weights. Replicated parameters are updated by the owner of each slice and then gathered inside the
TP group.
Source: Rajbhandari et al. 2020 (ZeRO stage 1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.collectives import all_gather, reduce_scatter
from engine.groups import Groups
from engine.layout import Bucket, Span
from engine.shard import Shard


class GradientSync:
    """Brings one rank's gradients to where they are used, and new weights to where they are needed.

    Collective: every computing rank calls `reduce` after its last backward, then `spread`. Buckets are
    visited in the layout's order on every rank, so no two ranks wait for each other crosswise.
    """

    def __init__(self, shard: Shard, groups: Groups) -> None:
        self._shard, self._groups = shard, groups
        self._buckets = [bucket for bucket in shard.layout.buckets if shard.device in bucket.owners]

    def reduce(self) -> list[Tensor]:
        """The gradient summed over pipelines, a tensor for each span of the shard's states. Collective."""
        master = self._shard.states["master"]
        parts: list[Tensor] = []
        for bucket in self._buckets:
            share = self._reduce_scatter(bucket).to(master.dtype)
            parts += share.split([span.num_elements for span in bucket.share(self._shard.device)])
        return parts

    def spread(self) -> None:
        """New weights, from the master weights of each share, on every holder; gradients are zero again. Collective."""
        for bucket in self._buckets:
            self._all_gather(bucket)
        self._gather_replicated()
        torch._foreach_zero_(self._shard.grads.tensors)

    def _reduce_scatter(self, bucket: Bucket) -> Tensor:
        gradient = self._shard.grads.gather(bucket.spans)
        group = self._groups.of(bucket.owners)
        if group is None:
            return gradient
        share = reduce_scatter(_padded(gradient, bucket), len(bucket.owners), group)
        return share[: sum(span.num_elements for span in bucket.share(self._shard.device))]

    def _all_gather(self, bucket: Bucket) -> None:
        weights = self._shard.weights
        share = self._shard.states["master"].gather(bucket.share(self._shard.device)).to(weights.dtype)
        group = self._groups.of(bucket.owners)
        if group is None:
            weights.scatter(bucket.spans, share)
            return
        padded = torch.nn.functional.pad(share, (0, bucket.share_elements - len(share)))
        weights.scatter(bucket.spans, all_gather(padded, len(bucket.owners), group))

    def _gather_replicated(self) -> None:
        place = self._shard.layout.places[self._shard.device]
        group = self._groups.of(place.stage.devices)
        if group is None:
            return
        weights, degree = self._shard.weights, place.stage.tp_degree
        spans = [span for span in weights.spans if not self._shard.layout.parameters[span.parameter].is_sliced]
        if not spans:
            return
        own = weights.gather([_part(span, place.tp_rank, degree) for span in spans])
        for device, values in zip(
            sorted(place.stage.devices), all_gather(own, degree, group).chunk(degree), strict=True
        ):
            member = place.stage.devices.index(device)
            weights.scatter([_part(span, member, degree) for span in spans], values)


def _padded(values: Tensor, bucket: Bucket) -> Tensor:
    missing = bucket.share_elements * len(bucket.owners) - len(values)
    return torch.nn.functional.pad(values, (0, missing)) if missing else values


def _part(span: Span, member: int, degree: int) -> Span:
    part = span.num_elements // degree
    return Span(span.parameter, span.start + member * part, span.start + (member + 1) * part)
