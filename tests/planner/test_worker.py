"""The task: one claim, one answer in the row, whatever happens; and when the worker gives itself up."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from db import plans, runs
from db.run_config import RunConfig
from db.store import Store
from planner import presets, worker
from planner.errors import SpecError
from planner.plan import Plan
from planner.validate import violations
from planner.worker import DEAF_S, GRACE_S, solve_plan
from tests.planner.control_rig import create_run


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'malleus.db'}", migrate=True) as store:
        yield store


def request(store: Store, rates: dict[int, float], *, is_calibrated: bool = True) -> int:
    """A run whose first plan is active, and a plan row that waits; the run's id."""
    run = create_run(store, RunConfig()).id
    plans.move(store, run, 1, "active")
    if is_calibrated:
        runs.set_profile(store, run, presets.model("demo")[0].to_json())
    plans.request(store, run, trigger="shift", rates=rates, parent=1, requested_by="controller", key="k")
    return run


def test_the_answer_is_in_the_row(store: Store) -> None:
    run = request(store, {3: 2.57})
    limits: list[float] = []
    assert solve_plan(store, run, 2, worker="w1", on_limit=limits.append) == "ready"
    plan = plans.get(store, run, 2)
    assert plan.document is not None
    assert (
        violations(
            Plan.from_json(plan.document), cluster=presets.cluster("demo"), num_layers=16, global_batch=16, max_tp=4
        )
        == []
    )
    assert plan.predicted_s is not None
    assert plan.current_s is not None
    assert plan.bound_s is not None
    assert plan.bound_s <= plan.predicted_s * 1.05 < plan.current_s
    assert plan.details["status"] == "improved"
    assert plan.details["log"] == list(plan.details["log"])
    assert plan.worker == "w1"
    assert limits == [RunConfig().control.plan_time_limit_s]


def test_delivered_twice_solved_once(store: Store) -> None:
    run = request(store, {3: 2.57})
    assert solve_plan(store, run, 2, worker="w1") == "ready"
    first = plans.get(store, run, 2)
    assert solve_plan(store, run, 2, worker="w2") == "skipped"
    assert plans.get(store, run, 2) == first


def test_a_plan_that_was_given_up_meanwhile_stays_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run = request(store, {3: 2.57})
    search = worker.search

    def slow(job: plans.PlanJob) -> dict[str, object]:
        plans.move(store, run, 2, "failed", reason="did not answer")
        return search(job)

    monkeypatch.setattr(worker, "search", slow)
    assert solve_plan(store, run, 2, worker="w1") == "failed"
    assert plans.get(store, run, 2).reason == "did not answer"


def test_nothing_better_is_rejected(store: Store) -> None:
    run = request(store, {3: 2.57})
    solve_plan(store, run, 2, worker="w1")
    for status in ("approved", "active"):
        plans.move(store, run, 2, status)
    plans.request(store, run, trigger="shift", rates={3: 2.57}, parent=2, requested_by="controller", key="again")
    assert solve_plan(store, run, 3, worker="w1") == "rejected"
    plan = plans.get(store, run, 3)
    assert plan.document is None
    assert "no plan is predicted to be faster" in plan.reason


def test_no_plan_at_all_fails_with_the_reason(store: Store) -> None:
    run = request(store, dict.fromkeys(range(8), math.inf))
    assert solve_plan(store, run, 2, worker="w1") == "failed"
    assert plans.get(store, run, 2).reason


def test_without_a_profile_it_fails(store: Store) -> None:
    run = request(store, {}, is_calibrated=False)
    assert solve_plan(store, run, 2, worker="w1") == "skipped"
    assert plans.get(store, run, 2).status == "failed"


@pytest.mark.parametrize("error", [SpecError("micro_batch_sizes must be given"), ZeroDivisionError("by zero")])
def test_an_exception_fails_the_row(store: Store, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    run = request(store, {3: 2.57})

    def broken(job: plans.PlanJob) -> dict[str, object]:
        raise error

    monkeypatch.setattr(worker, "search", broken)
    assert solve_plan(store, run, 2, worker="w1") == "failed"
    assert plans.get(store, run, 2).reason == f"{type(error).__name__}: {error}"


def test_the_app_takes_json_only_and_one_task_at_a_time() -> None:
    conf = worker.make_app(lambda: "redis://127.0.0.1:1/0").conf
    assert conf.accept_content == ["json"]
    assert conf.task_serializer == "json"
    assert conf.result_backend is None
    assert conf.task_acks_late
    assert conf.worker_prefetch_multiplier == 1
    assert conf.broker_url == "redis://127.0.0.1:1/0"
    longest = RunConfig().control.plan_time_limit_s + GRACE_S
    assert conf.broker_transport_options["visibility_timeout"] > longest, "a search must not be delivered twice"


def test_without_a_broker_it_ends_with_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "planner.worker", "worker"],
        env={"MALLEUS_HOME": str(tmp_path), "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("no broker: expected MALLEUS_REDIS_URL")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("idle_s", "busy_limit_s", "controller_age_s", "words"),
    [
        (DEAF_S - 1, None, 0.5, ""),
        (DEAF_S + 1, None, 0.5, "no task for"),
        (DEAF_S + 1, None, None, ""),  # no controller, no database or no broker: silence proves nothing
        (DEAF_S + 1, None, DEAF_S, ""),  # a controller that has gone sends nothing
        (DEAF_S + 1, DEAF_S + 1, 0.5, ""),  # busy for long, within its limit
        (DEAF_S + 1, 1.0, 0.5, "beyond its limit"),
    ],
)
def test_when_a_worker_starts_itself_again(
    monkeypatch: pytest.MonkeyPatch,
    idle_s: float,
    busy_limit_s: float | None,
    controller_age_s: float | None,
    words: str,
) -> None:
    now = [1000.0]
    monkeypatch.setattr("planner.worker.time.monotonic", lambda: now[0])
    watchdog = worker._Watchdog()
    if busy_limit_s is not None:
        watchdog.set_limit(busy_limit_s - GRACE_S)
    problem = watchdog.problem(now[0] + idle_s, lambda: controller_age_s)
    assert (words in problem) if words else problem == ""
