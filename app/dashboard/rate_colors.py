"""Colours of straggling rates: one fixed scale for every page and both themes.

Colour runs over log(rate) from 1.05 to 12.5, from pale amber to deep purple. Lightness falls all the
way, so the order survives any colour blindness and a grey print. Below 1.05 a device is neutral
(the theme's grey, no colour here), so a healthy cluster looks quiet. Failed and unknown rates have
no colour either: they are told by shape (see `device_grid`).
"""

from __future__ import annotations

import math
from itertools import pairwise

HEALTHY_BELOW = 1.05
"""Rates below this are drawn grey; the detector's own band is 5 % too."""

SCALE_TOP = 12.5
"""Rates above this keep the last colour; eight co-running jobs slow a device 12.53 times."""

TICKS = (1.0, 2.0, 5.0, 12.5)

ANCHORS: tuple[tuple[float, str], ...] = (
    (1.05, "#fde2ab"),
    (1.60, "#fbc468"),
    (2.57, "#f39a3d"),
    (3.75, "#e2703a"),
    (5.42, "#c84350"),
    (8.00, "#a52a63"),
    (12.5, "#751a66"),
)
"""Colours between which `fill` interpolates, by rate."""

LIGHT_INK = "#ffffff"
DARK_INK = "#000000"


def fill(rate: float | None) -> str | None:
    """Fill of a rate as `#rrggbb`; None where the scale has no colour (healthy, failed, unknown)."""
    if rate is None or not math.isfinite(rate) or rate < HEALTHY_BELOW:
        return None
    place = math.log(min(rate, SCALE_TOP))
    for (low, low_color), (high, high_color) in pairwise(ANCHORS):
        if place <= math.log(high):
            share = (place - math.log(low)) / (math.log(high) - math.log(low))
            return _mix(low_color, high_color, share)
    return ANCHORS[-1][1]


def ink(color: str) -> str:
    """The text colour that reads best on a fill (at least 4.5:1 everywhere on the scale)."""
    return max((LIGHT_INK, DARK_INK), key=lambda candidate: contrast(candidate, color))


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, 1 to 21.

    Source: WCAG 2.2, definition of contrast ratio.
    """
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def gradient() -> str:
    """The scale as CSS colour stops from 1.0 to 12.5, evenly spaced in log(rate), for a legend."""
    stops = [f"{color} {100 * position(rate):.1f}%" for rate, color in ANCHORS]
    return ", ".join(stops)


def position(rate: float) -> float:
    """Place of a rate on the legend, 0 (rate 1.0) to 1 (rate 12.5)."""
    return math.log(min(max(rate, 1.0), SCALE_TOP)) / math.log(SCALE_TOP)


def _mix(one: str, other: str, share: float) -> str:
    pairs = zip(_channels(one), _channels(other), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def _channels(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def _luminance(color: str) -> float:
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (channel / 255 for channel in _channels(color))
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
