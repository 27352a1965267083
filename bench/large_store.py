"""A store as it is after months: one large run that goes on, and a page of runs that have ended.

Seeded, and the same every time but for the clock: it ends now. A few rows of each kind are told through the store's
own functions or written out; the many are copies of them, made inside the database, so that ten thousand plans with
their documents and two million samples take seconds and not hours.
"""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

from sqlalchemy import cast, insert, literal, select, update

from bench.large_plans import STEP_S, Clock, Size, active_at, add_plans, last_active
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
    RunRow,
    SampleRow,
    StepRow,
)
from db.store import Store
from planner.cost import plan_step_s
from tests.app.seeded_run import SeededRun, config_of
from tests.app.seeded_store import finished_run

NUM_ENDED = 14
STRAGGLERS = {17: 2.57, 90: 5.42, 201: 12.53}
"""Slow at the end; of a smaller cluster those that it has."""


def seed(store: Store, size: Size) -> SeededRun:
    """Fills an empty store; the run that is returned can be told on, step by step."""
    random_ = random.Random(7)
    ends_at = utc_now()
    for number in range(NUM_ENDED):
        finished_run(store, begin_at=ends_at - timedelta(days=number + 2))
    begin_at = ends_at - timedelta(seconds=size.num_steps * STEP_S + 20)
    story = SeededRun(store, _config(size), begin_at=begin_at).start()
    clock = Clock(size, story.now)
    _steps(store, story, size, clock, random_)
    _episodes(store, story, size, clock, random_)
    add_plans(store, story, size, clock, random_)
    _asked(store, story, size, clock, random_)
    story.rates = {device: rate for device, rate in STRAGGLERS.items() if device < size.num_devices}
    story.step, story.seq, story.now = size.num_steps, 10 * size.num_steps, clock.at(size.num_steps)
    story.version = last_active(size)
    return story


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


def _steps(store: Store, story: SeededRun, size: Size, clock: Clock, random_: random.Random) -> None:
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
            "plan_version": active_at(size, step),
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


def _episodes(store: Store, story: SeededRun, size: Size, clock: Clock, random_: random.Random) -> None:
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


def _episode(run: int, device: int, first: int, last: int | None, rate: float, clock: Clock) -> dict[str, Any]:
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


def _asked(store: Store, story: SeededRun, size: Size, clock: Clock, random_: random.Random) -> None:
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


def analyze(store: Store) -> None:
    """Lets the database count its rows, as a server does by itself after a while."""
    with store.session() as session:
        for name in Base.metadata.tables:
            session.connection().exec_driver_sql(f"ANALYZE {name}")
