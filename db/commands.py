"""Commands: what a person (or a script) asked a run to do, checked here before anything is written.

The command line and the dashboard only `submit`; the controller accepts a command, turns it into
desired state, and it is `applied` once telemetry reports a `desired_version` that carries it. A `checkpoint`
waits longer: until the engine reports one that answers its request. A `fail` names the attempt of the engine in
which the device dies, and only that attempt can apply it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from db import audit, plans, runs, schedule, transitions
from db.columns import fits
from db.errors import InputError
from db.messages import utc_now
from db.models import CommandRow, RunRow, StepRow, WhatIfRow
from db.run_config import RunConfig
from db.store import Store

MAX_KEY_LENGTH = 200
MAX_REASON_LENGTH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandView:
    """A command and what came of it.

    Args:
        arguments: by kind, see `submit`; complete (what was left out is None).
        desired_version: version of the desired document that carries it, once accepted.
        request: of a `checkpoint`: the count of requests that it became, once accepted.
        applied_step: step at which the engine reported that version.
    """

    id: int
    run: int
    kind: str
    arguments: dict[str, Any]
    actor: str
    source: str
    status: str
    result: str
    desired_version: int | None
    request: int | None
    applied_step: int | None
    created_at: datetime
    accepted_at: datetime | None
    done_at: datetime | None


def submit(
    store: Store,
    run: int,
    kind: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    actor: str,
    source: str,
    key: str | None = None,
) -> CommandView:
    """Checks a command and writes it down as pending.

    Kinds and arguments: `inject` {devices: [int], rate: float, for_s: float | None}, `play` {name: str,
    entries: [{at_s, device, rate, for_s}]} (see `db.schedule`), `clear` {devices: [int] | None (all)},
    `fail` {device: int} (kept with the attempt that is heard now), `pause`, `resume`, `stop`, `checkpoint`,
    `replan`, `approve` | `reject` | `rollback` {version: int, reason: str (why, for the audit; may be empty)},
    `set_mode` {mode: str}, `propose` {document: plan (its rules are the controller's to check), reason: str,
    what_if: int | None}.

    Args:
        key: idempotency key within the run; the same key twice gives the same command.

    Raises:
        InputError: unknown run, kind, argument or plan, a run that has ended, a device out of
            range, a rate or duration that is not a positive number, a schedule while another one is being
            played, a failure of a run that does not train. Nothing is written then.
    """
    with store.session() as session:
        row = runs.locked(session, run)
        if key is not None:
            if not 0 < len(key) <= MAX_KEY_LENGTH:
                raise InputError(f"key must have 1 to {MAX_KEY_LENGTH} characters, given {len(key)}")
            known = session.scalar(select(CommandRow).where(CommandRow.run == run, CommandRow.key == key))
            if known is not None:
                return _view(known)
        if transitions.is_final(transitions.RUN, row.status):
            raise InputError(f"run {run} has ended ({row.status}), a command needs one that has not")
        check = _CHECKS.get(kind)
        if check is None:
            raise InputError(f"kind must be one of {', '.join(_CHECKS)}, given {kind!r}")
        checked = check(session, row, dict(arguments or {}))
        command = CommandRow(
            run=run,
            key=key,
            kind=kind,
            arguments=checked,
            actor=actor,
            source=source,
            status="pending",
            result="",
            created_at=utc_now(),
        )
        session.add(command)
        session.flush()
        _audit(session, command, actor=actor)
        return _view(command)


def pending(store: Store) -> list[CommandView]:
    """The commands that wait for the controller, oldest first."""
    query = select(CommandRow).where(CommandRow.status == "pending").order_by(CommandRow.id)
    with store.reading() as session:
        return [_view(row) for row in session.scalars(query)]


def accept(store: Store, id: int, *, desired_version: int | None, request: int | None = None) -> CommandView:
    """The controller has turned the command into desired state of this version (None: into none).

    Args:
        request: of a `checkpoint`: the count of requests that it became.

    Raises:
        TransitionError: the command is not pending.
    """
    with store.session() as session:
        row = _locked(session, id)
        transitions.move_command(row, "accepted")
        row.desired_version = desired_version
        row.request = request
        row.accepted_at = utc_now()
        _audit(session, row, actor="controller")
        return _view(row)


def ask_again(store: Store, id: int, *, desired_version: int, request: int) -> None:
    """A `checkpoint` that was accepted and not answered is asked for once more: the engine started anew."""
    with store.session() as session:
        row = _locked(session, id)
        if row.status == "accepted":
            row.desired_version, row.request = desired_version, request


def waiting(store: Store, run: int, kind: str) -> list[CommandView]:
    """The run's accepted commands of a kind, oldest first."""
    query = select(CommandRow).where(CommandRow.run == run, CommandRow.status == "accepted", CommandRow.kind == kind)
    with store.reading() as session:
        return [_view(row) for row in session.scalars(query.order_by(CommandRow.id))]


def apply_observed(
    store: Store, run: int, observed_version: int, step: int, *, attempt: str | None = None
) -> list[CommandView]:
    """The engine runs this version: the accepted commands that it carries are applied.

    Args:
        attempt: that says so; a command that is meant for another one is not applied by it.

    Returns:
        The commands that became applied.
    """
    query = (
        select(CommandRow)
        .where(CommandRow.run == run, CommandRow.status == "accepted", CommandRow.desired_version <= observed_version)
        .where(CommandRow.request.is_(None))
        .order_by(CommandRow.id)
    )
    with store.reading() as session:
        if session.scalar(query.limit(1)) is None:
            return []
    with store.session() as session:
        runs.locked(session, run)
        rows = [row for row in session.scalars(query) if row.arguments.get("attempt", attempt) == attempt]
        for row in rows:
            transitions.move_command(row, "applied")
            row.applied_step = step
            row.done_at = utc_now()
            _audit(session, row, actor="engine")
        return [_view(row) for row in rows]


def finish(store: Store, id: int, *, ok: bool, result: str, step: int | None = None) -> CommandView:
    """Ends a command that no desired version will confirm, with what came of it.

    Args:
        step: at which the engine did it, if it did.

    Raises:
        TransitionError: the command has ended already.
    """
    with store.session() as session:
        row = _locked(session, id)
        now = utc_now()
        if ok and row.status == "pending":
            transitions.move_command(row, "accepted")
            row.accepted_at = now
        transitions.move_command(row, "applied" if ok else "failed")
        row.result = result
        row.applied_step = step
        row.done_at = now
        _audit(session, row, actor="controller")
        return _view(row)


def get(store: Store, id: int) -> CommandView:
    """One command, or `InputError`."""
    with store.reading() as session:
        return _view(_found(session, id))


def recent(store: Store, run: int, limit: int = 20) -> list[CommandView]:
    """The run's last commands, newest first."""
    query = select(CommandRow).where(CommandRow.run == run).order_by(CommandRow.id.desc()).limit(limit)
    with store.reading() as session:
        return [_view(row) for row in session.scalars(query)]


def failure_problem(run: RunRow | runs.RunView) -> str:
    """Why no device of a run can be made to fail now; empty if one can."""
    if run.status in ("training", "paused") and not run.is_stopping:
        return ""
    now = "asked to stop" if run.is_stopping else run.status
    return f"run {run.id} must be training when a device is to fail, it is {now}"


Arguments = dict[str, Any]


def _inject(_session: Session, row: RunRow, arguments: Arguments) -> Arguments:
    _only(arguments, "devices", "rate", "for_s")
    duration = arguments.get("for_s")
    return {
        "devices": _devices(row, arguments.get("devices")),
        "rate": _positive("rate", arguments.get("rate")),
        "for_s": None if duration is None else _positive("for_s", duration),
    }


def _play(session: Session, row: RunRow, arguments: Arguments) -> Arguments:
    _only(arguments, "name", "entries")
    checked = schedule.checked(arguments, num_devices=RunConfig.model_validate(row.config).num_devices)
    other = _open(session, row, "play")
    if other is not None:
        raise InputError(
            f"run {row.id} must play one schedule at a time, {other.arguments['name']} (command {other.id}) is not "
            "over: clear all injections to end it"
        )
    return checked


def _clear(_session: Session, row: RunRow, arguments: Arguments) -> Arguments:
    _only(arguments, "devices")
    devices = arguments.get("devices")
    return {"devices": None if devices is None else _devices(row, devices)}


def _fail(session: Session, row: RunRow, arguments: Arguments) -> Arguments:
    _only(arguments, "device")
    (device,) = _devices(row, [arguments.get("device")])
    problem = failure_problem(row)
    if problem:
        raise InputError(problem)
    other = _open(session, row, "fail")
    if other is not None:
        raise InputError(f"device {other.arguments['device']} of run {row.id} is to fail already (command {other.id})")
    last = select(StepRow.attempt).where(StepRow.run == row.id).order_by(StepRow.step.desc()).limit(1)
    if session.scalar(last) != row.attempt:
        raise InputError(f"the engine of run {row.id} must have done a step since it was started, it has done none")
    return {"device": device, "attempt": row.attempt}


def _nothing(_session: Session, _row: RunRow, arguments: Arguments) -> Arguments:
    _only(arguments)
    return {}


def _approve(session: Session, row: RunRow, arguments: Arguments) -> Arguments:
    return _version(session, row, arguments, ("ready",))


def _reject(session: Session, row: RunRow, arguments: Arguments) -> Arguments:
    return _version(session, row, arguments, ("queued", "solving", "ready", "approved"))


def _rollback(session: Session, row: RunRow, arguments: Arguments) -> Arguments:
    return _version(session, row, arguments, ("superseded",))


def _set_mode(_session: Session, _row: RunRow, arguments: Arguments) -> Arguments:
    _only(arguments, "mode")
    if arguments.get("mode") not in runs.MODES:
        raise InputError(f"mode must be one of {', '.join(runs.MODES)}, given {arguments.get('mode')!r}")
    return {"mode": arguments["mode"]}


def _propose(session: Session, row: RunRow, arguments: Arguments) -> Arguments:
    _only(arguments, "document", "reason", "what_if")
    document, what_if = arguments.get("document"), arguments.get("what_if")
    if not isinstance(document, Mapping) or "pipelines" not in document:
        raise InputError(f"document must be a plan, given {document!r:.80}")
    if what_if is not None:
        known = session.get(WhatIfRow, what_if) if fits(what_if) else None
        if known is None or known.run != row.id:
            raise InputError(f"what_if must be one that started from run {row.id}, given {what_if!r}")
    return {"document": dict(document), "reason": _reason(arguments.get("reason")), "what_if": what_if}


_CHECKS: dict[str, Callable[[Session, RunRow, Arguments], Arguments]] = {
    "inject": _inject,
    "play": _play,
    "clear": _clear,
    "fail": _fail,
    "pause": _nothing,
    "resume": _nothing,
    "stop": _nothing,
    "checkpoint": _nothing,
    "approve": _approve,
    "reject": _reject,
    "rollback": _rollback,
    "replan": _nothing,
    "set_mode": _set_mode,
    "propose": _propose,
}

KINDS: tuple[str, ...] = tuple(_CHECKS)


def _open(session: Session, row: RunRow, kind: str) -> CommandRow | None:
    """The run's first command of a kind that is not over."""
    is_open = CommandRow.status.in_(transitions.open_statuses(transitions.COMMAND))
    query = select(CommandRow).where(CommandRow.run == row.id, CommandRow.kind == kind, is_open)
    return session.scalar(query.order_by(CommandRow.id).limit(1))


def _only(arguments: Arguments, *known: str) -> None:
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise InputError(f"arguments must be among ({', '.join(known)}), given {', '.join(map(repr, unknown))}")


def _devices(row: RunRow, value: Any) -> list[int]:
    highest = RunConfig.model_validate(row.config).num_devices - 1
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise InputError(f"devices must be a list of 0..{highest}, given {value!r}")
    for device in value:
        if isinstance(device, bool) or not isinstance(device, int) or not 0 <= device <= highest:
            raise InputError(f"device must be 0..{highest}, given {device}")
    return sorted(set(value))


def _positive(name: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:
        raise InputError(f"{name} must be a positive finite number, given {value!r}")
    return float(value)


def _version(session: Session, row: RunRow, arguments: Arguments, statuses: tuple[str, ...]) -> Arguments:
    _only(arguments, "version", "reason")
    version = arguments.get("version")
    if isinstance(version, bool) or not isinstance(version, int):
        raise InputError(f"version must be a plan version, given {version!r}")
    plan = plans.found(session, row.id, version)
    if plan.status not in statuses:
        raise InputError(f"plan {version} is {plan.status}, expected one that is {' or '.join(statuses)}")
    return {"version": version, "reason": _reason(arguments.get("reason"))}


def _reason(value: Any) -> str:
    """On one line."""
    if value is not None and not isinstance(value, str):
        raise InputError(f"reason must be a text, given {value!r}")
    text = " ".join((value or "").split())
    if len(text) > MAX_REASON_LENGTH:
        raise InputError(f"reason must have at most {MAX_REASON_LENGTH} characters, given {len(text)}")
    return text


def _found(session: Session, id: int) -> CommandRow:
    row = session.get(CommandRow, id) if fits(id) else None
    if row is None:
        raise InputError(f"unknown command {id}")
    return row


def _locked(session: Session, id: int) -> CommandRow:
    row = _found(session, id)
    runs.locked(session, row.run)
    session.refresh(row)
    return row


def _audit(session: Session, row: CommandRow, *, actor: str) -> None:
    audit.add(
        session,
        actor=actor,
        action=f"command.{row.kind}",
        run=row.run,
        target=f"command {row.id}",
        source=row.source,
        result=row.status,
        detail={"arguments": _told(row), "result": row.result, "desired_version": row.desired_version},
    )


def _told(row: CommandRow) -> Arguments:
    """The arguments for the audit; of a schedule only how long it is, the command's row has it all."""
    if row.kind != "play":
        return row.arguments
    return {"name": row.arguments["name"], "num_entries": len(row.arguments["entries"])}


def _view(row: CommandRow) -> CommandView:
    return CommandView(
        id=row.id,
        run=row.run,
        kind=row.kind,
        arguments=row.arguments,
        actor=row.actor,
        source=row.source,
        status=row.status,
        result=row.result,
        desired_version=row.desired_version,
        request=row.request,
        applied_step=row.applied_step,
        created_at=row.created_at,
        accepted_at=row.accepted_at,
        done_at=row.done_at,
    )
