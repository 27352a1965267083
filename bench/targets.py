"""What was aimed at, against what was measured. Pure: rows in, one row out."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence

from bench.playing import Row

LEAST_EFFICIENCY = {"S1": 0.90, "S2": 0.90, "S3": 0.90, "S4": 0.85, "S5": 0.85, "S6": 0.85}
LEAST_GAIN = {"S1": 1.8, "S2": 3.5}
LEAST_DRIFT = {"a": 2.0, "c": 1.5}


def summary(rows: Sequence[Row]) -> Row:
    """The targets, each with what was measured; `is_met` is None where something is missing."""
    found = {(row["devices"], row["situation"], row["variant"]): row for row in rows}
    targets = []

    def add(name: str, devices: int, value: float | None, least: float) -> None:
        is_met = None if value is None else value >= least
        targets.append({"target": name, "devices": devices, "value": value, "least": least, "is_met": is_met})

    def ratio(over: Row | None, under: Row | None, field: str) -> float | None:
        if over is None or under is None or not over.get(field) or not under.get(field):
            return None
        return float(over[field]) / float(under[field])

    for devices in sorted({row["devices"] for row in rows}):
        for name, least in LEAST_EFFICIENCY.items():
            row = found.get((devices, name, "b"))
            add(f"efficiency {name}", devices, None if row is None else row["efficiency"], least)
        for name, least in LEAST_GAIN.items():
            value = ratio(found.get((devices, name, "a")), found.get((devices, name, "b")), "step_s")
            add(f"gain {name} over a", devices, value, least)
        for variant, least in LEAST_DRIFT.items():
            over, under = found.get((devices, "drift", variant)), found.get((devices, "drift", "b"))
            is_alike = over is not None and under is not None and over["steps_a_phase"] == under["steps_a_phase"]
            add(f"drift over {variant}", devices, ratio(over, under, "total_s") if is_alike else None, least)
            if over is not None and under is not None:
                targets[-1]["met_from_steps"] = steps_needed(over, under, least)
    return {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "targets": targets,
        "num_met": sum(target["is_met"] is True for target in targets),
        "num_missed": sum(target["is_met"] is False for target in targets),
    }


def steps_needed(over: Row, under: Row, least: float) -> int | None:
    """Steps a phase from which one drift takes `least` times as long as another; None: however long, it does not.

    A phase costs what it costs to settle (detection, switch, restart), once, and then its last step's time for each
    step: measured drifts of any length say so for all lengths, as long as their phases had time to settle.
    """

    def line_of(row: Row) -> tuple[float, float]:
        slope = sum(row["last_step_s"])
        return row["total_s"] - slope * row["steps_a_phase"], slope

    if not all(row.get("total_s") and None not in row["last_step_s"] for row in (over, under)):
        return None
    (over_once, over_each), (under_once, under_each) = line_of(over), line_of(under)
    gain, debt = over_each - least * under_each, least * under_once - over_once
    if debt <= 0:
        return 1 if gain >= 0 else None
    return math.ceil(debt / gain) if gain > 0 else None
