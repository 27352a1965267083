"""Plans of a run: single ones, pages of a selection, and what the store knows of each beside its row."""

from __future__ import annotations

from collections.abc import Collection

import streamlit as st

from app.dashboard.plan_story import PlanStory, last_switches
from app.dashboard.reads.source import FRESH_S, store
from db import audit, history, plans
from db.history import SwitchView
from db.plans import PlanJob, PlanRun, PlanView, Selection

MAX_RAN = 1000
"""Plans whose predictions are compared with what was measured."""

CALIBRATION_FRESH_S = 5.0
"""Predictions against measurements change slowly."""

DOWNLOAD_FRESH_S = 10.0
"""A download that is at hand is made anew this often."""


def plan(run: int, version: int) -> PlanView:
    """One plan, or `InputError`."""
    return plans.get(store(), run, version)


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=50)
def plan_page(run: int, selection: Selection, *, limit: int, offset: int) -> list[PlanView]:
    """A page of the selected plans of a run."""
    return plans.all_plans(store(), run, selection=selection, limit=limit, offset=offset)


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=50)
def num_plans(run: int, selection: Selection) -> int:
    """How many plans are selected."""
    return plans.count(store(), run, selection)


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=20)
def plan_triggers(run: int) -> list[str]:
    """What asked for plans of this run, each once."""
    return plans.triggers(store(), run)


def plan_versions(run: int, versions: Collection[int]) -> dict[int, PlanView]:
    """Plans by version; unknown ones are left out."""
    return plans.of_versions(store(), run, versions) if versions else {}


def switches_to(run: int, versions: Collection[int]) -> list[SwitchView]:
    """Switches to these plans, oldest first."""
    return history.switches(store(), run, versions=sorted(versions)) if versions else []


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=50)
def plan_story(run: int, version: int) -> PlanStory:
    """What the store knows of one plan beside its row."""
    db = store()
    switches = history.switches(db, run, versions=[version])
    last = last_switches(switches).get(version)
    num_digests = 0
    if last is not None and last.outcome == "applied":
        num_digests = sum(len(tensors) for tensors in history.switch_digests(db, run, last.id)[1].values())
    return PlanStory(
        entries=audit.of_target(db, run, f"plan {version}"),
        switches=switches,
        num_digests=num_digests,
        steps=history.steps_of_plan(db, run, version),
    )


@st.cache_resource(show_spinner=False, ttl=CALIBRATION_FRESH_S, max_entries=500)
def plan_steps(run: int, version: int) -> tuple[int, int, int] | None:
    """First and last step that ran under a plan, and their number; None if none did."""
    return history.steps_of_plan(store(), run, version)


@st.cache_resource(show_spinner=False, ttl=CALIBRATION_FRESH_S, max_entries=20)
def plans_that_ran(run: int) -> list[PlanRun]:
    """The last `MAX_RAN` plans that were ever active, oldest first."""
    return plans.all_that_ran(store(), run, limit=MAX_RAN)


def plan_job(run: int, version: int) -> PlanJob | None:
    """What a plan was searched with; None if it was not searched for."""
    return plans.job(store(), run, version)


@st.cache_resource(show_spinner=False, ttl=DOWNLOAD_FRESH_S, max_entries=4)
def all_selected(run: int, selection: Selection) -> list[tuple[PlanView, SwitchView | None]]:
    """Every selected plan with the last switch to it, for a download; read in portions, a few seconds old at most."""
    found: list[tuple[PlanView, SwitchView | None]] = []
    while portion := plans.all_plans(store(), run, selection=selection, limit=plans.PORTION, offset=len(found)):
        versions = [plan.version for plan in portion]
        switches = last_switches(history.switches(store(), run, versions=versions))
        found += [(plan, switches.get(plan.version)) for plan in portion]
    return found
