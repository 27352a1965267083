"""One controller at a time.

On one machine a file lock on the data folder decides, and it goes with its process. Between machines (and
where the data folder cannot be written) the `controller` heartbeat does: it carries this controller's token,
and whoever finds another fresh one there does not act. All that a controller does is idempotent, so the moment
in which two of them could overlap (both starting in the same instant on two machines, until the next beat)
does no harm.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from db import heartbeats
from db.errors import StoreError
from db.heartbeats import BeatView
from db.store import Store
from planner.control.context import ACTOR, Clock
from planner.control.errors import LeaseError

LOCK_FILE = "controller.lock"
STALE_S = 5.0

log = logging.getLogger(__name__)


class Lease:
    """The right to act, renewed with every beat.

    Args:
        home: data folder of this machine.
    """

    def __init__(self, store: Store, home: Path, clock: Clock) -> None:
        self._store, self._home, self._clock = store, home, clock
        self._token = secrets.token_hex(8)
        self._descriptor: int | None = None
        self._is_held = False
        self._seen: tuple[str, datetime] | None = None
        self._seen_at = -math.inf

    def acquire(self, *, wait_s: float, wait: Callable[[float], bool]) -> None:
        """Waits until no other controller acts.

        Args:
            wait_s: how long at most; a crashed one on another machine looks alive for `STALE_S`.
            wait: waits so many seconds; true if it should give up.

        Raises:
            LeaseError: another one still acts.
        """
        deadline = self._clock.monotonic() + wait_s
        while True:
            try:
                self._lock()
                self.renew({})
                self._is_held = True
                return
            except LeaseError:
                if self._clock.monotonic() >= deadline or wait(0.25):
                    self.release()
                    raise

    def renew(self, detail: Mapping[str, Any]) -> None:
        """Beats, unless another controller does.

        Raises:
            LeaseError: another one has taken over.
        """
        other = heartbeats.all_beats(self._store).get(ACTOR)
        if other is not None and self._is_rival(other):
            self._is_held = False
            raise LeaseError(f"another controller acts for this store: process {other.pid} on {other.host}")
        heartbeats.beat(self._store, ACTOR, {"token": self._token, **detail})

    def release(self) -> None:
        """Lets the next one start at once. Safe to repeat."""
        if self._is_held:
            self._is_held = False
            with contextlib.suppress(StoreError):  # then the next one waits until the beat is stale
                heartbeats.beat(self._store, ACTOR, {"state": "stopped"})
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _is_rival(self, beat: BeatView) -> bool:
        """Whether the beat is of another controller that lives.

        Between machines that is told by its beats going on, by this machine's clock alone: clocks differ.
        """
        token = str(beat.detail.get("token", ""))
        if token in ("", self._token) or (beat.host == socket.gethostname() and not _is_running(beat.pid)):
            return False
        now = self._clock.monotonic()
        if self._seen != (token, beat.at):
            self._seen, self._seen_at = (token, beat.at), now
        return now - self._seen_at < STALE_S

    def _lock(self) -> None:
        if self._descriptor is not None:
            return
        try:
            self._home.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._home / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            log.info(
                "no lock file in %s (%s): heartbeats alone keep a second controller out", self._home, error.strerror
            )
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise LeaseError(f"another controller acts for {self._home}: process {holder or 'unknown'}") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._descriptor = descriptor


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
