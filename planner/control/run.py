"""One run, as the controller stands to it: telemetry in, desired state out.

It joins the parts: messages go to SQL first (`db.recorder`), then to the active plan and to the detector; what
the engine has observed confirms commands and injections; silence makes a run `lost`, and its next word
brings it back. It holds no truth: a new controller builds it again from SQL.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from db import commands, injections, recorder, runs
from db.errors import TransitionError
from db.messages import Checkpoint, Hello, Step, Switch, Telemetry
from db.runs import RunView
from planner.control.active import ActivePlan
from planner.control.context import Context
from planner.control.orders import Orders
from planner.control.planning import Planning
from planner.control.publisher import Publisher
from planner.control.watch import Watch

log = logging.getLogger(__name__)

SILENCE_S = 10.0
SILENCE_STEPS = 5
HEARD = ("starting", "calibrating", "training", "paused")


class RunControl:
    """The controller's side of one open run.

    Attributes:
        cursor: id of the last telemetry message that is recorded.
    """

    def __init__(self, context: Context, view: RunView) -> None:
        self._context = context
        self.id = view.id
        self.publisher = Publisher(context, view.id)
        self.watch = Watch(context, view)
        self.active = ActivePlan(context, view, self.watch)
        self.planning = Planning(context, view, self.watch, self.active)
        self.orders = Orders(context, view.id, self.planning)
        self.orders.settle(view)
        self.cursor = recorder.cursor(context.store, view.id)
        self._attempt = view.attempt
        self._last_seq = -1
        self._confirmed = -1
        self._heard_at = context.clock.monotonic()

    def listen(self, batch: Sequence[tuple[str, Telemetry]]) -> float | None:
        """Records a batch and draws the conclusions.

        Returns:
            Seconds by which the newest step is late; None if the batch has no step.
        """
        if not batch:
            return None
        store = self._context.store
        self._context.gauges.wrote(recorder.record(store, self.id, batch).write_s)
        self.cursor = batch[-1][0]
        self._heard_at = self._context.clock.monotonic()
        view = runs.get(store, self.id)
        messages = [message for _, message in batch if message.attempt == view.attempt]
        if view.attempt != self._attempt:
            last_words = [message for _, message in batch if message.attempt == self._attempt][-1:]
            for message in last_words:
                self._confirm(message, view)
            self._attempt, self._last_seq, self._confirmed = view.attempt, -1, -1
            self.active.on_attempt()
            self.orders.on_attempt(view)
            self.planning.is_wanted = False
        lag_s = None
        for message in messages:
            if message.seq <= self._last_seq and not isinstance(message, Hello):
                continue
            if 0 <= self._last_seq < message.seq - 1:
                self._context.gauges.missed(self.id, message.seq - self._last_seq - 1)
            self._last_seq = max(self._last_seq, message.seq)
            if isinstance(message, Switch):
                self._take_switch(message)
            elif isinstance(message, Checkpoint):
                self.orders.settle_checkpoints()
            elif isinstance(message, Step):
                self._take_step(message)
                lag_s = (self._context.clock.now() - message.at).total_seconds()
        if messages:
            self._confirm(messages[-1], view)
        return lag_s

    def tick(self, view: RunView) -> None:
        """What is due without a message."""
        self.active.tick(view)
        self.planning.tick(view)
        self._notice_silence(view)

    def excuse_silence(self) -> None:
        """Nobody could have been heard meanwhile: the broker or this process was away."""
        self._heard_at = self._context.clock.monotonic()

    def end(self, view: RunView) -> None:
        """The run has ended: nothing of it stays open. Safe to repeat."""
        at = view.ended_at or self._context.clock.now()
        self.watch.close_all(step=view.step or 0, at=at)
        self.planning.end(f"the run ended ({view.status})")
        self.orders.end(view)

    def _take_switch(self, message: Switch) -> None:
        if self.active.on_switch(message):
            self.planning.is_wanted = False

    def _take_step(self, message: Step) -> None:
        if self.active.on_step(message):
            self.planning.is_wanted = False  # what shifted, shifted against another plan
        if self.active.plan is not None and self.watch.observe(message):
            self.planning.is_wanted = True

    def _confirm(self, last: Telemetry, view: RunView) -> None:
        """The engine has applied everything up to this version of the document."""
        if last.desired_version <= self._confirmed:
            return
        step = view.step if view.step is not None else 0
        injections.observed(self._context.store, self.id, last.desired_version, step, last.at)
        commands.apply_observed(self._context.store, self.id, last.desired_version, step, attempt=last.attempt)
        self._confirmed = last.desired_version

    def _notice_silence(self, view: RunView) -> None:
        silent_s = self._context.clock.monotonic() - self._heard_at
        step_s = view.step_s if view.step_s is not None and math.isfinite(view.step_s) else 0.0
        if view.status not in HEARD or silent_s <= max(SILENCE_S, SILENCE_STEPS * step_s):
            return
        try:
            runs.set_status(self._context.store, self.id, "lost", reason=f"no telemetry for {silent_s:.0f} s")
        except TransitionError as error:
            log.info("run %s: %s", self.id, error)
            return
        log.warning("run %s: lost, no telemetry for %.0f s", self.id, silent_s)
