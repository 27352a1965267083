"""The controller process: `python -m planner.controller`.

Opens the store, waits until no other controller acts, connects to the broker and loops until SIGTERM or
SIGINT. All it knows comes from SQL and the broker; it may be killed and started again at any moment.
Exit status: 0 after a signal, 2 where it cannot start, 1 where another controller has taken over.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from types import FrameType

from db.bus import Bus
from db.errors import BusError, InputError, StoreError
from db.settings import Settings
from db.store import Store
from planner.control.context import Clock, Context
from planner.control.errors import LeaseError
from planner.control.lease import Lease
from planner.control.loop import Loop
from planner.control.queue import TaskQueue

log = logging.getLogger(__name__)

START_S = 10.0
RETRY_S = 0.5


def main() -> int:
    """Runs the controller; returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    try:
        settings = Settings.from_env()
        store = Store.open(settings.database_url)
    except (InputError, StoreError) as error:
        print(error, file=sys.stderr)
        return 2
    with store:
        return serve(settings, store, stop)


def serve(settings: Settings, store: Store, stop: threading.Event) -> int:
    """Controls the store's runs until `stop` is set; returns the exit status."""
    clock = Clock()
    lease = Lease(store, settings.home, clock)
    broker = _Broker(settings)
    try:
        lease.acquire(wait_s=START_S, wait=stop.wait)
        context = broker.context(store, clock, stop)
    except (LeaseError, StoreError, BusError) as error:
        lease.release()
        print(error, file=sys.stderr)
        return 2
    try:
        log.info("controlling the runs of %r", store)
        Loop(context, lease, stop, connect=broker.connect).run()
    except LeaseError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        broker.close()
        lease.release()
    log.info("stopped")
    return 0


class _Broker:
    """The broker's present address, and what is connected to it. An embedded broker moves when it restarts."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._url = ""
        self._bus: Bus | None = None
        self._queue: TaskQueue | None = None

    def context(self, store: Store, clock: Clock, stop: threading.Event) -> Context:
        """The context to start with; waits a while for the broker.

        Raises:
            BusError: it cannot be reached.
        """
        deadline = clock.monotonic() + START_S
        while True:
            try:
                self._open()
                assert self._bus is not None
                assert self._queue is not None
                self._bus.ping()
                return Context(store=store, bus=self._bus, queue=self._queue, clock=clock)
            except BusError:
                if clock.monotonic() >= deadline or stop.wait(RETRY_S):
                    raise

    def connect(self, context: Context) -> None:
        """Points the context to the broker's present address.

        Raises:
            BusError: no broker is announced.
        """
        self._open()
        assert self._bus is not None
        assert self._queue is not None
        context.bus, context.queue = self._bus, self._queue

    def close(self) -> None:
        if self._bus is not None:
            self._bus.close()
        if self._queue is not None:
            self._queue.close()

    def _open(self) -> None:
        url = self._settings.broker_url()
        if url == self._url:
            return
        bus = Bus(url)
        self.close()
        self._url, self._bus, self._queue = url, bus, TaskQueue(url)


if __name__ == "__main__":
    sys.exit(main())
