"""Replays of bundles: `malleus replay` in processes of their own, one at a time, with a time limit.

A search takes seconds of a core, so no page waits for it: a page starts one, and asks at every refresh what has come
of it. What a replay said is kept until the server ends, or until newer ones push it out.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

import streamlit as st

from app.local.environment import child_environment
from app.plan_bundle import Bundle
from db.errors import InputError
from db.messages import utc_now
from db.settings import Settings

TIME_LIMIT_S = 120.0
KEPT = 50

State = Literal["running", "same", "different", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayView:
    """One replay.

    Args:
        name: of the bundle, for a reader.
        outcome: what `malleus replay --json` printed; empty until then.
        problem: why it failed.
    """

    id: int
    name: str
    state: State
    started_at: datetime
    ended_at: datetime | None = None
    outcome: Mapping[str, Any]
    problem: str = ""


class Replays:
    """The server's replays; every method may be called from any thread."""

    def __init__(self, argv: list[str], environment: Mapping[str, str], *, time_limit_s: float = TIME_LIMIT_S) -> None:
        self._argv, self._environment, self._time_limit_s = argv, dict(environment), time_limit_s
        self._lock = threading.Lock()
        self._known: dict[int, ReplayView] = {}
        self._last_id = 0

    def start(self, name: str, text: str, *, on_end: Callable[[], None] = lambda: None) -> int:
        """Starts one and returns its number at once.

        Args:
            text: of the bundle.
            on_end: called when it has ended, from another thread.

        Raises:
            InputError: it is no bundle, or another one is running.
        """
        Bundle.from_text(text)
        with self._lock:
            if any(view.state == "running" for view in self._known.values()):
                raise InputError("another replay is running, expected none: one at a time")
            self._last_id += 1
            view = ReplayView(
                id=self._last_id, name=name[:120], state="running", started_at=utc_now(), outcome={}, problem=""
            )
            self._known[view.id] = view
            for old in sorted(self._known)[:-KEPT]:
                del self._known[old]
        threading.Thread(target=self._work, args=(view, text, on_end), daemon=True).start()
        return view.id

    def get(self, id: int) -> ReplayView | None:
        """One replay; None if it is not known (any more)."""
        with self._lock:
            return self._known.get(id)

    @property
    def is_busy(self) -> bool:
        with self._lock:
            return any(view.state == "running" for view in self._known.values())

    def _work(self, view: ReplayView, text: str, on_end: Callable[[], None]) -> None:
        try:
            ended = replace(view, **self._run(text), ended_at=utc_now())
        except OSError as error:
            ended = replace(view, state="failed", problem=f"it could not be started: {error}", ended_at=utc_now())
        with self._lock:
            self._known[view.id] = ended
        on_end()

    def _run(self, text: str) -> dict[str, Any]:
        with subprocess.Popen(
            self._argv,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                said, complained = process.communicate(text, timeout=self._time_limit_s)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                return {"state": "failed", "problem": f"it did not end within {self._time_limit_s:.0f} s"}
        try:
            outcome = json.loads(said)
            return {"state": "same" if outcome["same"] else "different", "outcome": outcome}
        except (ValueError, KeyError, TypeError):
            lines = complained.strip().splitlines()
            why = lines[-1].removeprefix("malleus: ") if lines else "nothing was said"
            return {"state": "failed", "problem": f"it ended with status {process.returncode}: {why}"}


@st.cache_resource(show_spinner=False)
def replays() -> Replays:
    """This server's."""
    argv = [sys.executable, "-m", "app.cli", "replay", "-", "--json"]
    return Replays(argv, child_environment(Settings.from_env()))
