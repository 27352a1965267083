"""Cached reads: the only part of the dashboard that reads the store.

    source.py                        the open store, and how old a read may be
    runs.py, system.py               what there is: runs, services, health
    progress.py, feed.py, series.py  one run as it goes on, followed by a feed that all browsers share
    plans.py, stragglers.py          a run's plans; its rates and episodes
    drills.py, what_ifs.py, audit.py what was asked for, and what came of it

A refresh costs the same at step 100 and at step 50,000: a feed reads what is new since the last one, and
long series are thinned. Views in, snapshots out; nothing here writes, and nothing here draws.
"""

from app.dashboard.reads.audit import audit_choices, audit_count, audit_page
from app.dashboard.reads.drills import command, detected_at, drill_injections, drill_steps, drills_asked, playing
from app.dashboard.reads.plans import (
    MAX_RAN,
    all_selected,
    num_plans,
    plan,
    plan_job,
    plan_page,
    plan_steps,
    plan_story,
    plan_triggers,
    plan_versions,
    plans_that_ran,
    switches_to,
)
from app.dashboard.reads.progress import device_rates, snapshot, steps, steps_between
from app.dashboard.reads.runs import all_runs, log_lines, newest_run, origins, run, saved_step
from app.dashboard.reads.source import settings, store, write_token
from app.dashboard.reads.stragglers import MAX_EPISODES, episodes_of, rate_picture, sample_span
from app.dashboard.reads.system import beats, health
from app.dashboard.reads.what_ifs import num_what_ifs, what_if, what_if_page

__all__ = [
    "MAX_EPISODES",
    "MAX_RAN",
    "all_runs",
    "all_selected",
    "audit_choices",
    "audit_count",
    "audit_page",
    "beats",
    "command",
    "detected_at",
    "device_rates",
    "drill_injections",
    "drill_steps",
    "drills_asked",
    "episodes_of",
    "health",
    "log_lines",
    "newest_run",
    "num_plans",
    "num_what_ifs",
    "origins",
    "plan",
    "plan_job",
    "plan_page",
    "plan_steps",
    "plan_story",
    "plan_triggers",
    "plan_versions",
    "plans_that_ran",
    "playing",
    "rate_picture",
    "run",
    "sample_span",
    "saved_step",
    "settings",
    "snapshot",
    "steps",
    "steps_between",
    "store",
    "switches_to",
    "what_if",
    "what_if_page",
    "write_token",
]
