"""Commands of people, turned into desired state.

A command that the engine has to obey is `accepted` with the version of the desired document that carries
it, and `applied` when telemetry reports that version; a checkpoint when the engine reports it saved. One that
concerns the controller alone is done at once. What cannot be done fails with the reason. Repeating a command
that was half done does no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from db import checkpoints, commands, injections, runs
from db.commands import CommandView
from db.errors import InputError, TransitionError
from db.runs import RunView
from planner.control.active import command_key
from planner.control.context import Context
from planner.control.planning import Planning
from planner.control.play import Play

log = logging.getLogger(__name__)

STARTED_ANEW = "the engine was started anew before it had obeyed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A checkpoint that was asked for: which request, and the version of the desired document that carries it."""

    number: int
    desired_version: int


class Orders:
    """Obeys the commands of one run."""

    def __init__(self, context: Context, run: int, planning: Planning) -> None:
        self._context, self._run, self._planning = context, run, planning
        self.play = Play(context, run)
        self._kinds: dict[str, Callable[[CommandView, RunView], int | str | Request | None]] = {
            "inject": self._inject,
            "play": self.play.begin,
            "clear": self._clear,
            "fail": self._fail,
            "pause": lambda command, view: self._change(is_paused=True),
            "resume": lambda command, view: self._change(is_paused=False),
            "stop": lambda command, view: self._change(is_stopping=True),
            "checkpoint": self._checkpoint,
            "approve": self._approve,
            "reject": self._reject,
            "rollback": self._roll_back,
            "replan": self._replan,
            "set_mode": self._set_mode,
            "propose": self._propose,
        }

    def obey(self, command: CommandView, view: RunView) -> None:
        """Carries out one pending command; None says that it goes its own way, or waits."""
        try:
            outcome = self._kinds[command.kind](command, view)
        except (InputError, TransitionError) as error:
            commands.finish(self._context.store, command.id, ok=False, result=str(error))
            return
        if outcome is None:
            return
        log.info("run %s: %s by %s", self._run, command.kind, command.actor)
        if isinstance(outcome, Request):
            commands.accept(
                self._context.store, command.id, desired_version=outcome.desired_version, request=outcome.number
            )
        elif isinstance(outcome, int):
            commands.accept(self._context.store, command.id, desired_version=outcome)
        else:
            commands.finish(self._context.store, command.id, ok=True, result=outcome)

    def clear_expired(self, devices: list[int]) -> None:
        """The time of these injections is over."""
        injections.clear(self._context.store, self._run, devices)
        self._change()

    def settle(self, view: RunView) -> None:
        """Draws the conclusions from what the engine has reported and nobody acted on, from SQL. Safe to repeat."""
        commands.apply_observed(
            self._context.store, self._run, view.applied_version, view.step or 0, attempt=view.attempt
        )
        self.settle_checkpoints()
        self._settle_failures(view)

    def settle_checkpoints(self) -> None:
        """Tells whoever waits for a checkpoint what the engine has reported, from SQL. Safe to repeat."""
        for command in commands.waiting(self._context.store, self._run, "checkpoint"):
            assert command.request is not None
            found = checkpoints.answer(self._context.store, self._run, command.request)
            if found is not None:
                is_saved = found.status != "failed"
                commands.finish(
                    self._context.store,
                    command.id,
                    ok=is_saved,
                    result=f"saved to {found.path}" if is_saved else found.reason or "the engine did not say why",
                    step=found.step if is_saved else None,
                )

    def on_attempt(self, view: RunView) -> None:
        """The engine started anew: a checkpoint that it still owes is asked for again, a failure is not."""
        self.settle_checkpoints()
        self._settle_failures(view)
        owed = commands.waiting(self._context.store, self._run, "checkpoint")
        if owed:
            request = self._request_checkpoint()
            for command in owed:
                commands.ask_again(
                    self._context.store, command.id, desired_version=request.desired_version, request=request.number
                )

    def end(self, view: RunView) -> None:
        """The run has ended: every command gets its end, and every injection too."""
        injections.clear(self._context.store, self._run)
        self.settle_checkpoints()
        for command in commands.recent(self._context.store, self._run, 1000):
            if command.status in ("pending", "accepted"):
                is_done = command.kind == "stop" and view.status != "failed"
                result = "" if is_done else f"the run ended before ({view.status})"
                commands.finish(self._context.store, command.id, ok=is_done, result=result)

    def _inject(self, command: CommandView, view: RunView) -> int:
        duration_s = command.arguments["for_s"]
        until_at = None if duration_s is None else self._context.clock.now() + timedelta(seconds=duration_s)
        for device in command.arguments["devices"]:
            injections.add(
                self._context.store, self._run, device, command.arguments["rate"], until_at, command=command.id
            )
        return self._change()

    def _clear(self, command: CommandView, view: RunView) -> int:
        if command.arguments["devices"] is None:
            self.play.end(f"ended by {command.actor}, who cleared all injections")
        injections.clear(self._context.store, self._run, command.arguments["devices"])
        return self._change()

    def _fail(self, command: CommandView, view: RunView) -> int:
        if command.arguments["attempt"] != view.attempt:
            raise InputError(STARTED_ANEW)
        return self._change()

    def _settle_failures(self, view: RunView) -> None:
        for command in commands.waiting(self._context.store, self._run, "fail"):
            if command.arguments["attempt"] != view.attempt:
                commands.finish(self._context.store, command.id, ok=False, result=STARTED_ANEW)

    def _checkpoint(self, command: CommandView, view: RunView) -> Request:
        return self._request_checkpoint()

    def _request_checkpoint(self) -> Request:
        version, number = runs.request_checkpoint(self._context.store, self._run)
        return Request(number=number, desired_version=version)

    def _approve(self, command: CommandView, view: RunView) -> int:
        arguments = command.arguments
        return self._planning.approve(
            arguments["version"], actor=command.actor, decided_reason=arguments.get("reason", "")
        )

    def _reject(self, command: CommandView, view: RunView) -> str:
        self._planning.reject(
            command.arguments["version"], actor=command.actor, decided_reason=command.arguments.get("reason", "")
        )
        return f"plan {command.arguments['version']} rejected"

    def _roll_back(self, command: CommandView, view: RunView) -> int:
        return self._planning.roll_back(
            command.arguments["version"],
            view,
            actor=command.actor,
            key=command_key(command.id),
            decided_reason=command.arguments.get("reason", ""),
        )

    def _replan(self, command: CommandView, view: RunView) -> str:
        problem = self._planning.request(
            view, trigger="command", key=command_key(command.id), requested_by=command.actor
        )
        if problem:
            raise InputError(f"no plan can be asked for: {problem}")
        return "plan requested"

    def _propose(self, command: CommandView, view: RunView) -> str:
        arguments = command.arguments
        return self._planning.propose(
            arguments["document"],
            view,
            what_if=arguments["what_if"],
            reason=arguments["reason"],
            actor=command.actor,
            key=command_key(command.id),
        )

    def _set_mode(self, command: CommandView, view: RunView) -> str:
        self._change(mode=command.arguments["mode"])
        return f"mode is {command.arguments['mode']}"

    def _change(
        self, *, is_paused: bool | None = None, is_stopping: bool | None = None, mode: str | None = None
    ) -> int:
        return runs.change(self._context.store, self._run, is_paused=is_paused, is_stopping=is_stopping, mode=mode)
