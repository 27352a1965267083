"""Cached reads: the only module of the dashboard that reads the store.

All browsers share them. A run is followed by a feed that reads what is new since the last refresh (new
steps, new plans), so a refresh costs the same at step 100 and at step 50,000; the store thins long
series. Views in, snapshots out; nothing here writes, and nothing here draws.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import streamlit as st

from app import health as system
from app.dashboard.headline import Predictions
from app.dashboard.plan_story import PlanStory, last_switches
from app.dashboard.rate_feed import RateFeed, RatePicture
from app.dashboard.snapshot import Snapshot
from app.dashboard.table import Sorting
from app.health_facts import Item
from app.local import run_log
from db import (
    audit,
    checkpoints,
    commands,
    episodes,
    heartbeats,
    history,
    injections,
    plans,
    rates,
    runs,
    transitions,
    what_ifs,
)
from db.audit import AuditView, Choices, Filter
from db.commands import CommandView
from db.episodes import EpisodeView
from db.heartbeats import BeatView
from db.history import DeviceView, EvaluationView, RateWindow, StepView, SwitchView
from db.injections import InjectionView
from db.messages import utc_now
from db.plans import PlanJob, PlanRun, PlanView, Selection
from db.rates import RateBlock, SampleSpan
from db.runs import RunView
from db.settings import Settings
from db.store import Store
from db.store_facts import StoreFacts, store_facts
from db.what_ifs import WhatIfView

FRESH_S = 0.6
"""Browsers that ask again within this time share one read."""

ENDED_FRESH_S = 20.0
"""The same for runs that have ended."""

HEALTH_FRESH_S = 1.5
"""The same for the health of the system."""

STORE_FRESH_S = 30.0
"""The same for size and rows of the store, whose count takes longest."""

CHOICES_FRESH_S = 10.0
"""The same for what the audit can be filtered by."""

MAX_POINTS = 1200
"""Steps kept of one series; twice as many before it is thinned again."""

WINDOWS = (100, 500, 5_000)
"""Last steps that are followed with more points than the whole run."""

WINDOW_STEPS = 3
"""Train steps whose median is a device's rate now."""

MAX_SAMPLES = 10_000
"""Raw samples read of one device."""

MAX_FOLLOWED = 16
"""Devices of a run whose samples are kept in memory."""

LOOK_BACK_STEPS = 500
"""How far back a feed looks for the last word of a device that is silent when it begins."""

MAX_PLANS = 200
MAX_SWITCHES = 1000
"""The newest of a run that are kept in memory and drawn on its time axis."""

RECENT_EPISODES = 20
"""Newest episodes looked at with every refresh."""

MAX_PREDICTIONS = 5000

SAMPLES_AT_ONCE = 60_000
"""Samples summed up by one query of a rate feed over all devices, which reads them in a row."""

SAMPLES_FOUND_AT_ONCE = 20_000
"""The same over chosen devices, whose samples are found one by one."""

MAX_EPISODES = 2_000
"""Episodes of a run that are listed, newest first."""

SNAPSHOT_EPISODES = 500
"""Episodes that every snapshot carries."""

CALIBRATION_FRESH_S = 5.0
"""Predictions against measurements change slowly."""

DOWNLOAD_FRESH_S = 10.0
"""A download that is at hand is made anew this often."""

MAX_RAN = 1000
"""Plans whose predictions are compared with what was measured."""

RELOAD_S = 30.0
"""Devices, episodes and evaluations are read in full this often, in between only what is new."""


MAX_DRILL_STEPS = 3_000
"""Steps of one drill that its report is made of; a longer one is thinned."""

MAX_ORIGINS = 100
"""Runs among which a new one finds a checkpoint to start from."""

ORIGINS_FRESH_S = 10.0
"""How long that list is kept."""

DRILL_FRESH_S = 2.0
"""How long the steps of a drill are kept."""


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


