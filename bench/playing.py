"""A running system in which the bench plays runs: each led by a tale, measured, stopped.

A tale is a generator over `app.phases.Phases`; it is advanced while the engine trains, and its end is the run's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from app.errors import CommandError, LocalError
from app.local import trainer
from app.local.commands import EngineArgv
from app.local.stop_signals import StopSignals
from app.local.system import LocalSystem
from app.phase_figures import PhaseFigures, Reference, phase_figures
from app.phases import MAX_WAIT_STEPS, Phase, Phases
from db import checkpoints, commands, history, plans, runs
from db.run_config import RunConfig
from db.runs import RunView
from planner.plan import Plan
from planner.solve import solve
from planner.spec import ClusterSpec, ModelProfile, TrainSpec

STEADY_STEPS = 8
SILENT_S = 240.0
WHO = {"actor": "bench", "source": "bench"}

Row = dict[str, Any]
Tale = Callable[[Phases], Iterator[None]]


class Playing:
    """Runs of one measurement.

    Attributes:
        busy: share of the machine's processor time that the last steady steps took.
        saved, asked_at: folder of the last checkpoint, and when it was asked for (`time.time`).
    """

    def __init__(
        self,
        system: LocalSystem,
        signals: StopSignals,
        config: RunConfig,
        *,
        is_replanning: bool,
        say: Callable[[str], None],
        engine: EngineArgv,
    ) -> None:
        self.system, self.signals, self.config = system, signals, config
        self.store = system.store
        self.is_replanning, self.say, self.engine = is_replanning, say, engine
        self.busy: float | None = None
        self.saved: str | None = None
        self.asked_at = 0.0

    def follow(
        self,
        config: RunConfig,
        slow: Mapping[int, float],
        tale: Tale,
        *,
        max_restarts: int | None = None,
    ) -> tuple[RunView, Phases]:
        """One run, led by a tale, then stopped.

        Args:
            slow: stragglers that it starts with.
            max_restarts: how often its engine may die and is started again; None: it may not die.

        Raises:
            LocalError: it ended otherwise.
        """
        run = runs.create(self.store, config, plan=trainer.first_plan(config), actor=WHO["actor"])
        phases = Phases(self.store, run.id, is_replanning=self.is_replanning, say=self.say, rates=slow, **WHO)
        for rate in sorted(set(slow.values())):
            devices = [device for device in slow if slow[device] == rate]
            asked = phases.submit("inject", {"devices": devices, "rate": rate, "for_s": None})
            while commands.get(self.store, asked.id).status == "pending":
                self.signals.wait(0.1)
        started = trainer.Trainer(
            self.store, self.system.settings, run, engine=self.engine, max_restarts=max_restarts or 0
        )
        told = self._until_told(phases, tale(phases), started)

        def advance(_: RunView) -> None:
            self.system.watch()
            next(told, None)

        ended = trainer.follow(
            started,
            self.signals,
            actor=WHO["actor"],
            on_stopping=lambda: self.say("stopping"),
            on_progress=advance,
            stop_timeout_s=SILENT_S,
        )
        if self.signals.count:
            raise KeyboardInterrupt
        if ended.status != "stopped" and max_restarts is None:
            raise LocalError(f"run {run.id} {ended.status}: {ended.reason}; {started.part.last_lines(5)}")
        return ended, phases

    def measured(self, phases: Phases, name: str, slow: Mapping[int, float]) -> Iterator[None]:
        yield from phases.begin(name, slow)
        yield from phases.settle()
        yield from self.steady(phases)

    def steady(self, phases: Phases) -> Iterator[None]:
        before = cpu_seconds()
        yield from phases.steady(STEADY_STEPS)
        self.busy = busy_share(before, cpu_seconds())

    def save(self, phases: Phases) -> Iterator[None]:
        """A checkpoint at the next step boundary: better than the last one, so nothing is lost.

        Raises:
            CommandError: it could not be saved, or was not within `MAX_WAIT_STEPS`.
        """
        self.asked_at = time.time()
        asked_step = phases.last_step()
        for _ in phases.applied([phases.submit("checkpoint", {})]):
            if phases.last_step() - asked_step > MAX_WAIT_STEPS:
                raise CommandError(f"run {phases.run}: no checkpoint within {MAX_WAIT_STEPS} steps")
            yield
        self.saved = checkpoints.saved(self.store, phases.run)[0].path

    def profile(self, run: int) -> ModelProfile:
        found = runs.get(self.store, run).profile
        assert found is not None, f"run {run} has no profile"
        return ModelProfile.from_json(found)

    def figures(self, run: RunView, phase: Phase, reference: Reference) -> PhaseFigures:
        return phase_figures(
            phase,
            reference,
            steps=history.steps(self.store, run.id, since_step=phase.first_step, until_step=phase.last_step),
            plans=plans.all_plans(self.store, run.id),
            switches=history.switches(self.store, run.id),
        )

    def reference(self, run: RunView, healthy: Phase) -> tuple[Reference, Row]:
        """What the best healthy plan takes, and how the first plan compares with it.

        The smaller of measured and predicted counts: a machine that was busy in the healthy steps, or in the
        calibration, must not raise the bound.
        """
        profile, config = self.profile(run.id), run.config
        devices = [device for node in config.nodes for device in node]
        best = solve(
            cluster=ClusterSpec(nodes=config.nodes, memory_bytes=dict.fromkeys(devices, config.cluster.memory_bytes)),
            profile=profile,
            train=TrainSpec(
                global_batch=config.train.global_batch,
                micro_batch_sizes=config.train.micro_batch_sizes,
                dp_range=(1, config.parallel.max_dp),
                max_tp=config.parallel.max_tp,
            ),
            rates={},
            current=Plan.from_json(trainer.first_plan(config)),
        )
        assert best.current_s is not None
        share = best.healthy_s / best.current_s  # 1 where the first plan is the best healthy one
        phase = self.figures(
            run, healthy, Reference(num_devices=1, healthy_s=1, predicted_healthy_s=1, profile=profile)
        )
        assert phase.step_s is not None
        reference = Reference(
            num_devices=config.num_devices,
            healthy_s=min(phase.step_s, best.current_s) * share,
            predicted_healthy_s=best.healthy_s,
            profile=profile,
        )
        return reference, {
            "healthy_step_s": phase.step_s,
            "predicted_healthy_s": best.current_s,
            "first_over_best": 1 / share,
        }

    def _until_told(self, phases: Phases, tale: Iterator[None], started: trainer.Trainer) -> Iterator[None]:
        last, deadline = -1, time.monotonic() + SILENT_S
        for _ in tale:
            step = phases.last_step()
            if step != last:
                last, deadline = step, time.monotonic() + SILENT_S
            if time.monotonic() >= deadline:
                raise CommandError(f"run {phases.run}: no new step for {SILENT_S:g} s")
            yield
        started.ask_to_stop(**WHO)


def cpu_seconds() -> tuple[float, float] | None:
    """Busy and all processor time of this machine so far (Linux), in ticks."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [float(value) for value in file.readline().split()[1:9]]
    except OSError:
        return None
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def busy_share(before: tuple[float, float] | None, after: tuple[float, float] | None) -> float | None:
    """Share of the machine's processor time that was used: emulated time is honest well below 1."""
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])
