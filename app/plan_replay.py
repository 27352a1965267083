"""Searches for a bundle's plan again, and compares the answer with the one in the bundle.

The search is deterministic: same input, same plan. What a clock had a hand in may differ: how long it took, and the
answer of a search that its time limit cut short.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.plan_bundle import Bundle
from db.errors import InputError
from planner.errors import PlannerError
from planner.plan import Plan
from planner.solve import SolveResult, solve
from planner.spec import ClusterSpec, ModelProfile, TrainSpec

TOLERANCE = 1e-9
"""Relative difference up to which two step times are the same (another machine may round differently)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing in which the two answers differ."""

    what: str
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        return f"{self.what}: {_shown(self.recorded)} in the bundle, {_shown(self.replayed)} now"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What came of it.

    Args:
        seconds: what the search took.
        is_cut_short: one of the two searches met its time limit, so they need not agree.
    """

    run: Any
    version: Any
    differences: tuple[Difference, ...]
    seconds: float
    is_cut_short: bool

    @property
    def is_same(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "version": self.version,
            "same": self.is_same,
            "seconds": self.seconds,
            "cut_short": self.is_cut_short,
            "differences": [
                {"what": entry.what, "recorded": entry.recorded, "replayed": entry.replayed}
                for entry in self.differences
            ],
        }

    def sentences(self) -> list[str]:
        """The outcome in lines: the verdict first."""
        name = f"plan {self.version} of run {self.run}"
        if self.is_same:
            return [f"same: {name} comes out again, found in {self.seconds:.2f} s"]
        lines = [f"different: {name} does not come out again, searched for {self.seconds:.2f} s"]
        lines += [f"  {entry}" for entry in self.differences]
        if self.is_cut_short:
            lines.append("  the time limit cut a search short: on a machine of another speed the answer may differ")
        return lines


def replay(bundle: Bundle, *, clock: Callable[[], float] = time.monotonic) -> Replay:
    """Searches again.

    Raises:
        InputError: the bundle's documents are malformed.
    """
    job = bundle.job
    try:
        result = solve(
            cluster=ClusterSpec.from_json(job["cluster"]),
            profile=ModelProfile.from_json(job["profile"]),
            train=TrainSpec.from_json(job["train"]),
            rates={int(device): float(rate) for device, rate in job["rates"].items()},
            current=None if job["current"] is None else Plan.from_json(job["current"]),
            seed=job["seed"],
            time_limit_s=float(job["time_limit_s"]),
            clock=clock,
        )
    except (PlannerError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"the bundle's job cannot be searched: {error}") from None
    replayed = _answer(result)
    return Replay(
        run=bundle.about["run"],
        version=bundle.about["version"],
        differences=tuple(_differences(bundle.answer, replayed)),
        seconds=result.seconds,
        is_cut_short="time-limited" in (bundle.answer["status"], replayed["status"]),
    )


def _answer(result: SolveResult) -> dict[str, Any]:
    """In the words of a plan row."""
    best = result.best
    return {
        "status": result.status,
        "document": None if best is None or best.is_current else best.plan.to_json(),
        "predicted_s": None if best is None else best.step_s,
        "current_s": result.current_s,
        "bound_s": result.bound_s,
        "runners_up": [ranked.to_json() for ranked in result.plans[1:]],
    }


def _differences(recorded: dict[str, Any], replayed: dict[str, Any]) -> list[Difference]:
    names = {"status": "status", "predicted_s": "predicted step", "current_s": "step of staying", "bound_s": "bound"}
    found = [
        Difference(what=what, recorded=recorded[name], replayed=replayed[name])
        for name, what in names.items()
        if not _is_same(recorded[name], replayed[name])
    ]
    if not _is_same(recorded["document"], replayed["document"]):
        found.append(Difference(what="plan", recorded=recorded["document"], replayed=replayed["document"]))
    before, after = recorded["runners_up"] or [], replayed["runners_up"]
    if len(before) != len(after):
        found.append(Difference(what="runners-up", recorded=len(before), replayed=len(after)))
    else:
        found += [
            Difference(what=f"runner-up {place}", recorded=old, replayed=new)
            for place, (old, new) in enumerate(zip(before, after, strict=True), start=2)
            if not _is_same(old, new)
        ]
    return found


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, float | int) and isinstance(other, float | int) and not isinstance(one, bool):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return math.isclose(one, other, rel_tol=TOLERANCE)
    if isinstance(one, dict) and isinstance(other, dict):
        return set(one) == set(other) and all(_is_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        plan = value.get("plan", value)
        pipelines = plan.get("pipelines", []) if isinstance(plan, dict) else []
        shapes = ", ".join(
            f"{pipeline.get('num_micro_batches')}x("
            + " ".join(
                f"{'+'.join(map(str, stage.get('devices', [])))}:{'-'.join(map(str, stage.get('layers', [])))}"
                for stage in pipeline.get("stages", [])
            )
            + ")"
            for pipeline in pipelines
        )
        return shapes or "a plan"
    if isinstance(value, float):
        return f"{value:.9g}"
    return "none" if value is None else str(value)
