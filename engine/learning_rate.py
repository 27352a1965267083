"""The learning rate of a step: linear warm-up, then constant or cosine decay.

A pure function of configuration and step, so a run that goes on from a checkpoint, or under another
plan, needs no schedule state. A step whose update is skipped uses up its place in the schedule.
"""

from __future__ import annotations

import math

from db.run_config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """The rate of the update that ends step `step`, counted from 0.

    Warm-up rises in equal parts and reaches `learning_rate` in its last step, so no step is spent at
    rate 0. Cosine starts from there and would reach `min_learning_rate` in step `num_steps`, the first
    one after the run; beyond it the rate stays there.
    Source: Loshchilov and Hutter 2017 (SGDR), equation 5, without restarts.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.decay == "constant":
        return config.learning_rate
    if step >= config.num_steps:
        return config.min_learning_rate
    progress = (step - config.warmup_steps) / (config.num_steps - config.warmup_steps)
    falling = (1 + math.cos(math.pi * progress)) / 2
    return config.min_learning_rate + (config.learning_rate - config.min_learning_rate) * falling
