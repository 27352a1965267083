"""The Inject page: ways to choose, schedules with their problems, drills with their reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.dashboard.drill_part import CHART_STEPS
from db import commands, injections, recorder, runs
from db.messages import Checkpoint, utc_now
from db.schedule import Entry, arguments
from db.store import Store
from tests.app import seeded_store
from tests.app.seeded_run import SeededRun
from tests.app.seeded_store import alive, tell_until_now
from tests.app.seeded_world import again, close_world, drawings, open_world, page, texts
from tests.app.story_rows import plain


def show_inject() -> None:
    from app.dashboard.views import inject

    inject.show()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    opened = open_world(tmp_path, monkeypatch)
    yield opened
    close_world(opened)


@pytest.fixture(autouse=True)
def unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the token had been entered (that is tested by the browser)."""
    from app.dashboard import writes

    monkeypatch.setattr(writes, "is_unlocked", lambda: True)


@pytest.fixture
def story(store: Store) -> SeededRun:
    told = tell_until_now(store, seeded_store.straggling_run)
    alive(store)
    return told


def test_a_situation_is_previewed_and_played_once(store: Store, story: SeededRun) -> None:
    at = page(show_inject, run=str(story.id), way="situation", situation="S3")
    said = plain(texts(at))
    assert "Device 3 2.57x, device 7 5.42x, until cleared." in said
    assert "preview: 2 would be slow" in said
    assert 'aria-label="device 7, node 1: 5.42x' in said, "the grid shows the preview"
    at.number_input(key="inject_duration").set_value(30.0).run()
    at.button(key="inject_play").click().run()
    at.button(key="inject_play").click().run()
    (asked,) = [entry for entry in commands.recent(store, story.id) if entry.kind == "play"]
    assert asked.arguments["name"] == "S3"
    assert [(entry["device"], entry["rate"], entry["for_s"]) for entry in asked.arguments["entries"]] == [
        (3, 2.57, 30.0),
        (7, 5.42, 30.0),
    ]
    at = again(at)
    assert "<b>S3</b> waits for the controller" in texts(at)
    assert at.button(key="inject_play").disabled


def test_a_schedule_names_bad_lines_and_plays_good_ones(store: Store, story: SeededRun) -> None:
    at = page(show_inject, run=str(story.id), way="schedule")
    assert at.button(key="inject_play").disabled
    at.text_area(key="inject_text").set_value("0,3,2.57,60\n5,99,2\n6,x,2").run()
    said = texts(at)
    assert "<b>line 2</b> device must be 0..7, given 99" in said
    assert "<b>line 3</b> device must be a number, given x" in said
    assert at.button(key="inject_play").disabled
    at.text_area(key="inject_text").set_value("second,device,rate,for_s\n0,3,2.57,60\n20,5,5.42,").run()
    assert "Schedule of 2 injections on 2 devices" in texts(at)
    at.button(key="inject_play").click().run()
    (asked,) = [entry for entry in commands.recent(store, story.id) if entry.kind == "play"]
    assert len(asked.arguments["entries"]) == 2
    assert asked.source == "dashboard"


def test_an_uploaded_file_takes_the_place_of_the_text(store: Store, story: SeededRun) -> None:
    at = page(show_inject, run=str(story.id), way="schedule")
    at.file_uploader(key="inject_file").set_value(("drill.csv", b"0,6,3.75\n", "text/csv")).run()
    assert at.text_area(key="inject_text").value == "0,6,3.75\n"
    at.button(key="inject_play").click().run()
    assert commands.recent(store, story.id)[0].arguments["name"] == "drill.csv"


def test_the_chart_shows_the_drill_however_long_ago_it_was(store: Store, story: SeededRun) -> None:
    story.heal(3).steps(3 * CHART_STEPS)
    at = page(show_inject, run=str(story.id))
    (command,) = (entry for entry in commands.recent(store, story.id) if entry.kind == "inject")
    begun = command.applied_step
    assert begun is not None
    traces = drawings(at)["inject_chart"]["figure"]["data"]
    shown = [step for step, _, _ in next(trace["customdata"] for trace in traces if "customdata" in trace)]
    assert shown[0] < begun < shown[-1] < story.step - 1


def test_a_play_is_followed_and_ended(store: Store, story: SeededRun) -> None:
    entries = [Entry(at_s=0.0, device=6, rate=3.75), Entry(at_s=3600.0, device=5, rate=5.42)]
    asked = commands.submit(store, story.id, "play", arguments("long", entries), actor="ada", source="cli")
    commands.accept(store, asked.id, desired_version=None)
    injections.play(store, story.id, [(entries[0], None)], command=asked.id, now=utc_now())
    injections.observed(store, story.id, 10_000, story.step, utc_now())
    story.rates[6] = 3.75
    story.steps(3)
    at = page(show_inject, run=str(story.id), drill=str(asked.id))
    said = plain(texts(at))
    assert "<b>long</b> is being played: 1 of 2 due, next device 5 5.42x in" in said
    assert "Report of play long (2 injections)" in said
    assert at.query_params["drill"] == str(asked.id)
    assert at.button(key="inject_clear_all").label == "Clear all and end the schedule"
    at.button(key="inject_clear_all").click().run()
    assert commands.recent(store, story.id)[0].kind == "clear"


