"""What the controller measures of itself and of what it talks to, for its next beat.

The dashboard never talks to the broker: whatever a page says about it was measured here and went into SQL
with the controller's heartbeat. Only the controller's own clock is used for durations, so that another
machine's clock does not show up as a delay. Decides nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from db.bus import BrokerFacts
from db.levels import Level, level
from db.messages import utc_now
from db.versions import of_this_process

WINDOW = timedelta(seconds=60)
MAX_ASKED = 20


class Gauges:
    """The newest measurements; each names its unit.

    Attributes:
        is_asking: a canary is under way.
    """

    def __init__(self) -> None:
        self.started_at = utc_now()
        self._versions = of_this_process()
        self._rounds_s: list[float] = []
        self._writes_s: list[float] = []
        self._loop_s: float | None = None
        self._write_s: float | None = None
        self._lag: tuple[datetime, float] | None = None
        self._delays: dict[int, deque[tuple[datetime, float]]] = {}
        self._num_missing: dict[int, int] = {}
        self._broker: BrokerFacts | None = None
        self._asked: dict[str, float] = {}
        self._answer_s: float | None = None
        self._answered_at: datetime | None = None
        self._since: dict[str, tuple[Level, datetime]] = {}

    @property
    def is_asking(self) -> bool:
        return bool(self._asked)

    def worked(self, seconds: float) -> None:
        """One round of the loop took so long, waiting for telemetry not included."""
        self._rounds_s.append(seconds)

    def wrote(self, seconds: float) -> None:
        """The recorder took so long to write one batch."""
        self._writes_s.append(seconds)

    def arrived(self, run: int, sent_at: datetime, now: datetime) -> None:
        """A run's newest message arrived.

        Its delay holds the difference between the two clocks. The least delay of the last minute is the one
        with the least waiting in it, and a negative one can only be a clock.
        """
        delays = self._delays.setdefault(run, deque())
        delays.append((now, (now - sent_at).total_seconds()))
        while now - delays[0][0] > WINDOW:
            delays.popleft()

    def lagged(self, seconds: float, now: datetime) -> None:
        """The newest step that was handled was so old by then."""
        self._lag = (now, seconds)

    def missed(self, run: int, number: int) -> None:
        """So many messages of a run never arrived: the engine dropped them, or the broker before they were read."""
        self._num_missing[run] = self._num_missing.get(run, 0) + number

    def forget(self, run: int) -> None:
        """The run has ended."""
        self._delays.pop(run, None)
        self._num_missing.pop(run, None)

    def broker(self, facts: BrokerFacts | None) -> None:
        """What the broker says of itself; None: it cannot be reached."""
        self._broker = facts
        if facts is None:
            self._asked.clear()

    def asked(self, canary: str, now_s: float) -> None:
        """A canary was sent (monotonic seconds)."""
        self._asked[canary] = now_s
        while len(self._asked) > MAX_ASKED:
            del self._asked[next(iter(self._asked))]

    def heard(self, canary: str, now_s: float, now: datetime) -> None:
        """A worker's beat carries this canary; older ones that are still under way say nothing new."""
        if canary not in self._asked:
            return
        self._answer_s, self._answered_at = now_s - self._asked[canary], now
        for older in list(self._asked):
            del self._asked[older]
            if older == canary:
                break

    def detail(self, now: datetime) -> dict[str, Any]:
        """Everything, for the beat; begins a new second."""
        self._loop_s = max(self._rounds_s, default=self._loop_s)
        self._write_s = max(self._writes_s, default=self._write_s)
        self._rounds_s, self._writes_s = [], []
        lag_s = self._lag[1] if self._lag is not None and now - self._lag[0] <= WINDOW else None
        skews_s = self._skews_s(now)
        broker = self._broker
        waits_s = (now - (self._answered_at or self.started_at)).total_seconds()
        for name, value in (
            ("lag_s", lag_s),
            ("loop_s", self._loop_s),
            ("write_s", self._write_s),
            ("canary_s", waits_s),
            ("round_trip_s", None if broker is None else broker.round_trip_s),
            ("memory_share", None if broker is None else broker.memory_share),
            *((f"skew_s:{run}", abs(skew_s)) for run, skew_s in skews_s.items()),
            *((f"num_missing:{run}", number) for run, number in self._num_missing.items()),
        ):
            self._follow(name, value, now)
        return {
            "started_at": self.started_at.isoformat(),
            "versions": self._versions,
            "lag_s": lag_s,
            "loop_s": self._loop_s,
            "write_s": self._write_s,
            "skews_s": skews_s,
            "num_missing": {str(run): number for run, number in self._num_missing.items()},
            "broker_facts": None if broker is None else asdict(broker),
            "canary": {
                "answer_s": self._answer_s,
                "answered_at": None if self._answered_at is None else self._answered_at.isoformat(),
            },
            "since": {name: at.isoformat() for name, (_, at) in self._since.items()},
        }

    def _skews_s(self, now: datetime) -> dict[str, float]:
        """By run, the least delay of the last minute in which it was heard."""
        recent = {
            run: [delay_s for at, delay_s in delays if now - at <= WINDOW] for run, delays in self._delays.items()
        }
        return {str(run): min(delays) for run, delays in recent.items() if delays}

    def _follow(self, name: str, value: float | None, now: datetime) -> None:
        """Since when the value stands where it stands."""
        found = level(name.partition(":")[0], value)
        if name not in self._since or self._since[name][0] != found:
            self._since[name] = (found, now)
