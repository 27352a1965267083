"""What the health of the system is told in: facts, what they are judged from, and the controller's measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from app.dashboard import quantities as q
from db.heartbeats import BeatView
from db.levels import Level, level
from db.runs import RunView
from db.store_facts import StoreFacts

WORDS: Mapping[Level, str] = {"ok": "ok", "warn": "warning", "bad": "problem", "unknown": "unknown"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One fact.

    Args:
        value: in words, with its unit.
        since: since when the state is what it is; None: not known.
        advice: what to do; empty where nothing needs doing.
        figures: the same as plain values, units in their names.
        run: the run that it is about.
    """

    group: str
    name: str
    state: Level
    value: str
    since: datetime | None = None
    advice: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    run: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What is judged, all read from the store.

    Args:
        torch: version that the newest attempt of each open run introduced itself with.
        attempts_at: when that attempt began.
        versions: of the program that asks.
    """

    now: datetime
    beats: Mapping[str, BeatView]
    runs: Sequence[RunView]
    store: StoreFacts
    torch: Mapping[int, str]
    attempts_at: Mapping[int, datetime]
    versions: Mapping[str, str]


class Measured:
    """The controller's measurements; none of them counts once it is silent."""

    def __init__(self, inputs: Inputs) -> None:
        self.beat = inputs.beats.get("controller")
        self.silent_s = None if self.beat is None else (inputs.now - self.beat.at).total_seconds()
        self.is_stopped = self.beat is not None and self.beat.detail.get("state") == "stopped"
        self.state: Level = "bad" if self.is_stopped or self.silent_s is None else level("silence_s", self.silent_s)
        self._detail = self.beat.detail if self.beat is not None and self.state != "bad" else {}

    def get(self, name: str) -> Any:
        return self._detail.get(name)

    def part(self, name: str) -> Mapping[str, Any]:
        found = self._detail.get(name)
        return found if isinstance(found, Mapping) else {}

    def number_of(self, name: str) -> float | None:
        return number(self._detail.get(name))

    def since(self, name: str) -> datetime | None:
        return instant(self.part("since").get(name))

    @property
    def why_unknown(self) -> str:
        return "" if self._detail else "The controller measures it, and is silent."


def judged(
    measured: Measured,
    *,
    group: str,
    name: str,
    measure: str,
    value: str,
    advice: str,
    state: Level | None = None,
    value_now: float | None = None,
    figures: Mapping[str, Any] | None = None,
) -> Item:
    """A measurement of the controller against its limits; the state can be given where it is known otherwise."""
    given = measured.number_of(measure) if value_now is None else value_now
    found = state or level(measure, given)
    unknown = measured.why_unknown
    return Item(
        group=group,
        name=name,
        state=found,
        value=q.UNKNOWN if unknown or (given is None and state is None) else value,
        since=measured.since(measure),
        advice=unknown or ("" if found in ("ok", "unknown") else advice),
        figures={measure: given, **(figures or {})},
    )


def number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def instant(value: object) -> datetime | None:
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
