"""The feed of one run: what all browsers know of it, brought up to date by reading only what is new.

What a new attempt makes void is dropped, and what can change unseen is read in full now and then. One feed a
run: `progress` keeps them.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from datetime import datetime

from app.dashboard.headline import Predictions
from app.dashboard.reads.series import MAX_POINTS, StepSeries, thinned
from app.dashboard.reads.source import ENDED_FRESH_S, FRESH_S, store
from app.dashboard.reads.system import beats
from app.dashboard.snapshot import Snapshot
from db import commands, episodes, history, injections, plans, runs, transitions
from db.episodes import EpisodeView
from db.history import DeviceView, EvaluationView, RateWindow, StepView, SwitchView
from db.messages import utc_now
from db.plans import PlanView
from db.runs import RunView

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

SNAPSHOT_EPISODES = 500
"""Episodes that every snapshot carries."""

MAX_PREDICTIONS = 5000

RELOAD_S = 30.0
"""Devices, episodes and evaluations are read in full this often, in between only what is new."""


class Feed:
    """What is known of one run, shared by all browsers; every method may be called from any thread."""

    def __init__(self, run: int) -> None:
        self._run = run
        self._lock = threading.RLock()
        self._last: Snapshot | None = None
        self._read_at = -math.inf
        self._reloaded_at = -math.inf
        self._attempt: str | None = None
        self._series = StepSeries()
        self._windows: dict[int, StepSeries] = {}
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
        """The run as it is now, read anew when the last reading is not fresh any more."""
        with self._lock:
            fresh_s = FRESH_S if self._last is None or self._last.run.is_open else ENDED_FRESH_S
            if self._last is None or time.monotonic() - self._read_at > fresh_s:
                self._last = self._read()
                self._read_at = time.monotonic()
            return self._last

    def window(self, num_last: int) -> Sequence[StepView]:
        """The run's last steps, thinned apart from the whole run."""
        with self._lock:
            last_step = self.snapshot().run.step
            if last_step is None:
                return []
            series = self._windows.get(num_last)
            if series is None or last_step - (series.first_step or 0) >= 2 * num_last:
                series = self._windows[num_last] = StepSeries(first_step=max(last_step - num_last + 1, 0))
            series.extend(self._run, last_step)
            return [step for step in series.steps if step.step > last_step - num_last]

    def device_rates(self, device: int, since_step: int | None) -> list[tuple[int, float]]:
        """One device's `(step, rate)` series, thinned."""
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
            return thinned([entry for entry in known if since_step is None or entry[0] >= since_step])

    def _read(self) -> Snapshot:
        db = store()
        run = runs.get(db, self._run)
        newest = history.last_step(db, self._run)
        attempt = None if newest is None else newest.attempt
        if attempt != self._attempt:  # the steps of the attempt before, from its checkpoint on, are void
            self._attempt = attempt
            self._series, self._windows, self._rates, self._window_step = StepSeries(), {}, {}, None
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
