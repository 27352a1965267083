"""Leads a running job from one set of stragglers to the next, and waits for what follows.

    begin (commands) -> settle (a plan made for these rates runs, or none is better) -> steady steps

Like `app.story` it only submits commands and reads SQL, as a person would; a story is one situation, this is
any number of them in one run. What was seen is measured by `app.phase_figures`. Every wait is a generator,
to be advanced a few times a second, and ends early when the run does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from app.errors import CommandError
from app.situations import difference
from app.story import OPEN_PLANS
from db import commands, episodes, history, plans, runs
from db.commands import CommandView
from db.history import StepView
from db.plans import PlanView
from db.store import Store

SAME_RATE = 0.1
"""Relative difference up to which a plan counts as made for a rate."""
MAX_WAIT_STEPS = 20
"""Steps with nothing new after which nothing is to come."""


@dataclass(slots=True, kw_only=True)
class Phase:
    """One set of stragglers, as far as it has been seen.

    Args:
        name: of the situation.
        rates: of the slow devices.
        base_version: plan that was active as it began.
        first_step: first step that ran with these rates.
        last_step: last step before the next phase was asked for; None while it lasts.
        settled_step: last step that was known when the plan had followed; None: not yet.
        is_settled: whether it followed; False after `MAX_WAIT_STEPS` without news.
    """

    name: str
    rates: dict[int, float] = field(default_factory=dict)
    base_version: int = 1
    first_step: int = 0
    last_step: int | None = None
    settled_step: int | None = None
    is_settled: bool = False


class Phases:
    """Phases of one run.

    Args:
        is_replanning: whether plans are expected to follow.
        rates: of the stragglers that the run starts with.
        say: takes one line for the person, at every turn.
        actor: who submits the commands.
    """

    def __init__(
        self,
        store: Store,
        run: int,
        *,
        is_replanning: bool,
        say: Callable[[str], None],
        actor: str,
        source: str,
        rates: Mapping[int, float] | None = None,
    ) -> None:
        self.store = store
        self.run = run
        self.past: list[Phase] = []
        self.rates = dict(rates or {})
        self._is_replanning = is_replanning
        self._say = say
        self._who = {"actor": actor, "source": source}

    @property
    def present(self) -> Phase:
        return self.past[-1]

    def begin(self, name: str, rates: Mapping[int, float]) -> Iterator[None]:
        """Changes the stragglers, and waits for the first step that ran with them.

        Raises:
            CommandError: a command failed.
        """
        while runs.get(self.store, self.run).active_plan_version is None:
            yield
        if self.past:
            self.present.last_step = self.last_step()
        injected, cleared = difference(self.rates, rates)
        submitted = [
            self.submit("inject", {"devices": devices, "rate": rate, "for_s": None})
            for rate, devices in injected.items()
        ]
        if cleared:
            submitted.append(self.submit("clear", {"devices": cleared}))
        self.rates = dict(rates)
        yield from self.applied(submitted)
        version = max((commands.get(self.store, command.id).desired_version or 0 for command in submitted), default=0)
        while not (found := [step for step in self.steps() if step.desired_version >= version]):
            yield
        first = found[0] if submitted else found[-1]
        phase = Phase(name=name, rates=dict(rates), base_version=first.plan_version, first_step=first.step)
        self.past.append(phase)
        slow = ", ".join(f"device {device} {rate:g}x" for device, rate in sorted(rates.items())) or "no straggler"
        self._say(f"{name} from step {first.step} on: {slow}")

    def settle(self) -> Iterator[None]:
        """Waits until the newest plan was made for these rates and nothing is on its way."""
        phase = self.present
        known: object = None
        news_step = phase.first_step
        while True:
            found = plans.all_plans(self.store, self.run)
            step = self.last_step()
            if not self._is_replanning or is_settled(found, phase.rates):
                phase.is_settled = True
                break
            if (now := [(plan.version, plan.status) for plan in found]) != known:
                known, news_step = now, step
            if step - news_step >= MAX_WAIT_STEPS:
                self._say(f"{phase.name}: nothing new for {MAX_WAIT_STEPS} steps, measured as it is")
                break
            yield
        phase.settled_step = self.last_step()
        if self._is_replanning:
            self._say(f"{phase.name}: settled under plan v{runs.get(self.store, self.run).active_plan_version}")

    def steady(self, num_steps: int) -> Iterator[None]:
        """Waits for so many measured steps, all under one plan and with nothing on its way."""
        while len(self.steady_steps()) < num_steps or has_open(plans.all_plans(self.store, self.run)):
            yield

    def reach(self, step: int) -> Iterator[None]:
        """Waits until this step is done."""
        while self.last_step() < step:
            yield

    def noticed(self) -> Iterator[None]:
        """Waits until the controller has named every slow device and no other, at most `MAX_WAIT_STEPS`."""
        phase = self.present
        while self.last_step() - phase.first_step < MAX_WAIT_STEPS:
            seen = {item.device for item in episodes.all_episodes(self.store, self.run, is_open=True)}
            if seen == set(phase.rates):
                return
            yield

    def applied(self, submitted: Sequence[CommandView]) -> Iterator[None]:
        """Waits until the engine has applied the commands.

        Raises:
            CommandError: one failed.
        """
        for command in submitted:
            while command.status in ("pending", "accepted"):
                yield
                command = commands.get(self.store, command.id)
            if command.status == "failed":
                raise CommandError(f"{command.kind} (command {command.id}) failed: {command.result}")

    def submit(self, kind: str, arguments: Mapping[str, object]) -> CommandView:
        return commands.submit(self.store, self.run, kind, arguments, **self._who)

    def steps(self, since_step: int | None = None) -> list[StepView]:
        return history.steps(self.store, self.run, since_step=since_step, max_points=100_000)

    def last_step(self) -> int:
        found = history.last_step(self.store, self.run)
        return -1 if found is None else found.step

    def steady_steps(self) -> list[StepView]:
        """The measured steps (phase `train`) of the present phase under the plan that is active now."""
        phase, version = self.present, runs.get(self.store, self.run).active_plan_version
        since = phase.first_step if phase.settled_step is None else phase.settled_step + 1
        return [step for step in self.steps(since) if step.phase == "train" and step.plan_version == version]


def is_settled(found: Sequence[PlanView], rates: Mapping[int, float]) -> bool:
    """Whether nothing is on its way and the newest plan that was decided on was made for these rates.

    Args:
        found: the run's plans, newest first.
        rates: of the slow devices; others are healthy.
    """
    if has_open(found):
        return False
    decided = [plan for plan in found if plan.status in ("active", "superseded", "rejected")]
    if not decided:
        return False
    made_for = decided[0].rates
    return all(
        abs(made_for.get(device, 1.0) / rates.get(device, 1.0) - 1) <= SAME_RATE for device in {*made_for, *rates}
    )


def has_open(found: Sequence[PlanView]) -> bool:
    """Whether a plan is on its way (the one that a run starts with is approved until its first step)."""
    return any(plan.status in OPEN_PLANS for plan in found)
