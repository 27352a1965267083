"""What a what-if asks: a planning problem, complete, with what it started from and what it is weighed against.

The documents have the JSON forms of `planner.spec` and `planner.plan`; this package keeps them and does not
interpret them. The same request, solved again, has the same answer.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_LIMIT_S = 30.0
"""A what-if keeps a worker no longer than this: the plan of a run may be waiting behind it."""


class WhatIfRequest(BaseModel):
    """One question.

    Args:
        origin: what it starts from, as the page names it in addresses (`run-7`, `70b-64`).
        title: the same in words.
        rates: straggling rate by device; devices not named are healthy, inf means failed.
        current: document of the plan that is in use, to compare with; None if there is none.
        current_version: its version in the run.
        moves: `(bytes, pause seconds)` of the switches that the run has measured.
        num_steps: steps that a gain is expected to last.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    origin: str = Field(min_length=1, max_length=60)
    title: str = Field(max_length=200)
    cluster: dict[str, Any]
    profile: dict[str, Any]
    train: dict[str, Any]
    rates: dict[int, Annotated[float, Field(gt=0)]]
    current: dict[str, Any] | None = None
    current_version: int | None = None
    moves: tuple[tuple[float, float], ...] = ()
    num_steps: int = Field(200, ge=0)
    seed: int = Field(0, ge=0)
    time_limit_s: float = Field(MAX_LIMIT_S, gt=0, le=MAX_LIMIT_S)
