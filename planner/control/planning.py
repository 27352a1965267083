"""A run's plans before the switch: wished for, requested, solved, decided, approved.

SQL holds the state; every tick looks at the open rows and moves each one on. At most one is in flight, so a
re-plan is never asked for while another one is on its way. What follows an approval is `planner.control.active`;
people's decisions come through `planner.control.orders`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from db import audit, history, plans
from db.errors import InputError, TransitionError
from db.plans import PlanView
from db.runs import RunView
from planner.control.active import ActivePlan, move
from planner.control.context import ACTOR, Context
from planner.control.proposal import checked_proposal
from planner.control.watch import Watch
from planner.cost import plan_step_s
from planner.decide import Decision, Move, decide, expected_steps
from planner.diff import diff
from planner.plan import Plan
from planner.spec import ModelProfile

log = logging.getLogger(__name__)

RESEND_S = 10.0
QUEUED_LIMIT_S = 60.0
SOLVING_GRACE_S = 30.0
SCAN_S = 1.0
MEASURE_S = 5.0
OPEN = ("queued", "solving", "ready", "approved", "switching")
TRAINS = ("training", "paused")
AGAIN = ":again"


class Planning:
    """The plans of one run on their way to being active.

    Attributes:
        is_wanted: a device has shifted, and no plan has been asked for since.
    """

    def __init__(self, context: Context, view: RunView, watch: Watch, active: ActivePlan) -> None:
        self._context, self._run, self._watch, self._active = context, view.id, watch, active
        self.is_wanted = False
        self._is_owed = False
        self._is_busy = True
        self._scanned_at = self._measured_at = -math.inf
        self._sent_at: dict[int, float] = {}
        self._announced: set[int] = set()

    def tick(self, view: RunView) -> None:
        """Moves every open plan on; asks for one if that is due."""
        is_due = self.is_wanted and view.mode != "off" and bool(self._watch.detector.shifted())
        now = self._context.clock.monotonic()
        if now - self._scanned_at >= SCAN_S or self._is_busy or is_due:
            self._scanned_at = now
            self._is_busy = False
            for plan in reversed(plans.all_plans(self._context.store, self._run, limit=20)):
                if plan.status in OPEN:
                    self._is_busy |= self._advance(plan, view)
        if is_due and not self._is_busy:
            problem = self.request(view, trigger="shift", key=f"shift:{view.attempt}:{view.step}")
            if problem:
                log.debug("run %s: %s", self._run, problem)
        if now - self._measured_at >= MEASURE_S:
            self._measured_at = now
            self._active.measure()

    def on_worker(self) -> None:
        """A worker has been heard: what went unanswered without one may be asked for again."""
        if self._is_owed:
            self._is_owed = False
            self.is_wanted = True

    def request(self, view: RunView, *, trigger: str, key: str, requested_by: str = ACTOR) -> str:
        """Asks for a plan for the rates as they are now.

        Returns:
            Why that is not possible, or an empty string.
        """
        if view.profile is None or self._active.plan is None:
            return "the run is not calibrated yet"
        if view.status not in TRAINS:
            return f"the run is {view.status}"
        known = plans.all_plans(self._context.store, self._run, limit=20)
        for plan in known:
            if plan.status == "ready" and self._is_own(plan) and view.mode != "automatic":
                move(self._context, plan, "rejected", "the rates have changed since it was made")
            elif plan.status in OPEN and not self._waits(plan, view) and plan.key != key:
                return f"plan {plan.version} is {plan.status}"
        plan = plans.request(
            self._context.store,
            self._run,
            trigger=trigger,
            rates=self._watch.detector.rates_for_planning(),
            parent=self._active.plan.version,
            requested_by=requested_by,
            key=key,
        )
        self.is_wanted, self._is_busy = False, True
        if plan.status == "queued":
            self._send(plan)
        log.info("run %s: plan %s requested (%s)", self._run, plan.version, trigger)
        return ""

    def approve(self, version: int, *, actor: str, reason: str = "", decided_reason: str | None = None) -> int:
        """Approves a ready plan and makes it the run's target.

        Args:
            reason: what speaks for it.
            decided_reason: why the actor wants it, in the actor's words; `reason` by default.

        Returns:
            The version of the desired document that carries it.

        Raises:
            TransitionError: the plan is not ready.
            InputError: another plan is being switched to.
        """
        self._check_free(version)
        plan = plans.move(
            self._context.store,
            self._run,
            version,
            "approved",
            actor=actor,
            reason=reason,
            decided_reason=decided_reason,
        )
        return self._active.switch_to(plan)

    def reject(self, version: int, *, actor: str, decided_reason: str = "") -> None:
        """A person does not want this plan.

        Raises:
            TransitionError: it is too late.
        """
        plan = plans.get(self._context.store, self._run, version)
        if plan.status == "switching":
            raise TransitionError(f"plan {version} is switching, expected one that is not being switched to")
        plans.move(
            self._context.store,
            self._run,
            version,
            "rejected",
            actor=actor,
            reason=f"rejected by {actor}",
            decided_reason=decided_reason,
        )

    def roll_back(self, version: int, view: RunView, *, actor: str, key: str, decided_reason: str = "") -> int:
        """Returns to an earlier plan, as a new version of it, planned for the rates as they are now.

        Returns:
            The version of the desired document that carries it.

        Raises:
            InputError: it runs already, has no document, cannot run now, or another one is being switched to.
        """
        former = plans.get(self._context.store, self._run, version)
        if former.document is None:
            raise InputError(f"plan {version} has no document, expected one that was solved")
        if self._active.plan is not None and former.document == self._active.plan.document:
            raise InputError(f"plan {version} is what plan {self._active.plan.version} runs already")
        rates = self._watch.detector.rates_for_planning()
        predicted_s = self._predict(former.document, view, rates)
        if math.isinf(predicted_s):
            raise InputError(f"plan {version} uses a device that has failed")
        self._check_free(None)
        plan = plans.add(
            self._context.store,
            self._run,
            document=former.document,
            trigger="rollback",
            rates=rates,
            parent=version,
            requested_by=actor,
            key=key,
            status="approved",
            predicted_s=None if math.isnan(predicted_s) else predicted_s,
            reason=f"rolled back to plan {version} by {actor}",
            decided_reason=decided_reason,
        )
        return self._active.switch_to(plan)

    def propose(
        self, document: Mapping[str, Any], view: RunView, *, what_if: int | None, reason: str, actor: str, key: str
    ) -> str:
        """Takes up a person's plan as a new version, ready, for a person to approve.

        Args:
            what_if: the what-if that it came of, if any.

        Returns:
            What to tell the person.

        Raises:
            InputError: the run is not calibrated, the plan breaks a rule, or it is what runs already.
        """
        active = self._active.plan
        if view.profile is None or active is None or active.document is None:
            raise InputError("the run is not calibrated yet, expected one that trains")
        rates, current = self._watch.detector.rates_for_planning(), Plan.from_json(active.document)
        plan = checked_proposal(document, view, rates=rates, current=current)
        if plan == current:
            raise InputError(f"the proposed plan is what plan {active.version} runs already")
        source = f"what-if {what_if}" if what_if is not None else "proposed"
        added = plans.add(
            self._context.store,
            self._run,
            document=plan.to_json(),
            trigger="manual" if what_if is None else "what-if",
            rates=rates,
            parent=active.version,
            requested_by=actor,
            key=key,
            predicted_s=self._predict(plan.to_json(), view, rates),
            current_s=self._predict(active.document, view, rates),
            reason=f"{source} by {actor}" + (f": {reason}" if reason else ""),
            details={} if what_if is None else {"what_if": what_if},
        )
        return f"plan {added.version} is ready and waits for approval"

    def end(self, reason: str) -> None:
        """The run has ended: nothing stays open."""
        self._active.measure()
        for plan in plans.all_plans(self._context.store, self._run, limit=1000):
            if plan.status in OPEN:
                move(self._context, plan, "failed" if plan.status in ("queued", "solving") else "rejected", reason)

    def _advance(self, plan: PlanView, view: RunView) -> bool:
        """Moves one open plan on; true while it is in flight."""
        if plan.status in ("queued", "solving"):
            return self._chase(plan, view)
        if plan.status == "ready":
            if self._waits(plan, view):
                self._announce(plan, view)
                return False
            if view.status not in TRAINS:
                return True  # an engine that starts anew starts with the plan it had
            self._decide(plan, view)
        elif plan.status == "approved" and self._active.plan is not None:
            self._active.switch_to(plan)
        elif plan.status == "switching":
            self._active.expect(plan, view)
        return True

    def _chase(self, plan: PlanView, view: RunView) -> bool:
        """Sends a queued plan's task again now and then; gives up on one that nobody answers."""
        clock = self._context.clock
        is_queued = plan.status == "queued"
        since = plan.created_at if is_queued else plan.claimed_at or plan.created_at
        limit_s = QUEUED_LIMIT_S if is_queued else view.config.control.plan_time_limit_s + SOLVING_GRACE_S
        if (clock.now() - since).total_seconds() <= limit_s:
            if is_queued and clock.monotonic() - self._sent_at.get(plan.version, -math.inf) > RESEND_S:
                self._send(plan)
            return True
        reason = "no worker took it" if is_queued else f"{plan.worker or 'the worker'} did not answer"
        if not move(self._context, plan, "failed", f"{reason} within {limit_s:.0f} s"):
            return True
        log.warning("run %s: plan %s failed: %s within %.0f s", self._run, plan.version, reason, limit_s)
        if plan.key.endswith(AGAIN):
            self._is_owed = True
            return False
        problem = self.request(view, trigger=plan.trigger, key=plan.key + AGAIN, requested_by=plan.requested_by)
        return not problem

    def _waits(self, plan: PlanView, view: RunView) -> bool:
        """Whether a person has to decide about this ready plan."""
        return plan.status == "ready" and (view.mode != "automatic" or not self._is_own(plan))

    def _is_own(self, plan: PlanView) -> bool:
        """Whether it answers a request (a person's proposal, brought ready-made, is the person's to approve)."""
        return plan.trigger in ("shift", "command")

    def _announce(self, plan: PlanView, view: RunView) -> None:
        if plan.version in self._announced:
            return
        self._announced.add(plan.version)
        decision = self._weigh(plan, view)
        self._audit(plan, "waiting", decision.reason if decision else "", decision)

    def _decide(self, plan: PlanView, view: RunView) -> None:
        decision = self._weigh(plan, view)
        if decision is None:
            move(self._context, plan, "rejected", "the plan that it was to replace is gone")
            return
        log.info("run %s: plan %s: %s", self._run, plan.version, decision.reason)
        self._audit(plan, "move" if decision.is_worth else "stay", decision.reason, decision)
        if not decision.is_worth:
            move(self._context, plan, "rejected", decision.reason)
            return
        try:
            self.approve(plan.version, actor=ACTOR, reason=decision.reason)
        except (InputError, TransitionError) as error:  # a person was faster
            log.info("run %s: %s", self._run, error)

    def _weigh(self, plan: PlanView, view: RunView) -> Decision | None:
        """Break-even at the rates measured now, which may differ from those that it was planned for."""
        if (
            self._active.plan is None
            or self._active.plan.document is None
            or plan.document is None
            or view.profile is None
        ):
            return None
        rates = self._watch.detector.rates_for_planning()
        profile = ModelProfile.from_json(view.profile)
        moved = diff(Plan.from_json(self._active.plan.document), Plan.from_json(plan.document), profile).moved_bytes
        moves = [
            Move(num_bytes=switch.bytes_moved, pause_s=switch.pause_s)
            for switch in history.newest_switches(self._context.store, self._run)
            if switch.outcome == "applied"
        ]
        done = 0 if view.step is None else view.step + 1
        num_remaining = view.config.train.num_steps - done
        return decide(
            stay_s=self._predict(self._active.plan.document, view, rates),
            move_s=self._predict(plan.document, view, rates),
            num_steps=expected_steps(num_remaining=num_remaining, num_done=done, num_shifts=len(moves)),
            num_bytes=moved or 0.0,
            history=moves,
        )

    def _predict(self, document: Mapping[str, Any] | None, view: RunView, rates: dict[int, float]) -> float:
        """Step seconds of a plan's document at these rates; NaN before the calibration."""
        if document is None or view.profile is None:
            return math.nan
        return plan_step_s(Plan.from_json(document), ModelProfile.from_json(view.profile), rates)

    def _check_free(self, version: int | None) -> None:
        for plan in plans.all_plans(self._context.store, self._run, limit=20):
            if plan.version != version and plan.status in ("approved", "switching"):
                raise InputError(f"plan {plan.version} is being switched to, expected no other switch")

    def _send(self, plan: PlanView) -> None:
        self._sent_at[plan.version] = self._context.clock.monotonic()
        self._context.queue.send_solve(self._run, plan.version)

    def _audit(self, plan: PlanView, result: str, reason: str, decision: Decision | None) -> None:
        audit.record(
            self._context.store,
            actor=ACTOR,
            action="plan.decision",
            run=self._run,
            target=f"plan {plan.version}",
            result=result,
            detail={"reason": reason} | (decision.to_json() if decision else {}),
        )
