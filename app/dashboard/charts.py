"""The run's charts on one time axis: event lanes, step time against its bound, rate of a device, loss.

Pure drawing: plain series in, a Plotly figure (as a dict) out. There is one x axis, so zoom is
linked by construction; `uirevision` keeps it over refreshes. Missing and non-finite values are gaps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import quantiles
from typing import Any

from app.dashboard import chart_style, rate_colors
from app.dashboard import quantities as q
from app.dashboard.event_lanes import Mark, instant, lane_axis, lane_traces, lanes_of, mark_lines
from app.dashboard.palette import Palette


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """One step as drawn. `bound_s` is the capacity bound at the rates of that moment, None if unknown."""

    step: int
    at: datetime
    step_s: float
    loss: float
    plan_version: int
    phase: str = "train"
    bound_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """One device's straggling rate at one step."""

    step: int
    at: datetime
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPoint:
    """Loss on text that is not trained on, with the weights before `step`."""

    step: int
    at: datetime
    loss: float


_LANE_PX = 16
_ROW_PX = {"step": 172, "rate": 110, "loss": 112}
_GAP_PX = 30
_TOP_PX, _BOTTOM_PX = 8, 34


def run_chart(
    points: Sequence[StepPoint],
    marks: Sequence[Mark],
    *,
    palette: Palette,
    revision: str,
    device: int | None = None,
    rates: Sequence[RatePoint] = (),
    evaluations: Sequence[EvaluationPoint] = (),
    has_loss: bool = True,
) -> dict[str, Any]:
    """The figure: event lanes over step time, and as asked a device's rate and the loss.

    Args:
        points: in step order; at most a few thousand.
        marks: events in any order; those outside the points' time are drawn all the same.
        revision: zoom survives as long as this text stays the same.
        device: adds a row with the rates of this device.
        rates: that device's rates, in step order.
        evaluations: in step order; drawn as points over the loss.
    """
    rows = ["lanes", "step", *(["rate"] if device is not None else []), *(["loss"] if has_loss else [])]
    lanes = lanes_of(marks)
    heights = [_LANE_PX * len(lanes), *(_ROW_PX[row] for row in rows[1:])]
    domains, inner = chart_style.rows(heights, [_GAP_PX] * (len(rows) - 1))
    axes = {row: f"y{index if index > 1 else ''}" for index, row in enumerate(rows, start=1)}
    layout = _layout(palette, revision, inner + _TOP_PX + _BOTTOM_PX, bottom_axis=axes[rows[-1]])
    layout |= {
        _layout_key(axes[row]): chart_style.y_axis(palette, domains[index]) | {"nticks": 5}
        for index, row in enumerate(rows)
    }
    layout["yaxis"] |= lane_axis(lanes)
    layout["shapes"] = mark_lines(marks, palette)
    step_axis = layout[_layout_key(axes["step"])]
    step_axis |= {"range": _step_range(points), "tickformat": ".3~g", "ticksuffix": " s"}
    traces = [*lane_traces(marks, palette), *_step_traces(points, palette, axes["step"])]
    titles = {"step": ("Step time", _step_legend(palette))}
    if device is not None:
        traces += _rate_traces(rates, palette, axes["rate"])
        layout[_layout_key(axes["rate"])] |= _rate_axis(rates)
        titles["rate"] = (f"Rate of device {device}", "1 is healthy")
    if has_loss:
        traces += [_evaluation_trace(evaluations, palette, axes["loss"])] if evaluations else []
        traces.append(_loss_trace(points, palette, axes["loss"]))
        layout[_layout_key(axes["loss"])] |= {"tickformat": ".3~g", "rangemode": "normal"}
        titles["loss"] = ("Loss", _loss_note(points, evaluations, palette))
    layout["annotations"] = [
        chart_style.row_title(palette, domains[rows.index(row)][1], *titles[row]) for row in titles
    ]
    return {"data": traces, "layout": layout, "config": chart_style.CONFIG}


def description(points: Sequence[StepPoint], marks: Sequence[Mark]) -> str:
    """The chart in words, for a screen reader."""
    if not points:
        return "No steps yet."
    last = points[-1]
    return (
        f"Step time and loss from step {points[0].step} to {last.step}. Last step {q.seconds(last.step_s)}, "
        f"loss {q.number(last.loss)}. {len(marks)} events."
    )


def _layout(palette: Palette, revision: str, height: int, *, bottom_axis: str) -> dict[str, Any]:
    return chart_style.frame(palette, height=height, top=_TOP_PX, bottom=_BOTTOM_PX, revision=revision) | {
        "hovermode": "x",
        "hoversubplots": "axis",
        "hoverdistance": 40,
        "dragmode": "zoom",
        "xaxis": chart_style.x_axis(palette, anchor=bottom_axis) | chart_style.time_ticks() | {"ticksuffix": ""},
    }


def _layout_key(axis: str) -> str:
    return f"yaxis{axis[1:]}"


