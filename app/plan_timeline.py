"""The 1F1B timeline of a plan as one HTML page that needs nothing else: no network, no other file.

`malleus plan --timeline` writes it: a lane a stage, forward, backward and idle told apart by letter and
hatching besides colour. The times are those of the event model (`planner.cost.timeline`), not measured.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.dashboard import quantities as q
from app.dashboard.palette import LIGHT, Palette
from app.plan_text import plan_text
from planner.cost import Event, timeline
from planner.plan import Plan
from planner.spec import ModelProfile

MOST_EVENTS = 8_000
"""Beyond so many the slowest pipelines are drawn only: a browser draws every event as a shape of its own."""

_LANE_PX = 30
_BUTTONS = [["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"], ["toImage"]]  # none that leads elsewhere
_HATCH = {"forward": "", "backward": "/", "idle": ".", "gradient sync and optimizer": "x"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bars:
    """Bars of one kind, a list entry each."""

    lanes: list[str] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    hovers: list[str] = field(default_factory=list)

    def add(self, lane: str, start_s: float, end_s: float, label: str, hover: str) -> None:
        self.lanes.append(lane)
        self.starts.append(start_s)
        self.lengths.append(end_s - start_s)
        self.labels.append(label)
        self.hovers.append(f"{hover}<br>{start_s:.6g} s to {end_s:.6g} s, {end_s - start_s:.6g} s<br>{lane}")


def write_timeline(
    path: Path, plan: Plan, step_s: float, *, profile: ModelProfile, rates: Mapping[int, float], title: str
) -> int:
    """Writes the page.

    Args:
        step_s: predicted seconds of the plan's step.
        rates: straggling rate by device; devices not named are healthy.
        title: heading of the page.

    Returns:
        How many pipelines are drawn (see `MOST_EVENTS`).

    Raises:
        OSError: the file cannot be written.
    """
    events = timeline(plan, profile, rates)
    shown = shown_pipelines(events)
    page = _page(plan, step_s, rates, title, shown, figure(plan, events, profile=profile, rates=rates, shown=shown))
    path.write_text(page, encoding="utf-8")
    return len(shown)


def figure(
    plan: Plan,
    events: Sequence[Event],
    *,
    profile: ModelProfile,
    rates: Mapping[int, float],
    shown: Sequence[int],
    palette: Palette = LIGHT,
) -> dict[str, Any]:
    """The chart as Plotly's JSON: `data` and `layout`.

    Args:
        shown: indices of the pipelines to draw.
        palette: colours of the page that shows it.
    """
    end_s = max((event.end_s for event in events), default=0.0)
    bars = {kind: _Bars() for kind in _HATCH}
    lanes: list[str] = []
    by_place: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        by_place.setdefault((event.pipeline_index, event.stage_index), []).append(event)
    for pipeline_index, stage_index, stage in plan.places():
        if pipeline_index not in shown:
            continue
        first, stop = stage.layers
        lane = f"pipeline {pipeline_index} stage {stage_index} · {_devices(stage.devices, rates)} · L{first}-{stop - 1}"
        lanes.append(lane)
        free_s = 0.0
        for event in sorted(by_place.get((pipeline_index, stage_index), []), key=lambda event: event.start_s):
            if event.start_s > free_s + 1e-9 * end_s:
                bars["idle"].add(lane, free_s, event.start_s, "", "idle")
            bars[event.kind].add(
                lane,
                event.start_s,
                event.end_s,
                f"{event.kind[0].upper()}{event.micro_batch}",
                f"<b>{event.kind} of micro-batch {event.micro_batch}</b>",
            )
            free_s = event.end_s
        if end_s > free_s * (1 + 1e-9):
            bars["idle"].add(lane, free_s, end_s, "", "idle")
        if profile.sync_s > 0:
            bars["gradient sync and optimizer"].add(
                lane, end_s, end_s + profile.sync_s, "", "gradient sync and optimizer"
            )
    return {
        "data": [_trace(kind, group, palette) for kind, group in bars.items() if group.lanes],
        "layout": {
            "barmode": "overlay",
            "bargap": 0.15,
            "height": 170 + _LANE_PX * len(lanes),
            "paper_bgcolor": palette.surface,
            "plot_bgcolor": palette.surface,
            "font": {"color": palette.ink},
            "legend": {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0},
            "uniformtext": {"minsize": 8, "mode": "hide"},
            "margin": {"l": 10, "r": 20, "t": 50, "b": 50},
            "hoverlabel": {"align": "left"},
            "xaxis": {"title": {"text": "seconds since the step began"}, "gridcolor": palette.line, "zeroline": False},
            "yaxis": {
                "type": "category",
                "categoryorder": "array",
                "categoryarray": lanes[::-1],
                "automargin": True,
                "fixedrange": True,
            },
        },
    }


def shown_pipelines(events: Sequence[Event], *, most_events: int = MOST_EVENTS) -> list[int]:
    """Indices of the pipelines to draw: all, or the slowest that fit."""
    ends: dict[int, float] = {}
    sizes: dict[int, int] = {}
    for event in events:
        index = event.pipeline_index
        ends[index] = max(ends.get(index, 0.0), event.end_s)
        sizes[index] = sizes.get(index, 0) + 1
    chosen: list[int] = []
    left = most_events
    for index in sorted(ends, key=lambda index: (-ends[index], index)):
        left -= sizes[index]
        if left < 0 and chosen:
            break
        chosen.append(index)
    return sorted(chosen)


def _trace(kind: str, bars: _Bars, palette: Palette) -> dict[str, Any]:
    is_quiet = kind == "idle"
    fills = {"forward": palette.accent, "backward": palette.deviation, "idle": palette.surface}
    return {
        "type": "bar",
        "orientation": "h",
        "name": kind,
        "y": bars.lanes,
        "base": bars.starts,
        "x": bars.lengths,
        "text": bars.labels,
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"color": palette.surface},
        "hovertext": bars.hovers,
        "hoverinfo": "text",
        "marker": {
            "color": fills.get(kind, palette.line),
            "line": {"color": palette.line if is_quiet else palette.surface, "width": 0.5},
            "pattern": {
                "shape": _HATCH[kind],
                "fillmode": "overlay",
                "fgcolor": palette.muted if kind not in ("forward", "backward") else palette.surface,
                "fgopacity": 0.35,
                "size": 7,
                "solidity": 0.2,
            },
        },
    }


def _page(
    plan: Plan, step_s: float, rates: Mapping[int, float], title: str, shown: Sequence[int], chart: dict[str, Any]
) -> str:
    import plotly.io

    drawing = plotly.io.to_html(
        chart,
        config={"responsive": True, "displaylogo": False, "modeBarButtons": _BUTTONS},
        include_plotlyjs=True,
        include_mathjax=False,
        full_html=False,
        default_height=f"{chart['layout']['height']}px",
        validate=False,
    )
    part = ""
    if len(shown) < plan.dp_degree:
        part = f" Drawn: the {len(shown)} slowest of {plan.dp_degree} pipelines."
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{html.escape(title)}</title>
<style>
body {{ margin: 24px; font: 15px/1.5 system-ui, sans-serif; color: {LIGHT.ink}; background: {LIGHT.surface}; }}
h1 {{ font-size: 20px; margin: 0 0 4px; }}
p {{ margin: 0 0 12px; }}
pre {{ overflow-x: auto; font-size: 13px; }}
</style>
</head>
<body>
<h1>{html.escape(title)}</h1>
<p>Predicted step {step_s:.6g} s, {_pipelines(plan)}. F and B: forward and backward (hatched) of the micro-batch with
that number; dotted: the stage waits.{part} Drag over a span of time to enlarge it, double-click to go back.</p>
{drawing}
<pre>{html.escape(plan_text(plan, rates))}</pre>
</body>
</html>
"""


def _pipelines(plan: Plan) -> str:
    counts = [pipeline.num_micro_batches for pipeline in plan.pipelines]
    if len(counts) == 1:
        return f"1 pipeline of {counts[0]} micro-batches"
    return f"{len(counts)} pipelines of {min(counts)} to {max(counts)} micro-batches"


def _devices(devices: Sequence[int], rates: Mapping[int, float]) -> str:
    """`devices 8-15`, `device 3 (2.57x)`."""
    slowest = max(rates.get(device, 1.0) for device in devices)
    mark = f" ({q.rate(slowest)})" if slowest != 1 and math.isfinite(slowest) else ""
    is_run = len(devices) > 2 and list(devices) == list(range(devices[0], devices[0] + len(devices)))
    names = f"{devices[0]}-{devices[-1]}" if is_run else " ".join(map(str, devices))
    return f"{'device' if len(devices) == 1 else 'devices'} {names}{mark}"
