"""From which value on a measurement is worth a look (`warn`) or wrong (`bad`): one table for all who judge.

The controller remembers since when a measurement stands where it stands; page and command line judge by the
same limits. Measures nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "bad", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Values above `warn` are worth a look, values above `bad` are wrong."""

    warn: float
    bad: float


LIMITS: Mapping[str, Limits] = {
    "silence_s": Limits(warn=4.0, bad=15.0),  # of the controller, which beats every second
    "data_age_s": Limits(warn=5.0, bad=15.0),  # of a run whose steps are short
    "canary_s": Limits(warn=20.0, bad=60.0),  # asked every few seconds
    "busy_s": Limits(warn=60.0, bad=600.0),  # one search
    "round_trip_s": Limits(warn=0.05, bad=1.0),
    "memory_share": Limits(warn=0.8, bad=0.95),
    "lag_s": Limits(warn=5.0, bad=30.0),
    "loop_s": Limits(warn=1.0, bad=5.0),
    "write_s": Limits(warn=0.5, bad=5.0),
    "skew_s": Limits(warn=2.0, bad=30.0),
    "num_missing": Limits(warn=0, bad=1_000),
    "num_refused": Limits(warn=0, bad=1_000),
    "disk_share": Limits(warn=0.9, bad=0.97),
}


def level(name: str, value: float | None) -> Level:
    """Where a value stands; nothing and NaN are unknown, never ok."""
    if value is None or math.isnan(value):
        return "unknown"
    limits = LIMITS[name]
    return "bad" if value > limits.bad else "warn" if value > limits.warn else "ok"
