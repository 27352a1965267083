"""The parts of a system on this machine: broker (if embedded), worker, controller, dashboard.

Started in this order, watched, restarted a bounded number of times, stopped together. Whoever holds
a `LocalSystem` is the parent of all parts: they end with it, even if it is killed. Runs and their
engines are not parts of it; see `app.local.trainer`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Self

from app.errors import LocalError
from app.local import commands
from app.local.lock import HomeLock
from app.local.part import Command, Part, stop_all
from app.local.port import answers, check_free
from db import heartbeats
from db.broker import EmbeddedBroker
from db.bus import Bus
from db.messages import utc_now
from db.settings import Settings
from db.store import Store

START_TIMEOUT_S = 60.0
MAX_RESTARTS = 5
HEALTH_PATH = "/_stcore/health"
Say = Callable[[str], None]
Wait = Callable[[float], bool]
"""Waits for that many seconds; true if the person asked to stop meanwhile."""


class LocalSystem:
    """A running system, as a context manager: entered when all parts are up, stopped on leaving.

    Args:
        has_dashboard: also serve the dashboard.
        say: takes one line for the person, such as that a part was restarted.
        wait: how to wait; a request to stop while parts are still starting raises `KeyboardInterrupt`.

    Raises:
        InputError: the port is taken, the data folder is in use or cannot be written.
        StoreError, BusError: the database or the configured broker cannot be reached.
        LocalError: a part did not come up.
    """

    def __init__(self, settings: Settings, *, has_dashboard: bool, say: Say, wait: Wait) -> None:
        self.settings = settings
        self.say = say
        self.wait = wait
        self.store: Store
        self._has_dashboard = has_dashboard
        self._lock: HomeLock | None = None
        self._broker: EmbeddedBroker | None = None
        self._parts: dict[str, Part] = {}
        self._num_restarts: dict[str, int] = {}

    def __enter__(self) -> Self:
        settings = self.settings
        self._lock = HomeLock(settings.home)
        try:
            if self._has_dashboard:
                check_free(settings.host, settings.port)
            self.store = Store.open(settings.database_url, migrate=True)
            self._start_broker()
            started_at = utc_now()
            for command in self._commands():
                self._parts[command.name] = _started(command)
            self._wait_until_up(started_at)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def watch(self) -> None:
        """Looks at every part once; starts those again that ended.

        Raises:
            LocalError: a part ended more often than it is restarted.
        """
        if self._broker is not None and self._broker.pid is None:
            self._count_restart("broker", "")
            self._broker.stop()
            self._start_broker()
            worker = self._parts["worker"]  # holds the old address; the controller looks for the new one itself
            worker.stop()
            self._parts["worker"] = _started(worker.command)
        for name, part in self._parts.items():
            if part.exit_code is not None:
                self._count_restart(name, f" with status {part.exit_code}, see {part.command.log}")
                self._parts[name] = _started(part.command)

    def stop(self) -> None:
        """Stops everything; may be called twice."""
        stop_all(list(self._parts.values()))
        self._parts.clear()
        if self._broker is not None:
            self._broker.stop()
            self._broker = None
        if hasattr(self, "store"):
            self.store.close()
        if self._lock is not None:
            self._lock.release()

    def _commands(self) -> list[Command]:
        found = [commands.worker(self.settings), commands.controller(self.settings)]
        return [*found, commands.dashboard(self.settings)] if self._has_dashboard else found

    def _start_broker(self) -> None:
        if self.settings.redis_url is None:
            self._broker = EmbeddedBroker(self.settings.home)
            self._broker.start()
        with Bus(self.settings.broker_url()) as bus:
            bus.ping()

    def _wait_until_up(self, started_at: datetime) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while missing := self._missing(started_at):
            for part in self._parts.values():
                if part.exit_code is not None:
                    raise LocalError(
                        f"the {part.name} ended at once with status {part.exit_code}: {part.last_lines()} "
                        f"(see {part.command.log})"
                    )
            if time.monotonic() >= deadline:
                raise LocalError(
                    f"no sign of life from {', '.join(missing)} within {START_TIMEOUT_S:g} s: "
                    f"see {self.settings.home / 'logs'}"
                )
            if self.wait(0.1):
                raise KeyboardInterrupt

    def _missing(self, started_at: datetime) -> list[str]:
        beats = heartbeats.all_beats(self.store)
        missing = [name for name in ("worker", "controller") if name not in beats or beats[name].at < started_at]
        if self._has_dashboard and not answers(self.settings.host, self.settings.port, HEALTH_PATH):
            missing.append("dashboard")
        return missing

    def _count_restart(self, name: str, how: str) -> None:
        self._num_restarts[name] = self._num_restarts.get(name, 0) + 1
        if self._num_restarts[name] > MAX_RESTARTS:
            raise LocalError(f"the {name} ended{how}, after {MAX_RESTARTS} restarts: stopping everything")
        self.say(f"the {name} ended{how}; starting it again ({self._num_restarts[name]} of {MAX_RESTARTS})")


def _started(command: Command) -> Part:
    try:
        return Part(command)
    except OSError as error:
        raise LocalError(f"cannot start the {command.name}: {error}") from None
