"""What became of the last commands: applied at a step, failed with a reason, or what they wait for.

Pure drawing; shown by `picture` under the buttons that submitted them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from html import escape
from typing import TYPE_CHECKING

from app.dashboard import quantities as q

if TYPE_CHECKING:
    from db.commands import CommandView

SHOWN_FOR = timedelta(minutes=2)
LATE_AFTER_S = 15.0
"""A command that waits longer than this says so with more words."""


def acknowledgements(commands: Sequence[CommandView], *, now: datetime, most: int = 4) -> str:
    """The last commands as lines, newest first; empty if none is recent."""
    shown = [
        command
        for command in commands
        if command.status in ("pending", "accepted") or now - (command.done_at or command.created_at) < SHOWN_FOR
    ][:most]
    if not shown:
        return ""
    lines = "".join(
        f'<div class="ack {command.status}"><span class="mark" aria-hidden="true">{_MARKS[command.status]}</span>'
        f"<span><b>{escape(wording(command))}</b> "
        f'<span class="muted">{escape(progress(command, now=now))}</span></span></div>'
        for command in shown
    )
    return f'<div class="acks" role="status" aria-label="Last commands">{lines}</div>'


def refusals(errors: Sequence[str]) -> str:
    """Submits that were refused at once, with the reason; empty if none was."""
    return "".join(
        f'<div class="ack failed" role="alert"><span class="mark" aria-hidden="true">{_MARKS["failed"]}</span>'
        f"<span>{escape(error)}</span></div>"
        for error in errors
        if error
    )


def wording(command: CommandView) -> str:
    """A command in words: `inject 2.57x on device 3`."""
    arguments = command.arguments
    devices = arguments.get("devices")
    if command.kind == "inject":
        duration = f" for {q.duration(arguments['for_s'])}" if arguments.get("for_s") else ""
        return f"inject {q.rate(arguments.get('rate'))} on {q.devices(devices or [])}{duration}"
    if command.kind == "play":
        entries = arguments.get("entries") or []
        number = f"{len(entries)} injection{'s' if len(entries) != 1 else ''}"
        return f"play {arguments.get('name')} ({number})"
    if command.kind == "clear":
        return f"clear {q.devices(devices)}" if devices else "clear all injections"
    if command.kind == "fail":
        return f"fail device {arguments.get('device')}"
    if "version" in arguments:
        verb = "roll back to" if command.kind == "rollback" else command.kind
        because = f" ({arguments['reason']})" if arguments.get("reason") else ""
        return f"{verb} plan v{arguments['version']}{because}"
    if command.kind == "set_mode":
        return f"set mode {arguments.get('mode')}"
    if command.kind == "propose":
        return "propose a plan" + (f" (what-if {arguments['what_if']})" if arguments.get("what_if") else "")
    return command.kind


def progress(command: CommandView, *, now: datetime) -> str:
    """What came of it, or what it waits for."""
    who = f"by {command.actor}"
    if command.status == "failed":
        return f"failed: {command.result or 'no reason given'} ({who})"
    if command.status == "applied":
        if command.applied_step is not None:
            told = f": {command.result}" if command.result else ""
            return f"applied at step {q.count(command.applied_step)}{told} ({who})"
        return f"done{': ' + command.result if command.result else ''} ({who})"
    waited_s = (now - command.created_at).total_seconds()
    waits = "the engine to save it" if command.kind == "checkpoint" else "the engine's next step boundary"
    if command.kind == "play" and command.status == "accepted":
        return f"plays since {q.clock(command.accepted_at, now=now)} ({who})"
    waits = "the controller" if command.status == "pending" else waits
    waits += " and the run's first step" if command.kind == "play" else ""
    late = f", already {q.age(waited_s)}" if waited_s > LATE_AFTER_S else ""
    return f"waits for {waits}{late} ({who})"


_MARKS = {"pending": "…", "accepted": "…", "applied": "✓", "failed": "✕"}
