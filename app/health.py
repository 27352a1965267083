"""How the system is: every fact with its state, its unit, since when, and what to do.

    store --(read_inputs)--> Inputs --(examine)--> items --(overall)--> one word

All of it comes from SQL: what concerns the broker was measured by the controller (`planner.control.gauges`). A
measurement whose measurer is silent is unknown, never ok. `malleus doctor` is the other view: it tries things
out on this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app import health_data, health_services
from app.health_facts import Inputs, Item, Measured
from db import audit, heartbeats, runs
from db.levels import Level
from db.messages import utc_now
from db.store import Store
from db.store_facts import StoreFacts, store_facts
from db.versions import installed, of_this_process

MAX_RUNS = 20
"""Open runs that are looked at, the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overall:
    """All items in one word."""

    state: Level
    word: str


def read_inputs(store: Store, *, facts: StoreFacts | None = None) -> Inputs:
    """Reads everything.

    Args:
        facts: of the store, where they were read a moment ago.

    Raises:
        StoreError: the store cannot be read.
    """
    found = runs.open_runs(store)[-MAX_RUNS:]
    hellos = {run.id: audit.last(store, run.id, "run.hello") for run in found}
    return Inputs(
        now=utc_now(),
        beats=heartbeats.all_beats(store),
        runs=found,
        store=facts or store_facts(store),
        torch={run: str(hello.detail.get("torch_version", "")) for run, hello in hellos.items() if hello is not None},
        attempts_at={run: hello.at for run, hello in hellos.items() if hello is not None},
        versions=of_this_process() | {"streamlit": installed("streamlit")},
    )


def examine(inputs: Inputs) -> list[Item]:
    """All facts, in a fixed order: services, broker, store, runs, versions."""
    measured = Measured(inputs)
    return [
        *health_services.services(inputs, measured),
        *health_services.broker(measured),
        *health_data.store(inputs, measured),
        *(item for run in inputs.runs for item in health_data.run_items(inputs, measured, run)),
        *health_data.versions(inputs),
    ]


def overall(items: Sequence[Item]) -> Overall:
    """The worst state, and how often; unknown alone is no alarm: whoever is silent is one already."""
    bad, warn = (sum(item.state == state for item in items) for state in ("bad", "warn"))
    if bad:
        return Overall(state="bad", word=f"{bad} problem{'s' if bad > 1 else ''}")
    if warn:
        return Overall(state="warn", word=f"{warn} warning{'s' if warn > 1 else ''}")
    return Overall(state="ok", word="healthy")
