"""A schedule as a small lane chart: one lane a device, one bar an injection, to scale in time. Pure HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from app.dashboard import quantities as q
from app.dashboard.device_grid import rate_style
from db.schedule import HEALTHY, Entry

MOST_LANES = 16
NUM_TICKS = 5


def schedule_lanes(entries: Sequence[Entry], *, elapsed_s: float | None = None) -> str:
    """The chart.

    Args:
        entries: in the order of their times.
        elapsed_s: how long it is being played; None: not yet.
    """
    if not entries:
        return ""
    length_s = span_s(entries)
    devices = sorted({entry.device for entry in entries})
    lanes = [_lane(device, entries, length_s) for device in devices[:MOST_LANES]]
    more = len(devices) - MOST_LANES
    rest = f'<p class="muted">and {more} more device{"s" if more != 1 else ""}</p>' if more > 0 else ""
    now = (
        f'<i class="lane-now" style="left:{_percent(min(elapsed_s, length_s), length_s)}"></i>'
        if elapsed_s is not None
        else ""
    )
    ticks = "".join(
        f'<span style="left:{100 * share:.1f}%">{q.duration(length_s * share)}</span>'
        for share in (index / (NUM_TICKS - 1) for index in range(NUM_TICKS))
    )
    label = f"Schedule of {len(entries)} injections on {len(devices)} devices over {q.duration(length_s)}"
    return (
        f'<div class="lanes" role="img" aria-label="{escape(label)}">{"".join(lanes)}'
        f'<div class="lane-axis"><span></span><div>{ticks}</div></div>'
        f'<div class="lane-over"><span></span><div>{now}</div></div></div>{rest}'
    )


def span_s(entries: Sequence[Entry]) -> float:
    """Seconds from the start to the end of what ends, with room for what does not."""
    last_s = max(max(entry.at_s, entry.end_s or 0.0) for entry in entries)
    is_open = any(entry.end_s is None and entry.rate != HEALTHY for entry in entries)
    return max(last_s * (1.2 if is_open else 1.0), last_s + 10.0 if is_open else 1.0)


def next_entry(entries: Sequence[Entry], elapsed_s: float) -> Entry | None:
    """The first entry that is still to come."""
    return next((entry for entry in entries if entry.at_s > elapsed_s), None)


def _lane(device: int, entries: Sequence[Entry], length_s: float) -> str:
    mine = [entry for entry in entries if entry.device == device]
    bars = ""
    for entry, following in zip(mine, [*mine[1:], None], strict=True):
        until_s = min(
            entry.end_s if entry.end_s is not None else length_s, following.at_s if following is not None else length_s
        )
        if entry.rate == HEALTHY:
            continue
        ending = "until cleared" if entry.end_s is None and following is None else f"until second {until_s:g}"
        tip = f"device {device}: {q.rate(entry.rate)} from second {entry.at_s:g} {ending}"
        bars += (
            f'<i class="bar-lane" style="left:{_percent(entry.at_s, length_s)};'
            f'width:{_percent(until_s - entry.at_s, length_s)};{rate_style(entry.rate)}" '
            f'data-tip="{escape(tip, quote=True)}"><b>{q.rate(entry.rate)}</b></i>'
        )
    return f'<div class="lane"><span class="lane-name">device {device}</span><div class="lane-track">{bars}</div></div>'


def _percent(value_s: float, length_s: float) -> str:
    return f"{100 * value_s / length_s:.2f}%"
