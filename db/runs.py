"""Runs: what each one should do, what it does, and how it ended.

`create` and `change` say what a run should do and bump `desired_version`; `desired` builds the
document of that version from SQL, so that a broker which lost everything can be told again. What
the engine reports arrives through `db.recorder`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, get_args

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from db import audit, transitions
from db.columns import fits
from db.errors import InputError, StoreError
from db.messages import Desired, Failure, Injection, utc_now
from db.models import CommandRow, DeviceRow, InjectionRow, PlanRow, RunRow
from db.run_config import ControlConfig, RunConfig
from db.store import Store

ENGINE_EXITED = "the engine exited"
ENGINE_FAILED = "the engine failed: "
STARTED_AGAIN = "; started again in "
INPUT_WRONG = 2
"""Exit status of an engine whose input was wrong: starting it again would not help."""
MODES: tuple[str, ...] = get_args(ControlConfig.model_fields["mode"].annotation)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run as it stands.

    Args:
        attempt: the start of the engine that is heard now; None before the first.
        num_attempts: starts of the engine that were heard.
        num_restarts, max_restarts: how often its launcher has started it again, and may at most.
        step, loss, step_s: of the last step that was reported; None before the first.
        desired_version, observed_version, applied_version: of the desired document: the newest
            one, the one that rank 0 has read, and the one that all ranks have applied.
        target_plan_version, active_plan_version: the plan it should run and the one it runs.
        num_stale, num_invalid: telemetry that was refused: of an older attempt, or not of this run.
    """

    id: int
    name: str
    status: str
    reason: str
    config: RunConfig
    profile: dict[str, Any] | None
    attempt: str | None
    num_attempts: int
    num_restarts: int
    max_restarts: int
    step: int | None
    loss: float | None
    step_s: float | None
    mode: str
    desired_version: int
    observed_version: int
    applied_version: int
    target_plan_version: int
    active_plan_version: int | None
    is_paused: bool
    is_stopping: bool
    checkpoint_request: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    last_seen_at: datetime | None
    num_stale: int
    num_invalid: int

    @property
    def is_open(self) -> bool:
        """Whether the run may still change (`lost` counts as open)."""
        return not transitions.is_final(transitions.RUN, self.status)


def create(
    store: Store,
    config: RunConfig,
    *,
    plan: Mapping[str, Any],
    actor: str,
    source: str = "",
    key: str | None = None,
) -> RunView:
    """Registers a run: pending, with its devices and plan version 1, approved, in one transaction.

    Args:
        plan: document of the plan that it starts with.
        source: where the actor asked for it, for the audit.
        key: idempotency key; the same key twice gives the same run.
    """
    if key is None:
        return _create(store, config, plan, actor, source, None)
    try:
        return with_key(store, key) or _create(store, config, plan, actor, source, key)
    except IntegrityError:  # somebody was faster with the same key
        known = with_key(store, key)
        assert known is not None
        return known


def with_key(store: Store, key: str) -> RunView | None:
    """The run that was registered with an idempotency key, if one was."""
    with store.reading() as session:
        row = session.scalar(select(RunRow).where(RunRow.key == key))
        return None if row is None else _view(row)


def _create(
    store: Store, config: RunConfig, plan: Mapping[str, Any], actor: str, source: str, key: str | None
) -> RunView:
    now = utc_now()
    with store.session() as session:
        row = RunRow(
            key=key,
            name=config.name,
            status="pending",
            config=config.model_dump(mode="json"),
            desired_version=1,
            target_plan_version=1,
            mode=config.control.mode,
            is_paused=False,
            is_stopping=False,
            checkpoint_request=0,
            max_restarts=0,
            num_restarts=0,
            reason="",
            past_attempts=[],
            last_seq=-1,
            observed_version=0,
            applied_version=0,
            stream_cursor="0-0",
            num_stale=0,
            num_invalid=0,
            created_at=now,
        )
        session.add(row)
        session.flush()
        session.add_all(
            DeviceRow(run=row.id, device=device, node=node)
            for node, devices in enumerate(config.nodes)
            for device in devices
        )
        session.add(
            PlanRow(
                run=row.id,
                version=1,
                key="initial",
                trigger="initial",
                status="approved",
                rates={},
                document=dict(plan),
                requested_by=actor,
                decided_by=actor,
                created_at=now,
                decided_at=now,
            )
        )
        audit.add(
            session,
            actor=actor,
            source=source,
            action="run.create",
            run=row.id,
            result="pending",
            detail={"name": row.name},
        )
        return _view(row)


def get(store: Store, run: int) -> RunView:
    """One run.

    Raises:
        InputError: there is no such run; names those that there are.
    """
    with store.reading() as session:
        return _view(found(session, run))


