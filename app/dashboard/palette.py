"""Colours of the two themes for the charts, which cannot take them from CSS."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """What the charts need of a theme."""

    ink: str
    muted: str
    line: str
    surface: str
    accent: str
    deviation: str
    bad: str


LIGHT = Palette(
    ink="#1c2127",
    muted="#6a7078",
    line="#e6e8eb",
    surface="#ffffff",
    accent="#2f5bd0",
    deviation="#c05a12",
    bad="#b3261e",
)
DARK = Palette(
    ink="#e4e7eb",
    muted="#949aa3",
    line="#252b32",
    surface="#171b21",
    accent="#7ea2ff",
    deviation="#f0a04b",
    bad="#ff8a80",
)
