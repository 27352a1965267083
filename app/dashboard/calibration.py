"""Predicted against measured: how well the cost model foresaw the plans that ran. Pure drawing.

A figure over versions, a line that sums it up, and for every large error what explains it: rates that changed while
the plan ran, too few steps, or the model itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from app.dashboard import chart_style
from app.dashboard import quantities as q
from app.dashboard.links import link
from app.dashboard.palette import Palette
from app.dashboard.table import Column, Row, table

if TYPE_CHECKING:
    from db.episodes import EpisodeView
    from db.plans import PlanRun

LARGE = 0.10
"""Errors beyond this are explained one by one."""

FEW_STEPS = 5
MAX_POINTS = 1000
MAX_EXPLAINED = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One plan that ran, with its prediction and its measurement.

    Args:
        until_at: when the next plan became active; None while it is the last one.
    """

    version: int
    active_at: datetime
    until_at: datetime | None
    predicted_s: float
    measured_s: float
    bound_s: float | None

    @property
    def error(self) -> float:
        """Measured over predicted, minus one: positive means slower than predicted."""
        return self.measured_s / self.predicted_s - 1


def outcomes(ran: Sequence[PlanRun], *, predicted_s: Mapping[int, float] | None = None) -> list[Outcome]:
    """The plans that have both numbers, oldest first.

    Args:
        predicted_s: by version, for plans that came without a prediction (the one that a run starts with).
    """
    known = predicted_s or {}
    ordered = sorted(ran, key=lambda entry: entry.active_at)
    ends = {first.version: second.active_at for first, second in pairwise(ordered)}
    found = []
    for entry in ordered:
        predicted = known.get(entry.version) if entry.predicted_s is None else entry.predicted_s
        if _is_time(predicted) and _is_time(entry.measured_s):
            assert predicted is not None
            assert entry.measured_s is not None
            found.append(
                Outcome(
                    version=entry.version,
                    active_at=entry.active_at,
                    until_at=ends.get(entry.version),
                    predicted_s=predicted,
                    measured_s=entry.measured_s,
                    bound_s=entry.bound_s if _is_time(entry.bound_s) else None,
                )
            )
    return found


def summary(found: Sequence[Outcome], num_ran: int) -> str:
    """The figures in one line."""
    if not found:
        waiting = f" {num_ran} ran without both numbers." if num_ran else ""
        return f'<p class="empty">No plan has both a prediction and a measurement yet.{waiting}</p>'
    errors = [abs(entry.error) for entry in found]
    worst = max(found, key=lambda entry: abs(entry.error))
    close = sum(error <= LARGE for error in errors)
    facts = [
        f"<b>{q.count(len(found))}</b> plan{'s' if len(found) != 1 else ''} measured of {q.count(num_ran)} that ran",
        f"median error <b>{q.percent(median(errors))}</b>",
        f"within {q.percent(LARGE)}: <b>{q.count(close)}</b>",
        f"worst <b>{signed(worst.error)}</b> (v{worst.version})",
    ]
    return f'<div class="run-line">{"".join(f"<span class=fact>{fact}</span>" for fact in facts)}</div>'


def figure(found: Sequence[Outcome], *, palette: Palette, revision: str) -> dict[str, Any]:
    """Step times above, error below, over the versions; at most `MAX_POINTS` plans, the worst always among them."""
    shown = _thinned(found)
    at = [entry.version for entry in shown]
    error = [100 * entry.error for entry in shown]
    text = [_hover(entry) for entry in shown]
    line = {"type": "scatter", "x": at, "customdata": text, "hovertemplate": "%{customdata}<extra></extra>"}
    mode = "lines+markers" if len(shown) <= 120 else "lines"
    traces = [
        {
            **line,
            "y": [entry.bound_s for entry in shown],
            "mode": "lines" if len(shown) > 1 else "markers",
            "line": {"color": palette.muted, "width": 1.5, "dash": "dash"},
            "hoverinfo": "skip",
            "hovertemplate": None,
        },
        {
            **line,
            "y": [entry.predicted_s for entry in shown],
            "mode": mode,
            "line": {"color": palette.deviation, "width": 1.4},
            "marker": {"symbol": "circle-open", "size": 8, "color": palette.deviation},
            "hoverinfo": "skip",
            "hovertemplate": None,
        },
        {
            **line,
            "y": [entry.measured_s for entry in shown],
            "mode": mode,
            "line": {"color": palette.accent, "width": 1.6},
            "marker": {"size": 7, "color": palette.accent},
        },
        {
            **line,
            "type": "bar",
            "y": error,
            "yaxis": "y2",
            **({"width": 0.3} if len(at) <= 15 else {}),
            "marker": {
                "color": [palette.bad if abs(value) > 100 * LARGE else palette.muted for value in error],
                "line": {"width": 0},
            },
        },
    ]
    limit = max([100 * LARGE * 1.5, *(abs(value) for value in error)]) * 1.15
    axis = {"gridcolor": palette.line, "zerolinecolor": palette.muted, "linecolor": palette.line, "fixedrange": True}
    layout = chart_style.frame(palette, height=380, top=26, bottom=40, revision=revision) | {
        "hovermode": "closest",
        "bargap": 0.6,
        "xaxis": {"title": {"text": "plan version", "font": {"size": 11}}, "gridcolor": palette.line, "zeroline": False,
                  "tickprefix": "v", "tickformat": "d", "anchor": "y2", **({"dtick": 1} if len(at) <= 15 else {}),
                  **({"range": [at[0] - 0.6, at[-1] + 0.6]} if at else {})},
        "yaxis": {**axis, "domain": [0.42, 1], "ticksuffix": " s", "tickformat": ".3~g", "rangemode": "tozero"},
        "yaxis2": {**axis, "domain": [0, 0.3], "ticksuffix": " %", "range": [-limit, limit], "nticks": 5},
        "annotations": [
            chart_style.row_title(palette, 1.0, "Step time", _legend(palette)) | {"yshift": 5},
            chart_style.row_title(
                palette, 0.3, "Error", "measured over predicted; above zero it was slower than predicted"
            ) | {"yshift": 5},
        ],
    }  # fmt: skip
    return {"data": traces, "layout": layout, "config": chart_style.CONFIG}


