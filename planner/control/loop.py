"""The control loop: read, record, conclude, obey, publish; a few times a second, and never in a spin.

The broker or the database may go away at any time: one line when that happens, one when it is back, and
nothing is lost meanwhile, since the broker holds no truth and telemetry waits in its stream.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from db import commands, heartbeats, injections, rollup, runs
from db.errors import BusError, StoreError
from db.messages import Telemetry
from db.runs import RunView
from planner.control.context import Context
from planner.control.errors import LeaseError
from planner.control.lease import Lease
from planner.control.run import RunControl
from planner.control.what_ifs import WhatIfs

log = logging.getLogger(__name__)

BLOCK_S = 0.15
IDLE_S = 0.5
EXPIRY_S = 0.25
RETRY_S = 0.5
SECOND_S = 1.0
CANARY_S = 5.0
ROLL_UP_S = 600.0
RAW_KEPT = timedelta(days=1)
GAP_S = 3.0
RUNS_SWEPT = 20


class Loop:
    """Controls every open run until it is stopped.

    Args:
        connect: gives the context a bus and a queue for the broker's present address.
    """

    def __init__(
        self, context: Context, lease: Lease, stop: threading.Event, *, connect: Callable[[Context], None]
    ) -> None:
        self._context, self._lease, self._stop, self._connect = context, lease, stop, connect
        self._controls: dict[int, RunControl] = {}
        self._what_ifs = WhatIfs(context)
        self._is_broker_away = False
        self._is_store_away = False
        self._is_swept = False
        self._due_at: dict[str, float] = defaultdict(lambda: -math.inf)
        self._ticked_at = context.clock.monotonic()
        self._worker_at = ""
        self._troubles: set[str] = set()
        self.num_errors = 0

    def run(self) -> None:
        """Ticks until told to stop.

        Raises:
            LeaseError: another controller has taken over.
        """
        while not self._stop.is_set():
            try:
                self.tick()
            except StoreError as error:
                if not self._is_store_away:
                    log.warning("the database is away, trying again: %s", error)
                self._is_store_away = True
                self._stop.wait(RETRY_S)
            except LeaseError:
                raise
            except Exception as error:  # the outermost loop: whatever it is, the other runs go on
                self._trouble("tick", error)
                self._stop.wait(RETRY_S)

    def tick(self) -> None:
        """One round: waits for telemetry (a moment at most), then does all that is due.

        Raises:
            StoreError: the database is away; the round is simply repeated.
            LeaseError: another controller has taken over.
        """
        messages = self._read()
        begin_s = self._context.clock.monotonic()
        self._excuse_gap()
        for run, batch in messages.items():
            with self._guard(f"run {run}"):
                self._listen(run, batch)
        views = {view.id: view for view in runs.open_runs(self._context.store)}
        self._follow(views)
        self._obey(views)
        for run, control in self._controls.items():
            if run in views:
                with self._guard(f"run {run}"):
                    control.tick(views[run])
        self._publish()
        if not self._is_broker_away:
            with self._guard("what-ifs"):
                self._what_ifs.tick()
        if self._is_due("second", SECOND_S):
            self._every_second()
        if self._context.gauges.is_asking:
            self._hear_worker()
        if self._is_store_away:
            log.warning("the database is back")
            self._is_store_away = False
        self._context.gauges.worked(self._context.clock.monotonic() - begin_s)

    def _listen(self, run: int, batch: list[tuple[str, Telemetry]]) -> None:
        clock, gauges = self._context.clock, self._context.gauges
        gauges.arrived(run, batch[-1][1].at, clock.now())
        lag_s = self._controls[run].listen(batch)
        if lag_s is not None:
            gauges.lagged(lag_s, clock.now())

    def _read(self) -> dict[int, list[tuple[str, Telemetry]]]:
        batches: dict[int, list[tuple[str, Telemetry]]] = defaultdict(list)
        if self._is_broker_away:
            self._stop.wait(RETRY_S)
            self._reconnect()
        if not self._controls or self._is_broker_away:
            self._stop.wait(IDLE_S)
            return batches
        with self._broker():
            cursors = {run: control.cursor for run, control in self._controls.items()}
            for run, stream_id, message in self._context.bus.read(cursors, block_s=BLOCK_S):
                batches[run].append((stream_id, message))
        return batches

    def _follow(self, views: dict[int, RunView]) -> None:
        """Takes up new runs, lets go of those that ended, at the start also of those that ended unwatched."""
        if self._is_broker_away:
            return
        if not self._is_swept:
            for view in runs.all_runs(self._context.store, limit=RUNS_SWEPT):
                if not view.is_open:
                    with self._guard(f"run {view.id}"):
                        self._let_go(RunControl(self._context, view))
            self._is_swept = True
        for run, view in views.items():
            if run not in self._controls:
                with self._guard(f"run {run}"), self._broker():
                    control = RunControl(self._context, view)
                    control.publisher.begin(view)
                    self._controls[run] = control
                    log.info("run %s (%s) is %s", run, view.name, view.status)
        for run in [run for run in self._controls if run not in views]:
            with self._guard(f"run {run}"):
                self._let_go(self._controls[run])
                del self._controls[run]
                self._context.gauges.forget(run)
                view = runs.get(self._context.store, run)
                log.info("run %s is %s%s", run, view.status, f": {view.reason}" if view.reason else "")

    def _let_go(self, control: RunControl) -> None:
        """Reads a run's last words, then closes it."""
        with self._broker():
            while batch := self._context.bus.read({control.id: control.cursor}):
                control.listen([(stream_id, message) for _, stream_id, message in batch])
        control.end(runs.get(self._context.store, control.id))

    def _obey(self, views: dict[int, RunView]) -> None:
        for command in commands.pending(self._context.store):
            run, control = command.run, self._controls.get(command.run)
            with self._guard(f"run {run}"):
                if run not in views:
                    commands.finish(self._context.store, command.id, ok=False, result="the run has ended")
                elif control is not None:
                    control.orders.obey(command, views[run])
                    views[run] = runs.get(self._context.store, run)
        if self._is_due("expiry", EXPIRY_S):
            over: dict[int, list[int]] = defaultdict(list)
            for injection in injections.expired(self._context.store, self._context.clock.now()):
                over[injection.run].append(injection.device)
            for run, devices in over.items():
                if run in self._controls:
                    self._controls[run].orders.clear_expired(devices)
            for run, control in self._controls.items():
                if run in views:
                    with self._guard(f"run {run}"):
                        control.orders.play.tick(views[run])

    def _publish(self) -> None:
        if self._is_broker_away:
            return
        is_check = self._is_due("reconcile", SECOND_S)
        for run, control in self._controls.items():
            with self._guard(f"run {run}"), self._broker():
                view = runs.get(self._context.store, run)
                if is_check:
                    control.publisher.reconcile(view)
                else:
                    control.publisher.publish_if_due(view)

    def _every_second(self) -> None:
        self._lease.renew(
            {
                **self._context.gauges.detail(self._context.clock.now()),
                "num_runs": len(self._controls),
                "num_errors": self.num_errors,
                "broker": "away" if self._is_broker_away else "ok",
            }
        )
        self._hear_worker()
        self._ask_broker()
        if self._is_due("canary", CANARY_S) and not self._is_broker_away:
            clock = self._context.clock
            canary, now_s = clock.now().isoformat(), clock.monotonic()
            if self._context.queue.send_canary(canary):
                self._context.gauges.asked(canary, now_s)
        if self._is_due("roll up", ROLL_UP_S):
            rollup.roll_up(self._context.store, older_than=RAW_KEPT)

    def _ask_broker(self) -> None:
        facts = None
        if not self._is_broker_away:
            with self._broker():
                facts = self._context.bus.facts(self._controls)
        self._context.gauges.broker(facts)

    def _hear_worker(self) -> None:
        beat = heartbeats.all_beats(self._context.store).get("worker")
        if beat is not None and beat.at.isoformat() != self._worker_at:
            self._worker_at = beat.at.isoformat()
            clock = self._context.clock
            self._context.gauges.heard(str(beat.detail.get("canary", "")), clock.monotonic(), clock.now())
            for control in self._controls.values():
                control.planning.on_worker()

    def _excuse_gap(self) -> None:
        """A round that took long (an outage, a suspended machine) is no engine's silence."""
        now = self._context.clock.monotonic()
        if now - self._ticked_at > GAP_S or self._is_broker_away:
            for control in self._controls.values():
                control.excuse_silence()
        self._ticked_at = now

    def _reconnect(self) -> None:
        try:
            self._connect(self._context)
            self._context.bus.ping()
        except BusError:
            return
        log.warning("the broker is back")
        self._is_broker_away = False
        self._due_at["reconcile"] = -math.inf

    @contextmanager
    def _broker(self) -> Iterator[None]:
        """Around everything that needs the broker: one line when it goes away."""
        try:
            yield
        except BusError as error:
            if not self._is_broker_away:
                log.warning("the broker is away, trying again: %s", error)
            self._is_broker_away = True

    @contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        """Around what concerns one run: its trouble is not the others'."""
        try:
            yield
        except (StoreError, BusError, LeaseError):
            raise
        except Exception as error:  # the outermost loop, per run
            self._trouble(what, error)

    def _trouble(self, what: str, error: Exception) -> None:
        self.num_errors += 1
        name = f"{what}: {type(error).__name__}: {error}"
        if name not in self._troubles:  # a traceback once, a count after that
            self._troubles.add(name)
            log.error("%s", name, exc_info=error)

    def _is_due(self, what: str, every_s: float) -> bool:
        now = self._context.clock.monotonic()
        if now - self._due_at[what] < every_s:
            return False
        self._due_at[what] = now
        return True
