"""The messages of the two channels: the desired document down, telemetry up.

Versioned pydantic models with a JSON form that keeps NaN and infinity (as the strings `"NaN"` and
`"Infinity"`). Nothing else crosses between engine and control plane, and nothing is pickled.
A plan travels as its JSON document (schema 1); this package does not interpret it.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter

SCHEMA: Literal[1] = 1


def utc_now() -> datetime:
    """The current instant, with its zone."""
    return datetime.now(UTC)


class Message(BaseModel):
    """Base: unknown fields are refused, non-finite floats survive JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class Injection(Message):
    """One emulated straggler: device `device` computes `rate` times slower than healthy."""

    id: int
    device: int = Field(ge=0)
    rate: float = Field(gt=0, allow_inf_nan=False)


class Failure(Message):
    """A device whose process is to die, and the attempt in which it does: a later one reads past it."""

    attempt: str
    device: int = Field(ge=0)


class Desired(Message):
    """What a run should be doing (level-triggered; key `malleus:{run}:desired`).

    Args:
        version: grows with every change of the document; the engine reports the one it has applied.
        plan_version, plan: the plan to run and its document.
        injections: the stragglers active now; at most one a device.
        paused: hold at the next step boundary.
        stop: finish the current step and end.
        checkpoint: counts the requests for a checkpoint; the engine saves at the next step boundary
            when it is larger than the last one it has taken up.
        failure: the last one that was asked for; it stays here when that attempt is over.
    """

    schema_version: Literal[1] = SCHEMA
    run: int
    version: int
    plan_version: int
    plan: dict[str, Any]
    injections: tuple[Injection, ...] = ()
    paused: bool = False
    stop: bool = False
    checkpoint: int = Field(0, ge=0)
    failure: Failure | None = None

    def read_by(self, attempt: str) -> Desired:
        """The document as an attempt reads it: without a failure that is meant for another one."""
        if self.failure is None or self.failure.attempt == attempt:
            return self
        return self.model_copy(update={"failure": None})


class _Telemetry(Message):
    """Fields of every telemetry message.

    Args:
        attempt: which start of the run this is (random per start); with `seq` it orders messages
            and tells stale ones.
        seq: counts this attempt's messages from 0.
        desired_version: version of the desired document that the engine has applied.
    """

    schema_version: Literal[1] = SCHEMA
    run: int
    attempt: str
    seq: int = Field(ge=0)
    at: AwareDatetime
    desired_version: int = 0


class DeviceInfo(Message):
    """A rank as it introduces itself."""

    device: int
    node: int
    rank: int
    pid: int
    host: str
    backend: str


class Hello(_Telemetry):
    """First message of an attempt."""

    kind: Literal["hello"] = "hello"
    devices: tuple[DeviceInfo, ...]
    num_parameters: int
    torch_version: str


class Profile(_Telemetry):
    """Result of the calibration: a `planner.spec.ModelProfile` as JSON."""

    kind: Literal["profile"] = "profile"
    profile: dict[str, Any]
    seconds: float


Phase = Literal["train", "first", "switch", "checkpoint", "evaluation"]


class Step(_Telemetry):
    """One optimizer step.

    Vectors have one entry a device, in device order; NaN where a device measured nothing.

    Args:
        phase: only `train` steps count for detection. `first`: the first step of an attempt or
            under a new plan; `switch`, `checkpoint`, `evaluation`: the step boundary before it carried one.
        step_s: wall seconds of the step on rank 0, without a pause or switch before it.
        loss: mean cross-entropy per token over the global batch.
        samples: ids consumed, `[first, stop)`.
        rates: compute seconds per unit of work over the calibrated reference.
        compute_s: own compute seconds, waiting in collectives not included.
        grad_norm: global norm of the gradient before clipping.
        mfu: model floating-point operations of the step over what all devices could do in `step_s`.
    """

    kind: Literal["step"] = "step"
    step: int = Field(ge=0)
    plan_version: int
    phase: Phase
    step_s: float
    loss: float
    num_tokens: int
    samples: tuple[int, int]
    rates: tuple[float, ...]
    compute_s: tuple[float, ...]
    grad_norm: float = math.nan
    learning_rate: float = math.nan
    mfu: float = math.nan


class Evaluation(_Telemetry):
    """Loss on text that is not trained on, with the weights before `step`."""

    kind: Literal["evaluation"] = "evaluation"
    step: int = Field(ge=0)
    loss: float
    num_tokens: int
    seconds: float


class Checkpoint(_Telemetry):
    """A checkpoint was completed, or could not be.

    Args:
        step: the next step to run when one goes on from it.
        request: the newest `Desired.checkpoint` that it answers.
        reason: why it failed, empty otherwise.
        path: its folder.
        num_bytes: size on disk.
        pause_s: seconds in which training stood still for it.
        seconds: until it was complete.
    """

    kind: Literal["checkpoint"] = "checkpoint"
    step: int = Field(ge=0)
    request: int = 0
    outcome: Literal["saved", "failed"]
    reason: str = ""
    path: str
    num_bytes: int = 0
    pause_s: float = 0.0
    seconds: float = 0.0


class Switch(_Telemetry):
    """Outcome of moving to a plan at the boundary before `step`.

    Args:
        outcome: `applied`, or `rejected` with every rank still on `from_version`.
        reason: why it was rejected, empty otherwise.
        bytes_moved: bytes sent between ranks for parameters, master weights and moments.
        pause_s: wall seconds in which no rank trained.
        phases: seconds of prepare, migrate and verify.
        digests_before, digests_after: `{parameter: {tensor: hex}}` for `weight`, `master`,
            `exp_avg` and `exp_avg_sq`, over all slices of all ranks.
    """

    kind: Literal["switch"] = "switch"
    step: int = Field(ge=0)
    plan_version: int
    from_version: int
    outcome: Literal["applied", "rejected"]
    reason: str = ""
    bytes_moved: int = 0
    pause_s: float = 0.0
    phases: dict[str, float] = Field(default_factory=dict)
    digests_before: dict[str, dict[str, str]] = Field(default_factory=dict)
    digests_after: dict[str, dict[str, str]] = Field(default_factory=dict)

    @property
    def digests_equal(self) -> bool:
        return bool(self.digests_before) and self.digests_before == self.digests_after


class State(_Telemetry):
    """The engine's own state; sent on every change, and once a second while it does not step.

    Args:
        state: `starting` (process groups), `calibrating`, `training`, `paused`, then one of the
            final `finished` (all steps done), `stopped` (asked to), `failed` (with the reason).
        step: next step to run.
    """

    kind: Literal["state"] = "state"
    state: Literal["starting", "calibrating", "training", "paused", "finished", "stopped", "failed"]
    step: int = 0
    reason: str = ""


class Observed(_Telemetry):
    """Rank 0 has read a desired document; it is applied at the next step boundary."""

    kind: Literal["observed"] = "observed"
    observed_version: int


Telemetry = Hello | Profile | Step | Evaluation | Checkpoint | Switch | State | Observed
_ADAPTER: TypeAdapter[Telemetry] = TypeAdapter(Annotated[Telemetry, Field(discriminator="kind")])


def parse_telemetry(text: str | bytes) -> Telemetry:
    """Parses one telemetry message.

    Raises:
        pydantic.ValidationError: (a ValueError) malformed, of an unknown kind or schema.
    """
    return _ADAPTER.validate_json(text)
