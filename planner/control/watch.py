"""From a run's steps to verdicts and episodes: the detector, with its words written to SQL.

It asks for no plan; it says whether a device has shifted, and `planner.control.planning` does the rest.
An episode spans restarts and plans: it ends when its device is known to be healthy again, or with the run.
"""

from __future__ import annotations

import logging
from collections import deque
from datetime import datetime

from db import audit, episodes, history
from db.messages import Step
from db.plans import PlanView
from db.run_config import ControlConfig
from db.runs import RunView
from planner.control.context import ACTOR, Context
from planner.detect import Detector, Observation, Thresholds, Verdict
from planner.plan import Plan

log = logging.getLogger(__name__)

STEPS_REMEMBERED = 100


class Watch:
    """The detector of one run, and its open episodes."""

    def __init__(self, context: Context, view: RunView) -> None:
        self._context, self._run = context, view.id
        self.detector = Detector(_thresholds(view.config.control), num_devices=view.config.num_devices)
        self.detector.remember(
            {device: seen.rate for device, seen in history.latest_rates(context.store, view.id).items()}
        )
        self._causes = {
            episode.device: episode.cause
            for episode in episodes.all_episodes(context.store, view.id, is_open=True, limit=10_000)
        }
        self._times: deque[tuple[int, datetime]] = deque(maxlen=STEPS_REMEMBERED)

    def begin(self, plan: PlanView, *, is_switch: bool, last_step: int) -> None:
        """Starts over under a plan; what it assumed are the rates it was planned for."""
        assert plan.document is not None
        if last_step < 0:
            self._times.clear()  # a new attempt may count from an earlier step
        self.detector.begin(
            Plan.from_json(plan.document), plan.version, plan.rates, is_switch=is_switch, last_step=last_step
        )

    def observe(self, message: Step) -> bool:
        """Takes a step; true if a device has newly left the band that the plan assumed."""
        self._times.append((message.step, message.at))
        verdicts = self.detector.observe(
            Observation(
                step=message.step,
                plan_version=message.plan_version,
                phase=message.phase,
                rates=message.rates,
                step_s=message.step_s,
            )
        )
        for verdict in verdicts:
            self._write(verdict)
        for device in [device for device in self._causes if self.detector.is_healthy(device)]:
            self._close(device, message.step, message.at)
        is_device = any(verdict.cause == "device" for verdict in verdicts)
        return is_device and bool(self.detector.shifted())

    def close_all(self, *, step: int, at: datetime) -> None:
        """The run has ended, and every episode with it."""
        for device in list(self._causes):
            self._close(device, step, at)

    def _write(self, verdict: Verdict) -> None:
        target = ", ".join(f"device {device}" for device in verdict.devices) or "links"
        log.info(
            "run %s: %s %s (%s) since step %s", self._run, target, verdict.change, verdict.cause, verdict.start_step
        )
        audit.record(
            self._context.store,
            actor=ACTOR,
            action="verdict",
            run=self._run,
            target=target,
            result=f"{verdict.change} ({verdict.cause})",
            detail={
                "start_step": verdict.start_step,
                "step": verdict.step,
                "rates": {str(device): rate for device, rate in verdict.rates.items()},
                **verdict.evidence,
            },
        )
        for device in verdict.devices:
            self._follow(verdict, device)

    def _follow(self, verdict: Verdict, device: int) -> None:
        """Opens, raises or closes the device's episode."""
        step, at = verdict.step, self._at(verdict.step)
        if verdict.change in ("slower", "failed", "silent"):
            if device in self._causes:
                episodes.update_peak(self._context.store, self._run, device, rate=verdict.rates[device])
                return
            episodes.open_episode(
                self._context.store,
                self._run,
                device,
                start_step=verdict.start_step,
                start_at=self._at(verdict.start_step),
                rate=verdict.rates[device],
                cause=verdict.cause,
                evidence=verdict.evidence,
            )
            self._causes[device] = verdict.cause
        elif verdict.change == "recovered" or (verdict.change == "back" and self._causes.get(device) == "unknown"):
            self._close(device, step, at)

    def _close(self, device: int, step: int, at: datetime) -> None:
        if self._causes.pop(device, None) is not None:
            episodes.close(self._context.store, self._run, device, end_step=step, end_at=at)

    def _at(self, step: int) -> datetime:
        """When the step (or the nearest one after it) was reported."""
        return next((at for known, at in self._times if known >= step), self._context.clock.now())


def _thresholds(control: ControlConfig) -> Thresholds:
    return Thresholds(
        shift=control.shift_threshold,
        patience_steps=control.patience_steps,
        window_steps=control.window_steps,
        cooldown_steps=control.cooldown_steps,
    )
