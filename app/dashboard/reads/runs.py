"""Runs: which there are, which can be started from, and what their processes print."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from app.dashboard.reads.source import FRESH_S, settings, store
from app.local import run_log
from db import checkpoints, runs
from db.runs import RunView

MAX_ORIGINS = 100
"""Runs among which a new one finds a checkpoint to start from."""

ORIGINS_FRESH_S = 10.0
"""How long that list is kept."""


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=20)
def all_runs(*, limit: int = 100, offset: int = 0) -> list[RunView]:
    """Runs, newest first."""
    return runs.all_runs(store(), limit=limit, offset=offset)


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=50)
def run(id: int) -> RunView:
    """One run, or `InputError`."""
    return runs.get(store(), id)


def newest_run() -> int | None:
    """The run to show when nobody named one: the newest that has not ended, else the newest."""
    found = all_runs()
    running = next((entry for entry in found if entry.is_open), None)
    chosen = running or (found[0] if found else None)
    return None if chosen is None else chosen.id


@st.cache_resource(show_spinner=False, ttl=ORIGINS_FRESH_S)
def origins() -> dict[int, int]:
    """Runs that another one can start from: the step of the newest checkpoint whose folder is there, by run."""
    found = {}
    for entry in runs.all_runs(store(), limit=MAX_ORIGINS):
        saved = next((one for one in checkpoints.saved(store(), entry.id) if Path(one.path).is_dir()), None)
        if saved is not None:
            found[entry.id] = saved.step
    return found


def saved_step(run: int) -> int | None:
    """The step of the newest checkpoint of a run, as it stands this moment; None if it has none."""
    newest = checkpoints.newest_saved(store(), run)
    return None if newest is None else newest.step


def log_lines(run: int) -> list[str]:
    """What the run's processes on this machine printed last."""
    return run_log.last_lines(settings(), run)
