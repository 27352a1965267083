"""What-ifs on their way to a worker: sent one at a time, sent again, given up.

They need no run. At most one is with the workers, so that the plan of a run that has shifted waits behind one
search at most, never behind a queue of them.
"""

from __future__ import annotations

import logging
import math

from db import what_ifs
from db.what_ifs import WhatIfView
from planner.control.context import Context

log = logging.getLogger(__name__)

SCAN_S = 0.5
RESEND_S = 10.0
QUEUED_LIMIT_S = 60.0
SOLVING_GRACE_S = 30.0


class WhatIfs:
    """Sends the oldest open what-if; what has been sent is known to SQL once a worker has claimed it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._scanned_at = -math.inf
        self._first_sent_at: dict[int, float] = {}
        self._sent_at: dict[int, float] = {}

    def tick(self) -> None:
        """Moves the oldest one on."""
        now = self._context.clock.monotonic()
        if now - self._scanned_at < SCAN_S:
            return
        self._scanned_at = now
        waiting = what_ifs.waiting(self._context.store)
        solving = [entry for entry in waiting if entry.status == "solving"]
        for entry in solving:
            self._watch(entry)
        if waiting and not solving:
            self._chase(waiting[0], now)
        known = {entry.id for entry in waiting}
        for times in (self._first_sent_at, self._sent_at):
            for id in set(times) - known:
                del times[id]

    def _chase(self, entry: WhatIfView, now: float) -> None:
        """Sends its task, and again now and then; gives up on one that nobody takes."""
        first_at = self._first_sent_at.get(entry.id)
        if first_at is not None and now - first_at > QUEUED_LIMIT_S:
            self._give_up(entry, f"no worker took it within {QUEUED_LIMIT_S:.0f} s")
        elif now - self._sent_at.get(entry.id, -math.inf) > RESEND_S and self._context.queue.send_what_if(entry.id):
            self._first_sent_at.setdefault(entry.id, now)
            self._sent_at[entry.id] = now
            log.info("what-if %s by %s: sent", entry.id, entry.actor)

    def _watch(self, entry: WhatIfView) -> None:
        """Gives up on a worker that does not answer."""
        limit_s = entry.request.time_limit_s + SOLVING_GRACE_S
        since = entry.claimed_at or entry.created_at
        if (self._context.clock.now() - since).total_seconds() > limit_s:
            self._give_up(entry, f"{entry.worker or 'the worker'} did not answer within {limit_s:.0f} s")

    def _give_up(self, entry: WhatIfView, reason: str) -> None:
        what_ifs.fail(self._context.store, entry.id, reason)
        log.warning("what-if %s failed: %s", entry.id, reason)
