"""A choice of devices as a text that a person can type and an address can carry: `3, 5, 8-15`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

ALL = "all"
_PART = re.compile(r"(\d{1,6})(?:\s*[-\u2013]\s*(\d{1,6}))?")


def parsed(text: str, num_devices: int) -> list[int]:
    """The devices of a text, ascending; an empty text names none.

    Raises:
        ValueError: what was expected, and the part that is something else.
    """
    if text.strip().lower() == ALL:
        return list(range(num_devices))
    found: set[int] = set()
    for part in filter(None, (part.strip() for part in re.split(r"[,;]", text))):
        match = _PART.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if last < first or last >= num_devices:
            expected = "device 0" if num_devices == 1 else f"devices 0 to {num_devices - 1}"
            raise ValueError(f"expected {expected} as in 3, 5, 8-15, given {part[:40]!r}")
        found.update(range(first, last + 1))
    return sorted(found)


def listed(devices: Iterable[int], num_devices: int) -> str:
    """The text of a choice, three or more in a row as a range: `3,5,8-15`; `all` for all of several."""
    ids = sorted(set(devices))
    if len(ids) == num_devices > 1:
        return ALL
    breaks = [0, *(index for index, (one, other) in enumerate(pairwise(ids), start=1) if other != one + 1), len(ids)]
    runs = [ids[first:stop] for first, stop in pairwise(breaks)] if ids else []
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]
    return ",".join(parts)
