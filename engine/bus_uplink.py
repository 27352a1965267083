"""Rank 0's line to the broker: telemetry up, the desired document down.

Two background threads talk to the broker; training never waits for it. Messages queue up to a
bound and are dropped beyond it (and counted); while the broker is away they wait in the queue.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from db.bus import Bus
from db.errors import BusError
from db.messages import Desired, Observed, State, Telemetry, utc_now

log = logging.getLogger("malleus.engine")

QUEUE_LENGTH = 1_000
HEARTBEAT_S = 1.0
CLOSE_TIMEOUT_S = 5.0
WATCH_S = 0.5
RETRY_S = 0.5
Answer = TypeVar("Answer")


class BusUplink:
    """An `engine.uplink.Uplink` over the bus.

    Args:
        broker_url: where the broker is now; asked again when it went away, because an embedded one
            comes back at another address. May raise `BusError`.
    """

    def __init__(self, broker_url: Callable[[], str], run: int) -> None:
        self.num_dropped = 0
        self._run, self._attempt, self._broker_url = run, uuid.uuid4().hex, broker_url
        self._sequence = 0
        self._applied = 0
        self._lock = threading.Lock()
        self._queue: queue.Queue[Telemetry] = queue.Queue(QUEUE_LENGTH)
        self._desired: Desired | None = None
        self._changed = threading.Event()
        self._closing = threading.Event()
        self._state: dict[str, Any] = {"state": "starting"}
        self._last_sent = time.monotonic()
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("telemetry", self._send_forever), ("desired", self._watch_forever))
        ]
        for thread in self._threads:
            thread.start()

    def desired(self) -> Desired | None:
        return self._desired

    def wait(self, timeout_s: float) -> None:
        if self._changed.wait(timeout_s):
            self._changed.clear()

    def applied(self, version: int) -> None:
        self._applied = version

    def send(self, kind: type[Any], **fields: Any) -> None:
        with self._lock:
            message = kind(
                run=self._run,
                attempt=self._attempt,
                seq=self._sequence,
                at=utc_now(),
                desired_version=self._applied,
                **fields,
            )
            self._sequence += 1
            self._last_sent = time.monotonic()
            try:
                self._queue.put_nowait(message)
            except queue.Full:
                self.num_dropped += 1

    def set_state(self, state: str, *, step: int, reason: str = "") -> None:
        self._state = {"state": state, "step": step, "reason": reason}
        self.send(State, **self._state)

    def close(self) -> None:
        self._closing.set()
        for thread in self._threads:
            thread.join(CLOSE_TIMEOUT_S)
        if self.num_dropped:
            log.warning("%d telemetry messages were dropped", self.num_dropped)

    def _send_forever(self) -> None:
        line = _Line(self._broker_url, "telemetry waits")
        message: Telemetry | None = None
        deadline = None
        while True:
            if self._closing.is_set():
                deadline = deadline or time.monotonic() + CLOSE_TIMEOUT_S
                if (message is None and self._queue.empty()) or time.monotonic() > deadline:
                    break
            if message is None:
                try:
                    message = self._queue.get(timeout=0.2)
                except queue.Empty:
                    if time.monotonic() - self._last_sent >= HEARTBEAT_S and not self._closing.is_set():
                        self.send(State, **self._state)
                    continue
            if line.ask(partial(Bus.send, message=message)) is not None:
                message = None
        line.close()

    def _watch_forever(self) -> None:
        line = _Line(self._broker_url, "no new orders")
        while not self._closing.is_set():
            newest = line.ask(lambda bus: bus.wait_desired_change(self._run, WATCH_S))
            if newest is not None:
                self._desired = newest.read_by(self._attempt)
                self._changed.set()
                self.send(Observed, observed_version=newest.version)
        line.close()


class _Line:
    """A bus that is opened again, wherever the broker is by then, after it went away."""

    def __init__(self, broker_url: Callable[[], str], consequence: str) -> None:
        self._broker_url, self._consequence = broker_url, consequence
        self._bus: Bus | None = None
        self._is_away = False

    def ask(self, question: Callable[[Bus], Answer]) -> Answer | None:
        """The bus's answer; None, after a short wait and one log line, while the broker is away."""
        try:
            if self._bus is None:
                self._bus = Bus(self._broker_url())
            answer = question(self._bus)
            self._is_away = False
            return answer
        except BusError as error:
            if not self._is_away:
                log.warning("the broker is away, %s: %s", self._consequence, error)
            self._is_away = True
            self.close()
            time.sleep(RETRY_S)
            return None

    def close(self) -> None:
        if self._bus is not None:
            self._bus.close()
            self._bus = None