def explanation(entry: Outcome, episodes: Sequence[EpisodeView], num_steps: int | None) -> str:
    """What explains a plan's error, in a sentence.

    Args:
        num_steps: steps that ran under it; None if unknown.
    """
    end = entry.until_at
    is_slower = entry.error > 0  # a device that slows down explains only that, one that recovers only the opposite
    began = [item for item in episodes if is_slower and _is_inside(item.start_at, entry.active_at, end)]
    ended = [
        item
        for item in episodes
        if not is_slower and item.end_at is not None and _is_inside(item.end_at, entry.active_at, end)
    ]
    parts = [f"device {item.device} slowed to {q.rate(item.peak)} while it ran" for item in began[:2]]
    if len(began) > 2:
        parts.append(f"{len(began) - 2} more slowed")
    parts += [f"device {item.device} recovered while it ran" for item in ended[:2] if item not in began]
    if num_steps is not None and num_steps < FEW_STEPS:
        parts.append(f"only {num_steps} step{'s' if num_steps != 1 else ''} ran")
    if parts:
        return "; ".join(parts)
    if entry.bound_s is not None and entry.measured_s < entry.bound_s:
        return "faster than the bound at the rates it was made for: devices ran better than they were measured"
    slower = "slower" if entry.error > 0 else "faster"
    return f"no rate changed that explains it: the step is {slower} than the profile says, calibrate again"


def large_errors(
    found: Sequence[Outcome], episodes: Sequence[EpisodeView], num_steps: Mapping[int, int], *, run: int, now: datetime
) -> str:
    """A table of the large errors, the newest first, with what explains each."""
    large = with_large_error(found)
    if not large:
        return f'<p class="muted">No error is larger than {q.percent(LARGE)}.</p>'
    columns = [
        Column(title="Plan"),
        Column(title="Active since"),
        Column(title="Predicted", is_number=True),
        Column(title="Measured", is_number=True),
        Column(title="Bound", is_number=True),
        Column(title="Error", is_number=True),
        Column(title="What explains it", is_wide=True),
    ]
    rows = [
        Row(
            key=str(entry.version),
            cells=[
                link(f"v{entry.version}", "plans", {"run": run, "version": entry.version}),
                escape(q.clock(entry.active_at, now=now)),
                q.seconds(entry.predicted_s),
                q.seconds(entry.measured_s),
                q.seconds(entry.bound_s),
                signed(entry.error),
                escape(explanation(entry, episodes, num_steps.get(entry.version))),
            ],
        )
        for entry in large
    ]
    return table(columns, rows, label="Large errors of the prediction")


def with_large_error(found: Sequence[Outcome]) -> list[Outcome]:
    """Those that are explained: the last ones, newest first."""
    return [entry for entry in reversed(found) if abs(entry.error) > LARGE][:MAX_EXPLAINED]


def records(found: Sequence[Outcome]) -> list[dict[str, Any]]:
    """As plain values, for a download."""
    names = ("version", "active_at", "until_at", "predicted_s", "measured_s", "bound_s", "error")
    return [{name: getattr(entry, name) for name in names} for entry in found]


def description(found: Sequence[Outcome]) -> str:
    """The figure in words, for a screen reader."""
    if not found:
        return "No plan has been measured yet."
    return f"Predicted and measured step time of {len(found)} plans; median error " + q.percent(
        median(abs(entry.error) for entry in found)
    )


def signed(error: float) -> str:
    """`+3.2 %`."""
    return f"{'+' if error >= 0 else ''}{q.percent(error)}"


def _thinned(found: Sequence[Outcome]) -> list[Outcome]:
    if len(found) <= MAX_POINTS:
        return list(found)
    width = math.ceil(len(found) / MAX_POINTS)
    return [
        max(found[first : first + width], key=lambda entry: abs(entry.error)) for first in range(0, len(found), width)
    ]


def _hover(entry: Outcome) -> str:
    bound = "" if entry.bound_s is None else f"<br>bound {q.seconds(entry.bound_s)}"
    return (
        f"<b>plan v{entry.version}</b><br>predicted {q.seconds(entry.predicted_s)}<br>"
        f"measured {q.seconds(entry.measured_s)} ({signed(entry.error)}){bound}"
    )


def _legend(palette: Palette) -> str:
    return (
        f"<span style='color:{palette.accent}'>\u25cf</span> measured   "
        f"<span style='color:{palette.deviation}'>\u25cb</span> predicted   "
        f"<span style='color:{palette.muted}'><b>\u254c\u254c</b></span> capacity bound"
    )


def _is_inside(moment: datetime, start: datetime, end: datetime | None) -> bool:
    return moment > start and (end is None or moment < end)


def _is_time(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0