def steps_between(run: int, first: int, last: int) -> Sequence[StepView]:
    """The steps of a range, both ends included, thinned."""
    found = snapshot(run)
    newest = found.run.step
    if newest is not None and last >= newest and last - first + 1 in WINDOWS:
        return _feed(str(store()), run).window(last - first + 1)
    known = [step for step in found.steps if first <= step.step <= last]
    if len(known) >= min(MAX_POINTS // 4, last - first + 1):
        return known
    return _steps_between(str(store()), run, found.run.attempt, first, last)


def rate_picture(
    run: int, devices: tuple[int, ...] | None, first: int, last: int, *, width: int, data: str, budget_s: float
) -> RatePicture:
    """Rates of a range in blocks, as far as they could be read within the budget; later calls go on from there.

    Args:
        devices: None: all.
        width: steps a block, a power of two.
        data: `raw`, `minute` (what was rolled up), or `auto`: rolled up as far back as there are no raw samples.
    """
    found = snapshot(run)
    if found.run.step is None:
        return RatePicture(blocks=(), width=width, missing=0.0)
    attempt = found.steps[-1].attempt if found.steps else None
    number = found.run.config.num_devices if devices is None else len(devices)
    feed = _rate_feed(str(store()), run, attempt, devices, width, data, max(1, number))
    return feed.read(first, last, newest_step=found.run.step, budget_s=budget_s)


def sample_span(run: int) -> SampleSpan:
    """Which steps have raw and which rolled-up samples."""
    return _sample_span(str(store()), run)


def episodes_of(run: int) -> Sequence[EpisodeView]:
    """Episodes of a run, newest first, `MAX_EPISODES` at most."""
    found = snapshot(run).episodes
    return found if len(found) < SNAPSHOT_EPISODES else _episodes(str(store()), run)


def plan(run: int, version: int) -> PlanView:
    """One plan, or `InputError`."""
    return plans.get(store(), run, version)


def plan_page(run: int, selection: Selection, *, limit: int, offset: int) -> list[PlanView]:
    """A page of the selected plans of a run."""
    return _plan_page(run, selection, limit, offset)


def num_plans(run: int, selection: Selection) -> int:
    """How many plans are selected."""
    return _num_plans(run, selection)


def plan_triggers(run: int) -> list[str]:
    """What asked for plans of this run, each once."""
    return _plan_triggers(run)


def plan_versions(run: int, versions: Collection[int]) -> dict[int, PlanView]:
    """Plans by version; unknown ones are left out."""
    return plans.of_versions(store(), run, versions) if versions else {}


def switches_to(run: int, versions: Collection[int]) -> list[SwitchView]:
    """Switches to these plans, oldest first."""
    return history.switches(store(), run, versions=sorted(versions)) if versions else []


def plan_story(run: int, version: int) -> PlanStory:
    """What the store knows of one plan beside its row."""
    return _plan_story(run, version)


def plan_steps(run: int, version: int) -> tuple[int, int, int] | None:
    """First and last step that ran under a plan, and their number; None if none did."""
    return _plan_steps(run, version)


def plans_that_ran(run: int) -> list[PlanRun]:
    """The last `MAX_RAN` plans that were ever active, oldest first."""
    return _plans_that_ran(run)


def plan_job(run: int, version: int) -> PlanJob | None:
    """What a plan was searched with; None if it was not searched for."""
    return plans.job(store(), run, version)


def all_selected(run: int, selection: Selection) -> list[tuple[PlanView, SwitchView | None]]:
    """Every selected plan with the last switch to it, for a download; read in portions, a few seconds old at most."""
    return _all_selected(run, selection)


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


def drills_asked(run: int) -> list[CommandView]:
    """The run's last `inject` and `play` commands, newest first."""
    return [entry for entry in _commands(run) if entry.kind in ("inject", "play")]


def playing(run: int) -> CommandView | None:
    """The schedule that a run plays now, or is about to."""
    return next((entry for entry in _commands(run) if entry.kind == "play" and entry.done_at is None), None)


def drill_steps(run: int, since_step: int, until_step: int | None) -> list[StepView]:
    """The steps of a drill, complete up to `MAX_DRILL_STEPS`."""
    return _drill_steps(run, since_step, until_step)


def drill_injections(run: int) -> list[InjectionView]:
    """The run's last injections, newest first."""
    return _injections(run)


def detected_at(run: int) -> dict[int, datetime]:
    """When the controller opened each of the run's last episodes, by episode id (from the audit)."""
    return {
        int(entry.detail["episode"]): entry.at
        for entry in _audit(run)
        if entry.action == "episode" and entry.result == "open" and "episode" in entry.detail
    }


def origins() -> dict[int, int]:
    """Runs that another one can start from: the step of the newest checkpoint whose folder is there, by run."""
    return _origins()


def log_lines(run: int) -> list[str]:
    """What the run's processes on this machine printed last."""
    return run_log.last_lines(settings(), run)


def health() -> list[Item]:
    """How the parts of the system are."""
    return _health()


def audit_page(wanted: Filter, sorting: Sorting, *, limit: int, offset: int) -> list[AuditView]:
    """Audit entries that match, sorted."""
    return _audit_page(repr((wanted, sorting)), wanted, sorting, limit, offset)


def audit_count(wanted: Filter) -> int:
    """How many audit entries match."""
    return _audit_count(repr(wanted), wanted)


def audit_choices() -> Choices:
    """What the audit can be filtered by."""
    return _audit_choices()


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
def _plan_page(run: int, selection: Selection, limit: int, offset: int) -> list[PlanView]:
    return plans.all_plans(store(), run, selection=selection, limit=limit, offset=offset)


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=50)
def _num_plans(run: int, selection: Selection) -> int:
    return plans.count(store(), run, selection)


