"""From the telemetry stream into SQL: batched, in one transaction, and idempotent.

The controller hands over what it read (`db.bus`); the cursor is saved with the rows, so a crash in
between repeats messages, and a repeated message changes nothing. Only messages of the attempt
that is heard now count: a `Hello`, or the word that it is starting, opens a new attempt; anything of another one
is stale and counted. A new attempt goes on from a checkpoint (or the beginning): what older ones reported of steps
from there on was lost with them, and goes when the new attempt's first step comes.

The run's status follows the engine's messages. Plans, commands and injections do not change here:
the controller draws its conclusions from the same messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from db import audit, checkpoints, runs, transitions
from db.columns import MAX_INTEGER, fits
from db.messages import (
    Checkpoint,
    Evaluation,
    Hello,
    Observed,
    Profile,
    State,
    Step,
    Switch,
    Telemetry,
    utc_now,
)
from db.models import DeviceRow, EvaluationRow, RunRow, SampleRow, StepRow, SwitchRow
from db.run_config import RunConfig
from db.store import Store, insert

MAX_ATTEMPT_LENGTH = 64

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What became of a batch.

    Args:
        num_new: recorded now.
        num_duplicate: recorded before.
        num_stale: of another attempt than the one that is heard.
        num_invalid: well-formed, but not of this run (a vector with another number of devices,
            an unknown device, a number that no column holds).
        write_s: seconds until the batch was committed, waiting for the database included.
    """

    num_new: int
    num_duplicate: int
    num_stale: int
    num_invalid: int = 0
    write_s: float = field(default=0.0, compare=False)


def record(store: Store, run: int, batch: Sequence[tuple[str, Telemetry]]) -> Recorded:
    """Records a batch of one run's messages.

    Args:
        batch: `(stream_id, message)` in stream order.

    Raises:
        InputError: unknown run.
    """
    if not batch:
        return Recorded(num_new=0, num_duplicate=0, num_stale=0)
    begin_s = time.monotonic()
    with store.session() as session:
        row = runs.locked(session, run)
        recording = _Recording(session, row, _stored_attempts(session, run, batch))
        for _, message in batch:
            recording.take(message)
        recording.write()
        row.stream_cursor = batch[-1][0]
        row.num_stale += recording.num_stale
        row.num_invalid += recording.num_invalid
    return Recorded(
        num_new=recording.num_new,
        num_duplicate=recording.num_duplicate,
        num_stale=recording.num_stale,
        num_invalid=recording.num_invalid,
        write_s=time.monotonic() - begin_s,
    )


def cursor(store: Store, run: int) -> str:
    """Stream id up to which the run's telemetry is recorded; `0-0` at the beginning."""
    with store.reading() as session:
        return runs.found(session, run).stream_cursor


