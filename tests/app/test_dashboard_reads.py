"""Reads: incremental, thinned, shared; a run of any length costs the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.dashboard import reads
from app.dashboard.reads import feed, progress, series
from db import commands, history, plans
from db.errors import InputError, StoreError
from db.plans import PlanView
from db.store import Store
from tests.app import seeded_store
from tests.app.seeded_run import SeededRun, config_of
from tests.app.seeded_world import close_world, look_again, open_world

BEGIN = datetime(2026, 3, 2, 14, 0, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    opened = open_world(tmp_path, monkeypatch)
    yield opened
    close_world(opened)


def test_snapshot_has_everything_and_names_unknown_runs(store: Store) -> None:
    story = seeded_store.straggling_run(store, begin_at=BEGIN)
    found = reads.snapshot(story.id)
    assert found.run.step == story.step - 1
    assert len(found.steps) == story.step
    assert found.active_version == 2
    assert [plan.version for plan in found.plans] == [2, 1]
    assert found.rates[3] == pytest.approx(2.57, rel=0.03)
    assert found.figures.efficiency == pytest.approx(0.83, abs=0.05)
    assert found.figures.lost_s > 0
    assert found.figures.saved_s > 0
    assert {mark.kind for mark in found.marks()} == {"injected", "shift", "plan", "switched"}
    with pytest.raises(InputError, match="unknown run 99"):
        reads.snapshot(99)


def test_a_refresh_reads_only_new_steps(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    story = seeded_store.healthy_run(store, begin_at=BEGIN, num_steps=50)
    reads.snapshot(story.id)
    asked: list[int | None] = []
    whole = history.steps

    def watched(*arguments: object, since_step: int | None = None, **options: object) -> object:
        asked.append(since_step)
        return whole(*arguments, since_step=since_step, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(history, "steps", watched)
    story.steps(3)
    assert reads.snapshot(story.id).steps[-1].step == 52
    reads.snapshot(story.id)
    assert asked == [50], "the second refresh found nothing new and did not ask"


def test_a_long_run_is_thinned(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MAX_POINTS", 100)
    story = seeded_store.healthy_run(store, begin_at=BEGIN, num_steps=1_000)
    found = reads.snapshot(story.id)
    assert len(found.steps) <= 100
    assert (found.steps[0].step, found.steps[-1].step) == (0, 999)
    for _ in range(3):
        story.steps(80)
        assert reads.snapshot(story.id).steps[-1].step == story.step - 1
    assert len(reads.snapshot(story.id).steps) <= 2 * 100 + 80, "and thinned again when it has grown"


def test_window_holds_the_last_steps(store: Store) -> None:
    story = seeded_store.healthy_run(store, begin_at=BEGIN, num_steps=300)
    assert [step.step for step in reads.steps(story.id, num_last=100)] == list(range(200, 300))
    story.steps(150)
    assert [step.step for step in reads.steps(story.id, num_last=100)] == list(range(350, 450))
    assert len(reads.steps(story.id, num_last=None)) == 450


def test_device_rates_grow_and_keep_odd_values(store: Store) -> None:
    story = seeded_store.healthy_run(store, begin_at=BEGIN, num_steps=20)
    assert len(reads.device_rates(story.id, 3, since_step=None)) == 20
    story.rates[3] = math.inf
    story.steps(2, unknown=(2,))
    rates = reads.device_rates(story.id, 3, since_step=15)
    assert [step for step, _ in rates] == list(range(15, 22))
    assert rates[-1][1] == math.inf
    assert math.isnan(reads.device_rates(story.id, 2, since_step=21)[0][1])


def test_device_rates_are_thinned_to_their_extremes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MAX_POINTS", 20)
    rates = [(step, 1.0) for step in range(500)]
    rates[321] = (321, 9.0)
    rates[7] = (7, math.nan)
    thin = series.thinned(rates)
    assert len(thin) <= 20
    assert (321, 9.0) in thin
    assert any(math.isnan(rate) for _, rate in thin)


def test_a_new_attempt_starts_the_series_anew(store: Store) -> None:
    story = seeded_store.healthy_run(store, begin_at=BEGIN, num_steps=30)
    reads.snapshot(story.id)
    story.attempt, story.seq, story.step = "second", 0, 10
    story.start().steps(5)
    steps = reads.snapshot(story.id).steps
    assert [step.attempt for step in steps if step.step == 12] == ["second"]
    assert [step.step for step in steps][-1] == 14, "what the first attempt did after step 10 is void"


def test_a_restart_is_marked_and_names_who_let_the_device_fail(store: Store) -> None:
    story = seeded_store.healthy_run(store, begin_at=BEGIN, num_steps=30)
    assert not [mark for mark in reads.snapshot(story.id).marks() if mark.kind == "restart"]
    asked = commands.submit(store, story.id, "fail", {"device": 3}, actor="ops", source="test")
    commands.finish(store, asked.id, ok=True, result="", step=30)
    for attempt, step in (("second", 20), ("third", 22)):
        story.attempt, story.seq, story.step = attempt, 0, step
        story.start().steps(5)
    found = reads.snapshot(story.id)
    marks = [mark for mark in found.marks() if mark.kind == "restart"]
    assert [mark.text for mark in marks] == [
        "engine started again, goes on from step 20, device 3 was let fail by ops",
        "engine started again, goes on from step 22",
    ]
    assert [mark.at for mark in marks] == [step.at for step in found.steps if step.step in (20, 22)]


def test_the_series_follows_an_attempt_that_was_seen_before_its_first_step(store: Store) -> None:
    story = seeded_store.healthy_run(store, begin_at=BEGIN, num_steps=30)
    story.attempt, story.seq, story.step = "second", 0, 20
    story.start()
    assert reads.snapshot(story.id).steps[-1].step == 29
    story.steps(3)
    progress._feed(story.id)._read_at = -math.inf
    assert [(step.step, step.attempt) for step in reads.snapshot(story.id).steps][-4:] == [
        (19, "first"),
        (20, "second"),
        (21, "second"),
        (22, "second"),
    ]


def test_silent_devices_are_unknown_and_remembered(store: Store) -> None:
    story = seeded_store.healthy_run(store, begin_at=BEGIN, num_steps=20)
    story.steps(6, unknown=(2,))
    found = reads.snapshot(story.id)
    assert math.isnan(found.rates[2])
    cell = next(cell for cell in found.cells() if cell.device == 2)
    assert cell.state == "silent"
    heard = next(step.at for step in found.steps if step.step == 19)
    assert found.heard_at[2] == heard


def test_stale_depends_on_how_slow_the_steps_are(store: Store) -> None:
    begin_at = datetime.now(UTC) - timedelta(seconds=40)
    story = SeededRun(store, config_of("slow"), begin_at=begin_at).start().steps(1, step_s=10.0)
    found = reads.snapshot(story.id)
    assert found.stale_after_s == 30.0
    assert not found.is_stale
    story = SeededRun(store, config_of("quick"), begin_at=begin_at).start().steps(1)
    assert reads.snapshot(story.id).is_stale


def test_services_are_silent_until_they_beat(store: Store) -> None:
    story = seeded_store.healthy_run(store, begin_at=BEGIN, num_steps=2)
    assert reads.snapshot(story.id).silent_s("controller") == math.inf
    seeded_store.alive(store)
    look_again()
    assert reads.snapshot(story.id).silent_s("controller") is None
    seeded_store.alive(store, at=datetime.now(UTC) - timedelta(seconds=32))
    look_again()
    silent_s = reads.snapshot(story.id).silent_s("controller")
    assert silent_s is not None
    assert silent_s > 30


def test_newest_run_prefers_one_that_still_runs(store: Store) -> None:
    assert reads.newest_run() is None
    first = seeded_store.healthy_run(store, begin_at=BEGIN, num_steps=2)
    seeded_store.finished_run(store, begin_at=BEGIN)
    look_again()
    assert reads.newest_run() == first.id


def test_an_unreachable_store_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_world(tmp_path, monkeypatch)
    opened.close()
    monkeypatch.setenv("MALLEUS_HOME", str(tmp_path / "elsewhere"))
    reads.settings.clear()
    reads.store.clear()
    with pytest.raises(StoreError, match="no database at"):
        reads.all_runs()


def test_a_plan_at_its_end_is_read_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    story = seeded_store.straggling_run(store, begin_at=BEGIN)
    for _ in range(3):
        story.propose(story.plan, status="rejected", reason="no-better-plan")
    assert [plan.status for plan in reads.snapshot(story.id).plans] == [*["rejected"] * 3, "active", "superseded"]
    asked: list[set[int]] = []
    whole = plans.of_versions

    def watched(of: Store, run: int, versions: set[int]) -> dict[int, PlanView]:
        asked.append(set(versions))
        return whole(of, run, versions)

    monkeypatch.setattr(plans, "of_versions", watched)
    waiting = story.propose(seeded_store.absorbing_plan())
    found = {plan.version: plan for plan in reads.snapshot(story.id).plans}
    assert asked == [{1, 2, waiting}], "the first, the active one and what is new"
    assert found[waiting].document is not None
    story.measured(2.2).switch(seeded_store.absorbing_plan(), waiting).steps(2)
    found = {plan.version: plan for plan in reads.snapshot(story.id).plans}
    assert (found[2].status, found[2].measured_s, found[waiting].status) == ("superseded", 2.2, "active")


def test_episodes_that_end_and_switches_are_followed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "RECENT_EPISODES", 1)
    story = SeededRun(store, config_of("many"), begin_at=BEGIN).start().steps(8)
    for device, rate in ((1, 2.57), (2, 5.42), (3, 1.4)):
        story.rates[device] = rate
        story.detect(device)
    assert [entry.is_open for entry in reads.snapshot(story.id).episodes] == [True] * 3
    story.recover(1).detect(4)
    found = reads.snapshot(story.id).episodes
    assert [(entry.device, entry.is_open) for entry in found] == [(4, True), (3, True), (2, True), (1, False)]
    for _ in range(2):
        version = story.propose(seeded_store.absorbing_plan())
        story.switch(seeded_store.absorbing_plan(), version).steps(1)
        assert reads.snapshot(story.id).switches[-1].plan_version == version
    assert list(reads.snapshot(story.id).switches) == history.switches(store, story.id)


def test_a_devices_rates_are_read_from_the_first_step_shown(store: Store) -> None:
    story = seeded_store.healthy_run(store, begin_at=BEGIN, num_steps=50)
    assert [step for step, _ in reads.device_rates(story.id, 3, since_step=40)] == list(range(40, 50))
    story.steps(2)
    assert [step for step, _ in reads.device_rates(story.id, 3, since_step=45)] == list(range(45, 52))
    assert [step for step, _ in reads.device_rates(story.id, 3, since_step=None)] == list(range(52)), "more than before"
