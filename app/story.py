"""Plays a situation on a running training job through command rows, and waits for what follows.

    healthy steps -> stragglers injected -> (re-plan, switch) -> recovered steps

It only submits commands and reads SQL, as a person at the dashboard would; what it saw is measured
by `app.story_figures`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from app.errors import CommandError
from app.situations import Straggler
from db import commands, history, plans, runs
from db.commands import CommandView
from db.history import StepView
from db.store import Store

NUM_STEPS = 8
"""Measured steps in each part of the story."""
MAX_STRAGGLING_STEPS = 40
"""Without a new plan by then, none is to come."""
OPEN_PLANS = ("queued", "solving", "ready", "approved", "switching")


class Story:
    """One situation on one run.

    Args:
        stragglers: what to inject, by offset from the end of the healthy part; may be empty.
        is_replanning: whether a new plan is to be expected.
        say: takes one line for the person, at every turn.
        actor: who submits the commands.
    """

    def __init__(
        self,
        store: Store,
        run: int,
        stragglers: Sequence[Straggler],
        *,
        is_replanning: bool,
        say: Callable[[str], None],
        actor: str,
    ) -> None:
        self.store = store
        self.run = run
        self.stragglers = tuple(stragglers)
        self.is_replanning = is_replanning
        self.base_version: int | None = None
        self.start_step: int | None = None
        self.applied_step: int | None = None
        self._say = say
        self._actor = actor

    def tell(self) -> Iterator[None]:
        """The story, to be advanced a few times a second; ends when it is told or the run has ended.

        Raises:
            CommandError: an injection failed.
        """
        for part in (self._healthy, self._inject, self._follow):
            for _ in part():
                if not runs.get(self.store, self.run).is_open:
                    return
                yield

    def clear(self) -> Iterator[None]:
        """Takes the stragglers away again."""
        yield from self._applied([commands.submit(self.store, self.run, "clear", {}, actor=self._actor, source="demo")])
        self._say("the stragglers are gone")

    def steps(
        self, *, since_step: int | None = None, until_step: int | None = None, plan_version: int | None = None
    ) -> list[StepView]:
        """The measured steps (phase `train`) in a range, of one plan."""
        found = history.steps(self.store, self.run, since_step=since_step, until_step=until_step, max_points=100_000)
        return [
            step
            for step in found
            if step.phase == "train" and (plan_version is None or step.plan_version == plan_version)
        ]

    def _healthy(self) -> Iterator[None]:
        while True:
            version = runs.get(self.store, self.run).active_plan_version
            measured = self.steps(plan_version=version) if version is not None else []
            if len(measured) >= NUM_STEPS:
                break
            yield
        self.base_version = version
        self.start_step = measured[-1].step
        self._say(f"healthy: {_median(measured):.2f} s a step under plan v{version}")

    def _inject(self) -> Iterator[None]:
        assert self.start_step is not None
        waiting = sorted(self.stragglers, key=lambda straggler: straggler.offset_steps)
        submitted: list[CommandView] = []
        while waiting:
            step = runs.get(self.store, self.run).step or 0
            while waiting and step >= self.start_step + waiting[0].offset_steps:
                straggler = waiting.pop(0)
                arguments = {"devices": [straggler.device], "rate": straggler.rate, "for_s": None}
                submitted.append(
                    commands.submit(self.store, self.run, "inject", arguments, actor=self._actor, source="demo")
                )
                self._say(f"device {straggler.device} turns {straggler.rate:g}x slow")
            yield
        yield from self._applied(submitted)

    def _applied(self, submitted: Sequence[CommandView]) -> Iterator[None]:
        self.applied_step = self.start_step
        for command in submitted:
            while command.status in ("pending", "accepted"):
                yield
                command = commands.get(self.store, command.id)
            if command.status == "failed":
                raise CommandError(f"{command.kind} (command {command.id}) failed: {command.result}")
            self.applied_step = max(self.applied_step or 0, command.applied_step or 0)

    def _follow(self) -> Iterator[None]:
        assert self.applied_step is not None
        has_told_slow = False
        while True:
            slow = self.steps(since_step=self.applied_step + 1, plan_version=self.base_version)
            if self.stragglers and slow and not has_told_slow:
                self._say(f"straggling: {slow[0].step_s:.2f} s a step")
                has_told_slow = True
            if not (self.is_replanning and self.stragglers):
                if len(slow) >= NUM_STEPS:
                    return
            elif not self._has_open_plan():
                version = runs.get(self.store, self.run).active_plan_version
                recovered = self.steps(since_step=self.applied_step + 1, plan_version=version)
                if version != self.base_version and len(recovered) >= NUM_STEPS:
                    self._say(f"recovered: {_median(recovered):.2f} s a step under plan v{version}")
                    return
                if len(slow) >= MAX_STRAGGLING_STEPS:
                    self._say(f"no better plan came within {MAX_STRAGGLING_STEPS} steps")
                    return
            yield

    def _has_open_plan(self) -> bool:
        return any(plan.status in OPEN_PLANS for plan in plans.all_plans(self.store, self.run))


def _median(steps: Sequence[StepView]) -> float:
    values = sorted(step.step_s for step in steps)
    return values[len(values) // 2]
