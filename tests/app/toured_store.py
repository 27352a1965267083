"""The store of the tour's pictures: a run that goes on, one that waits for a person, two that have ended.

Told through the store's own functions. Every plan is the real planner's answer to the rates of its moment, and
every decision is weighed as the controller weighs it.

python -m tests.app.toured_store FOLDER [SECONDS]     the store to look at, which goes on that long
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from db import audit, history, plans, what_ifs
from db.run_config import RunConfig
from db.store import Store
from planner.cost import plan_step_s
from planner.decide import Move, decide, expected_steps
from planner.diff import diff
from planner.plan import Plan
from planner.worker import solve_what_if
from tests.app.healthy_beats import beat_healthily
from tests.app.seeded_run import SeededRun, clock_at, config_of
from tests.app.seeded_store import database_url, tell_until_now

TICK_S = 0.5


def tell(store: Store) -> list[SeededRun]:
    """Fills an empty store; the runs that go on, the one with the whole story last."""
    for days, name, number in ((2, "baseline-8L", 240), (1, "baseline-16L", 160)):
        config = config_of(name, num_layers=int(name.split("-")[1][:-1]))
        begin_at = datetime.now(UTC) - timedelta(days=days)
        _run(store, _of_length(config, number), begin_at=begin_at).start().steps(number).state("finished")
    return [tell_until_now(store, story, ago_s=2.0) for story in (waiting_run, absorbing_run)]


def absorbing_run(store: Store, *, begin_at: datetime) -> SeededRun:
    """Device 3 turns slow and is absorbed, then device 6 for a while; its recovery brings the third plan."""
    story = _run(store, config_of("llama-16L"), begin_at=begin_at).start()
    story.steps(30).evaluate().steps(30).evaluate()
    story.inject(3, 2.57)
    story.steps(3).detect(3, steps_ago=3)
    _adopt(story)
    story.steps(25).evaluate().steps(10)
    story.inject(6, 2.57, actor="grace", source="cli")
    story.steps(3).detect(6, steps_ago=3)
    _adopt(story)
    story.steps(30).evaluate()
    story.heal(6)
    story.steps(3).recover(6)
    _adopt(story)
    return story.steps(25).evaluate().steps(5)


def waiting_run(store: Store, *, begin_at: datetime) -> SeededRun:
    """16 devices in mode manual, two of them slow; the plan that absorbs them waits for a person."""
    config = config_of("llama-32L", num_nodes=4, num_layers=32, dp=4, global_batch=32, mode="manual")
    story = _run(store, config, begin_at=begin_at, actor="grace").start().steps(40).evaluate()
    story.rates |= {5: 2.57, 14: 1.4}
    story.steps(3).detect(5, steps_ago=3).detect(14, steps_ago=3)
    version = story.search()
    _weigh(story, version, "waiting")
    return story.steps(12)


@contextmanager
def going_on(stories: Sequence[SeededRun]) -> Iterator[None]:
    """Meanwhile the runs train, the services beat and questions are answered."""
    ended = threading.Event()
    thread = threading.Thread(target=_play, args=(stories, ended))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _run(store: Store, config: RunConfig, *, begin_at: datetime, actor: str = "ada") -> SeededRun:
    """A run whose tensor parallelism costs as little as between emulated devices."""
    run = SeededRun(store, config, begin_at=begin_at, actor=actor)
    run.profile = replace(run.profile, comm_s={1: {1: 0.0, 2: 0.0004, 4: 0.0012}})
    return run


def _play(stories: Sequence[SeededRun], ended: threading.Event) -> None:
    store, began_at = stories[0].store, (datetime.now(UTC) - timedelta(minutes=20)).isoformat()
    names = ["lag_s", "loop_s", "write_s", "canary_s", "round_trip_s", "memory_share"]
    since = dict.fromkeys([*names, *(f"skew_s:{story.id}" for story in stories)], began_at)
    while not ended.wait(TICK_S):
        for story in stories:
            step_s = plan_step_s(story.plan, story.profile, story.rates)
            if datetime.now(UTC) > story.now + timedelta(seconds=1.04 * step_s):
                story.steps(1)
        beat_healthily(
            store,
            run=stories[-1].id,
            num_runs=len(stories),
            started_at=began_at,
            since=since,
            skews_s={str(story.id): 0.09 for story in stories},
        )
        for asked in what_ifs.waiting(store):
            solve_what_if(store, asked.id, worker="worker-1")


def _adopt(story: SeededRun) -> None:
    """A plan is searched for, weighed and switched to."""
    version = story.search()
    num_bytes = _weigh(story, version, "move")
    document = plans.get(story.store, story.id, version).document
    assert document is not None, "the planner found nothing better"
    story.steps(1).switch(Plan.from_json(document), version, num_bytes=int(num_bytes)).steps(12)
    measured = [step.step_s for step in history.steps(story.store, story.id, since_step=story.step - 12)]
    story.measured(sorted(measured)[len(measured) // 2])


def _weigh(story: SeededRun, version: int, result: str) -> float:
    """Writes down what the controller thinks of a plan. Returns the bytes that would move."""
    document = plans.get(story.store, story.id, version).document
    assert document is not None, "the planner found nothing better"
    plan = Plan.from_json(document)
    num_bytes = diff(story.plan, plan, story.profile).moved_bytes or 0.0
    moves = [
        Move(num_bytes=switch.bytes_moved, pause_s=switch.pause_s)
        for switch in history.newest_switches(story.store, story.id)
    ]
    decision = decide(
        stay_s=plan_step_s(story.plan, story.profile, story.rates),
        move_s=plan_step_s(plan, story.profile, story.rates),
        num_steps=expected_steps(
            num_remaining=story.config.train.num_steps - story.step, num_done=story.step, num_shifts=len(moves)
        ),
        num_bytes=num_bytes,
        history=moves,
    )
    assert decision.is_worth
    with clock_at(story.now):
        audit.record(
            story.store,
            actor="controller",
            action="plan.decision",
            run=story.id,
            target=f"plan {version}",
            result=result,
            detail={"reason": decision.reason, **decision.to_json()},
        )
    return num_bytes


def _of_length(config: RunConfig, num_steps: int) -> RunConfig:
    return config.model_copy(update={"train": config.train.model_copy(update={"num_steps": num_steps})})


def main() -> None:
    folder = Path(sys.argv[1])
    with Store.open(database_url(folder), migrate=True) as store, going_on(tell(store)):
        threading.Event().wait(float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)


if __name__ == "__main__":
    main()
