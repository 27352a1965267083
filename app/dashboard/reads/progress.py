"""One run as it goes on: its snapshot, steps and devices' rates, from the feed that follows it."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.dashboard.reads.feed import Feed
from app.dashboard.reads.series import MAX_POINTS
from app.dashboard.reads.source import ENDED_FRESH_S, store
from app.dashboard.snapshot import Snapshot
from db import history
from db.history import StepView

WINDOWS = (100, 500, 5_000)
"""Last steps that are followed with more points than the whole run."""


def snapshot(run: int) -> Snapshot:
    """One run as it is now (at most `FRESH_S` old).

    Raises:
        InputError: unknown run.
        StoreError: the store cannot be read.
    """
    return _feed(run).snapshot()


def steps(run: int, *, num_last: int | None) -> Sequence[StepView]:
    """The last steps of a run (None: all of it), thinned."""
    if num_last is None:
        return snapshot(run).steps
    return _feed(run).window(num_last)


def steps_between(run: int, first: int, last: int) -> Sequence[StepView]:
    """The steps of a range, both ends included, thinned."""
    found = snapshot(run)
    newest = found.run.step
    if newest is not None and last >= newest and last - first + 1 in WINDOWS:
        return _feed(run).window(last - first + 1)
    known = [step for step in found.steps if first <= step.step <= last]
    if len(known) >= min(MAX_POINTS // 4, last - first + 1):
        return known
    return _steps_between(run, found.run.attempt, first, last)


def device_rates(run: int, device: int, *, since_step: int | None) -> list[tuple[int, float]]:
    """One device's `(step, rate)` series, newest samples complete, thinned."""
    return _feed(run).device_rates(device, since_step)


@st.cache_resource(show_spinner=False, max_entries=32)
def _feed(run: int) -> Feed:
    return Feed(run)


@st.cache_resource(show_spinner=False, ttl=ENDED_FRESH_S, max_entries=50)
def _steps_between(run: int, attempt: str | None, first: int, last: int) -> list[StepView]:
    del attempt  # a new one has other steps
    return history.steps(store(), run, since_step=first, until_step=last, max_points=MAX_POINTS)
