"""Plays the schedules of a run: entries that are due become injections, by the clock, whatever the engine does.

A `play` command waits until the run has trained a step, is `accepted` then (the second 0 of its schedule), and
`applied` once the engine runs under the last of its entries. Nothing is remembered here: which entry is next is the
number of injections that the command has led to, so another controller goes on where this one stopped.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from db import commands, injections
from db.commands import CommandView
from db.injections import InjectionView
from db.runs import RunView
from db.schedule import HEALTHY, Entry, entries_of
from planner.control.context import Context

log = logging.getLogger(__name__)


class Play:
    """The schedule that a run plays, if it plays one."""

    def __init__(self, context: Context, run: int) -> None:
        self._context, self._run = context, run

    def begin(self, command: CommandView, view: RunView) -> None:
        """Takes up a pending `play` once the run trains; until then it waits."""
        if view.step is not None:
            commands.accept(self._context.store, command.id, desired_version=None)
            log.info("run %s: plays %s for %s", self._run, command.arguments["name"], command.actor)

    def tick(self, view: RunView) -> None:
        """What is due now. Safe to repeat, and to leave off at any point."""
        for command in commands.waiting(self._context.store, self._run, "play"):
            entries = entries_of(command.arguments)
            num_played = injections.num_played(self._context.store, self._run, command.id)
            if num_played < len(entries):
                self._play(command, entries[num_played:])
            else:
                self._finish_if_applied(command, view)

    def end(self, why: str) -> None:
        """What is still to come does not come any more."""
        open_ones = commands.waiting(self._context.store, self._run, "play")
        open_ones += [
            command
            for command in commands.pending(self._context.store)
            if command.run == self._run and command.kind == "play"
        ]
        for command in open_ones:
            num_played = injections.num_played(self._context.store, self._run, command.id)
            told = f"{why}, after {num_played} of {len(command.arguments['entries'])} injections"
            commands.finish(self._context.store, command.id, ok=False, result=told)

    def _play(self, command: CommandView, entries: list[Entry]) -> None:
        assert command.accepted_at is not None
        now = self._context.clock.now()
        due = [
            (entry, _until(command.accepted_at, entry))
            for entry in entries
            if command.accepted_at + timedelta(seconds=entry.at_s) <= now
        ]
        if due:
            injections.play(self._context.store, self._run, due, command=command.id, now=now)

    def _finish_if_applied(self, command: CommandView, view: RunView) -> None:
        played = injections.of_command(self._context.store, self._run, command.id)
        is_requested = any(injection.status == "requested" for injection in played)
        if is_requested or view.applied_version < played[-1].desired_version:
            return
        steps = [injection.applied_step for injection in played if injection.applied_step is not None]
        commands.finish(
            self._context.store,
            command.id,
            ok=True,
            result=_told(played),
            step=max(steps, default=view.step),
        )


def _until(begin_at: datetime, entry: Entry) -> datetime | None:
    return None if entry.end_s is None else begin_at + timedelta(seconds=entry.end_s)


def _told(played: list[InjectionView]) -> str:
    never = sum(injection.applied_step is None and injection.rate != HEALTHY for injection in played)
    return f"{len(played)} injections played" + (f", {never} of them over before the engine could" if never else "")