def _step_traces(points: Sequence[StepPoint], palette: Palette, axis: str) -> list[dict[str, Any]]:
    at = [instant(point.at) for point in points]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "x": at,
            "y": [_finite(point.bound_s) for point in points],
            "line": {"color": palette.muted, "width": 1.5, "dash": "dash", "shape": "hv"},
            "hovertemplate": "bound %{y:.3~g} s<extra></extra>",
            "xaxis": "x",
            "yaxis": axis,
        },
        {
            "type": "scatter",
            "mode": "lines" if len(points) > 1 else "markers",
            "x": at,
            "y": [_finite(point.step_s) for point in points],
            "customdata": [[point.step, point.plan_version, point.phase] for point in points],
            "line": {"color": palette.accent, "width": 1.6},
            "hovertemplate": "step %{customdata[0]:,}, plan v%{customdata[1]}, %{customdata[2]}: "
            "<b>%{y:.3~g} s</b><extra></extra>",
            "xaxis": "x",
            "yaxis": axis,
        },
    ]


def _step_legend(palette: Palette) -> str:
    return (
        f"<span style='color:{palette.accent}'><b>\u2501</b></span> measured   "
        f"<span style='color:{palette.muted}'><b>\u254c\u254c</b></span> capacity bound"
    )


def _step_range(points: Sequence[StepPoint]) -> list[float]:
    """From zero to above the train steps; one slow first step must not flatten the line."""
    values = [point.step_s for point in points if point.phase == "train" and math.isfinite(point.step_s)]
    values = values or [point.step_s for point in points if math.isfinite(point.step_s)] or [1.0]
    top = quantiles(values, n=200)[-1] if len(values) > 200 else max(values)
    bounds = [point.bound_s for point in points if point.bound_s is not None and math.isfinite(point.bound_s)]
    return [0.0, 1.12 * max(top, *bounds, 1e-9)]


def _rate_traces(rates: Sequence[RatePoint], palette: Palette, axis: str) -> list[dict[str, Any]]:
    failed = [point for point in rates if math.isinf(point.rate)]
    return [
        {
            "type": "scatter",
            "mode": "lines" if len(rates) > 1 else "markers",
            "x": [instant(point.at) for point in rates],
            "y": [_finite(point.rate) for point in rates],
            "customdata": [point.step for point in rates],
            "line": {"color": palette.deviation, "width": 1.6},
            "hovertemplate": f"rate <b>%{{y:.2f}}{q.TIMES}</b><extra></extra>",
            "xaxis": "x",
            "yaxis": axis,
        },
        {
            "type": "scatter",
            "mode": "markers",
            "x": [instant(point.at) for point in failed],
            "y": [rate_colors.SCALE_TOP] * len(failed),
            "marker": {"symbol": "x-thin", "size": 7, "line": {"width": 1.5, "color": palette.bad}},
            "hovertemplate": "failed<extra></extra>",
            "xaxis": "x",
            "yaxis": axis,
        },
    ]


def _rate_axis(rates: Sequence[RatePoint]) -> dict[str, Any]:
    values = [point.rate for point in rates if math.isfinite(point.rate) and point.rate > 0]
    low = min([0.9, *(0.95 * value for value in values)])
    high = max([2.2, *(1.1 * value for value in values)])
    if any(math.isinf(point.rate) for point in rates):
        high = max(high, 1.1 * rate_colors.SCALE_TOP)
    ticks = [tick for tick in (0.5, 1, 1.5, 2, 3, 5, 8, 12.5, 25, 50, 100) if low <= tick <= high]
    if len(ticks) > 5:
        ticks = [tick for tick in ticks if tick not in (1.5, 3, 8)]
    return chart_style.rate_axis(low, high, ticks)


def _loss_trace(points: Sequence[StepPoint], palette: Palette, axis: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines" if len(points) > 1 else "markers",
        "x": [instant(point.at) for point in points],
        "y": [_finite(point.loss) for point in points],
        "line": {"color": palette.ink, "width": 1.4},
        "hovertemplate": "loss <b>%{y:.4~g}</b><extra></extra>",
        "xaxis": "x",
        "yaxis": axis,
    }


def _evaluation_trace(evaluations: Sequence[EvaluationPoint], palette: Palette, axis: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [instant(point.at) for point in evaluations],
        "y": [_finite(point.loss) for point in evaluations],
        "customdata": [point.step for point in evaluations],
        "marker": {"symbol": "diamond", "size": 7, "color": palette.accent},
        "hovertemplate": "evaluation before step %{customdata:,}: <b>%{y:.4~g}</b><extra></extra>",
        "xaxis": "x",
        "yaxis": axis,
    }


def _loss_note(points: Sequence[StepPoint], evaluations: Sequence[EvaluationPoint], palette: Palette) -> str:
    odd = [point for point in points if not math.isfinite(point.loss)]
    if not odd and evaluations:
        return f"mean cross-entropy per token   <span style='color:{palette.accent}'>\u25c6</span> evaluation"
    if not odd:
        return "mean cross-entropy per token"
    return f"<b>{q.number(odd[0].loss)} since step {odd[0].step:,}</b>"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
