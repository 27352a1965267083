"""The update of one rank's share of master weights: AdamW.

`engine.gradient_sync` brings the summed gradient of the share and spreads the new weights.
Source: Loshchilov and Hutter 2019 (AdamW).
"""

from __future__ import annotations

import torch

from db.run_config import TrainConfig
from engine.gradient_sync import GradientSync
from engine.groups import Groups
from engine.shard import Shard


class Optimizer:
    """Updates one rank's shard.

    Collective: `step` is called by every rank after its last backward.
    """

    def __init__(self, shard: Shard, groups: Groups, config: TrainConfig) -> None:
        self._shard, self._config = shard, config
        self._sync = GradientSync(shard, groups)
        parameters = shard.layout.parameters
        self._is_decayed = [parameters[span.parameter].is_decayed for span in shard.states["master"].spans]

    def step(self) -> None:
        """Sums gradients over pipelines, updates, and brings the new weights to every holder."""
        self._shard.num_updates += 1
        if self._shard.device in self._shard.layout.places:
            self._update(self._sync.reduce())
            self._sync.spread()

    def _update(self, gradients: list[torch.Tensor]) -> None:
        config, num_updates = self._config, self._shard.num_updates
        masters, means, squares = (self._shard.states[name].tensors for name in ("master", "exp_avg", "exp_avg_sq"))
        keep = 1 - config.learning_rate * config.weight_decay
        rate = -config.learning_rate / (1 - config.beta1**num_updates)
        for master, mean, square, gradient, is_decayed in zip(
            masters, means, squares, gradients, self._is_decayed, strict=True
        ):
            mean.lerp_(gradient, 1 - config.beta1)
            square.mul_(config.beta2).addcmul_(gradient, gradient, value=1 - config.beta2)
            scale = (square / (1 - config.beta2**num_updates)).sqrt_().add_(config.eps)
            if is_decayed:
                master.mul_(keep)
            master.addcdiv_(mean, scale, value=rate)
