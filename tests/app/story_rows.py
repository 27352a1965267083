"""Rows as the store's views show them, written by hand, for the dashboard's pure parts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from app.dashboard import quantities as q
from db.commands import CommandView
from db.episodes import EpisodeView
from db.history import StepView, SwitchView
from db.plans import PlanView

BEGIN = datetime(2026, 3, 2, 14, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def step(number: int, step_s: float, *, version: int = 1, phase: str = "train", loss: float = 2.0) -> StepView:
    return StepView(
        step=number,
        attempt="first",
        at=at(number),
        phase=phase,
        plan_version=version,
        desired_version=1,
        step_s=step_s,
        loss=loss,
        num_tokens=1024,
        samples=(16 * number, 16 * number + 16),
    )


def episode(
    device: int, *, start: float, end: float | None = None, rate: float = 2.57, cause: str = "device"
) -> EpisodeView:
    return EpisodeView(
        id=device,
        run=7,
        device=device,
        start_step=int(start),
        start_at=at(start),
        end_step=None if end is None else int(end),
        end_at=None if end is None else at(end),
        rate=rate,
        peak=rate,
        cause=cause,
        evidence={},
    )


def plan(
    version: int, *, status: str = "active", rates: Mapping[int, float] | None = None, created: float = 0.0, **more: Any
) -> PlanView:
    values: dict[str, Any] = {
        "run": 7, "version": version, "key": str(version), "trigger": "shift", "status": status,
        "rates": dict(rates or {}), "document": None, "predicted_s": None, "current_s": None, "measured_s": None,
        "bound_s": None, "gap": None, "solve_s": None, "solver": "", "seed": 0, "parent": None,
        "requested_by": "controller", "decided_by": "",
        "worker": "", "reason": "", "details": {}, "created_at": at(created), "claimed_at": None, "solved_at": None,
        "decided_at": None, "active_at": None,
    }  # fmt: skip
    return PlanView(**(values | more))


def switch(version: int, number: int, *, outcome: str = "applied", reason: str = "") -> SwitchView:
    return SwitchView(
        id=version,
        attempt="first",
        at=at(number),
        step=number,
        plan_version=version,
        from_version=1,
        outcome=outcome,
        reason=reason,
        bytes_moved=2_000_000,
        pause_s=0.5,
        phases={},
        digests_equal=True,
    )


def command(kind: str = "inject", status: str = "applied", **more: Any) -> CommandView:
    values: dict[str, Any] = {
        "id": 1, "run": 7, "kind": kind, "arguments": {"devices": [3], "rate": 2.57, "for_s": None}, "actor": "ada",
        "source": "dashboard", "status": status, "result": "", "desired_version": 2, "request": None,
        "applied_step": 10, "created_at": at(9), "accepted_at": at(9.3), "done_at": at(10),
    }  # fmt: skip
    return CommandView(**(values | more))


def plain(text: str) -> str:
    """Without the typography, so that expected texts can be typed."""
    return text.replace(q.THIN, " ").replace(q.TIMES, "x").replace(q.DASH, "-")
