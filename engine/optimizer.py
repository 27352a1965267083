"""The update of one rank's share of master weights: clipping by the global norm, then AdamW.

`engine.gradient_sync` brings the summed gradient of the share and spreads the new weights. The shares
of all ranks are a partition of all elements, so the norm is one sum over the world.
Source: Loshchilov and Hutter 2019 (AdamW); Pascanu et al. 2013 (clipping by norm).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from db.run_config import TrainConfig
from engine.collectives import world_sum
from engine.gradient_sync import GradientSync
from engine.groups import Groups
from engine.links import Links
from engine.placement import CPU
from engine.shard import Shard
from engine.step_trace import Recorder

_TINY = 1e-6
"""Keeps the clipping factor finite; the value of `torch.nn.utils.clip_grad_norm_`."""


class Optimizer:
    """Updates one rank's shard.

    Collective: `step` is called by every rank of the world after its last backward, standby ones too.

    Args:
        links: for tensors on the host.
        groups: see `GradientSync`.
    """

    def __init__(
        self, shard: Shard, links: Links, groups: Groups, config: TrainConfig, recorder: Recorder | None = None
    ) -> None:
        self._shard, self._config, self._links, self._recorder = shard, config, links, recorder or Recorder()
        self.sync = GradientSync(shard, links, groups, recorder)
        parameters = shard.layout.parameters
        self._is_decayed = [parameters[span.parameter].is_decayed for span in shard.states["master"].spans]

    def step(self, learning_rate: float) -> float:
        """Sums gradients over pipelines, clips, updates, and brings the new weights to every holder.

        If the norm is not finite, no rank updates anything: weights, moments and `num_updates` stay,
        the gradients are dropped.

        Returns:
            The global norm of the gradient before clipping, the same on every rank.
        """
        is_computing = self._shard.device in self._shard.layout.places
        gradients = self.sync.reduce() if is_computing else []
        norm = _global_norm(gradients, self._links)
        if not math.isfinite(norm):
            for gradient in self._shard.grads.tensors:
                gradient.zero_()
            return norm
        self._shard.num_updates += 1
        if is_computing:
            with self._recorder.span("update", "update"):
                self._clip(gradients, norm)
                self._update(gradients, learning_rate)
            self.sync.spread()
        return norm

    def _clip(self, gradients: list[Tensor], norm: float) -> None:
        most = self._config.max_grad_norm
        if most and norm + _TINY > most:
            for gradient in gradients:
                gradient.mul_(most / (norm + _TINY))

    def _update(self, gradients: list[Tensor], learning_rate: float) -> None:
        config, num_updates = self._config, self._shard.num_updates
        masters, means, squares = (self._shard.states[name].tensors for name in ("master", "exp_avg", "exp_avg_sq"))
        keep = 1 - learning_rate * config.weight_decay
        rate = -learning_rate / (1 - config.beta1**num_updates)
        for master, mean, square, gradient, is_decayed in zip(
            masters, means, squares, gradients, self._is_decayed, strict=True
        ):
            mean.lerp_(gradient, 1 - config.beta1)
            square.mul_(config.beta2).addcmul_(gradient, gradient, value=1 - config.beta2)
            scale = (square / (1 - config.beta2**num_updates)).sqrt_().add_(config.eps)
            if is_decayed:
                master.mul_(keep)
            master.addcdiv_(mean, scale, value=rate)


def _global_norm(gradients: list[Tensor], links: Links) -> float:
    """Norm over the gradients of all ranks, in float64; the host waits for them. Collective: all ranks of the world."""
    squares = [torch.linalg.vector_norm(gradient, dtype=torch.float64) ** 2 for gradient in gradients]
    total = torch.stack(squares).sum().cpu() if squares else torch.zeros((), dtype=torch.float64, device=CPU)
    return math.sqrt(float(world_sum(total[None], links)))
