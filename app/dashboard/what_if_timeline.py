"""A step of a plan as a timeline for the page: the chart of `malleus plan --timeline`, in the page's colours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from app.dashboard.chart_style import frame
from app.dashboard.palette import Palette
from app.plan_timeline import figure, shown_pipelines
from planner.cost import timeline
from planner.errors import PlannerError
from planner.plan import Plan
from planner.spec import ModelProfile

MOST_EVENTS = 2_000
"""The slowest pipelines only beyond so many: the page draws two charts, and keeps them while it is looked at."""

LANE_NAMES_PX = 320
"""Room for the names of the lanes, the same in both charts, so that equal times stand below each other."""


def step_timeline(
    plan: Plan, profile: ModelProfile, rates: Mapping[int, float], palette: Palette, *, end_s: float
) -> tuple[dict[str, Any], str] | None:
    """The chart and a note on what it leaves out; None for a plan that cannot run.

    Args:
        end_s: where the time axis ends, so that two charts can be compared.
    """
    if any(not math.isfinite(rates.get(device, 1.0)) for device in plan.active):
        return None
    try:
        events = timeline(plan, profile, rates)
    except PlannerError:
        return None
    shown = shown_pipelines(events, most_events=MOST_EVENTS)
    chart = figure(plan, events, profile=profile, rates=rates, shown=shown, palette=palette)
    layout = chart["layout"]
    style = frame(palette, height=layout["height"] - 50, top=30, bottom=50, revision="")
    layout |= {name: style[name] for name in ("height", "font", "paper_bgcolor", "plot_bgcolor", "hoverlabel")}
    layout["xaxis"]["range"] = [0, 1.01 * end_s]
    layout["margin"] = style["margin"] | {"l": LANE_NAMES_PX}
    chart["config"] = {"displayModeBar": False, "responsive": True}
    note = "" if len(shown) == plan.dp_degree else f"The {len(shown)} slowest of {plan.dp_degree} pipelines."
    return chart, note
