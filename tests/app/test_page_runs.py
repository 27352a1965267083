"""The Runs page: order and filter in the address, menus of rows, and the start of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.dashboard import reads, writes
from app.dashboard.run_start_line import run_start_line, start_stages
from app.dashboard.run_table import COLUMNS, in_order, records, run_table, runs_in_order
from app.dashboard.table import Sorting
from app.errors import LocalError
from app.local import detached
from db import audit, commands, plans, runs
from db.store import Store
from tests.app import seeded_store
from tests.app.seeded_store import alive, tell_until_now
from tests.app.seeded_world import again, close_world, drawings, open_world, page, texts
from tests.app.story_rows import plain


def show_runs() -> None:
    from app.dashboard.views import runs

    runs.show()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    opened = open_world(tmp_path, monkeypatch)
    yield opened
    close_world(opened)


@pytest.fixture
def unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the token had been entered (that is tested by the browser)."""
    monkeypatch.setattr(writes, "is_unlocked", lambda: True)
    monkeypatch.setattr(writes, "actor", lambda: "grace")


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The runs that were handed to a trainer; none is started."""
    handed: list[int] = []

    def start(store: Store, settings: object, run: int, *, max_restarts: int) -> int:
        handed.append(run)
        return 0

    monkeypatch.setattr(detached, "start", start)
    monkeypatch.setattr(detached, "attend", lambda store, run, pid: None)
    return handed


def three(store: Store) -> list[int]:
    tells = (seeded_store.straggling_run, seeded_store.finished_run, seeded_store.odd_run)
    told = [tell_until_now(store, tell).id for tell in tells]
    alive(store)
    return told


def test_a_row_says_all_of_a_run(store: Store) -> None:
    three(store)
    said = plain(texts(page(show_runs)))
    for text in ("16 layers x 64", "/ 2,000", 'class="progress"', ">ada</td>", "Menu of run 1", "NaN", "v2"):
        assert text in said
    assert "data-go" in said


@pytest.mark.parametrize("column", [entry.sort for entry in COLUMNS if entry.sort])
def test_every_column_sorts_both_ways(store: Store, column: str) -> None:
    snapshots = [reads.snapshot(run) for run in three(store)]
    down = in_order(snapshots, Sorting(column=column))
    assert sorted(entry.run.id for entry in down) == [1, 2, 3]
    assert len(in_order(snapshots, Sorting(column=column, is_descending=False))) == 3
    assert run_table(down, Sorting(column=column)).count("<tr") == 4
    listed = runs_in_order([entry.run for entry in snapshots], Sorting(column="run", is_descending=False))
    assert [run.id for run in listed] == [1, 2, 3]


def test_the_view_is_in_the_address_and_comes_back(store: Store) -> None:
    three(store)
    at = page(show_runs, state="ended", sort="step", order="up")
    assert at.button_group(key="runs_state").value == "ended"
    assert "finished" in texts(at)
    assert "llama-16L" not in texts(at)
    at.text_input(key="runs_text").set_value("odd").run()
    assert at.query_params["text"] in ("odd", ["odd"])
    assert at.query_params["sort"] in ("step", ["step"])
    assert "No run matches the filter." in texts(at)


def test_downloads_hold_every_run_that_matches(store: Store) -> None:
    rows = records([reads.snapshot(run) for run in three(store)])
    assert [row["run"] for row in rows] == [1, 2, 3]
    assert rows[0]["started_by"] == "ada"
    assert rows[0]["stragglers"].startswith("3=2.")
    at = page(show_runs, state="open")
    assert "runs_file" not in drawings(at)
    at.button(key="runs_json").click().run()
    file = drawings(again(at))["runs_file"]
    assert file["name"] == "runs.json", "it stays until the browser has it"
    assert [row["run"] for row in json.loads(file["text"])] == [3, 1]


def test_menus_need_the_token_and_an_open_run(store: Store) -> None:
    snapshots = [reads.snapshot(run) for run in three(store)]
    refused = run_table(snapshots, Sorting(column="run"), why_not="Read-only: unlock")
    assert '"ask"' not in refused.replace("&quot;", '"')
    allowed = run_table(snapshots, Sorting(column="run")).replace("&quot;", '"')
    assert allowed.count('["ask", {"run": "1"') == 3
    assert '["ask", {"run": "2"' not in allowed, "it has ended"


def test_what_is_asked_from_a_menu_is_answered(store: Store, unlocked: None) -> None:
    from app.dashboard.views import runs as view

    three(store)
    at = page(show_runs)
    at.session_state[view._STOP] = 1
    at = again(at)
    assert "Stop run 1?" in texts(at)
    at.button(key="runs_stop_confirm").click().run()
    (asked,) = [entry for entry in commands.recent(store, 1) if entry.kind == "stop"]
    assert (asked.actor, asked.source) == ("grace", "dashboard")
    said = texts(again(at))
    assert "waits for the controller" in said
    assert "Stop run 1?" not in said


def test_the_form_is_opened_from_the_list(store: Store) -> None:
    three(store)
    at = page(show_runs)
    at.button(key="runs_new").click()
    assert again(at).query_params["new"]
    assert not [entry for entry in at.button if entry.key == "runs_new"], "it is open"


def test_an_open_form_is_checked_as_one_types(store: Store, unlocked: None) -> None:
    alive(store)
    at = page(show_runs, new="demo")
    assert not at.exception
    said = plain(texts(at))
    assert "What will start" in said
    assert "8 emulated on 2 nodes" in said
    assert "valid: it obeys every rule of plans" in said
    assert 'class="map' in said, "the first plan is drawn"
    assert not at.button(key="start_submit").disabled
    at.text_input(key="start_name_1").set_value("a/b").run()
    said = texts(at)
    assert "Name: String should match pattern" in said
    assert at.button(key="start_submit").disabled
    at.text_input(key="start_name_1").set_value("fine").run()
    at.number_input(key="start_devices_per_node_1").set_value(3).run()
    assert "max_tp must be at most devices_per_node 3" in texts(at)


def test_a_text_of_ones_own_has_problems_by_line(store: Store, unlocked: None) -> None:
    alive(store)
    at = page(show_runs, new="own")
    at.text_area(key="start_text_1").set_value("[train]\nnum_steps = 5\nglobal_batch = x").run()
    assert "<b>line 3</b> not valid TOML" in texts(at)
    assert at.button(key="start_submit").disabled
    at.text_area(key="start_text_2").set_value("[train]\nnum_steps = 5\n[cluster]\nnum_nodes = 4").run()
    assert at.number_input(key="start_num_steps_3").value == 5
    assert "8 standby" in texts(at), "two pipelines leave devices without work, and the summary says so"


def test_a_run_is_started_once(store: Store, unlocked: None, spawned: list[int]) -> None:
    alive(store)
    at = page(show_runs, new="demo")
    at.text_input(key="start_name_1").set_value("from the page").run()
    at.selectbox(key="start_situation").set_value("S2").run()
    at.button(key="start_submit").click().run()
    (run,) = runs.all_runs(store)
    assert (run.name, run.status, spawned) == ("from the page", "pending", [run.id])
    assert plans.get(store, run.id, 1).requested_by == "grace"
    created = next(entry for entry in audit.entries(store, run.id) if entry.action == "run.create")
    assert (created.actor, created.source) == ("grace", "dashboard")
    (played,) = commands.recent(store, run.id)
    assert (played.kind, played.arguments["entries"][0]["at_s"]) == ("play", writes.SITUATION_AT_S)
    assert at.query_params["started"] in (str(run.id), [str(run.id)])
    assert "new" not in at.query_params
    said = texts(again(at))
    assert "is registered, its engine has not been heard yet" in said


def test_one_form_instance_is_one_run(
    store: Store, unlocked: None, spawned: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from db.run_config import RunConfig

    alive(store)
    forms: dict[str, object] = {}
    monkeypatch.setattr(writes.st, "session_state", forms)
    for _ in range(3):
        writes.start_run(RunConfig(), origin_run=None, situation="", form="start")
    assert len(runs.all_runs(store)) == len(spawned) == 1

    def fails(*_: object, **__: object) -> int:
        raise LocalError("cannot start the trainer of run 2")

    writes.new_form("start")
    monkeypatch.setattr(detached, "start", fails)
    writes.start_run(RunConfig(), origin_run=None, situation="", form="start")
    state = writes.form_state("start")
    assert (state.run, state.error) == (None, "cannot start the trainer of run 2")


def test_nothing_starts_without_a_controller_or_token(store: Store, spawned: list[int]) -> None:
    at = page(show_runs, new="demo")
    assert at.button(key="start_submit").disabled
    assert "expected a running controller" in at.button(key="start_submit").help
    alive(store)
    at = again(at)
    assert at.button(key="start_submit").help == writes.READ_ONLY
    assert runs.all_runs(store) == []


def test_a_checkpoint_of_another_model_is_refused(
    store: Store, unlocked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_until_now(store, seeded_store.lonely_run)
    alive(store)
    monkeypatch.setattr(reads, "origins", lambda: {1: 40})
    at = page(show_runs, new="demo")
    at.selectbox(key="start_origin").set_value(1).run()
    assert "its model is another one: num_layers 4, here 16" in texts(at)
    assert at.button(key="start_submit").disabled


def test_a_start_that_failed_shows_why_and_the_log(store: Store) -> None:
    story = tell_until_now(store, seeded_store.waiting_run)
    assert [stage.state for stage in start_stages(reads.snapshot(story.id))] == ["done", "waiting", "later"]
    runs.engine_exited(store, story.id, 1, why="its trainer ended before it")
    snapshot = reads.snapshot(story.id)
    drawn = run_start_line(snapshot, ["Traceback", "<no module>"])
    assert "failed: the engine exited with status 1; its trainer ended before it" in drawn
    assert "&lt;no module&gt;" in drawn
    told = tell_until_now(store, seeded_store.healthy_run)
    assert {stage.state for stage in start_stages(reads.snapshot(told.id))} == {"done"}


def test_a_started_run_is_followed_by_its_address(store: Store) -> None:
    story = tell_until_now(store, seeded_store.healthy_run)
    alive(store)
    at = page(show_runs, started=str(story.id))
    assert "is training, step" in texts(at)
    at.button(key="started_done").click().run()
    assert "started" not in at.query_params
    assert "unknown run 99" in texts(page(show_runs, started="99"))
