"""Numbers as a person reads them: three significant digits, a unit, a zone.

Pure text. Unknown is written `–`, not-a-number `NaN`, infinity `∞`: nothing here raises because a
measurement is odd.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from itertools import pairwise

UNKNOWN = "\u2013"
TIMES = "\u00d7"
"""The multiplication sign of rates."""

DASH = "\u2013"
"""Between the ends of a range."""

THIN = "\u202f"
"""Narrow no-break space, between a number and its unit."""


def number(value: float | None, *, digits: int = 3) -> str:
    """Significant digits with thousands separators: `2.14`, `1,280`, `0.0312`."""
    if value is None:
        return UNKNOWN
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    if rounded != 0:  # 9.996 rounds to 10.0, which has one digit more before the point
        decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    if abs(rounded) < 1e-4:
        return f"{rounded:.{digits - 1}e}"
    return f"{rounded:,.{max(decimals, 0)}f}"


def count(value: int | None) -> str:
    """A whole number: `1,284`."""
    return UNKNOWN if value is None else f"{value:,}"


def rate(value: float | None) -> str:
    """A straggling rate: `2.57×`."""
    if value is None:
        return UNKNOWN
    if math.isnan(value):
        return "?"
    if math.isinf(value):
        return "failed"
    return (f"{value:.2f}" if value < 100 else number(value)) + TIMES


def percent(share: float | None) -> str:
    """A share of one: `93 %`; below ten percent with one decimal."""
    if share is None or not math.isfinite(share):
        return UNKNOWN
    value = 100 * share
    if abs(value) < 0.05:
        return f"0{THIN}%"
    return f"{value:.1f}{THIN}%" if 0 < abs(value) < 9.95 else f"{value:,.0f}{THIN}%"


def seconds(value: float | None) -> str:
    """A measured time with its unit: `312 ms`, `1.41 s`; from two minutes on as a duration."""
    if value is None or not math.isfinite(value):
        return number(value)
    if abs(value) >= 120:
        return duration(value)
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if abs(value) * factor >= 0.9995:
            return number(value * factor) + THIN + unit
    return "0" + THIN + "s" if value == 0 else number(value * 1e6) + THIN + "µs"


def duration(value: float | None) -> str:
    """A humane duration, two units at most: `8 s`, `4 m 12 s`, `2 h 5 m`, `3 d 4 h`."""
    if value is None or not math.isfinite(value):
        return number(value)
    sign, whole = ("-" if value <= -0.5 else ""), round(abs(value))
    if whole < 60:
        return f"{sign}{whole}{THIN}s"
    for (unit, size), (lower, lower_size) in pairwise(_UNITS):
        if whole >= size:
            rest = whole % size // lower_size
            tail = f" {rest}{THIN}{lower}" if rest else ""
            return f"{sign}{whole // size}{THIN}{unit}{tail}"
    raise AssertionError("a minute or more has a unit")


_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def age(value: float | None) -> str:
    """How old something is: tenths below ten seconds, then a duration; never negative."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    value = max(value, 0.0)
    return f"{value:.1f}{THIN}s" if value < 9.95 else duration(value)


def num_bytes(value: float | None) -> str:
    """A size in decimal units: `64 B`, `1.23 MB`."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= size * 0.9995:
            return number(value / size) + THIN + unit
    return f"{value:.0f}{THIN}B"


def clock(at: datetime | None, *, now: datetime | None = None) -> str:
    """An instant with its zone: `14:02:11 UTC`; with the date where it is not the day of `now`."""
    if at is None:
        return UNKNOWN
    at = at.astimezone(UTC)
    if now is not None and now.astimezone(UTC).date() == at.date():
        return f"{at:%H:%M:%S} UTC"
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def devices(ids: list[int] | tuple[int, ...], *, most: int = 6) -> str:
    """`device 3`, `devices 3 and 5`, `devices 0, 1, 2 and 13 more`."""
    names = [str(device) for device in ids]
    if len(names) == 1:
        return f"device {names[0]}"
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1} more"]
    return f"devices {', '.join(names[:-1])} and {names[-1]}"


def arrows(text: str) -> str:
    """What the planner wrote, with the arrows that a terminal has no signs for: `3.73 s → 2.02 s`."""
    return text.replace("->", "→")
