"""The drift: several situations in one run, the same number of steps each, until a device fails.

Seconds are those of exactly these steps, with the pauses, switches and restarts between them; steps that a run does
while the next change is on its way do not count.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from app.node_drop import Remaining, reduced, remaining
from app.phase_figures import Reference, span_s
from app.phases import Phases
from app.situations import DRIFT, rates
from bench.playing import Playing, Row
from db import history, runs
from db.history import StepView
from planner.spec import ModelProfile

TAIL_STEPS = 4
"""Steps at the end of a phase whose median stands for it once it has settled."""


def live_drift(playing: Playing, num_steps: int, *, has_failure: bool) -> Row:
    """All situations of the drift in a row, `num_steps` steps each, and what a failure leads to."""
    failure: Row = {}

    def tale(phases: Phases) -> Iterator[None]:
        for name in DRIFT:
            yield from phases.begin(name, rates(name, playing.config.nodes))
            yield from phases.reach(phases.present.first_step + num_steps - 1)
        if has_failure:
            yield from _fail(playing, phases, failure)

    run, phases = playing.follow(playing.config, {}, tale, max_restarts=1 if has_failure else None)
    steps = history.steps(playing.store, run.id, max_points=100_000)
    switches = [switch for switch in history.switches(playing.store, run.id) if switch.outcome == "applied"]
    if has_failure and "outcome" not in failure:
        failure["outcome"] = f"ends ({run.status})"
    none = Reference(num_devices=1, healthy_s=1.0, predicted_healthy_s=1.0, profile=playing.profile(run.id))
    figures = [playing.figures(run, phase, none) for phase in phases.past]
    return drift_row(
        num_steps,
        [(phase.name, phase.first_step, span_s(steps, phase.first_step, num_steps)) for phase in phases.past],
        steps,
    ) | {
        "detect_steps": [found.detect_steps for found in figures],
        "solve_s": [found.solve_s for found in figures],
        "plan": [found.plan for found in figures],
        "num_switches": len(switches),
        "pause_s": sum(switch.pause_s for switch in switches),
        "bytes_moved": sum(switch.bytes_moved for switch in switches),
        "failure": failure or None,
    }


def restarting_drift(playing: Playing, num_steps: int) -> Row:
    """The drift with restarts: whoever runs it knows at once when a node that was left out is well again."""
    everyone = tuple(range(len(playing.config.nodes)))
    own = playing.config.parallel
    devices = tuple(device for node in playing.config.nodes for device in node)
    drop = _Drop(
        num_steps=num_steps,
        stays=Remaining(nodes=everyone, devices=devices, dp=own.dp, tp=own.tp, pp=own.pp, step_s=0.0),
    )
    config, slow = playing.config, dict[int, float]()
    while True:
        asked_at = playing.asked_at
        run, _ = playing.follow(config, slow, lambda phases: _drop_segment(playing, phases, drop))
        found = history.steps(playing.store, run.id, max_points=100_000)
        if drop.log:
            drop.restarts_s.append(found[0].at.timestamp() - asked_at)
        drop.log += found
        if playing.saved is None:
            break
        config = reduced(playing.config, drop.stays, start_from=playing.saved)
        slow = drop.stays.local(rates(DRIFT[drop.index], playing.config.nodes))
    by_step = {step.step: step for step in drop.log}
    phases_s = [
        (name, first, by_step[first + num_steps - 1].at.timestamp() - begun_at) for name, first, begun_at in drop.begun
    ]
    return drift_row(num_steps, phases_s, drop.log) | {
        "num_restarts": len(drop.restarts_s),
        "restart_s": sum(drop.restarts_s),
    }


def drift_row(num_steps: int, phases: Sequence[tuple[str, int, float | None]], steps: Sequence[StepView]) -> Row:
    """Wall seconds by phase, and in total.

    Args:
        phases: name, first step, wall seconds of `num_steps` steps from there.
        steps: in the order in which they were run.
    """
    by_step = {step.step: step for step in steps}
    seconds = [found for _, _, found in phases]
    last = [
        [by_step[step].step_s for step in range(first, first + num_steps) if step in by_step][-TAIL_STEPS:]
        for _, first, _ in phases
    ]
    return {
        "steps_a_phase": num_steps,
        "phases": [name for name, _, _ in phases],
        "phase_s": seconds,
        "last_step_s": [sorted(found)[len(found) // 2] if found else None for found in last],
        "total_s": None if None in seconds else sum(found for found in seconds if found is not None),
    }


@dataclass(slots=True, kw_only=True)
class _Drop:
    """The drift of variant (c), across its runs."""

    num_steps: int
    stays: Remaining
    profile: ModelProfile | None = None
    index: int = -1
    target: int = -1
    begun: list[tuple[str, int, float]] = field(default_factory=list)
    log: list[StepView] = field(default_factory=list)
    restarts_s: list[float] = field(default_factory=list)


def _drop_segment(playing: Playing, phases: Phases, drop: _Drop) -> Iterator[None]:
    """One run of (c)'s drift, up to the next restart or the end."""
    playing.saved = None
    if drop.index >= 0:
        yield from phases.reach(drop.target)
    while drop.index + 1 < len(DRIFT):
        drop.index += 1
        name = DRIFT[drop.index]
        slow = rates(name, playing.config.nodes)
        if drop.index and phases.rates == drop.stays.local(slow):
            first, begun_at = phases.last_step() + 1, time.time()
        else:
            yield from phases.begin(name, drop.stays.local(slow))
            first = phases.present.first_step
            step = phases.steps(first)[0]
            begun_at = step.at.timestamp() - step.step_s
            yield from phases.noticed()
        drop.target = first + drop.num_steps - 1
        drop.begun.append((name, first, begun_at))
        drop.profile = drop.profile or playing.profile(phases.run)
        stays = remaining(playing.config, drop.profile, slow)
        if stays.nodes != drop.stays.nodes:
            drop.stays = stays
            yield from playing.save(phases)
            return
        yield from phases.reach(drop.target)


def _fail(playing: Playing, phases: Phases, failure: Row) -> Iterator[None]:
    """Saves, kills the rank of the last device, and waits for a step of the next attempt or for the end."""
    yield from playing.save(phases)
    run = runs.get(playing.store, phases.run)
    victim = history.devices(playing.store, phases.run)[-1]
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    failure |= {"device": victim.device}
    killed_at = time.time()
    while True:
        yield
        last = history.last_step(playing.store, phases.run)
        if last is not None and last.attempt != run.attempt:
            failure |= {"outcome": "restarted", "seconds": last.at.timestamp() - killed_at, "step": last.step}
            return
