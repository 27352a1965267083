"""The Plans page on seeded stores (AppTest): list, address, detail, decisions, predictions, replays."""

from __future__ import annotations

import csv
import io
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.dashboard import reads, replays, writes
from app.plan_bundle import bundle_of
from db import commands, plans
from db.errors import InputError
from db.history import SwitchView
from db.store import Store
from planner.worker import solve_plan
from tests.app import seeded_store
from tests.app.local_world import wait_for
from tests.app.seeded_run import SeededRun
from tests.app.seeded_store import alive, tell_until_now
from tests.app.seeded_world import again, close_world, drawings, open_world, page, texts
from tests.app.story_rows import plain


def show_plans() -> None:
    from app.dashboard.views import plans

    plans.show()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    opened = open_world(tmp_path, monkeypatch)
    yield opened
    close_world(opened)


@pytest.fixture
def unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "is_unlocked", lambda: True)


def many(story: SeededRun, number: int, *, rejected: int = 3) -> None:
    """Proposals, every third (or so) rejected; predictions that rise."""
    for index in range(number):
        added = plans.add(
            story.store, story.id, document=story.plan.to_json(), trigger="proposal", rates={}, parent=1,
            requested_by="ann", key=f"p{index}", predicted_s=1.0 + index,
        )  # fmt: skip
        if index % rejected == 0:
            plans.move(story.store, story.id, added.version, "rejected", actor="ann", reason="slow")


def searched(story: SeededRun) -> int:
    """A plan that the real planner found."""
    rates = {**dict.fromkeys(range(8), 1.0), 3: 2.57}
    asked = plans.request(
        story.store, story.id, trigger="shift", rates=rates, parent=1, requested_by="controller", key="s"
    )
    solve_plan(story.store, story.id, asked.version, worker="w")
    return asked.version


def rows(table: str) -> list[int]:
    return [int(number) for number in re.findall(r'data-pick="(\d+)"', table)]


def test_filters_sorting_and_page_are_restored_from_the_address(store: Store) -> None:
    story = tell_until_now(store, seeded_store.healthy_run)
    many(story, 60)
    run = str(story.id)
    at = page(show_plans, run=run, status="ready", trigger="proposal", sort="predicted_s", page="2", version="5")
    listed = rows(drawings(at)["plans_table"]["html"])
    ready = [version for version in range(2, 62) if (version - 2) % 3]
    assert listed == ready[12:24], "second page, by prediction, rejected ones left out"
    assert {name: str(value) for name, value in at.query_params.items()} == {
        "run": run, "status": "ready", "trigger": "proposal", "sort": "predicted_s", "page": "2", "version": "5",
    }, "and the address still says so"  # fmt: skip
    assert "40 plans selected, page 2 of 4" in texts(at)
    at.multiselect(key="plans_status").set_value(["rejected"]).run()
    assert "20 plans selected" in texts(again(at))
    assert rows(drawings(at)["plans_table"]["html"])[0] in range(2, 62, 3)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"status": "nonsense", "sort": "document", "page": "99", "view": "x"}, "13 plans, page 2 of 2"),
        ({"status": "failed"}, "No plan is like this: take a filter away."),
        ({"version": "9" * 30}, "13 plans"),
    ],
)
def test_an_odd_address_does_no_harm(store: Store, params: dict[str, str], said: str) -> None:
    story = tell_until_now(store, seeded_store.healthy_run)
    many(story, 12)
    at = page(show_plans, run=str(story.id), **params)
    assert not at.exception
    assert said in texts(at)


