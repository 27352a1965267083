"""Rates of devices as lines: thinned blocks drawn so that every peak is seen, gaps where nothing is known.

Pure drawing; part of the figure that `rate_chart` makes. A block of several steps is drawn from its
lowest to its highest rate. Healthy devices are thin and grey, those that deviate have a colour each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from app.dashboard import chart_style, rate_colors
from app.dashboard import quantities as q
from app.dashboard.palette import DARK, Palette
from db.rates import RateBlock

MAX_LINES = 16
"""Devices drawn as a line each; of more, the range they cover and the slowest ones."""

MAX_SLOWEST = 8
MAX_NAMED, MAX_SPELLED = 9, 4

_LIGHT_COLORS = ("#c05a12", "#2f5bd0", "#1b7f5f", "#a52a63", "#7a5bc7", "#856a00", "#0b7391", "#5f6b2d")
_DARK_COLORS = ("#f0a04b", "#7ea2ff", "#4fc49a", "#f07fb0", "#b79cf5", "#d9c04a", "#56c4e0", "#b8c57a")

Place = Callable[[float], float]
"""Where a step is on the x axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One device's blocks, in step order."""

    device: int
    blocks: Sequence[RateBlock]

    @property
    def peak(self) -> float:
        """The highest known rate; 0 if there is none."""
        return max((block.high for block in self.blocks if block.num_known), default=0.0)

    @property
    def last(self) -> float:
        """The rate where the line ends; NaN if nothing is known there."""
        return self.blocks[-1].mean if self.blocks else math.nan


def lines_of(blocks: Sequence[RateBlock]) -> list[Line]:
    """Blocks by device, each in step order."""
    found: dict[int, list[RateBlock]] = {}
    for block in blocks:
        found.setdefault(block.device, []).append(block)
    return [
        Line(device=device, blocks=sorted(members, key=lambda block: block.first_step))
        for device, members in sorted(found.items())
    ]


def line_traces(lines: Sequence[Line], palette: Palette, place: Place, width: int) -> list[dict[str, Any]]:
    """A trace a device (of many: their range, median and the slowest), failures as crosses.

    Args:
        width: steps a block has at least; a gap that is longer interrupts a line.
    """
    traces: list[dict[str, Any]] = []
    shown = list(lines)
    if len(lines) > MAX_LINES:
        traces = _range_traces(lines, palette, place, width)
        shown = slowest(lines)
    order = sorted(shown, key=lambda line: (line.peak >= rate_colors.HEALTHY_BELOW, line.device))  # deviations on top
    traces += [_line_trace(line, color(line, lines, palette), palette, place, width) for line in order]
    failed = [(line.device, block) for line in shown for block in line.blocks if math.isinf(block.high)]
    if failed:
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [place(_middle(block)) for _, block in failed],
                "y": [rate_colors.SCALE_TOP] * len(failed),
                "customdata": [device for device, _ in failed],
                "marker": {"symbol": "x-thin", "size": 7, "line": {"width": 1.5, "color": palette.bad}},
                "hovertemplate": "device %{customdata} failed<extra></extra>",
                "xaxis": "x",
                "yaxis": "y",
            }
        )
    return traces


def slowest(lines: Sequence[Line]) -> list[Line]:
    """Of many lines those that deviate most, if they do."""
    slow = [line for line in lines if line.peak >= rate_colors.HEALTHY_BELOW]
    return sorted(slow, key=lambda line: -line.peak)[:MAX_SLOWEST]


def color(line: Line, lines: Sequence[Line], palette: Palette) -> str:
    """A device's colour: grey if healthy (unless it is alone), else by its place among the chosen ones."""
    if line.peak < rate_colors.HEALTHY_BELOW and len(lines) > 1:
        return palette.muted
    colors = _DARK_COLORS if palette == DARK else _LIGHT_COLORS
    shown = slowest(lines) if len(lines) > MAX_LINES else lines
    index = next((index for index, entry in enumerate(shown) if entry.device == line.device), 0)
    return colors[index % len(colors)]


