"""Commands that ask a run for something: they write one command row and wait for what comes of it.

The controller takes the row up and the engine confirms it; nothing here talks to either.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.commands.output import JsonOption, RunArgument, age, print_json
from app.commands.surroundings import open_store, person
from app.errors import CommandError
from db.errors import InputError

if TYPE_CHECKING:
    from db.commands import CommandView
    from db.store import Store

POLL_S = 0.1

NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Do not wait until the engine has applied it.")]
TimeoutOption = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the engine.")]
VersionArgument = Annotated[int | None, typer.Argument(help="Version of the plan.", show_default=False)]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; kept with the plan and in the audit.")]


def inject(
    run: RunArgument,
    device: Annotated[list[int], typer.Option(help="Device that turns slow (may be given several times).")],
    rate: Annotated[float, typer.Option(help="How many times slower than healthy it computes.")],
    duration: Annotated[
        str | None, typer.Option("--for", help="Clear it after this time, such as 60s, 5m or 1h.", show_default="never")
    ] = None,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Make devices of a run slow."""
    arguments = {"devices": device, "rate": rate, "for_s": None if duration is None else parse_duration(duration)}
    submit(run, "inject", arguments, no_wait=no_wait, timeout_s=timeout, as_json=as_json)


def play(
    run: RunArgument,
    situation: Annotated[
        str | None, typer.Option(metavar="S1..S6", help="A named situation, until it is cleared.", show_default=False)
    ] = None,
    schedule: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A CSV of lines second,device,rate[,for_s].", show_default=False),
    ] = None,
    no_wait: NoWaitOption = False,
    timeout: Annotated[
        float | None,
        typer.Option(min=0.1, help="Seconds to wait for the engine.", show_default="30 s after the last injection"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Play a situation or a schedule of injections; the controller plays it, `clear` without a device ends it."""
    from app.schedule_file import read_schedule, situation_schedule
    from db import runs
    from db.schedule import arguments

    if (situation is None) == (schedule is None):
        raise InputError("expected --situation or --schedule, given " + ("neither" if situation is None else "both"))
    with open_store() as store:
        config = runs.get(store, run).config
    if schedule is None:
        assert situation is not None
        name, entries = situation, situation_schedule(situation, config.nodes)
    else:
        name = schedule.name
        try:
            text = schedule.read_text(encoding="utf-8")
            entries = read_schedule(text, num_devices=config.num_devices).all_entries()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {schedule}: {error}") from None
        except InputError as error:
            raise InputError(f"{schedule}: {error}") from None
    timeout_s = entries[-1].at_s + 30.0 if timeout is None else timeout
    submit(run, "play", arguments(name[:100], entries), no_wait=no_wait, timeout_s=timeout_s, as_json=as_json)


def clear(
    run: RunArgument,
    device: Annotated[
        list[int] | None, typer.Option(help="Device that recovers (may be given several times).", show_default="all")
    ] = None,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Take injected slowness away; without a device also what is still to come of a schedule."""
    submit(run, "clear", {"devices": device or None}, no_wait=no_wait, timeout_s=timeout, as_json=as_json)


def fail(
    run: RunArgument,
    device: Annotated[int, typer.Option(help="Device whose process is killed.", show_default=False)],
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Let a device of a run fail: its process is killed at the next step boundary, and with it the engine ends."""
    from app.failure_outlook import failure_outlook
    from db import checkpoints, history, runs

    with open_store() as store:
        view = runs.get(store, run)
        first = next((entry.step for entry in history.steps(store, run, max_points=5)), 0)
        saved = checkpoints.newest_saved(store, run)
    outlook = failure_outlook(view, first_step=first, saved_step=None if saved is None else saved.step)
    submit(run, "fail", {"device": device}, no_wait=no_wait, timeout_s=timeout, as_json=as_json, outlook=outlook)


def pause(
    run: RunArgument, no_wait: NoWaitOption = False, timeout: TimeoutOption = 30.0, as_json: JsonOption = False
) -> None:
    """Hold a run at its next step boundary."""
    submit(run, "pause", {}, no_wait=no_wait, timeout_s=timeout, as_json=as_json)


def resume(
    run: RunArgument, no_wait: NoWaitOption = False, timeout: TimeoutOption = 30.0, as_json: JsonOption = False
) -> None:
    """Let a paused run go on."""
    submit(run, "resume", {}, no_wait=no_wait, timeout_s=timeout, as_json=as_json)


def stop(
    run: RunArgument, no_wait: NoWaitOption = False, timeout: TimeoutOption = 30.0, as_json: JsonOption = False
) -> None:
    """End a run after the step it is in."""
    submit(run, "stop", {}, no_wait=no_wait, timeout_s=timeout, as_json=as_json)


def approve(
    run: RunArgument,
    version: VersionArgument = None,
    reason: ReasonOption = "",
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Approve a plan that is ready (the newest one, if no version is given): the run moves to it."""
    _decide(run, "approve", version, ("ready",), reason=reason, no_wait=no_wait, timeout_s=timeout, as_json=as_json)


def reject(
    run: RunArgument,
    version: VersionArgument = None,
    reason: ReasonOption = "",
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Reject a plan that is ready (the newest one, if no version is given)."""
    _decide(run, "reject", version, ("ready",), reason=reason, no_wait=no_wait, timeout_s=timeout, as_json=as_json)


def rollback(
    run: RunArgument,
    version: VersionArgument = None,
    reason: ReasonOption = "",
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Go back to an earlier plan (the one before the active one, if no version is given)."""
    _decide(
        run, "rollback", version, ("superseded",), reason=reason, no_wait=no_wait, timeout_s=timeout, as_json=as_json
    )


def replan(
    run: RunArgument, no_wait: NoWaitOption = False, timeout: TimeoutOption = 30.0, as_json: JsonOption = False
) -> None:
    """Ask for a plan at the rates measured now."""
    submit(run, "replan", {}, no_wait=no_wait, timeout_s=timeout, as_json=as_json)


def mode(
    run: RunArgument,
    mode: Annotated[str, typer.Argument(help="automatic, manual or off.", show_default=False)],
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Say who decides on a better plan: the controller (automatic), a person (manual), or nobody is asked (off)."""
    submit(run, "set_mode", {"mode": mode}, no_wait=no_wait, timeout_s=timeout, as_json=as_json)


def propose(
    run: RunArgument,
    file: Annotated[Path, typer.Argument(help="JSON file with the plan: its document, or what `plan --json` printed.")],
    reason: Annotated[str, typer.Option(help="Why, for the audit.")] = "",
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Propose a plan of one's own: it becomes a version that waits for approval."""
    from app.plan_move import plan_in_file

    arguments = {"document": plan_in_file(file, str(file)).to_json(), "reason": reason}
    submit(run, "propose", arguments, no_wait=no_wait, timeout_s=timeout, as_json=as_json)


def submit(
    run: int,
    kind: str,
    arguments: Mapping[str, Any],
    *,
    no_wait: bool,
    timeout_s: float,
    as_json: bool,
    outlook: str = "",
) -> None:
    """Submits a command, waits for what comes of it (unless told not to), and prints that.

    Args:
        outlook: what it will lead to, printed before the wait.
    """
    from db import commands

    with open_store() as store:
        command = commands.submit(store, run, kind, arguments, actor=person(), source="cli")
        if outlook and not as_json:
            print(outlook, flush=True)
        if not no_wait:
            command = wait_until_done(store, command, timeout_s=timeout_s)
    if as_json:
        print_json(command)
    else:
        print(f"{kind}: {_outcome(command)}")


def parse_duration(text: str) -> float:
    """Seconds of `60s`, `5m`, `1.5h` or a bare number.

    Raises:
        InputError: it is none of these, or not positive.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h)?", text.strip())
    if match is None or float(match[1]) == 0:
        raise InputError(f"--for must be a positive time such as 60s, 5m or 1h, given {text!r}")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2] or "s"]


def wait_until_done(store: Store, command: CommandView, *, timeout_s: float) -> CommandView:
    """Waits until a command is applied.

    Raises:
        CommandError: it failed, or is still open after `timeout_s` (it stays submitted).
    """
    from db import commands

    deadline = time.monotonic() + timeout_s
    while command.status in ("pending", "accepted"):
        if time.monotonic() >= deadline:
            raise CommandError(
                f"{command.kind} (command {command.id}) is still {command.status} after {timeout_s:g} s; "
                f"{_why_waiting(store, command)}"
            )
        time.sleep(POLL_S)
        command = commands.get(store, command.id)
    if command.status == "failed":
        raise CommandError(f"{command.kind} (command {command.id}) failed: {command.result or 'no reason given'}")
    return command


def _decide(
    run: int,
    kind: str,
    version: int | None,
    statuses: tuple[str, ...],
    *,
    reason: str,
    no_wait: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    if version is None:
        version = _newest_plan(run, statuses)
    submit(run, kind, {"version": version, "reason": reason}, no_wait=no_wait, timeout_s=timeout_s, as_json=as_json)


def _newest_plan(run: int, statuses: tuple[str, ...]) -> int:
    from db import plans, runs

    with open_store() as store:
        runs.get(store, run)
        for plan in plans.all_plans(store, run):
            if plan.status in statuses:
                return plan.version
    raise InputError(f"run {run} has no plan that is {' or '.join(statuses)} (see `malleus plans {run}`)")


def _outcome(command: CommandView) -> str:
    if command.applied_step is not None:
        told = f": {command.result}" if command.result else ""
        return f"applied at step {command.applied_step}{told}"
    if command.status == "applied":
        return command.result or "applied"
    return f"submitted (command {command.id})"


def _why_waiting(store: Store, command: CommandView) -> str:
    from db import heartbeats, runs

    if command.status == "pending":
        beat = heartbeats.all_beats(store).get("controller")
        if command.kind == "play" and runs.get(store, command.run).step is None:
            return "it begins after the run's first step"
        return f"the controller was last heard {age(beat.at if beat else None)} (`malleus up` starts it)"
    run = runs.get(store, command.run)
    return f"run {run.id} is {run.status} and its engine was last heard {age(run.last_seen_at)}"
