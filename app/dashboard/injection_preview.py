"""What an injection would do, before it is asked for. Pure drawing; shown by `picture` in the form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from html import escape

from app.dashboard import quantities as q
from app.dashboard.rate_colors import HEALTHY_BELOW
from app.dashboard.rate_history import bound_s
from app.dashboard.snapshot import Snapshot
from planner.cost import plan_step_s
from planner.errors import PlannerError


def injection_preview(snapshot: Snapshot, devices: Sequence[int], rate: float | None, duration_s: float | None) -> str:
    """One or two sentences: the devices, and what it costs under the present plan and at best."""
    if not devices or rate is None:
        return '<p class="muted">Nothing is injected until you press the button.</p>'
    until = f"for {q.duration(duration_s)}" if duration_s else "until cleared"
    lead = f"{q.devices(list(devices)).capitalize()} will compute {q.rate(rate)} slower than healthy {until}."
    return f'<p>{escape(lead)} <span class="muted">{escape(_cost(snapshot, devices, rate))}</span></p>'


def _cost(snapshot: Snapshot, devices: Sequence[int], rate: float) -> str:
    present = {device: known for device, known in snapshot.rates.items() if known >= HEALTHY_BELOW}
    after = present | dict.fromkeys(devices, rate)
    bound = bound_s(snapshot.figures.capacity_s, after, snapshot.run.config.num_devices)
    stay = None
    if snapshot.active_plan is not None and snapshot.profile is not None:
        with suppress(PlannerError):
            stay = plan_step_s(snapshot.active_plan, snapshot.profile, after)
    parts = []
    if stay is not None and math.isfinite(stay):
        parts.append(f"plan v{snapshot.active_version} would take about {q.seconds(stay)} a step")
    if bound is not None and math.isfinite(bound):
        parts.append(f"the capacity bound would be {q.seconds(bound)}")
    sentence = ", ".join(parts)
    return f"{sentence[:1].upper()}{sentence[1:]}." if sentence else ""
