"""Runs: created whole, changed by version, ended once."""

from __future__ import annotations

import math
from threading import Thread

import pytest

from db import audit, history, injections, plans, runs
from db.errors import InputError, TransitionError
from db.messages import Injection
from db.run_config import RunConfig
from db.runs import RunView
from db.store import Store
from tests.db.conftest import PLAN


def test_create_makes_run_devices_plan_and_audit(store: Store) -> None:
    run = runs.create(store, RunConfig(name="first"), plan=PLAN, actor="ann")
    assert (run.id, run.name, run.status, run.is_open) == (1, "first", "pending", True)
    assert (run.desired_version, run.target_plan_version, run.active_plan_version) == (1, 1, None)
    assert (run.step, run.loss, run.step_s, run.attempt, run.profile) == (None, None, None, None, None)
    assert run.config == RunConfig(name="first")
    assert [(device.device, device.node) for device in history.devices(store, 1)] == [(i, i // 4) for i in range(8)]
    plan = plans.get(store, 1, 1)
    assert (plan.trigger, plan.status, plan.document, plan.requested_by) == ("initial", "approved", PLAN, "ann")
    assert [(entry.actor, entry.action) for entry in audit.entries(store, 1)] == [("ann", "run.create")]
    assert runs.get(store, 1) == run


@pytest.mark.parametrize("unknown", [7, 0, -1, 2**70])
def test_unknown_run_names_the_known(store: Store, unknown: int) -> None:
    with pytest.raises(InputError, match=rf"unknown run {unknown}, known runs: none"):
        runs.get(store, unknown)
    for _ in range(2):
        runs.create(store, RunConfig(), plan=PLAN, actor="ann")
    with pytest.raises(InputError, match=rf"unknown run {unknown}, known runs: 1, 2"):
        runs.get(store, unknown)


def test_lists(store: Store) -> None:
    for number in range(5):
        runs.create(store, RunConfig(name=f"r{number}"), plan=PLAN, actor="ann")
    runs.set_status(store, 2, "failed", reason="no")
    assert [run.id for run in runs.all_runs(store)] == [5, 4, 3, 2, 1]
    assert [run.id for run in runs.all_runs(store, limit=2, offset=1)] == [4, 3]
    assert [run.id for run in runs.open_runs(store)] == [1, 3, 4, 5]


def test_desired_is_built_from_sql(store: Store, run: RunView) -> None:
    document = runs.desired(store, 1)
    assert (document.version, document.plan_version, document.plan) == (1, 1, PLAN)
    assert (document.injections, document.paused, document.stop) == ((), False, False)
    other = {**PLAN, "num_layers": 17}
    added = plans.add(store, 1, document=other, trigger="t", rates={}, parent=1, requested_by="ann", key="k")
    injection = injections.add(store, 1, 3, 2.57)
    version = runs.change(store, 1, target_plan_version=added.version, is_paused=True, is_stopping=True, mode="manual")
    assert version == injection.desired_version == 2
    document = runs.desired(store, 1)
    assert (document.version, document.plan_version, document.plan) == (2, 2, other)
    assert document.injections == (Injection(id=injection.id, device=3, rate=2.57),)
    assert (document.paused, document.stop, runs.get(store, 1).mode) == (True, True, "manual")
    assert runs.change(store, 1, is_paused=False) == 3
    assert runs.desired(store, 1).paused is False


def test_change_refuses_what_cannot_run(store: Store, run: RunView) -> None:
    queued = plans.request(store, 1, trigger="t", rates={}, parent=1, requested_by="ann", key="k").version
    for version in (queued, 99):
        with pytest.raises(InputError, match=f"no plan document of version {version}"):
            runs.change(store, 1, target_plan_version=version, is_paused=True)
    with pytest.raises(InputError, match="mode must be one of automatic, manual, off, given 'turbo'"):
        runs.change(store, 1, mode="turbo")
    assert runs.get(store, 1) == run


def test_concurrent_changes_each_get_a_version(store: Store, run: RunView) -> None:
    versions: list[int] = []
    threads = [Thread(target=lambda: versions.append(runs.change(store, 1))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(versions) == list(range(2, 10))


def test_status_has_times_reason_and_audit(store: Store, run: RunView) -> None:
    runs.set_status(store, 1, "starting")
    runs.set_status(store, 1, "starting")  # said twice
    runs.set_status(store, 1, "failed", reason="device 3 is gone")
    ended = runs.get(store, 1)
    assert (ended.status, ended.reason, ended.is_open) == ("failed", "device 3 is gone", False)
    assert ended.started_at is not None
    assert ended.ended_at is not None
    assert ended.started_at <= ended.ended_at
    assert [entry.result for entry in audit.entries(store, 1)] == ["failed", "starting", "pending"]
    with pytest.raises(TransitionError, match="run 1 is failed"):
        runs.set_status(store, 1, "training")


@pytest.mark.parametrize(
    ("is_stopping", "exit_code", "status", "reason"),
    [
        (False, 0, "finished", ""),
        (False, 3, "failed", "the engine exited with status 3"),
        (False, -9, "failed", "the engine exited with status -9"),
        (True, 0, "stopped", ""),
        (True, -15, "stopped", "the engine exited with status -15"),
    ],
)
def test_engine_exited(store: Store, run: RunView, is_stopping: bool, exit_code: int, status: str, reason: str) -> None:
    runs.change(store, 1, is_stopping=is_stopping)
    runs.engine_exited(store, 1, exit_code)
    ended = runs.get(store, 1)
    assert (ended.status, ended.reason) == (status, reason)
    runs.engine_exited(store, 1, 77)
    assert runs.get(store, 1) == ended


def test_profile_keeps_what_is_not_finite(store: Store, run: RunView) -> None:
    runs.set_profile(store, 1, {"send_s": math.inf, "rows": [1.0, math.nan]})
    profile = runs.get(store, 1).profile
    assert profile is not None
    assert profile["send_s"] == math.inf
    assert math.isnan(profile["rows"][1])
