"""A store as it is after months: one large run that goes on, and a page of runs that have ended.

Seeded, and the same every time but for the clock: it ends now. A few rows of each kind are told through the store's
own functions or written out; the many are copies of them, made inside the database, so that ten thousand plans with
their documents and two million samples take seconds and not hours.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Table, bindparam, cast, insert, literal, select, update

from db.columns import Real
from db.messages import utc_now
from db.models import (
    AuditRow,
    Base,
    CommandRow,
    DeviceRow,
    EpisodeRow,
    EvaluationRow,
    InjectionRow,
    PlanRow,
    RunRow,
    SampleRow,
    StepRow,
    SwitchRow,
)
from db.store import Store
from planner.cost import plan_step_s
from planner.plan import Pipeline, Plan
from tests.app.seeded_run import SeededRun, config_of
from tests.app.seeded_store import finished_run

NUM_ENDED = 14
STEP_S = 2.0
PLANS_A_SWITCH = 10
PARAMETERS_A_LAYER = 9
STRAGGLERS = {17: 2.57, 90: 5.42, 201: 12.53}
"""Slow at the end; of a smaller cluster those that it has."""

_TRIGGERS = ("shift", "shift", "shift", "command")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large the run is that goes on."""

    num_devices: int = 256
    num_plans: int = 10_000
    num_samples: int = 2_000_000

    @property
    def num_steps(self) -> int:
        return max(self.num_samples // self.num_devices, 20)

    @property
    def num_episodes(self) -> int:
        return max(self.num_plans // 20, 3)


def seed(store: Store, size: Size) -> SeededRun:
    """Fills an empty store; the run that is returned can be told on, step by step."""
    random_ = random.Random(7)
    ends_at = utc_now()
    for number in range(NUM_ENDED):
        finished_run(store, begin_at=ends_at - timedelta(days=number + 2))
    begin_at = ends_at - timedelta(seconds=size.num_steps * STEP_S + 20)
    story = SeededRun(store, _config(size), begin_at=begin_at).start()
    clock = _Clock(size, story.now)
    _steps(store, story, size, clock, random_)
    _episodes(store, story, size, clock, random_)
    _plans(store, story, size, clock, random_)
    _asked(store, story, size, clock, random_)
    story.rates = {device: rate for device, rate in STRAGGLERS.items() if device < size.num_devices}
    story.step, story.seq, story.now = size.num_steps, 10 * size.num_steps, clock.at(size.num_steps)
    story.version = _last_active(size)
    return story


@dataclass(frozen=True, slots=True, kw_only=False)
class _Clock:
    size: Size
    begin_at: datetime

    def at(self, step: float) -> datetime:
        return self.begin_at + timedelta(seconds=STEP_S * step)

    def of_plan(self, version: int) -> tuple[int, datetime]:
        """Step and moment of a plan."""
        step = self.size.num_steps * (version - 1) / (self.size.num_plans + 1)
        return int(step), self.at(step)


def _config(size: Size) -> Any:
    per_node = min(8, size.num_devices)
    tp, pp = min(4, per_node), 4 if size.num_devices >= 16 else 1
    dp = size.num_devices // (tp * pp)
    return config_of(
        "large-64L",
        num_nodes=size.num_devices // per_node,
        per_node=per_node,
        num_layers=64,
        dp=dp,
        tp=tp,
        pp=pp,
        global_batch=8 * dp,
        mode="manual",
    )


def _steps(store: Store, story: SeededRun, size: Size, clock: _Clock, random_: random.Random) -> None:
    """Steps and evaluations; samples are made by the database, one for each step and device."""
    healthy_s = plan_step_s(story.plan, story.profile, {})
    rows = [
        {
            "run": story.id,
            "step": step,
            "attempt": story.attempt,
            "seq": 10 * step + 5,
            "at": clock.at(step + 1),
            "phase": "train" if step % 500 else "first",
            "plan_version": _active_at(size, step),
            "desired_version": 1,
            "step_s": healthy_s * random_.uniform(0.99, 1.2),
            "loss": 1.6 + 4 / (1 + step / 90) + random_.uniform(-0.05, 0.05),
            "num_tokens": 131_072,
            "first_sample": step * 128,
            "stop_sample": (step + 1) * 128,
            "grad_norm": 0.6,
            "learning_rate": 3e-4,
            "mfu": 0.41,
        }
        for step in range(size.num_steps)
    ]
    noise = cast((StepRow.step * 7919 + DeviceRow.device * 104_729) % 61 - 30, Real()) / 2000.0
    samples = (
        select(StepRow.run, StepRow.step, DeviceRow.device, literal(1.0) + noise, literal(0.4), StepRow.phase)
        .join(DeviceRow, DeviceRow.run == StepRow.run)
        .where(StepRow.run == story.id)
        .order_by(StepRow.step, DeviceRow.device)
    )
    with store.session() as session:
        session.execute(insert(StepRow), rows)
        names = ["run", "step", "device", "rate", "compute_s", "phase"]
        session.execute(insert(SampleRow).from_select(names, samples))
        session.execute(
            insert(EvaluationRow),
            [
                {
                    "run": story.id,
                    "step": row["step"],
                    "attempt": story.attempt,
                    "at": row["at"],
                    "loss": 1.05 * row["loss"],
                    "num_tokens": 4096,
                    "seconds": 0.8,
                }
                for row in rows[50::50]
            ],
        )
        last = rows[-1]
        session.execute(
            update(RunRow)
            .where(RunRow.id == story.id)
            .values(
                step=last["step"],
                loss=last["loss"],
                step_s=last["step_s"],
                last_seq=last["seq"],
                last_seen_at=last["at"],
            )
        )


def _episodes(store: Store, story: SeededRun, size: Size, clock: _Clock, random_: random.Random) -> None:
    rows, taken = [], set()
    for number in range(size.num_episodes):
        first = int(size.num_steps * number / size.num_episodes)
        device, rate = random_.randrange(size.num_devices), random_.choice((1.4, 2.57, 5.42))
        last = min(first + random_.randrange(20, 120), size.num_steps - 5)
        rows.append(_episode(story.id, device, first, last, rate, clock))
    for device, rate in STRAGGLERS.items():
        if device < size.num_devices:
            taken.add(device)
            rows.append(_episode(story.id, device, size.num_steps - 12, None, rate, clock))
    with store.session() as session:
        session.execute(insert(EpisodeRow), rows)
        for row in rows:
            last = row["end_step"] if row["end_step"] is not None else size.num_steps
            session.execute(
                update(SampleRow)
                .where(SampleRow.run == story.id, SampleRow.device == row["device"])
                .where(SampleRow.step >= row["start_step"], SampleRow.step <= last)
                .values(rate=row["rate"])
            )


def _episode(run: int, device: int, first: int, last: int | None, rate: float, clock: _Clock) -> dict[str, Any]:
    return {
        "run": run,
        "device": device,
        "start_step": first,
        "start_at": clock.at(first),
        "rate": rate,
        "peak": rate,
        "end_step": last,
        "end_at": None if last is None else clock.at(last),
        "cause": "device",
        "evidence": {
            "samples": {str(device): [rate, rate * 1.01, rate * 0.99]},
            "window": 5,
            "threshold": 0.05,
            "peers": {"count": 255, "median": 1.0, "highest": 1.014},
        },
    }


def _plans(store: Store, story: SeededRun, size: Size, clock: _Clock, random_: random.Random) -> None:
    """Every tenth plan was switched to; the others were rejected, the newest waits for a person."""
    rates = {str(device): 1.0 for device in range(size.num_devices)}
    templates = {}
    for number in range(min(32, size.num_plans - 1)):
        slow = {str(random_.randrange(size.num_devices)): random_.choice((1.4, 2.57, 5.42)) for _ in range(3)}
        document = _varied(story.plan, random_).to_json()
        details = {
            "log": [f"grouping {index}" for index in range(40)],
            "moved_bytes": 1_860_000,
            "pause_s": 0.41,
            "runners_up": [{"plan": document, "step_s": 2.1, "moved_bytes": 2_000_000}] * 2,
        }
        job = {"run": story.id, "profile": story.profile.to_json(), "rates": rates | slow, "current": document}
        templates[number] = {"rates": rates | slow, "document": document, "details": details, "job": job}
    digests = {
        f"layers.{layer}.parameter_{number}": {name: f"{random_.getrandbits(64):016x}" for name in ("weight", "m", "v")}
        for layer in range(story.config.model.num_layers)
        for number in range(PARAMETERS_A_LAYER)
    }
    first = [_plan(story.id, 2 + number, size, clock) | template for number, template in templates.items()]
    copies = [
        _plan(story.id, version, size, clock) | {"template": 2 + version % len(templates)}
        for version in range(2 + len(templates), size.num_plans + 1)
    ]
    applied = range(1 + PLANS_A_SWITCH, size.num_plans, PLANS_A_SWITCH)
    switches = [_switch(story, version, clock) for version in applied]
    with store.session() as session:
        session.execute(insert(PlanRow), first)
        _copied(session, PlanRow.__table__, PlanRow.version, copies, where=PlanRow.run == story.id)
        if switches:
            session.execute(insert(SwitchRow), [switches[0] | {"digests_before": digests, "digests_after": digests}])
            one = [row | {"template": switches[0]["seq"]} for row in switches[1:]]
            _copied(session, SwitchRow.__table__, SwitchRow.seq, one, where=SwitchRow.run == story.id)
        active = _last_active(size)
        session.execute(
            update(PlanRow).where(PlanRow.run == story.id, PlanRow.version == 1).values(status="superseded")
        )
        session.execute(
            update(PlanRow).where(PlanRow.run == story.id, PlanRow.version == active).values(status="active")
        )
        session.execute(
            update(RunRow)
            .where(RunRow.id == story.id)
            .values(active_plan_version=active, target_plan_version=active, desired_version=len(switches) + 1)
        )


def _plan(run: int, version: int, size: Size, clock: _Clock) -> dict[str, Any]:
    _, at = clock.of_plan(version)
    is_applied = version % PLANS_A_SWITCH == 1
    status = "superseded" if is_applied else "ready" if version == size.num_plans else "rejected"
    decided = at + timedelta(seconds=1) if status != "ready" else None
    return {
        "run": run,
        "version": version,
        "key": f"seeded:{version}",
        "trigger": _TRIGGERS[version % 4],
        "status": status,
        "predicted_s": 2.1,
        "current_s": 2.6,
        "bound_s": 2.05,
        "gap": 0.012,
        "solve_s": 0.31,
        "measured_s": 2.12 if is_applied else None,
        "solver": "highs",
        "seed": 0,
        "parent": max(version - 1, 1),
        "requested_by": "controller",
        "decided_by": "ada" if decided else "",
        "worker": "worker-1",
        "reason": "" if status != "rejected" else "no-better-plan: gain 0.4 % per step",
        "created_at": at,
        "claimed_at": at,
        "solved_at": at,
        "decided_at": decided,
        "active_at": decided if is_applied else None,
    }


def _switch(story: SeededRun, version: int, clock: _Clock) -> dict[str, Any]:
    step, at = clock.of_plan(version)
    return {
        "run": story.id,
        "attempt": story.attempt,
        "seq": 1_000_000 + version,
        "at": at + timedelta(seconds=1),
        "step": step,
        "plan_version": version,
        "from_version": max(version - PLANS_A_SWITCH, 1),
        "outcome": "applied",
        "reason": "",
        "bytes_moved": 1_930_000,
        "pause_s": 0.42,
        "digests_equal": True,
        "phases": {"prepare": 0.1, "migrate": 0.25, "verify": 0.07},
    }


def _asked(store: Store, story: SeededRun, size: Size, clock: _Clock, random_: random.Random) -> None:
    """Commands, injections and the audit of it all."""
    commands, injections = [], []
    for number in range(min(500, size.num_plans)):
        step = size.num_steps * number // 520
        device = random_.randrange(size.num_devices)
        commands.append(
            {
                "run": story.id,
                "key": f"seeded:{number}",
                "kind": "inject",
                "actor": "ada",
                "source": "dashboard",
                "arguments": {"devices": [device], "rate": 2.57, "for_s": 60.0},
                "status": "applied",
                "result": "",
                "desired_version": 1,
                "request": None,
                "applied_step": step,
                "created_at": clock.at(step),
                "accepted_at": clock.at(step),
                "done_at": clock.at(step + 1),
            }
        )
        injections.append(
            {
                "run": story.id,
                "device": device,
                "rate": 2.57,
                "status": "cleared",
                "command": None,
                "desired_version": 1,
                "requested_at": clock.at(step),
                "until_at": clock.at(step + 30),
                "applied_at": clock.at(step + 1),
                "applied_step": step + 1,
                "cleared_at": clock.at(step + 30),
            }
        )
    audit = [
        {
            "at": clock.of_plan(version)[1],
            "run": story.id,
            "actor": "controller",
            "source": "",
            "action": action,
            "target": f"plan {version}",
            "result": result,
            "detail": {"from": "solving", "reason": "", "key": "k"},
        }
        for version in range(2, size.num_plans + 1)
        for action, result in (("plan.create", "queued"), ("plan.status", "ready"), ("plan.status", "rejected"))
    ]
    with store.session() as session:
        session.execute(insert(CommandRow), commands)
        session.execute(insert(InjectionRow), injections)
        session.execute(insert(AuditRow), audit)


def _copied(session: Any, table: Table, key: Any, rows: Sequence[dict[str, Any]], *, where: Any) -> None:
    """Copies a row for each of `rows`, which says what differs and, as `template`, the `key` of the original."""
    if not rows:
        return
    given = [column for column in table.columns if column.name in rows[0]]
    kept = [column for column in table.columns if column.name not in rows[0] and column.name != "id"]
    values: list[Any] = [bindparam(f"new_{column.name}", type_=column.type) for column in given]
    if session.get_bind().dialect.name != "sqlite":  # which has no type for an instant; others must be told
        values = [cast(value, value.type) for value in values]
    source = select(*values, *kept).where(where, key == bindparam("template"))
    statement = insert(table).from_select([column.name for column in (*given, *kept)], source)
    session.connection().execute(
        statement,
        [{"template": row["template"]} | {f"new_{column.name}": row[column.name] for column in given} for row in rows],
    )


def _varied(plan: Plan, random_: random.Random) -> Plan:
    """The same devices with micro-batches moved from one pipeline to another."""
    counts = [pipeline.num_micro_batches for pipeline in plan.pipelines]
    if len(counts) > 1:
        giver, taker = random_.sample(range(len(counts)), 2)
        moved = random_.randrange(0, max(counts[giver] - len(plan.pipelines[giver].stages), 0) + 1)
        counts[giver] -= moved
        counts[taker] += moved
    return Plan(
        num_layers=plan.num_layers,
        micro_batch_size=plan.micro_batch_size,
        pipelines=tuple(
            Pipeline(num_micro_batches=count, stages=pipeline.stages)
            for count, pipeline in zip(counts, plan.pipelines, strict=True)
        ),
    )


def _last_active(size: Size) -> int:
    return max(((size.num_plans - 2) // PLANS_A_SWITCH) * PLANS_A_SWITCH + 1, 1)


def _active_at(size: Size, step: int) -> int:
    version = int(step * (size.num_plans + 1) / size.num_steps) + 1
    return min(((version - 1) // PLANS_A_SWITCH) * PLANS_A_SWITCH + 1, _last_active(size))


def analyze(store: Store) -> None:
    """Lets the database count its rows, as a server does by itself after a while."""
    with store.session() as session:
        for name in Base.metadata.tables:
            session.connection().exec_driver_sql(f"ANALYZE {name}")
