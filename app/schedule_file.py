"""Schedules of injections: from a CSV that a person wrote, or from a named situation.

    second,device,rate,for_s
    0,3,2.57,60
    20,5,5.42,
    45,5,1,

Pure: text in, entries or problems by line out. The head line may be left out, `for_s` too; a rate of 1 makes the
device healthy again. Lines that are empty or begin with `#` are skipped.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass

from app.situations import DESCRIPTIONS, stragglers
from db.errors import InputError
from db.schedule import MAX_ENTRIES, Entry

COLUMNS = ("second", "device", "rate", "for_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class LineProblem:
    """What is wrong in a line (counted from 1)."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFile:
    """What a text holds: the entries of its good lines, and the problems of the others."""

    entries: tuple[Entry, ...]
    problems: tuple[LineProblem, ...]

    def all_entries(self) -> tuple[Entry, ...]:
        """The entries of a text without a problem.

        Raises:
            InputError: there are problems; the first few of them.
        """
        if self.problems:
            more = len(self.problems) - 3
            told = "; ".join(str(problem) for problem in self.problems[:3])
            raise InputError(told + (f"; and {more} more" if more > 0 else ""))
        return self.entries


def read_schedule(text: str, *, num_devices: int) -> ScheduleFile:
    """Reads a CSV line by line; a bad line does not hide what is wrong in the next."""
    entries: list[Entry] = []
    problems: list[LineProblem] = []
    seen: dict[tuple[int, float], int] = {}
    is_head_possible = True
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        fields = [field.strip() for field in next(csv.reader([line]))]
        is_head = is_head_possible and fields[0].lower() == COLUMNS[0]
        is_head_possible = False
        try:
            if is_head:
                _check_head(fields)
                continue
            entry = _entry(fields, num_devices)
            here = (entry.device, entry.at_s)
            if here in seen:
                raise InputError(f"device {entry.device} has a rate at second {entry.at_s:g}, in line {seen[here]}")
            seen[here] = number
            entries.append(entry)
        except InputError as error:
            problems.append(LineProblem(line=number, text=str(error)))
    if len(entries) > MAX_ENTRIES:
        problems.append(LineProblem(line=1, text=f"expected at most {MAX_ENTRIES} injections, given {len(entries)}"))
    if not entries and not problems:
        problems.append(LineProblem(line=1, text="expected at least one injection, given none"))
    return ScheduleFile(
        entries=tuple(sorted(entries, key=lambda entry: (entry.at_s, entry.device))), problems=tuple(problems)
    )


def situation_schedule(name: str, nodes: Sequence[Sequence[int]], *, at_s: float = 0.0) -> tuple[Entry, ...]:
    """The entries of a named situation on these nodes, all of them at second `at_s`, until they are cleared.

    Raises:
        InputError: an unknown name, a cluster that is too small, or a situation without a straggler.
    """
    slow = stragglers(name, nodes)
    if not slow:
        raise InputError(f"situation {name} ({DESCRIPTIONS[name]}) has nothing to play")
    return tuple(Entry(at_s=at_s, device=straggler.device, rate=straggler.rate) for straggler in slow)


def _check_head(fields: Sequence[str]) -> None:
    named = tuple(field.lower() for field in fields)
    if named not in (COLUMNS, COLUMNS[:3]):
        raise InputError(f"the head must be {','.join(COLUMNS)}, given {','.join(fields)}")


def _entry(fields: Sequence[str], num_devices: int) -> Entry:
    if not 3 <= len(fields) <= 4:
        raise InputError(f"expected {', '.join(COLUMNS[:3])} and perhaps {COLUMNS[3]}, given {len(fields)} values")
    device = _number(COLUMNS[1], fields[1])
    if not device.is_integer() or not 0 <= device < num_devices:
        raise InputError(f"device must be 0..{num_devices - 1}, given {fields[1]}")
    return Entry(
        at_s=_number(COLUMNS[0], fields[0]),
        device=int(device),
        rate=_number(COLUMNS[2], fields[2]),
        for_s=_number(COLUMNS[3], fields[3]) if len(fields) > 3 and fields[3] else None,
    )


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name} must be a number, given {text or 'nothing'}") from None
