"""The rates of a run's devices on one x axis (steps or time): lines, the plans that were active, all devices.

Pure drawing: blocks, episodes and plan spans in, a Plotly figure (as a dict) out. The rows share the
x axis, so zoom is linked; `uirevision` keeps it over refreshes. A click on a plan goes to it, one on
the strip of all devices selects its device (`plot` reports both).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.dashboard import chart_style, heat_strip, rate_lines
from app.dashboard import quantities as q
from app.dashboard.palette import Palette
from app.dashboard.rate_lines import Line
from app.dashboard.step_clock import PlanSpan, StepClock
from db.rates import RateBlock

MAX_SHADES = 120
"""Episodes shaded at most, newest first."""

_LINES_PX, _BAND_PX = 250, 20
_GAPS_PX = (8, 30)
_TOP_PX, _BOTTOM_PX = 24, 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Shade:
    """An episode as the chart shows it; `last_step` is the run's last one while it lasts."""

    first_step: int
    last_step: int
    text: str
    is_marked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchMark:
    """A change of plan, or a refused one, and in words what it was."""

    step: int
    text: str
    is_bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RateChart:
    """What to draw.

    Args:
        run: whose plans the band links to.
        steps: first and last step shown.
        clock: when steps were.
        axis: what x is.
        lines, width: the chosen devices, and the steps a block of theirs has.
        strip, strip_width: the blocks of all devices, and theirs.
        nodes: device ids by node.
        chosen: the chosen devices.
    """

    run: int
    steps: tuple[int, int]
    clock: StepClock
    axis: Literal["step", "time"]
    lines: Sequence[Line]
    width: int
    strip: Sequence[RateBlock]
    strip_width: int
    nodes: Sequence[Sequence[int]]
    chosen: Sequence[int]
    shades: Sequence[Shade] = ()
    plans: Sequence[PlanSpan] = ()
    switches: Sequence[SwitchMark] = ()

    def place(self, step: float) -> float:
        """Where a step is on the x axis: itself, or milliseconds since 1970."""
        return step if self.axis == "step" else round(1000 * self.clock.seconds(step), 1)

    @property
    def num_devices(self) -> int:
        return sum(len(node) for node in self.nodes)


def rate_chart(chart: RateChart, palette: Palette, *, revision: str) -> dict[str, Any]:
    """The figure.

    Args:
        revision: zoom survives as long as this text stays the same.
    """
    heights = (_LINES_PX, _BAND_PX, heat_strip.height_px(chart.num_devices))
    domains, inner = chart_style.rows(heights, _GAPS_PX)
    height = inner + _TOP_PX + _BOTTOM_PX
    first, last = chart.steps
    y_axes = [chart_style.y_axis(palette, domain) for domain in domains]
    y_axes[0] |= rate_lines.rate_axis(chart.lines)
    y_axes[1] |= {"tickvals": [0], "ticktext": ["plan"], "range": [-0.5, 0.5], "showgrid": False}
    y_axes[2] |= heat_strip.strip_axis(chart.nodes)
    frame = chart_style.frame(palette, height=height, top=_TOP_PX, bottom=_BOTTOM_PX, revision=revision)
    layout = frame | {
        "hovermode": "closest",
        "hoverdistance": 30,
        "dragmode": "zoom",
        "xaxis": _x_axis(chart, palette, (chart.place(first - 0.5), chart.place(last + 0.5))),
        "yaxis": y_axes[0],
        "yaxis2": y_axes[1],
        "yaxis3": y_axes[2],
        "shapes": [
            *_shades(chart, palette, domains[0]),
            *_switch_lines(chart, palette),
            *heat_strip.outlines(chart.chosen if len(chart.chosen) < chart.num_devices else (), palette, "y3"),
        ],
        "annotations": [
            chart_style.row_title(palette, domains[0][1], "Rate", rate_lines.legend(chart.lines, palette)),
            chart_style.row_title(
                palette, domains[2][1], "All devices", "highest rate of each block; a hole: nothing measured"
            ),
        ],
    }
    strip = heat_strip.strip_traces(chart.strip, chart.num_devices, chart.strip_width, palette, chart.place, "y3")
    traces = [
        *rate_lines.line_traces(chart.lines, palette, chart.place, chart.width),
        *_shade_marks(chart, palette, y_axes[0]["range"]),
        *_plan_band(chart, palette),
        *_switch_marks(chart, palette),
        *strip,
    ]
    return {"data": traces, "layout": layout, "config": chart_style.CONFIG}


