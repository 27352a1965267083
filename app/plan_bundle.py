"""A plan as a file: what the search was given, and what it answered, so that it can be searched for again.

`malleus export` and the dashboard write it, `malleus replay` reads it, on any machine and without a store. Numbers
that are not finite are the strings `"NaN"` and `"Infinity"`, as everywhere in the project's JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from db.errors import InputError

if TYPE_CHECKING:
    from db.plans import PlanJob, PlanView

SCHEMA = 1
KIND = "malleus plan"
MAX_BYTES = 16_000_000

JOB_FIELDS = ("cluster", "profile", "train", "rates", "current", "seed", "time_limit_s")
ANSWER_FIELDS = ("status", "document", "predicted_s", "current_s", "bound_s", "runners_up")
ABOUT_FIELDS = ("run", "version", "trigger", "requested_by", "decided_by", "decided_reason", "reason", "measured_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """One plan's question and answer.

    Args:
        about: run, version, who asked and decided; for a reader.
        job: documents of `planner.spec`, rates by device (as texts), the plan that ran, seed and time limit.
        answer: the search's status, the plan (None: keep the one that runs), step seconds, runners-up.
    """

    about: dict[str, Any]
    job: dict[str, Any]
    answer: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "kind": KIND, "about": self.about, "job": self.job, "answer": self.answer}

    def to_text(self) -> str:
        """The file's content."""
        return json.dumps(_encoded(self.to_json()), indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_text(cls, text: str) -> Bundle:
        """Reads a file's content.

        Raises:
            InputError: it is no bundle of this schema.
        """
        if len(text) > MAX_BYTES:
            raise InputError(f"a bundle has at most {MAX_BYTES:,} characters, given {len(text):,}")
        try:
            document = _decoded(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise InputError(f"a bundle is JSON, given something else: {error}") from None
        if not isinstance(document, dict) or document.get("kind") != KIND:
            given = document.get("kind") if isinstance(document, dict) else type(document).__name__
            raise InputError(f"a bundle has the kind {KIND!r} (`malleus export` writes one), given {given!r}")
        if document.get("schema") != SCHEMA:
            raise InputError(f"a bundle has schema {SCHEMA}, given {document.get('schema')!r}")
        _check_fields("a bundle", document, ("schema", "kind", "about", "job", "answer"))
        _check_fields("about", document["about"], ABOUT_FIELDS)
        _check_fields("job", document["job"], JOB_FIELDS)
        _check_fields("answer", document["answer"], ANSWER_FIELDS)
        return cls(about=document["about"], job=document["job"], answer=document["answer"])


def bundle_of(plan: PlanView, job: PlanJob | None) -> Bundle:
    """The bundle of a plan that was searched for.

    Args:
        job: from `db.plans.job`.

    Raises:
        InputError: it was not searched for, or has no answer yet.
    """
    if job is None:
        raise InputError(why_not(plan))
    if plan.status in ("queued", "solving") or plan.solve_s is None:
        raise InputError(f"plan {plan.version} of run {plan.run} has no answer yet: it is {plan.status}")
    document = job.to_json()
    return Bundle(
        about={name: getattr(plan, name) for name in ABOUT_FIELDS},
        job={name: document[name] for name in JOB_FIELDS},
        answer={
            "status": plan.details.get("status"),
            "document": plan.document,
            "predicted_s": plan.predicted_s,
            "current_s": plan.current_s,
            "bound_s": plan.bound_s,
            "runners_up": plan.details.get("runners_up", []),
        },
    )


def why_not(plan: PlanView) -> str:
    """Why a plan without a job has no bundle."""
    kinds = {"initial": "the run was created with it", "rollback": f"it repeats plan {plan.parent}"}
    why = kinds.get(plan.trigger, "it was brought ready-made")
    if plan.status in ("queued", "failed"):
        why = "no worker took it up"
    return f"plan {plan.version} of run {plan.run} was not searched for: {why}"


def _check_fields(name: str, given: Any, expected: tuple[str, ...]) -> None:
    if not isinstance(given, dict):
        raise InputError(f"{name} must be an object with {', '.join(expected)}, given {type(given).__name__}")
    wrong = sorted(set(given) ^ set(expected))
    if wrong:
        raise InputError(f"{name} must have the fields {', '.join(expected)}; missing or unknown: {', '.join(wrong)}")


_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _encoded(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _encoded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(entry) for entry in value]
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, str):
        return _NUMBERS.get(value, value)
    if isinstance(value, dict):
        return {key: _decoded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_decoded(entry) for entry in value]
    return value
