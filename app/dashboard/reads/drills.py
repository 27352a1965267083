"""Drills: what was asked of a run by command, what was injected, and when it was detected."""

from __future__ import annotations

from datetime import datetime

import streamlit as st

from app.dashboard.reads.source import FRESH_S, store
from db import audit, commands, history, injections
from db.audit import AuditView
from db.commands import CommandView
from db.history import StepView
from db.injections import InjectionView

MAX_DRILL_STEPS = 3_000
"""Steps of one drill that its report is made of; a longer one is thinned."""

DRILL_FRESH_S = 2.0
"""How long the steps of a drill are kept."""


def command(id: int) -> CommandView:
    """One command, as it stands this moment."""
    return commands.get(store(), id)


def drills_asked(run: int) -> list[CommandView]:
    """The run's last `inject` and `play` commands, newest first."""
    return [entry for entry in _commands(run) if entry.kind in ("inject", "play")]


def playing(run: int) -> CommandView | None:
    """The schedule that a run plays now, or is about to."""
    return next((entry for entry in _commands(run) if entry.kind == "play" and entry.done_at is None), None)


@st.cache_resource(show_spinner=False, ttl=DRILL_FRESH_S, max_entries=20)
def drill_steps(run: int, since_step: int, until_step: int | None) -> list[StepView]:
    """The steps of a drill, complete up to `MAX_DRILL_STEPS`."""
    return history.steps(store(), run, since_step=since_step, until_step=until_step, max_points=MAX_DRILL_STEPS)


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=20)
def drill_injections(run: int) -> list[InjectionView]:
    """The run's last injections, newest first."""
    return injections.all_injections(store(), run, limit=2_000)


def detected_at(run: int) -> dict[int, datetime]:
    """When the controller opened each of the run's last episodes, by episode id (from the audit)."""
    return {
        int(entry.detail["episode"]): entry.at
        for entry in _audit(run)
        if entry.action == "episode" and entry.result == "open" and "episode" in entry.detail
    }


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=20)
def _commands(run: int) -> list[CommandView]:
    return commands.recent(store(), run, limit=200)


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=20)
def _audit(run: int) -> list[AuditView]:
    return audit.entries(store(), run, limit=300)
