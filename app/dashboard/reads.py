"""Cached reads: the only module of the dashboard that reads the store.

All browsers share them. A run is followed by a feed that reads what is new since the last refresh (new
steps, new plans), so a refresh costs the same at step 100 and at step 50,000; the store thins long
series. Views in, snapshots out; nothing here writes, and nothing here draws.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import streamlit as st

from app.dashboard.snapshot import Snapshot
from db import audit, commands, episodes, heartbeats, history, injections, plans, runs, what_ifs
from db.audit import AuditView
from db.commands import CommandView
from db.heartbeats import BeatView
from db.history import DeviceView, RateWindow, StepView
from db.messages import utc_now
from db.plans import PlanView
from db.runs import RunView
from db.settings import Settings
from db.store import Store
from db.what_ifs import WhatIfView

FRESH_S = 0.6
"""Browsers that ask again within this time share one read."""

ENDED_FRESH_S = 20.0
"""The same for runs that have ended."""

MAX_POINTS = 1200
"""Steps kept of one series; twice as many before it is thinned again."""

WINDOW_STEPS = 3
"""Train steps whose median is a device's rate now."""

MAX_SAMPLES = 10_000
"""Raw samples read of one device."""

MAX_FOLLOWED = 16
"""Devices of a run whose samples are kept in memory."""

LOOK_BACK_STEPS = 500
"""How far back a feed looks for the last word of a device that is silent when it begins."""

RELOAD_S = 30.0
"""Everything but steps is read in full this often, in between only what is new."""


@st.cache_resource(show_spinner=False)
def settings() -> Settings:
    """Where this installation keeps its data."""
    return Settings.from_env()


@st.cache_resource(show_spinner=False)
def store() -> Store:
    """The open store.

    Raises:
        StoreError: unreachable or without schema (not cached: the next refresh tries again).
    """
    return Store.open(settings().database_url)


def all_runs(*, limit: int = 100, offset: int = 0) -> list[RunView]:
    """Runs, newest first."""
    return _runs(limit, offset)


def run(id: int) -> RunView:
    """One run, or `InputError`."""
    return _run(id)


def newest_run() -> int | None:
    """The run to show when nobody named one: the newest that has not ended, else the newest."""
    found = all_runs()
    running = next((entry for entry in found if entry.is_open), None)
    chosen = running or (found[0] if found else None)
    return None if chosen is None else chosen.id


def beats() -> dict[str, BeatView]:
    """The last beat of every service."""
    return _beats()


def snapshot(run: int) -> Snapshot:
    """One run as it is now (at most `FRESH_S` old).

    Raises:
        InputError: unknown run.
        StoreError: the store cannot be read.
    """
    return _feed(str(store()), run).snapshot()


def steps(run: int, *, num_last: int | None) -> Sequence[StepView]:
    """The last steps of a run (None: all of it), thinned."""
    if num_last is None:
        return snapshot(run).steps
    return _feed(str(store()), run).window(num_last)


def device_rates(run: int, device: int, *, since_step: int | None) -> list[tuple[int, float]]:
    """One device's `(step, rate)` series, newest samples complete, thinned."""
    return _feed(str(store()), run).device_rates(device, since_step)


def plan(run: int, version: int) -> PlanView:
    """One plan, or `InputError`."""
    return plans.get(store(), run, version)


def plan_page(run: int, *, limit: int, offset: int) -> list[PlanView]:
    """Plans of a run, newest first."""
    return _plan_page(run, limit, offset)


def num_plans(run: int) -> int:
    return plans.count(store(), run)


def what_if(id: int) -> WhatIfView:
    """One what-if as it stands this moment, or `InputError`."""
    return what_ifs.get(store(), id)


def what_if_page(run: int | None, *, limit: int, offset: int) -> list[WhatIfView]:
    """What-ifs of a run or of all, newest first."""
    return what_ifs.recent(store(), run=run, limit=limit, offset=offset)


def num_what_ifs(run: int | None) -> int:
    return what_ifs.count(store(), run=run)