def all_runs(store: Store, *, limit: int = 100, offset: int = 0) -> list[RunView]:
    """Runs, newest first."""
    with store.reading() as session:
        return [
            _view(row) for row in session.scalars(select(RunRow).order_by(RunRow.id.desc()).limit(limit).offset(offset))
        ]


def open_runs(store: Store) -> list[RunView]:
    """The runs that have not ended, oldest first."""
    query = select(RunRow).where(RunRow.status.in_(transitions.open_statuses(transitions.RUN))).order_by(RunRow.id)
    with store.reading() as session:
        return [_view(row) for row in session.scalars(query)]


def desired(store: Store, run: int) -> Desired:
    """The document of the run's present `desired_version`, built from SQL."""
    with store.reading() as session:
        row = found(session, run)
        document = session.scalar(
            select(PlanRow.document).where(PlanRow.run == run, PlanRow.version == row.target_plan_version)
        )
        assert document is not None, f"run {run} targets plan {row.target_plan_version}, which has no document"
        injections = session.scalars(
            select(InjectionRow)
            .where(InjectionRow.run == run, InjectionRow.status != "cleared")
            .order_by(InjectionRow.device)
        )
        failure = session.scalar(
            select(CommandRow.arguments)
            .where(CommandRow.run == run, CommandRow.kind == "fail", CommandRow.desired_version.is_not(None))
            .order_by(CommandRow.id.desc())
            .limit(1)
        )
        return Desired(
            run=run,
            version=row.desired_version,
            plan_version=row.target_plan_version,
            plan=document,
            injections=tuple(Injection(id=item.id, device=item.device, rate=item.rate) for item in injections),
            paused=row.is_paused,
            stop=row.is_stopping,
            checkpoint=row.checkpoint_request,
            failure=None if failure is None else Failure(**failure),
        )


def change(
    store: Store,
    run: int,
    *,
    target_plan_version: int | None = None,
    is_paused: bool | None = None,
    is_stopping: bool | None = None,
    mode: str | None = None,
) -> int:
    """Changes what a run should do, and bumps its `desired_version`.

    With no argument it only bumps: the document changed otherwise (injections, a failure).

    Returns:
        The new `desired_version`.

    Raises:
        InputError: unknown run or mode, or a plan that has no document to run.
    """
    with store.session() as session:
        row = locked(session, run)
        if target_plan_version is not None:
            plan = session.get(PlanRow, (run, target_plan_version))
            if plan is None or plan.document is None:
                raise InputError(f"run {run} has no plan document of version {target_plan_version}")
            row.target_plan_version = target_plan_version
        if mode is not None:
            if mode not in MODES:
                raise InputError(f"mode must be one of {', '.join(MODES)}, given {mode!r}")
            row.mode = mode
        if is_paused is not None:
            row.is_paused = is_paused
        if is_stopping is not None:
            row.is_stopping = is_stopping
        row.desired_version += 1
        return row.desired_version


def request_checkpoint(store: Store, run: int) -> tuple[int, int]:
    """Asks the engine for a checkpoint, and bumps the run's `desired_version`.

    Returns:
        The new `desired_version`, and the count of requests that it carries.
    """
    with store.session() as session:
        row = locked(session, run)
        row.checkpoint_request += 1
        row.desired_version += 1
        return row.desired_version, row.checkpoint_request


def set_status(store: Store, run: int, status: str, *, reason: str = "", actor: str = "controller") -> None:
    """Moves a run to a status; nothing happens when it has that status already.

    Raises:
        TransitionError: the run's status does not allow it.
    """
    with store.session() as session:
        move(session, locked(session, run), status, reason=reason, actor=actor)


def set_profile(store: Store, run: int, profile: Mapping[str, Any]) -> None:
    """Keeps the run's calibrated model profile (a `planner.spec.ModelProfile` as JSON)."""
    with store.session() as session:
        locked(session, run).profile = dict(profile)


def watch_engine(store: Store, run: int, *, max_restarts: int) -> None:
    """A launcher watches the run's engine, may start it again this often, and says how it ended at last."""
    with store.session() as session:
        locked(session, run).max_restarts = max_restarts


def is_watched(row: RunRow) -> bool:
    """Whether an engine that fails need not be the run's end: its launcher has the say. For `db/` only."""
    return row.max_restarts > 0 and not row.is_stopping


