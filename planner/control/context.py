"""What every part of the controller works with: store, broker, task queue and clock.

Tests put a scripted bus, queue and clock here. Nothing is decided here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from db.bus import BrokerFacts
from db.messages import Desired, Telemetry, utc_now
from db.store import Store
from planner.control.gauges import Gauges

ACTOR = "controller"


class Channel(Protocol):
    """What the controller needs of `db.bus.Bus`."""

    def publish_desired(self, document: Desired) -> None: ...
    def read_desired(self, run: int) -> Desired | None: ...
    def read(
        self, cursors: Mapping[int, str], *, block_s: float = 0.0, count: int = 500
    ) -> list[tuple[int, str, Telemetry]]: ...
    def reset(self, run: int) -> None: ...
    def ping(self) -> float: ...
    def facts(self, runs: Iterable[int]) -> BrokerFacts: ...
    def close(self) -> None: ...


class Queue(Protocol):
    """What the controller needs of the task queue (see `planner.control.queue`)."""

    def send_solve(self, run: int, version: int) -> bool: ...
    def send_what_if(self, id: int) -> bool: ...
    def send_canary(self, canary: str) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Instants, and seconds that never jump."""

    now: Callable[[], datetime] = utc_now
    monotonic: Callable[[], float] = time.monotonic


@dataclass(slots=True, kw_only=True)
class Context:
    """The surroundings; `bus` and `queue` are replaced when the broker moves to another address."""

    store: Store
    bus: Channel
    queue: Queue
    clock: Clock
    gauges: Gauges = field(default_factory=Gauges)