def command(id: int) -> CommandView:
    """One command, as it stands this moment."""
    return commands.get(store(), id)


def injections_asked(run: int) -> list[CommandView]:
    """The run's last `inject` commands, newest first."""
    return [entry for entry in _commands(run) if entry.kind == "inject"]


def detected_at(run: int) -> dict[int, datetime]:
    """When the controller opened each of the run's last episodes, by episode id (from the audit)."""
    return {
        int(entry.detail["episode"]): entry.at
        for entry in _audit(run)
        if entry.action == "episode" and entry.result == "open" and "episode" in entry.detail
    }


def write_token() -> str:
    """The token that writes need."""
    return settings().write_token()


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=20)
def _runs(limit: int, offset: int) -> list[RunView]:
    return runs.all_runs(store(), limit=limit, offset=offset)


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=50)
def _run(id: int) -> RunView:
    return runs.get(store(), id)


@st.cache_resource(show_spinner=False, ttl=FRESH_S)
def _beats() -> dict[str, BeatView]:
    return heartbeats.all_beats(store())


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=50)
def _plan_page(run: int, limit: int, offset: int) -> list[PlanView]:
    return plans.all_plans(store(), run, limit=limit, offset=offset)


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=20)
def _commands(run: int) -> list[CommandView]:
    return commands.recent(store(), run, limit=200)


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=20)
def _audit(run: int) -> list[AuditView]:
    return audit.entries(store(), run, limit=300)


@st.cache_resource(show_spinner=False, max_entries=32)
def _feed(_store_name: str, run: int) -> _Feed:
    return _Feed(run)


@dataclass
class _Series:
    """Steps of a run from one step on, grown at the end, thinned when long."""

    first_step: int | None = None
    steps: list[StepView] = field(default_factory=list)

    def extend(self, run: int, last_step: int | None) -> None:
        have = self.steps[-1].step if self.steps else None
        if last_step is None or (have is not None and have >= last_step):
            return
        if have is None or len(self.steps) > 2 * MAX_POINTS:
            self.steps = history.steps(store(), run, since_step=self.first_step, max_points=MAX_POINTS)
        else:
            self.steps = [*self.steps, *history.steps(store(), run, since_step=have + 1, max_points=MAX_POINTS)]