def engine_lost(store: Store, run: int, exit_code: int, *, delay_s: float, actor: str = "launcher") -> bool:
    """Says that the process which ran the engine died and is started again after `delay_s`.

    The run is `lost` until the new attempt is heard. A plan that was being switched to is not the target any more:
    the new attempt starts with the active one.

    Returns:
        False if that may not be: the run has ended, is asked to stop, or was started again often enough.
    """
    with store.session() as session:
        row = locked(session, run)
        if transitions.is_final(transitions.RUN, row.status) or not is_watched(row):
            return False
        if row.num_restarts >= row.max_restarts:
            return False
        row.num_restarts += 1
        why = _own_words(row) or f"{ENGINE_EXITED} with status {exit_code}"
        outlook = f"{STARTED_AGAIN}{delay_s:g} s ({row.num_restarts} of {row.max_restarts})"
        move(session, row, "lost", reason=why + outlook, actor=actor)
        row.reason = why + outlook
        if row.active_plan_version is not None and row.target_plan_version != row.active_plan_version:
            row.target_plan_version = row.active_plan_version
            row.desired_version += 1
        audit.add(
            session,
            actor=actor,
            action="run.restart",
            run=run,
            target=f"attempt {_num_attempts(row) + 1}",
            result=outlook.removeprefix("; "),
            detail={"exit_code": exit_code, "reason": why, "step": row.step},
        )
        return True


def engine_exited(store: Store, run: int, exit_code: int, *, actor: str = "launcher", why: str = "") -> None:
    """Says that the process which ran the engine ended; a run that has ended already is left alone.

    Status 0 means that the engine had nothing left to do: the run is `stopped` if it was asked to
    stop, else `finished`. Any other status: `stopped` if it was asked to, else `failed`.

    Args:
        why: what else there is to say of its end, for the run's reason.
    """
    with store.session() as session:
        row = locked(session, run)
        if transitions.is_final(transitions.RUN, row.status):
            return
        ending = "stopped" if row.is_stopping else "finished" if exit_code == 0 else "failed"
        reason = "" if exit_code == 0 else f"{ENGINE_EXITED} with status {exit_code}"
        if reason and _own_words(row):
            reason = _own_words(row).removeprefix(ENGINE_FAILED)
        reason += f"; {why}" if reason and why else ""
        move(session, row, ending, reason=reason, actor=actor)


def found(session: Session, run: int, *, is_locked: bool = False) -> RunRow:
    """The run's row, or `InputError`. For `db/` only."""
    lock = {"key_share": True} if is_locked else None
    row = session.get(RunRow, run, with_for_update=lock) if fits(run) else None
    if row is None:
        known = list(session.scalars(select(RunRow.id).order_by(RunRow.id.desc()).limit(10)))
        names = ", ".join(str(entry) for entry in reversed(known)) or "none"
        raise InputError(f"unknown run {run}, known runs: {names}")
    return row


def locked(session: Session, run: int) -> RunRow:
    """The run's row, locked until the transaction ends.

    Every writer of a run's rows takes this lock first, so they follow one another and cannot
    deadlock. For `db/` only.
    """
    return found(session, run, is_locked=True)


def move(session: Session, row: RunRow, status: str, *, reason: str, actor: str) -> None:
    """Moves a run's row to a status, with its times and audit entry. For `db/` only."""
    if row.status == status:
        return
    former = row.status
    transitions.move_run(row, status)
    now = utc_now()
    row.reason = reason
    if row.started_at is None and status not in ("pending", "lost"):
        row.started_at = now
    if transitions.is_final(transitions.RUN, status):
        row.ended_at = now
    audit.add(
        session, actor=actor, action="run.status", run=row.id, result=status, detail={"from": former, "reason": reason}
    )


def _own_words(row: RunRow) -> str:
    """Why the engine said that it failed, if it did since it was started last; it knows better than its launcher."""
    return row.reason if row.reason.startswith(ENGINE_FAILED) and STARTED_AGAIN not in row.reason else ""


def _num_attempts(row: RunRow) -> int:
    return len(row.past_attempts) + (row.attempt is not None)


def _view(row: RunRow) -> RunView:
    try:
        config = RunConfig.model_validate(row.config)
    except ValidationError as error:
        raise StoreError(f"run {row.id} has a configuration of another version: {error.error_count()} errors") from None
    return RunView(
        id=row.id,
        name=row.name,
        status=row.status,
        reason=row.reason,
        config=config,
        profile=row.profile,
        attempt=row.attempt,
        num_attempts=_num_attempts(row),
        num_restarts=row.num_restarts,
        max_restarts=row.max_restarts,
        step=row.step,
        loss=row.loss,
        step_s=row.step_s,
        mode=row.mode,
        desired_version=row.desired_version,
        observed_version=row.observed_version,
        applied_version=row.applied_version,
        target_plan_version=row.target_plan_version,
        active_plan_version=row.active_plan_version,
        is_paused=row.is_paused,
        is_stopping=row.is_stopping,
        checkpoint_request=row.checkpoint_request,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        last_seen_at=row.last_seen_at,
        num_stale=row.num_stale,
        num_invalid=row.num_invalid,
    )