@dataclass(slots=True, kw_only=False)
class _Recording:
    """One batch on its way into one run; `stored` says which of its steps are there, and of which attempt."""

    session: Session
    row: RunRow
    stored: dict[int, str]
    num_new: int = 0
    num_duplicate: int = 0
    num_stale: int = 0
    num_invalid: int = 0
    steps: dict[int, Step] = field(default_factory=dict)
    num_devices: int = 0

    def __post_init__(self) -> None:
        self.num_devices = RunConfig.model_validate(self.row.config).num_devices

    def take(self, message: Telemetry) -> None:
        problem = _problem(message, self.row.id, self.num_devices)
        if problem:
            logger.warning("run %s: %s message %s refused: %s", self.row.id, message.kind, message.seq, problem)
            self.num_invalid += 1
            return
        if not self._is_heard(message):
            self.num_stale += 1
            return
        is_latest = message.seq > self.row.last_seq
        if isinstance(message, Step):
            is_new = self._take_step(message)
        elif isinstance(message, Switch):
            is_new = self._take_switch(message)
        elif isinstance(message, Evaluation):
            is_new = self._take_evaluation(message)
        elif isinstance(message, Checkpoint):
            is_new = checkpoints.add(self.session, self.row, message)
        else:
            is_new = is_latest
            if is_new:
                self._take_once(message)
        self.num_new += is_new
        self.num_duplicate += not is_new
        if is_latest:
            self._follow(message)

    def write(self) -> None:
        """Writes the steps and samples that were taken, all of one attempt, in bulk."""
        if not self.steps:
            return
        self._remove_older_attempts(min(self.steps))
        self.session.execute(
            insert(self.session, StepRow).on_conflict_do_nothing(),
            [_step_values(message) for message in self.steps.values()],
        )
        self.session.execute(
            insert(self.session, SampleRow).on_conflict_do_nothing(),
            [values for message in self.steps.values() for values in _sample_values(message)],
        )
        self.stored |= {step: message.attempt for step, message in self.steps.items()}
        self.steps = {}

    def _is_heard(self, message: Telemetry) -> bool:
        """Whether the message is of the attempt that is heard; a first message or an engine's first words open one."""
        row = self.row
        if message.attempt == row.attempt:
            return True
        is_opening = isinstance(message, Hello) or (isinstance(message, State) and message.state == "starting")
        if message.attempt in row.past_attempts or (row.attempt is not None and not is_opening):
            return False
        if row.attempt is not None:
            self.write()
            row.past_attempts = [*row.past_attempts, row.attempt]
            if row.status != "pending" and not transitions.is_final(transitions.RUN, row.status):
                runs.move(self.session, row, "lost", reason="a new attempt began", actor="engine")
        row.attempt = message.attempt
        row.last_seq = -1
        row.observed_version = 0
        audit.add(
            self.session,
            actor="engine",
            action="run.attempt",
            run=row.id,
            result=message.attempt,
            detail={"step": row.step, "number": len(row.past_attempts) + 1},
        )
        return True

    def _take_step(self, message: Step) -> bool:
        if message.step in self.steps or self.stored.get(message.step) == message.attempt:
            return False
        self.steps[message.step] = message
        return True

    def _take_evaluation(self, message: Evaluation) -> bool:
        known = self.session.get(EvaluationRow, (message.run, message.step))
        if known is not None and known.attempt == message.attempt:
            return False
        if known is not None:
            self.session.delete(known)
            self.session.flush()
        self.session.execute(
            insert(self.session, EvaluationRow).on_conflict_do_nothing(), [_evaluation_values(message)]
        )
        return True

    def _take_switch(self, message: Switch) -> bool:
        key = (SwitchRow.run == message.run, SwitchRow.attempt == message.attempt, SwitchRow.seq == message.seq)
        if self.session.scalar(select(SwitchRow.id).where(*key)) is not None:
            return False
        self.session.execute(insert(self.session, SwitchRow).on_conflict_do_nothing(), [_switch_values(message)])
        audit.add(
            self.session,
            actor="engine",
            action="plan.switch",
            run=message.run,
            target=f"plan {message.plan_version}",
            result=message.outcome,
            detail={
                "step": message.step,
                "from_version": message.from_version,
                "reason": message.reason,
                "bytes_moved": message.bytes_moved,
                "pause_s": message.pause_s,
                "digests_equal": message.digests_equal,
            },
        )
        return True

    def _take_once(self, message: Telemetry) -> None:
        if isinstance(message, Hello):
            self._introduce(message)
            self._status("starting", "")
        elif isinstance(message, Profile):
            self.row.profile = dict(message.profile)
        elif isinstance(message, State):
            self._state(message)

    def _introduce(self, message: Hello) -> None:
        for info in message.devices:
            self.session.execute(
                update(DeviceRow)
                .where(DeviceRow.run == self.row.id, DeviceRow.device == info.device)
                .values(node=info.node, rank=info.rank, host=info.host, pid=info.pid, backend=info.backend)
            )
        audit.add(
            self.session,
            actor="engine",
            action="run.hello",
            run=self.row.id,
            target=f"attempt {len(self.row.past_attempts) + 1}",
            result=f"torch {message.torch_version}",
            detail={
                "torch_version": message.torch_version,
                "num_parameters": message.num_parameters,
                "num_devices": len(message.devices),
            },
        )

    def _state(self, message: State) -> None:
        """The engine's word; if it failed and its launcher may start it again, that is the launcher's to say."""
        row = self.row
        is_open = not transitions.is_final(transitions.RUN, row.status)
        if message.state == "failed" and is_open and runs.is_watched(row):
            _, again, outlook = row.reason.partition(runs.STARTED_AGAIN)  # its launcher may have been faster
            reason = f"{runs.ENGINE_FAILED}{message.reason}{again}{outlook}"
            runs.move(self.session, row, "lost", reason=reason, actor="engine")
            row.reason = reason
            return
        self._status(message.state, message.reason)

    def _status(self, status: str, reason: str) -> None:
        row = self.row
        if transitions.is_allowed(transitions.RUN, row.status, status):
            runs.move(self.session, row, status, reason=reason, actor="engine")
        elif row.status == status and reason and row.reason.startswith(runs.ENGINE_EXITED):
            row.reason = reason  # the engine knows better why it ended than who watched it end

    def _follow(self, message: Telemetry) -> None:
        row = self.row
        row.last_seq = message.seq
        row.applied_version = message.desired_version
        newest = message.observed_version if isinstance(message, Observed) else message.desired_version
        row.observed_version = max(row.observed_version, newest)
        at = min(message.at, utc_now())
        row.last_seen_at = at if row.last_seen_at is None else max(row.last_seen_at, at)
        if isinstance(message, Step):
            row.step, row.loss, row.step_s = message.step, message.loss, message.step_s
            if row.status in ("pending", "starting", "calibrating", "lost"):
                self._status("training", "")

    def _remove_older_attempts(self, first: int) -> None:
        """An attempt that begins at a step undoes what older ones did from there on."""
        run, attempt = self.row.id, self.row.attempt
        others = (StepRow.run == run, StepRow.step >= first, StepRow.attempt != attempt)
        last = self.session.scalar(select(StepRow.step).where(*others).order_by(StepRow.step.desc()).limit(1))
        if last is not None:
            lost = select(StepRow.step).where(*others)
            self.session.execute(delete(SampleRow).where(SampleRow.run == run, SampleRow.step.in_(lost)))
            self.session.execute(delete(StepRow).where(*others))
            audit.add(
                self.session,
                actor="engine",
                action="run.resume",
                run=run,
                target=f"step {first}",
                result=f"steps {first} to {last} of an earlier attempt are void",
            )
        self.session.execute(
            delete(EvaluationRow).where(
                EvaluationRow.run == run, EvaluationRow.step > first, EvaluationRow.attempt != attempt
            )
        )


