"""The sending end of the task queue.

Sending is a hint, never the record: the plan's row stands in SQL before, and is sent again while nobody
has claimed it. So a broker that is away is an answer here, not an error.
"""

from __future__ import annotations

import logging

from celery.exceptions import OperationalError

from planner.worker import CANARY, SOLVE, WHAT_IF, make_app

log = logging.getLogger(__name__)

CANARY_EXPIRES_S = 30


class TaskQueue:
    """Sends tasks to the workers of one broker."""

    def __init__(self, url: str) -> None:
        self._app = make_app(lambda: url)

    def send_solve(self, run: int, version: int) -> bool:
        """Asks a worker to solve a plan row; false if the broker cannot be reached."""
        return self._send(SOLVE, [run, version], None)

    def send_what_if(self, id: int) -> bool:
        """Asks a worker to answer a what-if; false if the broker cannot be reached."""
        return self._send(WHAT_IF, [id], None)

    def send_canary(self, canary: str) -> bool:
        """Asks a worker to say this back, worth nothing after a while."""
        return self._send(CANARY, [canary], CANARY_EXPIRES_S)

    def close(self) -> None:
        self._app.close()

    def _send(self, name: str, arguments: list[int] | list[str], expires_s: int | None) -> bool:
        try:
            self._app.send_task(name, args=arguments, expires=expires_s, retry=False, ignore_result=True)
        except OperationalError as error:
            log.warning("cannot send %s: %s", name, error)
            return False
        return True
