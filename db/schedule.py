"""A schedule: injections that are due at their times, as the arguments of a `play` command carry them.

    {"name": "S3", "entries": [{"at_s": 0.0, "device": 3, "rate": 2.57, "for_s": None}, ...]}

The controller plays it (`planner.control.play`); its seconds count from the moment the command was accepted. A rate
of 1 makes the device healthy again. Entries are kept in the order of their times, so the number of injections that
a command has led to says which entry comes next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from db.errors import InputError

MAX_ENTRIES = 1_000
MAX_AT_S = 86_400.0
HEALTHY = 1.0
_FIELDS = ("at_s", "device", "rate", "for_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One injection of a schedule.

    Args:
        at_s: when it is due, from the start of the schedule.
        rate: times slower than healthy; 1: the device is healthy again.
        for_s: how long it lasts; None: until the next entry of the device, or until it is cleared.
    """

    at_s: float
    device: int
    rate: float
    for_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= _number("at_s", self.at_s) <= MAX_AT_S:
            raise InputError(f"at_s must be 0..{MAX_AT_S:g} s, given {self.at_s!r}")
        if isinstance(self.device, bool) or not isinstance(self.device, int) or self.device < 0:
            raise InputError(f"device must be a device number, given {self.device!r}")
        if _number("rate", self.rate) <= 0:
            raise InputError(f"rate must be a positive finite number, given {self.rate!r}")
        if self.for_s is not None and _number("for_s", self.for_s) <= 0:
            raise InputError(f"for_s must be a positive finite number, given {self.for_s!r}")

    @property
    def end_s(self) -> float | None:
        return None if self.for_s is None else self.at_s + self.for_s

    def to_json(self) -> dict[str, Any]:
        return {"at_s": float(self.at_s), "device": self.device, "rate": float(self.rate), "for_s": self.for_s}


def arguments(name: str, entries: Sequence[Entry]) -> dict[str, Any]:
    """The arguments of the `play` command for these entries."""
    return {"name": name, "entries": [entry.to_json() for entry in entries]}


def entries_of(arguments: Mapping[str, Any]) -> list[Entry]:
    """The entries of a stored `play` command, in the order of their times."""
    return [Entry(**entry) for entry in arguments["entries"]]


def checked(arguments: Mapping[str, Any], *, num_devices: int) -> dict[str, Any]:
    """Arguments of a `play` command as they are stored: complete, in the order of their times.

    Raises:
        InputError: names the entry (counted from 1), what was expected and what was given.
    """
    name, given = arguments.get("name"), arguments.get("entries")
    if not isinstance(name, str) or not 0 < len(name) <= 100:
        raise InputError(f"name must be a text of 1 to 100 characters, given {name!r}")
    if not isinstance(given, Sequence) or isinstance(given, str) or not 0 < len(given) <= MAX_ENTRIES:
        number = len(given) if isinstance(given, Sequence) else given
        raise InputError(f"entries must be a list of 1 to {MAX_ENTRIES} injections, given {number!r}")
    found = []
    for number, fields in enumerate(given, start=1):
        if not isinstance(fields, Mapping) or set(fields) - set(_FIELDS) or not {"at_s", "device", "rate"} <= {*fields}:
            raise InputError(f"entry {number} must have {', '.join(_FIELDS)}, given {fields!r}")
        try:
            entry = Entry(**fields)
            if entry.device >= num_devices:
                raise InputError(f"device must be 0..{num_devices - 1}, given {entry.device}")
        except InputError as error:
            raise InputError(f"entry {number}: {error}") from None
        found.append(entry)
    return _with_name(name, sorted(found, key=lambda entry: (entry.at_s, entry.device)))


def _with_name(name: str, entries: Sequence[Entry]) -> dict[str, Any]:
    twice = [
        (former.device, former.at_s)
        for former, entry in pairwise(entries)
        if (former.device, former.at_s) == (entry.device, entry.at_s)
    ]
    if twice:
        device, at_s = twice[0]
        raise InputError(f"device {device} must have one rate at second {at_s:g}, given several")
    return arguments(name, entries)


def _number(name: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, given {value!r}")
    return float(value)
