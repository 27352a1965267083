"""Ten thousand plans and a thousand switches of a large run: a few are made up, the others are copied from them.

The copies are made inside the database, each with a version and a moment of its own. Part of `bench/large_store.py`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Table, bindparam, cast, insert, select, update

from db.models import PlanRow, RunRow, SwitchRow
from db.plan_job import PlanJob, rates_from_json
from db.store import Store
from planner.plan import Pipeline, Plan
from tests.app.seeded_run import SeededRun

STEP_S = 2.0
PLANS_A_SWITCH = 10
NUM_TEMPLATES = 32
PARAMETERS_A_LAYER = 9

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


@dataclass(frozen=True, slots=True, kw_only=False)
class Clock:
    size: Size
    begin_at: datetime

    def at(self, step: float) -> datetime:
        return self.begin_at + timedelta(seconds=STEP_S * step)

    def of_plan(self, version: int) -> tuple[int, datetime]:
        """Step and moment of a plan."""
        step = self.size.num_steps * (version - 1) / (self.size.num_plans + 1)
        return int(step), self.at(step)


def add_plans(store: Store, story: SeededRun, size: Size, clock: Clock, random_: random.Random) -> None:
    """Every tenth plan was switched to; the others were rejected, the newest waits for a person."""
    rates = {str(device): 1.0 for device in range(size.num_devices)}
    templates = {}
    for number in range(min(NUM_TEMPLATES, size.num_plans - 1)):
        slow = {str(random_.randrange(size.num_devices)): random_.choice((1.4, 2.57, 5.42)) for _ in range(3)}
        document = _varied(story.plan, random_).to_json()
        details = {
            "log": [f"grouping {index}" for index in range(40)],
            "moved_bytes": 1_860_000,
            "pause_s": 0.41,
            "runners_up": [{"plan": document, "step_s": 2.1, "moved_bytes": 2_000_000}] * 2,
        }
        job = PlanJob(
            run=story.id,
            version=2 + number,
            cluster={
                "nodes": [list(node) for node in story.config.nodes],
                "memory_bytes": dict.fromkeys(rates, 10**12),
            },
            profile=story.profile.to_json(),
            train={"global_batch": story.config.train.global_batch, "micro_batch_sizes": [1]},
            rates=rates_from_json(rates | slow),
            current=document,
            seed=0,
            time_limit_s=10.0,
        ).to_json()
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
        active = last_active(size)
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


def last_active(size: Size) -> int:
    return max(((size.num_plans - 2) // PLANS_A_SWITCH) * PLANS_A_SWITCH + 1, 1)


def active_at(size: Size, step: int) -> int:
    version = int(step * (size.num_plans + 1) / size.num_steps) + 1
    return min(((version - 1) // PLANS_A_SWITCH) * PLANS_A_SWITCH + 1, last_active(size))


def _plan(run: int, version: int, size: Size, clock: Clock) -> dict[str, Any]:
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


def _switch(story: SeededRun, version: int, clock: Clock) -> dict[str, Any]:
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
