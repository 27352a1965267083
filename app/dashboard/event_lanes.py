"""Events of a run as marks on its time axis: lanes of symbols, and thin lines through the charts.

Pure drawing; part of the figure that `charts` makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any, Literal

from app.dashboard.palette import Palette

MarkKind = Literal["injected", "shift", "plan", "switched", "restart"]
LANES: tuple[MarkKind, ...] = ("injected", "shift", "plan", "switched")
RARE_LANES: tuple[MarkKind, ...] = ("restart",)
"""Lanes below the others, drawn for runs that have such marks."""

MAX_LINES = 120
"""Vertical lines drawn at most, newest first; every mark keeps its symbol in its lane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened: which lane, when, and in words who and why. An end is hollow, a failure a cross."""

    kind: MarkKind
    at: datetime
    text: str
    is_bad: bool = False
    is_end: bool = False


_SYMBOLS: dict[MarkKind, str] = {
    "injected": "triangle-down",
    "shift": "diamond",
    "plan": "circle-open",
    "switched": "square",
    "restart": "x",
}


def lanes_of(marks: Sequence[Mark]) -> tuple[MarkKind, ...]:
    """The lanes to draw, from the top."""
    kinds = {mark.kind for mark in marks}
    return LANES + tuple(kind for kind in RARE_LANES if kind in kinds)


def lane_axis(lanes: Sequence[MarkKind]) -> dict[str, Any]:
    """The y axis of the lanes, first lane on top."""
    return {
        "tickmode": "array",
        "tickvals": list(range(len(lanes))),
        "ticktext": list(lanes),
        "range": [len(lanes) - 0.5, -0.5],
        "tickfont": {"size": 11},
    }


def lane_traces(marks: Sequence[Mark], palette: Palette) -> list[dict[str, Any]]:
    """One trace of symbols a lane; hovering says who and why."""
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [instant(mark.at) for mark in marks if mark.kind == kind],
            "y": [lane] * sum(mark.kind == kind for mark in marks),
            "text": [escape(mark.text) for mark in marks if mark.kind == kind],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {
                "symbol": [_symbol(mark) for mark in marks if mark.kind == kind],
                "size": 9,
                "color": [_mark_color(mark, palette) for mark in marks if mark.kind == kind],
                "line": {"width": 1.5, "color": [_mark_color(mark, palette) for mark in marks if mark.kind == kind]},
            },
            "cliponaxis": False,
            "xaxis": "x",
            "yaxis": "y",
        }
        for lane, kind in enumerate(lanes_of(marks))
    ]


def mark_lines(marks: Sequence[Mark], palette: Palette) -> list[dict[str, Any]]:
    """Vertical lines through all rows, of the newest `MAX_LINES` marks."""
    newest = sorted(marks, key=lambda mark: mark.at)[-MAX_LINES:]
    return [
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": instant(mark.at),
            "x1": instant(mark.at),
            "y0": 0,
            "y1": 1,
            "line": {"width": 1, "color": _mark_color(mark, palette), "dash": "dot"},
            "opacity": 0.55,
            "layer": "below",
        }
        for mark in newest
    ]


def instant(at: datetime) -> str:
    """An instant as the time axis takes it: UTC, milliseconds."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]


def _symbol(mark: Mark) -> str:
    return "x" if mark.is_bad else _SYMBOLS[mark.kind] + "-open" * mark.is_end


def _mark_color(mark: Mark, palette: Palette) -> str:
    if mark.is_bad:
        return palette.bad
    return {
        "injected": palette.deviation,
        "shift": palette.deviation,
        "plan": palette.muted,
        "switched": palette.accent,
        "restart": palette.bad,
    }[mark.kind]