@st.cache_resource(show_spinner=False, ttl=DOWNLOAD_FRESH_S, max_entries=4)
def _all_selected(run: int, selection: Selection) -> list[tuple[PlanView, SwitchView | None]]:
    found: list[tuple[PlanView, SwitchView | None]] = []
    while portion := plans.all_plans(store(), run, selection=selection, limit=plans.PORTION, offset=len(found)):
        versions = [plan.version for plan in portion]
        switches = last_switches(history.switches(store(), run, versions=versions))
        found += [(plan, switches.get(plan.version)) for plan in portion]
    return found


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=20)
def _plan_triggers(run: int) -> list[str]:
    return plans.triggers(store(), run)


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=50)
def _plan_story(run: int, version: int) -> PlanStory:
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
def _plan_steps(run: int, version: int) -> tuple[int, int, int] | None:
    return history.steps_of_plan(store(), run, version)


@st.cache_resource(show_spinner=False, ttl=CALIBRATION_FRESH_S, max_entries=20)
def _plans_that_ran(run: int) -> list[PlanRun]:
    return plans.all_that_ran(store(), run, limit=MAX_RAN)


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=20)
def _commands(run: int) -> list[CommandView]:
    return commands.recent(store(), run, limit=200)


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=20)
def _audit(run: int) -> list[AuditView]:
    return audit.entries(store(), run, limit=300)


@st.cache_resource(show_spinner=False, ttl=ORIGINS_FRESH_S)
def _origins() -> dict[int, int]:
    found = {}
    for entry in runs.all_runs(store(), limit=MAX_ORIGINS):
        saved = next((one for one in checkpoints.saved(store(), entry.id) if Path(one.path).is_dir()), None)
        if saved is not None:
            found[entry.id] = saved.step
    return found


@st.cache_resource(show_spinner=False, ttl=DRILL_FRESH_S, max_entries=20)
def _drill_steps(run: int, since_step: int, until_step: int | None) -> list[StepView]:
    return history.steps(store(), run, since_step=since_step, until_step=until_step, max_points=MAX_DRILL_STEPS)


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=20)
def _injections(run: int) -> list[InjectionView]:
    return injections.all_injections(store(), run, limit=2_000)


@st.cache_resource(show_spinner=False, ttl=ENDED_FRESH_S, max_entries=50)
def _steps_between(_store_name: str, run: int, attempt: str | None, first: int, last: int) -> list[StepView]:
    del attempt  # a new one has other steps
    return history.steps(store(), run, since_step=first, until_step=last, max_points=MAX_POINTS)


@st.cache_resource(show_spinner=False, ttl=RELOAD_S, max_entries=50)
def _sample_span(_store_name: str, run: int) -> SampleSpan:
    return rates.span(store(), run)


@st.cache_resource(show_spinner=False, ttl=5.0, max_entries=20)
def _episodes(_store_name: str, run: int) -> list[EpisodeView]:
    return episodes.all_episodes(store(), run, limit=MAX_EPISODES)


@st.cache_resource(show_spinner=False, max_entries=24)
def _rate_feed(
    _store_name: str,
    run: int,
    attempt: str | None,
    devices: tuple[int, ...] | None,
    width: int,
    data: str,
    num_devices: int,
) -> RateFeed:
    del attempt  # a new one has other steps

    def fetch(first: int, last: int) -> list[RateBlock]:
        first_raw = (sample_span(run).raw or (0, 0))[0] if data == "auto" else 0 if data == "raw" else last + 1
        found: list[RateBlock] = []
        if first < first_raw:
            until = min(last, first_raw - 1)
            found += rates.minute_blocks(store(), run, devices=devices, since_step=first, until_step=until, width=width)
        if last >= first_raw:
            since = max(first, first_raw)
            found += rates.raw_blocks(store(), run, devices=devices, since_step=since, until_step=last, width=width)
        return found

    at_once = SAMPLES_AT_ONCE if devices is None else SAMPLES_FOUND_AT_ONCE
    return RateFeed(fetch, width=width, max_steps=at_once // num_devices)


@st.cache_resource(show_spinner=False, ttl=HEALTH_FRESH_S)
def _health() -> list[Item]:
    return system.examine(system.read_inputs(store(), facts=_store_facts()))


@st.cache_resource(show_spinner=False, ttl=STORE_FRESH_S)
def _store_facts() -> StoreFacts:
    return store_facts(store())


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=50)
def _audit_page(key: str, _wanted: Filter, _sorting: Sorting, limit: int, offset: int) -> list[AuditView]:
    return audit.find(
        store(), _wanted, sort=_sorting.column, is_descending=_sorting.is_descending, limit=limit, offset=offset
    )


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=50)
def _audit_count(key: str, _wanted: Filter) -> int:
    return audit.count(store(), _wanted)