def legend(lines: Sequence[Line], palette: Palette) -> str:
    """Which line is which device, with the rate where it ends, as Plotly's text."""
    slow = [line for line in lines if line.peak >= rate_colors.HEALTHY_BELOW]
    if len(lines) > MAX_LINES:
        slow = slowest(lines)
    elif len(lines) == 1:
        slow = list(lines)
    lead = "device " if len(slow) <= MAX_SPELLED else ""
    named = [
        f"<span style='color:{color(line, lines, palette)}'><b>\u2501</b></span> {lead}{line.device}: "
        f"{q.rate(line.last)}"
        for line in slow[:MAX_NAMED]
    ]
    if len(slow) > MAX_NAMED:
        named.append(f"and {len(slow) - MAX_NAMED} more")
    if len(lines) > MAX_LINES:
        named.append(f"shaded: lowest to highest of {len(lines)}, line: their median")
    elif len(lines) > len(slow):
        number = len(lines) - len(slow)
        rest = "all" if number == len(lines) else f"{number}"
        named.append(f"<span style='color:{palette.muted}'><b>\u2501</b></span> {rest} below 1.05{q.TIMES}")
    return "   ".join(named)


def rate_axis(lines: Sequence[Line]) -> dict[str, Any]:
    """A logarithmic axis that holds every known rate, healthy near its foot."""
    known = [block for line in lines for block in line.blocks if block.num_known]
    lows = [block.low for block in known if math.isfinite(block.low) and block.low > 0]
    highs = [block.high for block in known if math.isfinite(block.high)]
    low, high = min([0.9, *(0.95 * value for value in lows)]), max([2.2, *(1.1 * value for value in highs)])
    if any(math.isinf(block.high) for block in known):
        high = max(high, 1.1 * rate_colors.SCALE_TOP)
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 1.5, 2, 3, 5, 8, 12.5, 25, 50, 100, 1000) if low <= tick <= high]
    return chart_style.rate_axis(low, high, ticks)


def _line_trace(line: Line, ink: str, palette: Palette, place: Place, width: int) -> dict[str, Any]:
    x: list[float | None] = []
    y: list[float | None] = []
    steps: list[tuple[int, int] | None] = []
    for index, block in enumerate(line.blocks):
        if index and block.first_step - line.blocks[index - 1].last_step > 2 * width + 2:
            x.append(place((block.first_step + line.blocks[index - 1].last_step) / 2))
            y.append(None)
            steps.append(None)
        values = (block.low, block.high) if index % 2 else (block.high, block.low)
        at = place(_middle(block))
        for value in dict.fromkeys(values) if block.num_known else (math.nan,):
            x.append(at)
            y.append(round(value, 4) if math.isfinite(value) else None)
            steps.append((block.first_step, block.last_step))
    is_raw = all(block.first_step == block.last_step for block in line.blocks)
    span = "step %{customdata[0]:,}" if is_raw else f"steps %{{customdata[0]:,}}{q.DASH}%{{customdata[1]:,}}"
    return {
        "type": "scatter",
        "mode": "lines" if len(line.blocks) > 1 else "markers",
        "name": f"device {line.device}",
        "x": x,
        "y": y,
        "customdata": steps,
        "line": {"color": ink, "width": 1.1 if ink == palette.muted else 1.7},
        "marker": {"color": ink},
        "opacity": 0.75 if ink == palette.muted else 1.0,
        "hovertemplate": f"device {line.device}, {span}: <b>%{{y:.2f}}{q.TIMES}</b><extra></extra>",
        "xaxis": "x",
        "yaxis": "y",
    }


def _range_traces(lines: Sequence[Line], palette: Palette, place: Place, width: int) -> list[dict[str, Any]]:
    columns: dict[int, list[RateBlock]] = {}
    for line in lines:
        for block in line.blocks:
            if block.num_known and math.isfinite(block.mean):
                columns.setdefault(block.first_step // width, []).append(block)
    ordered = [columns[index] for index in sorted(columns)]
    x = [place(_middle(column[0])) for column in ordered]
    low = [round(min(block.low for block in column), 4) for column in ordered]
    high = [round(max(block.high for block in column if math.isfinite(block.high)), 4) for column in ordered]
    middle = [round(median(block.mean for block in column), 4) for column in ordered]
    shared = {"type": "scatter", "mode": "lines", "x": x, "xaxis": "x", "yaxis": "y"}
    edge = {"line": {"width": 0, "color": palette.muted}, "hoverinfo": "skip"}
    return [
        {**shared, **edge, "y": high},
        {**shared, **edge, "y": low, "fill": "tonexty", "fillcolor": _faint(palette.muted, "26")},
        {
            **shared,
            "y": middle,
            "line": {"width": 1.4, "color": palette.ink},
            "hovertemplate": f"median of {len(lines)} devices: <b>%{{y:.2f}}{q.TIMES}</b><extra></extra>",
        },
    ]


def _middle(block: RateBlock) -> float:
    return (block.first_step + block.last_step) / 2


def _faint(hex_color: str, alpha: str) -> str:
    return hex_color + alpha
