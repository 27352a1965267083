"""What the Stragglers page shows, as its address says it: `?run=&devices=&range=&x=&data=&episode=`. Pure.

The address is the truth: widgets are set from it and write to it, so a reload, a link and a click
on the grid all end in the same view. What is not in the address has its default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from app.dashboard.device_list import parsed

RANGES = {"100": "100 steps", "500": "500 steps", "5000": "5,000 steps", "all": "all"}
DEFAULT_RANGE = "500"
AXES = {"step": "by step", "time": "by time"}
DATA = {"auto": "automatic", "raw": "raw", "minute": "per minute"}
STATES = ("all", "open", "ended")
_BETWEEN = re.compile(r"(\d{1,15})?\s*-\s*(\d{1,15})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The whole view.

    Args:
        devices: chosen ones; none: the page chooses those that matter.
        range: a key of `RANGES`, or `first-last` with both ends included and one of them optional.
        x: a key of `AXES`.
        data: a key of `DATA`.
        episode: the one that is marked, by id.
        state, cause, only, text: filters of the list of episodes; `only` is a device.
        sort: column of the list, with a leading `-` if descending.
        page: of the list, from 1.
        problems: what in the address could not be understood, in words.
    """

    devices: tuple[int, ...] = ()
    range: str = DEFAULT_RANGE
    x: str = "step"
    data: str = "auto"
    episode: int | None = None
    state: str = "all"
    cause: str = ""
    only: int | None = None
    text: str = ""
    sort: str = "-since"
    page: int = 1
    problems: tuple[str, ...] = ()

    def steps(self, newest_step: int) -> tuple[int, int]:
        """First and last step to show, within the run."""
        if self.range == "all":
            return 0, newest_step
        if self.range in RANGES:
            return max(0, newest_step - int(self.range) + 1), newest_step
        first, last = _ends(self.range)
        last = newest_step if last is None else min(last, newest_step)
        return min(first or 0, last), last


def view_of(params: Mapping[str, str], num_devices: int) -> View:
    """Reads an address; what is wrong in it is named and has its default."""
    problems: list[str] = []
    try:
        devices = tuple(parsed(params.get("devices", ""), num_devices))
    except ValueError as error:
        devices = ()
        problems.append(f"Devices: {error}.")
    shown = params.get("range", DEFAULT_RANGE)
    if shown not in RANGES and not is_range(shown):
        problems.append(f"Range: expected steps as in 1200-1500, given {shown[:40]!r}.")
        shown = DEFAULT_RANGE
    only = _number(params.get("only"))
    return View(
        devices=devices,
        range=shown,
        x=_one_of(params.get("x"), AXES, "step"),
        data=_one_of(params.get("data"), DATA, "auto"),
        episode=_number(params.get("episode")),
        state=_one_of(params.get("state"), STATES, "all"),
        cause=params.get("cause", ""),
        only=only if only is not None and only < num_devices else None,
        text=params.get("text", ""),
        sort=params.get("sort", "-since"),
        page=max(1, _number(params.get("page")) or 1),
        problems=tuple(problems),
    )


def is_range(text: str) -> bool:
    """Whether a text is `first-last` with one end at least, in order."""
    match = _BETWEEN.fullmatch(text.strip())
    if match is None or match[1] is match[2] is None:
        return False
    first, last = _ends(text)
    return first is None or last is None or first <= last


def clean_range(text: str) -> str:
    """A typed range as the address writes it: thousands separators and spaces go."""
    return re.sub(r"[\s,\u202f]", "", text.replace("\u2013", "-"))


def around(first: int, last: int) -> str:
    """A range that shows these steps and some before and after them."""
    margin = max(20, (last - first + 1) // 5)
    return f"{max(0, first - margin)}-{last + margin}"


def _ends(text: str) -> tuple[int | None, int | None]:
    match = _BETWEEN.fullmatch(text.strip())
    assert match is not None, "checked when the address was read"
    return (None if match[1] is None else int(match[1])), (None if match[2] is None else int(match[2]))


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else None


def _one_of(text: str | None, known: Mapping[str, str] | tuple[str, ...], default: str) -> str:
    return text if text in known else default  # type: ignore[return-value]
