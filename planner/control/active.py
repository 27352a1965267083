"""The plan that a run is on, and the way to the next one.

An approved plan becomes the run's target; the engine answers with a `Switch`, or simply with steps under the
new plan (a message may be lost, a new attempt starts with the target). Then it is active and the detector
starts over with the rates it was made for; or it is refused and the target goes back.
"""

from __future__ import annotations

import logging

from db import commands, history, plans, runs
from db.errors import TransitionError
from db.messages import Step, Switch
from db.plans import PlanView
from db.runs import RunView
from planner.control.context import ACTOR, Context
from planner.control.watch import Watch

log = logging.getLogger(__name__)

STEPS_WITHOUT_ANSWER = 3


class ActivePlan:
    """The active plan of one run.

    Attributes:
        plan: None until the engine has said what it runs.
    """

    def __init__(self, context: Context, view: RunView, watch: Watch) -> None:
        self._context, self._run, self._watch = context, view.id, watch
        self.plan: PlanView | None = None
        self._coming: tuple[int, int] | None = None  # plan version, and the document version that carries it
        self._num_unanswered = 0
        if view.active_plan_version is not None:
            self._take_up(plans.get(context.store, view.id, view.active_plan_version), last_step=-1)

    def switch_to(self, plan: PlanView) -> int:
        """Makes an approved plan the target. Safe to repeat: the target is set before the status moves.

        Returns:
            The version of the desired document that carries it.
        """
        view = runs.get(self._context.store, self._run)
        version = view.desired_version
        if view.target_plan_version != plan.version:
            version = runs.change(self._context.store, self._run, target_plan_version=plan.version)
        move(self._context, plan, "switching")
        self._coming, self._num_unanswered = (plan.version, version), 0
        return version

    def expect(self, plan: PlanView, view: RunView) -> None:
        """A plan is being switched to since before this controller started."""
        if self._coming is None:
            self._coming = (plan.version, view.desired_version)

    def tick(self, view: RunView) -> None:
        """A plan that is no longer the target (the engine died before it had moved to it) is given up."""
        if self._coming is not None and view.target_plan_version != self._coming[0]:
            self._give_up(self._coming[0], "the engine ended before it had moved to it")

    def on_attempt(self) -> None:
        """The engine started anew: what was seen before says nothing about now."""
        if self.plan is not None:
            self._watch.begin(self.plan, is_switch=False, last_step=-1)

    def on_step(self, message: Step) -> bool:
        """A step says which plan the engine runs, whether or not a switch was reported.

        Returns:
            Whether another plan has become active.
        """
        if self.plan is None or message.plan_version != self.plan.version:
            return self._activate(message.plan_version, last_step=message.step - 1)
        if self._coming is not None and message.desired_version >= self._coming[1]:
            self._num_unanswered += 1
            if self._num_unanswered >= STEPS_WITHOUT_ANSWER:
                self._refuse(self._coming[0], self._recorded_reason(self._coming[0]))
        return False

    def on_switch(self, message: Switch) -> bool:
        """The engine's answer to a plan.

        Returns:
            Whether another plan has become active.
        """
        if message.outcome == "applied":
            return self._activate(message.plan_version, last_step=message.step - 1)
        self._refuse(message.plan_version, message.reason)
        return False

    def measure(self) -> None:
        """Keeps the measured step time of the active plan: the median of its train steps."""
        if self.plan is None:
            return
        measured_s = history.median_step_s(self._context.store, self._run, plan_version=self.plan.version)
        if measured_s is not None:
            plans.set_measured(self._context.store, self._run, self.plan.version, measured_s)

    def _activate(self, version: int, *, last_step: int) -> bool:
        plan = plans.get(self._context.store, self._run, version)
        if plan.status not in ("approved", "switching"):
            return False
        self.measure()
        self._take_up(plans.move(self._context.store, self._run, version, "active"), last_step=last_step)
        log.info("run %s: plan %s is active", self._run, version)
        return True

    def _take_up(self, plan: PlanView, *, last_step: int) -> None:
        is_switch = self.plan is not None
        self.plan, self._coming, self._num_unanswered = plan, None, 0
        self._watch.begin(plan, is_switch=is_switch, last_step=last_step)

    def _refuse(self, version: int, reason: str) -> None:
        self._give_up(version, f"refused by the engine: {reason}")

    def _give_up(self, version: int, reason: str) -> None:
        """The engine keeps its plan: so does the run, and whoever asked for the other one is told."""
        self._coming = None
        plan = plans.get(self._context.store, self._run, version)
        if plan.status not in ("approved", "switching"):
            return
        log.warning("run %s: plan %s is given up: %s", self._run, version, reason)
        move(self._context, plan, "rejected", reason)
        view = runs.get(self._context.store, self._run)
        if self.plan is not None and view.target_plan_version == version:
            runs.change(self._context.store, self._run, target_plan_version=self.plan.version)
        for command in commands.recent(self._context.store, self._run, 50):
            is_approval = command.kind == "approve" and command.arguments["version"] == version
            if command.status == "accepted" and (is_approval or plan.key == command_key(command.id)):
                commands.finish(self._context.store, command.id, ok=False, result=reason)

    def _recorded_reason(self, version: int) -> str:
        """Why the engine refused, from SQL: the message was recorded and then forgotten by a restart."""
        for switch in reversed(history.switches(self._context.store, self._run)):
            if switch.plan_version == version and switch.outcome == "rejected":
                return switch.reason
        return "it went on with its plan and did not say why"


def command_key(command: int) -> str:
    """Idempotency key of the plan that a command leads to."""
    return f"command:{command}"


def move(context: Context, plan: PlanView, status: str, reason: str = "") -> bool:
    """Moves a plan, unless somebody else has just moved it on (a worker, a person)."""
    try:
        plans.move(context.store, plan.run, plan.version, status, actor=ACTOR, reason=reason)
    except TransitionError as error:
        log.info("run %s: %s", plan.run, error)
        return False
    return True
