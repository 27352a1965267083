"""Gradient sync and the update: ZeRO-1 over slices.

For each bucket its owners (one a pipeline) reduce-scatter the gradients, each updates its share of
fp32 master weights and AdamW moments, and they all-gather the new weights. Replicated parameters are
updated by the owner of each slice and then gathered inside the TP group.
Source: Rajbhandari et al. 2020 (ZeRO stage 1); Loshchilov and Hutter 2019 (AdamW).
"""

from __future__ import annotations

import torch
from torch import Tensor

from db.run_config import TrainConfig
from engine.collectives import all_gather, reduce_scatter
from engine.groups import Groups
from engine.layout import Bucket, Span
from engine.shard import Shard


class Optimizer:
    """Updates one rank's shard.

    Collective: `step` is called by every computing rank after its last backward. Buckets are
    visited in the layout's order on every rank, so no two ranks wait for each other crosswise.
    """

    def __init__(self, shard: Shard, groups: Groups, config: TrainConfig) -> None:
        self._shard, self._groups, self._config = shard, groups, config
        self._buckets = [bucket for bucket in shard.layout.buckets if shard.device in bucket.owners]
        self._decay = self._decay_of_states()

    def step(self) -> None:
        """Sums gradients over pipelines, updates, and brings the new weights to every holder."""
        shard = self._shard
        if shard.device not in shard.layout.places:
            shard.num_updates += 1
            return
        gradient = torch.cat([self._reduce_scatter(bucket) for bucket in self._buckets])
        self._update(gradient.to(shard.states["master"].buffer.dtype))
        offset = 0
        for bucket in self._buckets:
            length = sum(span.num_elements for span in bucket.share(shard.device))
            self._all_gather(bucket, shard.states["master"].buffer[offset : offset + length])
            offset += length
        self._gather_replicated()
        shard.grads.buffer.zero_()

    def _reduce_scatter(self, bucket: Bucket) -> Tensor:
        gradient = self._shard.grads.gather(bucket.spans)
        group = self._groups.of(bucket.owners)
        if group is None:
            return gradient
        share = reduce_scatter(_padded(gradient, bucket), len(bucket.owners), group)
        return share[: sum(span.num_elements for span in bucket.share(self._shard.device))]

    def _update(self, gradient: Tensor) -> None:
        config, shard = self._config, self._shard
        master, mean, square = (shard.states[name].buffer for name in ("master", "exp_avg", "exp_avg_sq"))
        shard.num_updates += 1
        mean.lerp_(gradient, 1 - config.beta1)
        square.mul_(config.beta2).addcmul_(gradient, gradient, value=1 - config.beta2)
        scale = (square / (1 - config.beta2**shard.num_updates)).sqrt_().add_(config.eps)
        master.mul_(self._decay)
        master.addcdiv_(mean, scale, value=-config.learning_rate / (1 - config.beta1**shard.num_updates))

    def _all_gather(self, bucket: Bucket, share: Tensor) -> None:
        weights = self._shard.weights
        share = share.to(weights.buffer.dtype)
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

    def _decay_of_states(self) -> Tensor:
        master = self._shard.states["master"]
        keep = 1 - self._config.learning_rate * self._config.weight_decay
        parameters = self._shard.layout.parameters
        factors = [
            torch.full(
                (span.num_elements,),
                keep if parameters[span.parameter].is_decayed else 1.0,
                dtype=master.buffer.dtype,
            )
            for span in master.spans
        ]
        return torch.cat(factors) if factors else torch.empty(0)


def _padded(values: Tensor, bucket: Bucket) -> Tensor:
    missing = bucket.share_elements * len(bucket.owners) - len(values)
    return torch.nn.functional.pad(values, (0, missing)) if missing else values


def _part(span: Span, member: int, degree: int) -> Span:
    part = span.num_elements // degree
    return Span(span.parameter, span.start + member * part, span.start + (member + 1) * part)