class _Feed:
    """What is known of one run, shared by all browsers; every method may be called from any thread."""

    def __init__(self, run: int) -> None:
        self._run = run
        self._lock = threading.RLock()
        self._last: Snapshot | None = None
        self._read_at = -math.inf
        self._reloaded_at = -math.inf
        self._attempt: str | None = None
        self._series = _Series()
        self._windows: dict[int, _Series] = {}
        self._rates: dict[int, list[tuple[int, float]]] = {}
        self._plans: dict[int, PlanView] = {}
        self._devices: list[DeviceView] = []
        self._window = RateWindow(steps=(), phases=(), rates={})
        self._window_step: int | None = None
        self._heard_at: dict[int, datetime] = {}
        self._has_looked_back = False

    def snapshot(self) -> Snapshot:
        with self._lock:
            fresh_s = FRESH_S if self._last is None or self._last.run.is_open else ENDED_FRESH_S
            if self._last is None or time.monotonic() - self._read_at > fresh_s:
                self._last = self._read()
                self._read_at = time.monotonic()
            return self._last

    def window(self, num_last: int) -> Sequence[StepView]:
        with self._lock:
            last_step = self.snapshot().run.step
            if last_step is None:
                return []
            series = self._windows.get(num_last)
            if series is None or last_step - (series.first_step or 0) >= 2 * num_last:
                series = self._windows[num_last] = _Series(first_step=max(last_step - num_last + 1, 0))
            series.extend(self._run, last_step)
            return [step for step in series.steps if step.step > last_step - num_last]

    def device_rates(self, device: int, since_step: int | None) -> list[tuple[int, float]]:
        with self._lock:
            last_step = self.snapshot().run.step
            if last_step is None:
                return []
            known = self._rates.get(device, [])
            if len(known) > 2 * MAX_SAMPLES:
                known = []
            start = known[-1][0] + 1 if known else max(last_step - MAX_SAMPLES + 1, 0)
            if start <= last_step:
                fresh = history.samples(
                    store(), self._run, devices=[device], since_step=start, until_step=last_step, limit=MAX_SAMPLES
                )
                known = [*known, *((sample.step, sample.rate) for sample in fresh)]
                if len(self._rates) >= MAX_FOLLOWED and device not in self._rates:
                    self._rates.clear()
                self._rates[device] = known
            return _thinned([entry for entry in known if since_step is None or entry[0] >= since_step])

    def _read(self) -> Snapshot:
        db = store()
        run = runs.get(db, self._run)
        newest = history.last_step(db, self._run)
        attempt = None if newest is None else newest.attempt
        if attempt != self._attempt:  # the steps of the attempt before, from its checkpoint on, are void
            self._attempt = attempt
            self._series, self._windows, self._rates, self._window_step = _Series(), {}, {}, None
        is_reload = time.monotonic() - self._reloaded_at > RELOAD_S
        if is_reload:
            self._devices = history.devices(db, self._run)
            self._plans = {entry.version: entry for entry in plans.all_plans(db, self._run, limit=200)}
            self._reloaded_at = time.monotonic()
        else:
            self._plans |= {entry.version: entry for entry in plans.all_plans(db, self._run, limit=10)}
        for version in {1, run.active_plan_version, run.target_plan_version} - {None, *self._plans}:
            assert version is not None
            self._plans[version] = plans.get(db, self._run, version)
        self._series.extend(self._run, run.step)
        self._read_window(run.step)
        return Snapshot(
            run=run,
            now=utc_now(),
            steps=self._series.steps,
            window=self._window,
            heard_at=dict(self._heard_at),
            devices=self._devices,
            plans=sorted(self._plans.values(), key=lambda entry: -entry.version),
            episodes=episodes.all_episodes(db, self._run, limit=500),
            injections=injections.all_injections(db, self._run, limit=200),
            switches=history.switches(db, self._run),
            evaluations=history.evaluations(db, self._run, limit=MAX_POINTS),
            commands=commands.recent(db, self._run, limit=20),
            beats=beats(),
        )

    def _read_window(self, last_step: int | None) -> None:
        if last_step == self._window_step:
            return
        self._window = history.rate_window(store(), self._run, WINDOW_STEPS, only_train=True)
        self._window_step = last_step
        moments = {step.step: step.at for step in self._series.steps[-4 * WINDOW_STEPS :]}
        for device, values in self._window.rates.items():
            for step, rate in zip(self._window.steps, values, strict=True):
                if not math.isnan(rate) and step in moments:
                    self._heard_at[device] = moments[step]
        unheard = [device for device in self._window.rates if device not in self._heard_at][:MAX_FOLLOWED]
        if unheard and last_step is not None and not self._has_looked_back:
            self._has_looked_back = True
            self._look_back(unheard, last_step)

    def _look_back(self, devices: list[int], last_step: int) -> None:
        """When devices that were silent before this feed began were last heard."""
        low = max(0, last_step - LOOK_BACK_STEPS)
        found = history.samples(store(), self._run, devices=devices, since_step=low, limit=MAX_SAMPLES)
        heard = {sample.device: sample.step for sample in found if not math.isnan(sample.rate)}
        for step in self._series.steps:
            for device, heard_step in heard.items():
                if step.step <= heard_step:
                    self._heard_at[device] = step.at


def _thinned(rates: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most about `MAX_POINTS`: of every bucket the lowest and the highest rate, and every NaN run's ends."""
    if len(rates) <= MAX_POINTS:
        return rates
    width = math.ceil(2 * len(rates) / MAX_POINTS)
    kept: list[tuple[int, float]] = []
    for first in range(0, len(rates), width):
        bucket = rates[first : first + width]
        ordered = sorted(bucket, key=lambda entry: (math.isnan(entry[1]), entry[1]))
        kept.extend(sorted({ordered[0], ordered[-1]}))
    return kept