def description(chart: RateChart) -> str:
    """The chart in words, for a screen reader."""
    first, last = chart.steps
    slow = rate_lines.slowest(chart.lines)
    words = ", ".join(f"device {line.device} up to {q.rate(line.peak)}" for line in slow) or "all of them healthy"
    plans = ", ".join(f"v{span.version}" for span in chart.plans)
    return f"Rates of {len(chart.lines)} devices in steps {first} to {last}: {words}. Plans: {plans or 'none'}."


def _x_axis(chart: RateChart, palette: Palette, ends: tuple[float, float]) -> dict[str, Any]:
    axis = chart_style.x_axis(palette, anchor="y3") | {
        # No `range` of ours: one that grows with the run would win over a person's zoom at each refresh.
        "autorange": True,
        "autorangeoptions": {"include": list(ends), "clipmin": ends[0], "clipmax": ends[1]},
    }
    if chart.axis == "step":
        return axis | {"type": "linear", "tickformat": ",d", "title": chart_style.axis_title("step")}
    return axis | chart_style.time_ticks()


def _shades(chart: RateChart, palette: Palette, domain: tuple[float, float]) -> list[dict[str, Any]]:
    newest = sorted(chart.shades, key=lambda shade: (shade.is_marked, shade.first_step))[-MAX_SHADES:]
    return [
        {
            "type": "rect",
            "xref": "x",
            "yref": "paper",
            "x0": chart.place(shade.first_step - 0.5),
            "x1": chart.place(shade.last_step + 0.5),
            "y0": domain[0],
            "y1": domain[1],
            "fillcolor": palette.deviation,
            "opacity": 0.2 if shade.is_marked else 0.09,
            "line": {"width": 1.5 if shade.is_marked else 0, "color": palette.deviation},
            "layer": "below",
        }
        for shade in newest
    ]


def _shade_marks(chart: RateChart, palette: Palette, y_range: Sequence[float]) -> list[dict[str, Any]]:
    """Where episodes began, to point at: the shade itself has no hover."""
    first, last = chart.steps
    seen = [shade for shade in chart.shades if shade.last_step >= first and shade.first_step <= last]
    if not seen:
        return []
    top = 10 ** (y_range[1] - 0.03 * (y_range[1] - y_range[0]))
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [chart.place(max(first, shade.first_step)) for shade in seen],
            "y": [top] * len(seen),
            "text": [shade.text for shade in seen],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {"symbol": "diamond", "size": 8, "color": palette.deviation},
            "xaxis": "x",
            "yaxis": "y",
        }
    ]


def _plan_band(chart: RateChart, palette: Palette) -> list[dict[str, Any]]:
    if not chart.plans:
        return []
    go = [json.dumps(["plans", {"run": str(chart.run), "version": str(span.version)}]) for span in chart.plans]
    words = [
        f"steps {span.first_step:,}{q.DASH}{span.stop_step - 1:,} under plan v{span.version}" for span in chart.plans
    ]
    edges = [*(span.first_step for span in chart.plans), chart.plans[-1].stop_step]
    quiet, other = palette.line, palette.accent + "40"
    return [
        {
            "type": "heatmap",
            "x": [chart.place(edge - 0.5) for edge in edges],
            "y": [0],
            "z": [[index % 2 for index in range(len(chart.plans))]],
            "zmin": 0,
            "zmax": 1,
            "colorscale": [[0, quiet], [0.5, quiet], [0.5, other], [1, other]],
            "showscale": False,
            "text": [[f"v{span.version}" for span in chart.plans]],
            "texttemplate": "%{text}",
            "textfont": {"size": 11.5, "color": palette.ink},
            "hovertext": [words],
            "customdata": [go],
            "meta": "go",
            "hovertemplate": "%{hovertext}, click to open it<extra></extra>",
            "xaxis": "x",
            "yaxis": "y2",
        }
    ]


def _switch_lines(chart: RateChart, palette: Palette) -> list[dict[str, Any]]:
    return [
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": chart.place(mark.step - 0.5),
            "x1": chart.place(mark.step - 0.5),
            "y0": 0,
            "y1": 1,
            "line": {"width": 1, "dash": "dot", "color": palette.bad if mark.is_bad else palette.accent},
            "opacity": 0.6,
            "layer": "below",
        }
        for mark in chart.switches[-MAX_SHADES:]
    ]


def _switch_marks(chart: RateChart, palette: Palette) -> list[dict[str, Any]]:
    if not chart.switches:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [chart.place(mark.step - 0.5) for mark in chart.switches],
            "y": [0] * len(chart.switches),
            "text": [mark.text for mark in chart.switches],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {
                "symbol": ["x" if mark.is_bad else "square" for mark in chart.switches],
                "size": 8,
                "color": [palette.bad if mark.is_bad else palette.accent for mark in chart.switches],
            },
            "xaxis": "x",
            "yaxis": "y2",
        }
    ]
