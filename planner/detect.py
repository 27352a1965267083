"""Straggler detection: one vector of rates a step in, verdicts with evidence out.

Pure (no clock, no store). The controller feeds every step that the engine reports; a verdict says which
devices changed, how, since when, and why (`planner.cause`). What follows from it (episodes, a new plan,
nothing) is the controller's. Per device a running median of the last steps is compared with the level
last confirmed; a change beyond the threshold that lasts is confirmed and becomes the new level. A jump, that
is a change by a large factor whose samples agree, need not wait for the median: each further slow step would
cost more than a switch too many. Not where most devices jump at once; that is no device's doing. Levels
start from the rates that the active plan assumed, and all is forgotten when the plan or the attempt
changes, except the last rate known of each device.

Counting: only `train` steps of the active plan. NaN is no measurement: a device silent for some counted
steps is `unknown`, never healthy. Infinity is the engine's word that a device failed and needs no patience.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.cause import Cause, causes
from planner.plan import Plan
from planner.track import Change, DeviceTrack, PaceTrack, over


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """When a change counts.

    Args:
        shift: relative change of a running rate, > 0.
        patience_steps: counted steps in a row that it must last.
        jump: factor from which `patience_steps` samples suffice, without waiting for the running rate.
        steady: how far, relatively, these samples may differ from each other.
        window_steps: steps in the running median.
        cooldown_steps: counted steps after a switch in which nothing is concluded.
        silence_steps: counted steps without a measurement after which a device is unknown.
        link: relative growth of the step time, rates unchanged, that is blamed on communication.
            Well above what planning models miss (5-15 % of the step time), so that noise is not named.
    """

    shift: float = 0.05
    patience_steps: int = 3
    jump: float = 1.5
    steady: float = 0.15
    window_steps: int = 5
    cooldown_steps: int = 3
    silence_steps: int = 10
    link: float = 0.3

    def __post_init__(self) -> None:
        if not self.jump > 1:
            raise ValueError(f"jump must be above 1, given {self.jump}")
        for name in ("shift", "steady", "link"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, given {getattr(self, name)}")
        for name, least in (("patience_steps", 1), ("window_steps", 1), ("cooldown_steps", 0), ("silence_steps", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, given {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One step as the engine reported it; `rates[device]` is NaN where nothing was measured."""

    step: int
    plan_version: int
    phase: str
    rates: Sequence[float]
    step_s: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A confirmed change.

    Args:
        devices: whom it concerns; several for one common cause, none for `link`.
        rates: their running rates now.
        start_step: the first step that showed it.
        step: the step that confirmed it.
        evidence: JSON: samples, window, level and reference before, peers.
    """

    cause: Cause
    change: Change
    devices: tuple[int, ...]
    rates: Mapping[int, float]
    start_step: int
    step: int
    evidence: Mapping[str, Any]


class Detector:
    """The running state of one run. Call `begin` before the first step and at every change of plan.

    Attributes:
        num_excluded: steps of another phase than `train`.
        num_stale: steps of another plan, repeated ones, or with another number of devices.
    """

    def __init__(self, thresholds: Thresholds, *, num_devices: int) -> None:
        self.thresholds = thresholds
        self.num_devices = num_devices
        self.num_excluded = 0
        self.num_stale = 0
        self._known: dict[int, float] = {}

    def begin(
        self, plan: Plan, plan_version: int, assumed: Mapping[int, float], *, is_switch: bool, last_step: int = -1
    ) -> None:
        """Starts over for a plan and the rates it was made for (devices not named: 1.0).

        Args:
            is_switch: the run moved here from another plan, so the cool-down applies.
            last_step: steps up to this one are stale.
        """
        self._plan, self._version, self._last_step = plan, plan_version, last_step
        self._num_counted = 0
        self._cooldown = self.thresholds.cooldown_steps if is_switch else 0
        self._tracks = {
            device: DeviceTrack(assumed=float(assumed.get(device, 1.0)), window=self.thresholds.window_steps)
            for device in range(self.num_devices)
        }
        self._recent: deque[Observation] = deque(maxlen=3 * self.thresholds.window_steps)
        self._pace = PaceTrack(
            window=self.thresholds.window_steps,
            patience=self.thresholds.patience_steps,
            threshold=self.thresholds.link,
        )

    def remember(self, rates: Mapping[int, float]) -> None:
        """Takes rates known from before (a store) for devices that have not been measured yet."""
        self._known |= {device: rate for device, rate in rates.items() if math.isfinite(rate) and rate > 0}

    def observe(self, observation: Observation) -> tuple[Verdict, ...]:
        """Takes one step and returns what it confirmed, mostly nothing."""
        rates = observation.rates
        if (
            observation.plan_version != self._version
            or observation.step <= self._last_step
            or len(rates) != self.num_devices
        ):
            self.num_stale += 1
            return ()
        self._last_step = observation.step
        if observation.phase != "train":
            self.num_excluded += 1
            return ()
        self._num_counted += 1
        for device, track in self._tracks.items():
            track.add(rates[device], observation.step)
        self._recent.append(observation)
        if self._num_counted <= self._cooldown:
            return ()
        verdicts = (*self._silent(observation.step), *self._changed(observation.step))
        return (*verdicts, *self._waiting(observation, is_quiet=not verdicts))

    def rates(self) -> dict[int, float]:
        """Running rate of each device; NaN while it is unknown."""
        return {device: track.median() for device, track in self._tracks.items()}

    def rates_for_planning(self) -> dict[int, float]:
        """A rate for every device: healthy within the threshold is exactly 1, unknown is the last known one.

        What is due to data or stage is no property of the device, so the plan's own assumption stands there.
        """
        return {device: self._snapped(device, track) for device, track in self._tracks.items()}

    def shifted(self) -> tuple[int, ...]:
        """Devices whose confirmed rate is outside the band that the active plan assumed, through their own fault."""
        return tuple(device for device, track in self._tracks.items() if track.is_shifted(self.thresholds.shift))

    def is_healthy(self, device: int) -> bool:
        """Whether the device is known to have run within the threshold of 1.0 for `patience_steps` counted steps."""
        return self._tracks[device].num_healthy >= self.thresholds.patience_steps

    def _silent(self, step: int) -> Iterable[Verdict]:
        for device, track in self._tracks.items():
            if device in self._plan.failed:
                continue
            if track.num_silent >= self.thresholds.silence_steps and not track.is_silent:
                track.go_silent()
                yield self._verdict("unknown", "silent", (device,), step - track.num_silent + 1, step)
            elif track.is_silent and len(track.samples) >= self.thresholds.patience_steps:
                track.is_silent = False
                yield self._verdict("unknown", "back", (device,), track.first_step, step)

    def _changed(self, step: int) -> Iterable[Verdict]:
        threshold, patience = self.thresholds.shift, self.thresholds.patience_steps
        for track in self._tracks.values():
            track.compare(step, threshold)
        jumped = self._jumped()
        changed = [
            device
            for device, track in self._tracks.items()
            if track.num_off >= patience or device in jumped or (track.num_off and math.isinf(track.median()))
        ]
        eased = [
            device for device, track in self._tracks.items() if track.cause == "data" and track.num_in_band >= patience
        ]
        if eased:
            yield self._verdict("data", "recovered", tuple(eased), step - patience + 1, step)
            for device in eased:
                self._tracks[device].cause = None
        if changed:
            yield from self._explained(changed, step)

    def _jumped(self) -> set[int]:
        """Devices that jumped while all others, at least half of all, stayed; what they did before is forgotten."""
        thresholds, num_samples = self.thresholds, self.thresholds.patience_steps
        jumped = {
            device
            for device, track in self._tracks.items()
            if track.num_off and track.has_jumped(thresholds.jump, thresholds.steady, num_samples)
        }
        others = [track for device, track in self._tracks.items() if device not in jumped]
        if len(jumped) > len(others) or not all(track.is_calm(thresholds.steady, num_samples) for track in others):
            return set()
        for device in jumped:
            self._tracks[device].keep_last(num_samples)
        return jumped

    def _explained(self, changed: Sequence[int], step: int) -> Iterable[Verdict]:
        onset = min(self._tracks[device].off_step for device in changed)
        found = causes(
            changed,
            ratios={device: over(track.median(), track.assumed) for device, track in self._tracks.items()},
            news={device: over(track.median(), track.level) for device, track in self._tracks.items()},
            recent=[
                {device: over(observation.rates[device], track.assumed) for device, track in self._tracks.items()}
                for observation in self._recent
                if observation.step >= onset
            ],
            from_start=[device for device, track in self._tracks.items() if track.is_off_from_start],
            plan=self._plan,
            threshold=self.thresholds.shift,
            patience_steps=self.thresholds.patience_steps,
        )
        for device in found:
            track = self._tracks[device]
            if track.cause is not None and abs(over(track.median(), track.assumed) - 1) <= self.thresholds.shift:
                found[device] = track.cause  # what made it leave is over
        shared: dict[tuple[Cause, Change], list[int]] = {}
        for device, cause in found.items():
            track = self._tracks[device]
            if cause == "data" and track.cause == "data":
                continue
            key = (cause, track.change(self.thresholds.shift))
            if cause == "device":
                yield self._verdict(*key, (device,), track.off_step, step)
            else:
                shared.setdefault(key, []).append(device)
        for key, devices in shared.items():
            start = min(self._tracks[device].off_step for device in devices)
            yield self._verdict(*key, tuple(devices), start, step)
        for device, cause in found.items():
            self._tracks[device].confirm(cause, self.thresholds.shift)

    def _verdict(self, cause: Cause, change: Change, devices: tuple[int, ...], start_step: int, step: int) -> Verdict:
        tracks = {device: self._tracks[device] for device in devices}
        peers = [rate for device, rate in self.rates().items() if device not in devices and not math.isnan(rate)]
        return Verdict(
            cause=cause,
            change=change,
            devices=devices,
            rates={device: track.median() for device, track in tracks.items()},
            start_step=start_step,
            step=step,
            evidence={
                "samples": {
                    str(device): [round(value, 4) for value in track.samples] for device, track in tracks.items()
                },
                "window": self.thresholds.window_steps,
                "threshold": self.thresholds.shift,
                "level": {str(device): track.level for device, track in tracks.items()},
                "reference": {str(device): track.assumed for device, track in tracks.items()},
                "peers": {
                    "count": len(peers),
                    "median": round(statistics.median(peers), 4) if peers else None,
                    "highest": round(max(peers), 4) if peers else None,
                },
            },
        )

    def _waiting(self, observation: Observation, *, is_quiet: bool) -> Iterable[Verdict]:
        if not is_quiet or any(track.num_off for track in self._tracks.values()):
            self._pace.start_over()
        elif self._pace.has_grown(observation.step_s):
            yield Verdict(
                cause="link",
                change="slower",
                devices=(),
                rates={},
                start_step=observation.step - self._pace.num_off + 1,
                step=observation.step,
                evidence={
                    "samples": {"step_s": [round(value, 4) for value in self._pace.samples]},
                    "window": self.thresholds.window_steps,
                    "threshold": self.thresholds.link,
                    "reference": {"step_s": self._pace.reference_s},
                },
            )

    def _snapped(self, device: int, track: DeviceTrack) -> float:
        rate = track.median()
        if not math.isnan(rate):
            self._known[device] = rate
        if track.cause in ("data", "stage"):
            rate = track.assumed
        elif math.isnan(rate):
            rate = self._known.get(device, track.assumed)
        return 1.0 if abs(rate - 1) <= self.thresholds.shift else rate