def _stored_attempts(session: Session, run: int, batch: Sequence[tuple[str, Telemetry]]) -> dict[int, str]:
    wanted = {message.step for _, message in batch if isinstance(message, Step) and message.step <= MAX_INTEGER}
    if not wanted:
        return {}
    query = select(StepRow.step, StepRow.attempt).where(
        StepRow.run == run, StepRow.step >= min(wanted), StepRow.step <= max(wanted)
    )
    return {step: attempt for step, attempt in session.execute(query) if step in wanted}


def _problem(message: Telemetry, run: int, num_devices: int) -> str:
    if message.run != run:
        return f"run must be {run}, given {message.run}"
    if len(message.attempt) > MAX_ATTEMPT_LENGTH:
        return f"attempt must have at most {MAX_ATTEMPT_LENGTH} characters, given {len(message.attempt)}"
    for name, value in _integers(message):
        if not fits(value):
            return f"{name} must fit 64 bits, given {value}"
    if isinstance(message, Step):
        for name in ("rates", "compute_s"):
            if len(getattr(message, name)) != num_devices:
                return f"{name} must have {num_devices} entries, given {len(getattr(message, name))}"
    if isinstance(message, Hello):
        unknown = [info.device for info in message.devices if not 0 <= info.device < num_devices]
        if unknown:
            return f"device must be 0..{num_devices - 1}, given {unknown[0]}"
    return ""


def _integers(message: Telemetry) -> Iterable[tuple[str, int]]:
    for name in type(message).model_fields:
        value: Any = getattr(message, name)
        if isinstance(value, int):
            yield name, value
        elif name == "samples":
            yield from ((name, entry) for entry in value)
        elif name == "devices":
            yield from ((field_, getattr(info, field_)) for info in value for field_ in ("node", "rank", "pid"))


def _step_values(message: Step) -> dict[str, Any]:
    return {
        "run": message.run,
        "step": message.step,
        "attempt": message.attempt,
        "seq": message.seq,
        "at": message.at,
        "phase": message.phase,
        "plan_version": message.plan_version,
        "desired_version": message.desired_version,
        "step_s": message.step_s,
        "loss": message.loss,
        "num_tokens": message.num_tokens,
        "first_sample": message.samples[0],
        "stop_sample": message.samples[1],
        "grad_norm": message.grad_norm,
        "learning_rate": message.learning_rate,
        "mfu": message.mfu,
    }


def _evaluation_values(message: Evaluation) -> dict[str, Any]:
    return {
        "run": message.run,
        "step": message.step,
        "attempt": message.attempt,
        "at": message.at,
        "loss": message.loss,
        "num_tokens": message.num_tokens,
        "seconds": message.seconds,
    }


def _sample_values(message: Step) -> list[dict[str, Any]]:
    return [
        {
            "run": message.run,
            "step": message.step,
            "device": device,
            "rate": rate,
            "compute_s": compute_s,
            "phase": message.phase,
        }
        for device, (rate, compute_s) in enumerate(zip(message.rates, message.compute_s, strict=True))
    ]


def _switch_values(message: Switch) -> dict[str, Any]:
    return {
        "run": message.run,
        "attempt": message.attempt,
        "seq": message.seq,
        "at": message.at,
        "step": message.step,
        "plan_version": message.plan_version,
        "from_version": message.from_version,
        "outcome": message.outcome,
        "reason": message.reason,
        "bytes_moved": message.bytes_moved,
        "pause_s": message.pause_s,
        "phases": message.phases,
        "digests_before": message.digests_before,
        "digests_after": message.digests_after,
        "digests_equal": message.digests_equal,
    }