@st.cache_resource(show_spinner=False, ttl=CHOICES_FRESH_S)
def _audit_choices() -> Choices:
    return audit.choices(store())


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
        self._rates: dict[int, tuple[int, list[tuple[int, float]]]] = {}
        self._plans: dict[int, PlanView] = {}
        self._devices: list[DeviceView] = []
        self._window = RateWindow(steps=(), phases=(), rates={})
        self._window_step: int | None = None
        self._heard_at: dict[int, datetime] = {}
        self._has_looked_back = False
        self._episodes: dict[int, EpisodeView] = {}
        self._switches: list[SwitchView] = []
        self._evaluations: list[EvaluationView] = []
        self._predictions: Predictions = {}
        self._predicting: object = None

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
            begin = max(last_step - MAX_SAMPLES + 1, since_step or 0)
            first, known = self._rates.get(device, (begin, []))
            if len(known) > 2 * MAX_SAMPLES or begin < first:  # too long, or more is asked for than before
                first, known = begin, []
            start = known[-1][0] + 1 if known else begin
            if start <= last_step:
                fresh = history.samples(
                    store(), self._run, devices=[device], since_step=start, until_step=last_step, limit=MAX_SAMPLES
                )
                known = [*known, *((sample.step, sample.rate) for sample in fresh)]
                if len(self._rates) >= MAX_FOLLOWED and device not in self._rates:
                    self._rates.clear()
                self._rates[device] = (first, known)
            return _thinned([entry for entry in known if since_step is None or entry[0] >= since_step])

    def _read(self) -> Snapshot:
        db = store()
        run = runs.get(db, self._run)
        newest = history.last_step(db, self._run)
        attempt = None if newest is None else newest.attempt
        if attempt != self._attempt:  # the steps of the attempt before, from its checkpoint on, are void
            self._attempt = attempt
            self._series, self._windows, self._rates, self._window_step = _Series(), {}, {}, None
            self._evaluations = []
        is_reload = time.monotonic() - self._reloaded_at > RELOAD_S
        if is_reload:
            self._devices = history.devices(db, self._run)
            self._reloaded_at = time.monotonic()
        self._read_plans(run)
        self._read_events(is_reload)
        predicting = (run.profile, run.attempt)
        if predicting != self._predicting or len(self._predictions) > MAX_PREDICTIONS:
            self._predicting, self._predictions = predicting, {}
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
            episodes=sorted(self._episodes.values(), key=lambda entry: -entry.id)[:SNAPSHOT_EPISODES],
            injections=injections.all_injections(db, self._run, limit=200),
            switches=self._switches,
            evaluations=self._evaluations,
            commands=commands.recent(db, self._run, limit=20),
            beats=beats(),
            predictions=self._predictions,
        )

    def _read_plans(self, run: RunView) -> None:
        """Of a plan that was known to be at its end nothing changes, so documents are read once."""
        db = store()
        newest = plans.statuses(db, self._run, limit=MAX_PLANS)
        wanted = {
            version
            for version, status in newest.items()
            if version not in self._plans
            or self._plans[version].status != status
            or not transitions.is_final(transitions.PLAN, status)
        }
        wanted |= {1, run.target_plan_version, run.active_plan_version or 1}
        kept = {version: entry for version, entry in self._plans.items() if version in newest}
        self._plans = kept | plans.of_versions(db, self._run, wanted)

    def _read_events(self, is_reload: bool) -> None:
        """Switches are only added; an episode changes until it has ended; evaluations are void with their attempt."""
        db, last = store(), self._switches[-1].id if self._switches else 0
        self._switches = [*self._switches, *history.newest_switches(db, self._run, after_id=last)][-MAX_SWITCHES:]
        fresh = episodes.all_episodes(db, self._run, limit=SNAPSHOT_EPISODES if is_reload else RECENT_EPISODES)
        lasting = episodes.all_episodes(db, self._run, is_open=True, limit=SNAPSHOT_EPISODES)
        ended = {entry.id for entry in self._episodes.values() if entry.is_open} - {entry.id for entry in lasting}
        if ended - {entry.id for entry in fresh}:
            fresh = episodes.all_episodes(db, self._run, limit=SNAPSHOT_EPISODES)
        self._episodes |= {entry.id: entry for entry in [*fresh, *lasting]}
        since = self._evaluations[-1].step + 1 if self._evaluations and not is_reload else None
        found = history.evaluations(db, self._run, since_step=since, limit=MAX_POINTS)
        self._evaluations = found if since is None else [*self._evaluations, *found][-MAX_POINTS:]

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
