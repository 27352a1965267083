"""How a range of steps is shown: how wide a block is, which devices matter, and in words what is seen. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from app.dashboard import quantities as q
from app.dashboard.heat_strip import num_columns
from app.dashboard.rate_colors import HEALTHY_BELOW
from app.dashboard.rate_lines import MAX_LINES
from db.rates import SampleSpan

if TYPE_CHECKING:
    from app.dashboard.snapshot import Snapshot

LINE_POINTS = 6_000
MIN_BLOCKS, MAX_BLOCKS = 150, 500
MAX_RAW = 1_000
"""Up to so many steps each is drawn; of more, the lowest and the highest of a block."""


def default_devices(snapshot: Snapshot) -> list[int]:
    """The devices shown when none is chosen: slow now or in an episode, newest first; else all."""
    number = snapshot.run.config.num_devices
    slow = [device for device, rate in snapshot.rates.items() if not rate < HEALTHY_BELOW]
    found = dict.fromkeys([*(entry.device for entry in snapshot.episodes if entry.is_open), *slow])
    found |= dict.fromkeys(entry.device for entry in snapshot.episodes)
    devices = [device for device in found if device < number][:MAX_LINES]
    return sorted(devices) if devices else list(range(number))


def line_width(num_steps: int, num_devices: int) -> int:
    """Steps a block of the lines; 1 shows every step."""
    most = max(MIN_BLOCKS, min(MAX_BLOCKS, LINE_POINTS // max(1, num_devices)))
    return 1 if num_steps <= min(2 * most, MAX_RAW) else _power_of_two(num_steps / most)


def strip_width(num_steps: int, num_devices: int) -> int:
    """Steps a block of the strip of all devices."""
    return _power_of_two(num_steps / num_columns(num_devices))


def data_label(
    span: SampleSpan,
    data: str,
    steps: tuple[int, int],
    *,
    width: int,
    wide: int,
    missing: float,
    num_blocks: int,
) -> str:
    """What the chart shows, or why it shows nothing.

    Args:
        steps: first and last step shown.
        width, wide: steps a block of the lines and of the strip.
        missing: share of the range that is still to be read.
    """
    first, last = steps
    shown = f"Steps {q.count(first)} to {q.count(last)}. "
    first_raw = last + 1 if span.raw is None else span.raw[0]
    if data == "minute":
        if span.rolled_up is None or span.rolled_up[0] > last or span.rolled_up[1] < first:
            return f"{shown}Nothing of this range is rolled up yet: young samples are raw. Choose automatic or raw."
        end = min(span.rolled_up[1], last)
        rest = "; later samples are still raw (choose automatic)" if end < last else ""
        return (
            shown + f"Per minute, up to step {q.count(end)}: lowest, median, highest of each{rest}." + _to_come(missing)
        )
    if data == "raw" and first_raw > last:
        return f"{shown}No raw samples here: they were rolled up by the minute. Choose automatic or per minute."
    if num_blocks == 0 and missing == 0:
        return f"{shown}These devices have no samples of train steps here."
    raw = "every train step" if width == 1 else f"lowest and highest of each {width} train steps"
    label = f"Raw samples, {raw}"
    if data == "auto" and first < first_raw and span.rolled_up is not None:
        if first_raw > last:
            label = "Per minute (rolled up): lowest, median, highest of each"
        else:
            label = f"Per minute (rolled up) before step {q.count(first_raw)}, then raw samples, {raw}"
    elif data == "raw" and first < first_raw:
        label += f"; those before step {q.count(first_raw)} were rolled up (choose automatic)"
    strip = "" if wide == 1 else f"; the strip by {wide} steps"
    return f"{shown}{label}{strip}." + _to_come(missing)


def _to_come(missing: float) -> str:
    return "" if missing <= 0 else f" Older steps are being read: {math.floor(100 * (1 - missing))}{q.THIN}% is there."


def _power_of_two(at_least: float) -> int:
    return 1 << max(0, math.ceil(math.log2(max(at_least, 1.0))))
