"""The colour scale of rates: fixed, readable, and ordered for every eye."""

from __future__ import annotations

import itertools
import math

import pytest

from app.dashboard import rate_colors

PRESETS = (1.06, 1.6, 2.57, 3.75, 5.42, 8.0, 12.53)
# Machado, Oliveira, Fernandes 2009, severity 1.0, applied to linear RGB.
DEFICIENCIES = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def lab(color: str, deficiency: str) -> tuple[float, float, float]:
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (int(color[index : index + 2], 16) / 255 for index in (1, 3, 5))
    ]
    red, green, blue = (
        min(max(sum(weight * value for weight, value in zip(row, linear, strict=True)), 0), 1)
        for row in DEFICIENCIES[deficiency]
    )
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    fx, fy, fz = (value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("rate", [None, math.nan, math.inf, 0.9, 1.0, 1.0499])
def test_healthy_failed_and_unknown_have_no_colour(rate: float | None) -> None:
    assert rate_colors.fill(rate) is None


def test_the_scale_is_fixed_at_its_ends() -> None:
    assert rate_colors.fill(1.05) == rate_colors.ANCHORS[0][1]
    assert rate_colors.fill(12.5) == rate_colors.fill(400.0) == rate_colors.ANCHORS[-1][1]


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_slower_is_darker_and_told_apart_for_every_eye(deficiency: str) -> None:
    colors = [lab(rate_colors.fill(rate) or "", deficiency) for rate in PRESETS]
    for one, other in itertools.pairwise(colors):
        assert one[0] > other[0], "lightness falls with the rate"
        assert math.dist(one, other) > 8, "neighbouring presets differ visibly (CIE76)"


def test_text_is_readable_everywhere_on_the_scale() -> None:
    for step in range(200):
        color = rate_colors.fill(1.05 * (12.5 / 1.05) ** (step / 199))
        assert color is not None
        assert rate_colors.contrast(rate_colors.ink(color), color) >= 4.5


def test_positions_are_logarithmic() -> None:
    assert rate_colors.position(1.0) == 0
    assert rate_colors.position(12.5) == 1
    assert rate_colors.position(math.sqrt(12.5)) == pytest.approx(0.5)
    assert rate_colors.position(0.5) == 0
