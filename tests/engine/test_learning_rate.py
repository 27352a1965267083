"""The schedule as a table of steps and rates."""

from __future__ import annotations

import math
from typing import Any

import pytest

from db.run_config import TrainConfig
from engine.learning_rate import learning_rate

COSINE = {"learning_rate": 1.0, "min_learning_rate": 0.2, "warmup_steps": 4, "num_steps": 12, "decay": "cosine"}


@pytest.mark.parametrize(
    ("fields", "step", "expected"),
    [
        ({"learning_rate": 0.5}, 0, 0.5),  # no schedule
        ({"learning_rate": 0.5}, 10**9, 0.5),
        ({"learning_rate": 0.5, "warmup_steps": 4}, 0, 0.125),  # the first step does something already
        ({"learning_rate": 0.5, "warmup_steps": 4}, 2, 0.375),
        ({"learning_rate": 0.5, "warmup_steps": 4}, 3, 0.5),  # the last one of the warm-up has the full rate
        ({"learning_rate": 0.5, "warmup_steps": 4}, 4, 0.5),
        ({"learning_rate": 0.5, "warmup_steps": 1}, 0, 0.5),
        (COSINE, 1, 0.5),
        (COSINE, 3, 1.0),
        (COSINE, 4, 1.0),  # cosine is flat where it starts
        (COSINE, 6, 0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2),  # a quarter of the way
        (COSINE, 8, 0.6),  # half way
        (COSINE, 12, 0.2),  # the step after the last
        (COSINE, 50, 0.2),
        (COSINE | {"warmup_steps": 0}, 6, 0.6),
        (COSINE | {"warmup_steps": 12}, 11, 1.0),  # nothing is left for the decay
        (COSINE | {"warmup_steps": 12}, 12, 0.2),
        (COSINE | {"warmup_steps": 24}, 11, 0.5),  # a run shorter than its warm-up
        (COSINE | {"min_learning_rate": 0.0}, 12, 0.0),
    ],
)
def test_the_rate_of_a_step(fields: dict[str, Any], step: int, expected: float) -> None:
    assert learning_rate(TrainConfig.model_validate(fields), step) == pytest.approx(expected, abs=1e-15)


def test_decay_never_rises() -> None:
    config = TrainConfig.model_validate(COSINE)
    rates = [learning_rate(config, step) for step in range(3, 20)]
    assert rates == sorted(rates, reverse=True)
