"""What the dashboard's figures have in common: frame, rows, axes and titles, as parts of Plotly layouts.

Pure drawing. Each figure adds what is its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from app.dashboard import quantities as q
from app.dashboard.palette import Palette

CONFIG = {"displayModeBar": False, "scrollZoom": False, "doubleClick": "reset", "displaylogo": False}
"""How a figure behaves in the browser: drag zooms, a double click shows everything again."""

_FONT = '"Source Sans", sans-serif'
_TIME_FORMATS = ((None, 60_000, "%H:%M:%S"), (60_000, 86_400_000, "%H:%M"), (86_400_000, None, "%e %b"))


def frame(palette: Palette, *, height: int, top: int, bottom: int, revision: str) -> dict[str, Any]:
    """The layout of any figure.

    Args:
        height, top, bottom: of the figure and its margins, in pixels.
        revision: zoom survives as long as this text stays the same.
    """
    return {
        "height": height,
        "margin": {"l": 62, "r": 12, "t": top, "b": bottom},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": _FONT, "size": 12, "color": palette.muted},
        "showlegend": False,
        "uirevision": revision,
        "hoverlabel": {
            "bgcolor": palette.surface,
            "bordercolor": palette.line,
            "font": {"family": _FONT, "size": 12, "color": palette.ink},
            "align": "left",
        },
    }


def rows(heights: Sequence[int], gaps: Sequence[int]) -> tuple[list[tuple[float, float]], int]:
    """Vertical shares of the rows, top to bottom, and their height with the gaps between them in pixels."""
    inner = sum(heights) + sum(gaps)
    domains, used = [], 0
    for height, gap in zip(heights, (*gaps, 0), strict=True):
        domains.append((max(0.0, 1 - (used + height) / inner), 1 - used / inner))
        used += height + gap
    return domains, inner


def x_axis(palette: Palette, *, anchor: str) -> dict[str, Any]:
    """An x axis with a line under the pointer through all rows."""
    return {
        "anchor": anchor,
        "gridcolor": palette.line,
        "linecolor": palette.line,
        "zeroline": False,
        "showspikes": True,
        "spikemode": "across",
        "spikesnap": "cursor",
        "spikethickness": 1,
        "spikedash": "solid",
        "spikecolor": palette.muted,
    }


def time_ticks() -> dict[str, Any]:
    """What makes an x axis one of UTC."""
    return {
        "type": "date",
        "tickformatstops": [{"dtickrange": [low, high], "value": form} for low, high, form in _TIME_FORMATS],
        "hoverformat": "%Y-%m-%d %H:%M:%S UTC",
        "title": axis_title("UTC"),
    }


def axis_title(text: str) -> dict[str, Any]:
    """A small title close to its axis."""
    return {"text": text, "font": {"size": 11}, "standoff": 2}


def y_axis(palette: Palette, domain: tuple[float, float]) -> dict[str, Any]:
    """The y axis of a row."""
    return {
        "domain": list(domain),
        "anchor": "x",
        "gridcolor": palette.line,
        "zeroline": False,
        "linecolor": palette.line,
        "fixedrange": True,
        "automargin": False,
    }


def rate_axis(low: float, high: float, ticks: Sequence[float]) -> dict[str, Any]:
    """What makes a y axis one of rates, which are factors."""
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickmode": "array",
        "tickvals": list(ticks),
        "ticktext": [f"{tick:g}{q.TIMES}" for tick in ticks],
    }


def row_title(palette: Palette, top: float, name: str, note: str) -> dict[str, Any]:
    """The name of a row above its top edge, with a note in HTML beside it."""
    return {
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": top,
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": 3,
        "xshift": -2,
        "showarrow": False,
        "text": f"<b style='color:{palette.ink}'>{name}</b>  {note}",
        "font": {"size": 12.5, "color": palette.muted},
    }