def test_the_report_of_a_drill(store: Store, story: SeededRun) -> None:
    at = page(show_inject, run=str(story.id))
    said = plain(texts(at))
    assert "Report of inject 2.57x on device 3" in said
    assert "goes on, figures so far" in said
    assert "1 switch, 1.93 MB" in said
    assert {entry.label for entry in at.get("download_button")} >= {"CSV", "JSON"}
    assert "drill" not in at.query_params, "the newest needs no address"


def test_a_failure_says_what_it_leads_to_asks_back_and_is_submitted_once(store: Store, story: SeededRun) -> None:
    runs.watch_engine(store, story.id, max_restarts=3)
    at = page(show_inject, run=str(story.id), way="failure", devices="2,3")
    assert drawings(at)["inject_grid"]["mode"] == "one"
    assert drawings(at)["inject_grid"]["selected"] == [], "one device at a time"
    assert at.button(key="inject_fail").disabled
    at.selectbox(key="inject_victim_0").set_value(6).run()
    assert drawings(at)["inject_grid"]["selected"] == ["6"]
    outlook = f"from step 0: there is no checkpoint yet. {story.step} steps are repeated."
    assert outlook in texts(at)
    save(story)
    at = again(at)
    outlook = f"from the checkpoint of step {story.step}. 0 steps are repeated."
    assert f"The engine ends and is started again (restart 1 of 3) {outlook}" in texts(at)
    assert f"**Kill the process of device 6 of run {story.id}?**" in at.markdown[-1].value
    assert outlook in at.markdown[-1].value
    at.button(key="inject_fail").click().run()
    assert at.button(key="inject_fail").disabled, "it is under way"
    (asked,) = [entry for entry in commands.recent(store, story.id) if entry.kind == "fail"]
    assert (asked.arguments, asked.source) == ({"device": 6, "attempt": story.attempt}, "dashboard")
    assert "fail device 6" in texts(again(at))
    version = runs.change(store, story.id)
    commands.accept(store, asked.id, desired_version=version)
    commands.apply_observed(store, story.id, version, story.step - 1, attempt=story.attempt)
    at = again(at)
    assert f"applied at step {story.step - 1}" in texts(at)
    assert not at.button(key="inject_fail").disabled, "another may be asked for"


def test_a_failure_that_makes_no_sense_is_not_offered(store: Store, story: SeededRun) -> None:
    at = page(show_inject, run=str(story.id), way="failure", devices="6")
    assert "no restart is left (0 allowed): the run ends as failed" in texts(at)
    assert not at.button(key="inject_fail").disabled
    runs.watch_engine(store, story.id, max_restarts=3)
    assert runs.engine_lost(store, story.id, 1, delay_s=2.0)
    at = page(show_inject, run=str(story.id), way="failure", devices="6")
    assert at.button(key="inject_fail").disabled


def save(story: SeededRun) -> None:
    """The engine reports a checkpoint at the end of the story so far."""
    path = f"/runs/{story.id}/checkpoints/step-{story.step}"
    message = Checkpoint(**story._head(after_s=0.0), step=story.step, outcome="saved", path=path)  # type: ignore[arg-type]
    recorder.record(story.store, story.id, [(f"{story.seq}-0", message)])


def test_the_slider_and_the_box_are_one_rate(store: Store, story: SeededRun) -> None:
    at = page(show_inject, run=str(story.id), devices="5")
    at.select_slider(key="inject_slider_0").set_value(12.53).run()
    assert at.number_input(key="inject_rate_1").value == 12.53
    at.number_input(key="inject_rate_1").set_value(3.75).run()
    assert at.select_slider(key="inject_slider_1").value == 3.75
    at.button(key="inject_submit").click().run()
    assert commands.recent(store, story.id)[0].arguments["rate"] == 3.75


@pytest.mark.parametrize(
    "callback", ["listed", "preset_chosen", "rate_typed", "slid", "way_chosen", "uploaded", "typed", "victim_chosen"]
)
def test_what_the_browser_sends_late_of_a_widget_that_is_gone_changes_nothing(callback: str) -> None:
    def late(name: str) -> None:
        from copy import deepcopy

        import streamlit as st

        from app.dashboard import injection_form

        before = deepcopy(injection_form.state())
        getattr(injection_form, name)()
        st.session_state["changed"] = injection_form.state() != before

    from streamlit.testing.v1 import AppTest

    at = AppTest.from_function(late, args=(callback,)).run()
    assert not at.exception
    assert at.session_state["changed"] is False


def test_what_was_typed_just_before_the_button_counts(store: Store, story: SeededRun) -> None:
    at = page(show_inject, run=str(story.id), devices="5")
    at.number_input(key="inject_rate_0").set_value(4.0)
    at.number_input(key="inject_duration").set_value(30.0)
    at.button(key="inject_submit").click().run()
    (asked, *_) = commands.recent(store, story.id)
    assert (asked.arguments["rate"], asked.arguments["for_s"]) == (4.0, 30.0)