def test_a_long_list_reads_one_page(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in rows, not in seconds: whatever is shown, few documents are read."""
    story = tell_until_now(store, seeded_store.healthy_run)
    many(story, 300, rejected=1)
    num_read = 0
    real = plans._view

    def counted(row: object) -> plans.PlanView:
        nonlocal num_read
        num_read += 1
        return real(row)  # type: ignore[arg-type]

    at = page(show_plans, run=str(story.id))
    monkeypatch.setattr(plans, "_view", counted)
    again(at)
    assert 0 < num_read < 60
    assert "301 plans, page 1 of 26" in texts(at)


def test_a_download_holds_all_that_is_selected(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    story = tell_until_now(store, seeded_store.straggling_run)
    many(story, 40)
    asked: list[plans.Selection] = []
    real = reads.all_selected

    def watched(run: int, selection: plans.Selection) -> list[tuple[plans.PlanView, SwitchView | None]]:
        asked.append(selection)
        return real(run, selection)

    monkeypatch.setattr(reads, "all_selected", watched)
    at = page(show_plans, run=str(story.id), status="rejected")
    assert not asked, "nothing is made before somebody asks for it"
    at.button(key="plans_csv").click().run()
    file = drawings(at)["plans_file"]
    assert file["name"] == f"run-{story.id}-plans.csv"
    rows = list(csv.DictReader(io.StringIO(file["text"])))
    assert len(rows) == plans.count(store, story.id, plans.Selection(statuses=("rejected",))) > 12
    moved = {plan.version: switch for plan, switch in real(story.id, plans.Selection())}
    assert moved[2] is not None
    assert moved[2].bytes_moved == 1_930_000


def test_detail_tells_the_whole_story(store: Store) -> None:
    story = tell_until_now(store, seeded_store.drifting_run)
    said = plain(texts(page(show_plans, run=str(story.id), version="2")))
    for words in ("Rates it was made for", "prepare", "migrate", "verify", "digests equal over 2 tensors",
                  "approved", "cause: device", "steps 95-", "1.93 MB moved"):  # fmt: skip
        assert words in said
    first = plain(texts(page(show_plans, run=str(story.id), version="1")))
    assert "was not searched for: the run was created with it" in first


def test_a_runner_up_opens_by_address(store: Store) -> None:
    story = tell_until_now(store, seeded_store.healthy_run)
    version = searched(story)
    at = page(show_plans, run=str(story.id), version=str(version), runner="2")
    assert "Runner-up at place 2" in texts(at)
    assert at.query_params["runner"] == "2"
    assert not at.get("download_button")[-1].proto.disabled, "it has a bundle"
    assert "plans_runner_map" not in drawings(page(show_plans, run=str(story.id), version=str(version)))


def test_a_comparison_has_arrows(store: Store) -> None:
    story = tell_until_now(store, seeded_store.drifting_run)
    said = plain(texts(page(show_plans, run=str(story.id), version="2", diff="1")))
    assert "5 links · about 1.15 MB within nodes" in said
    assert "1.50 layers · 192 kB" in said


def test_a_rollback_asks_with_the_version_it_returns_to(store: Store, unlocked: None) -> None:
    story = tell_until_now(store, seeded_store.straggling_run)
    alive(store)
    at = page(show_plans, run=str(story.id), version="1")
    assert any("Return to plan v1" in entry.value and "new version" in entry.value for entry in at.markdown)
    assert "The controller would say" in texts(at)
    at.text_input(key=f"plans_reason_{story.id}_1").set_value("calmer").run()
    at.button(key="plans_rollback").click().run()
    (asked,) = [entry for entry in commands.recent(store, story.id) if entry.kind == "rollback"]
    assert asked.arguments == {"version": 1, "reason": "calmer"}


@pytest.mark.parametrize(
    ("tell", "version", "kind"),
    [
        (seeded_store.manual_run, 2, "approve"),
        (seeded_store.manual_run, 2, "reject"),
        (seeded_store.straggling_run, 1, "rollback"),
    ],
)
def test_a_reason_typed_just_before_the_button_is_kept(
    store: Store, unlocked: None, tell: Callable[..., SeededRun], version: int, kind: str
) -> None:
    story = tell_until_now(store, tell)
    alive(store)
    at = page(show_plans, run=str(story.id), version=str(version))
    at.text_input(key=f"plans_reason_{story.id}_{version}").set_value("at the last moment")
    at.button(key=f"plans_{kind}").click().run()
    (asked,) = [entry for entry in commands.recent(store, story.id) if entry.kind == kind]
    assert asked.arguments == {"version": version, "reason": "at the last moment"}


def test_predicted_against_measured(store: Store) -> None:
    story = tell_until_now(store, seeded_store.straggling_run)
    plans.set_measured(store, story.id, 1, 1.0)
    at = page(show_plans, run=str(story.id), view="calibration")
    assert not at.exception
    said = plain(texts(at))
    assert "<b>2</b> plans measured of 2 that ran" in said
    assert "Large errors" in said
    assert "version=1" in said, "the first plan is predicted from the profile"
    assert drawings(at)["plans_calibration"]["figure"]["data"][2]["x"] == [1, 2]
    assert at.query_params["view"] == "calibration"
    empty = page(show_plans, run=str(tell_until_now(store, seeded_store.lonely_run).id), view="calibration")
    assert "No plan has both" in texts(empty)


def test_a_replay_says_same(store: Store, unlocked: None) -> None:
    story = tell_until_now(store, seeded_store.healthy_run)
    version = searched(story)
    at = page(show_plans, run=str(story.id), view="replay", version=str(version))
    at.button(key="plans_replay_start").click().run()
    assert not at.exception
    wait_for(lambda: not replays.replays().is_busy, "the replay has ended")
    assert "same" in texts(again(at))
    assert f"plan v{version} of run {story.id} comes out again" in texts(at)


def test_without_token_nothing_is_replayed(store: Store) -> None:
    story = tell_until_now(store, seeded_store.healthy_run)
    searched(story)
    at = page(show_plans, run=str(story.id), view="replay")
    assert at.button(key="plans_replay_start").disabled


SCRIPTS = {
    "same": "import json; print(json.dumps({'same': True, 'seconds': 1.0}))",
    "different": "import json; print(json.dumps({'same': False, 'differences': []})); raise SystemExit(1)",
    "failed": "import sys; sys.exit('malleus: no luck')",
    "slow": "import time; time.sleep(600)",
}


@pytest.mark.parametrize(
    ("script", "state", "problem"),
    [
        ("same", "same", ""),
        ("different", "different", ""),
        ("failed", "failed", "it ended with status 1: no luck"),
        ("slow", "failed", "it did not end within 1 s"),
    ],
)
def test_a_replay_ends_in_every_case(store: Store, script: str, state: str, problem: str) -> None:
    story = tell_until_now(store, seeded_store.healthy_run)
    version = searched(story)
    text = bundle_of(plans.get(store, story.id, version), plans.job(store, story.id, version)).to_text()
    limit_s = 1.0 if script == "slow" else math.inf
    runner = replays.Replays([sys.executable, "-c", SCRIPTS[script]], {}, time_limit_s=min(limit_s, 60.0))
    with pytest.raises(InputError, match="a bundle is JSON"):
        runner.start("x", "{")
    number = runner.start("bundle", text)
    if script == "slow":
        with pytest.raises(InputError, match="another replay is running"):
            runner.start("bundle", text)
    wait_for(lambda: not runner.is_busy, "it has ended")
    view = runner.get(number)
    assert view is not None
    assert (view.state, view.problem) == (state, problem)
    assert view.ended_at is not None
    assert runner.get(99) is None
