"""Every page on a seeded store, in all the states a run can be in (Streamlit's own AppTest)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app.dashboard import reads
from db import commands, runs
from db.store import Store
from tests.app import seeded_store
from tests.app.seeded_run import SeededRun
from tests.app.seeded_store import alive, tell_until_now
from tests.app.seeded_world import TOKEN, again, close_world, drawings, open_world, page, texts
from tests.app.story_rows import plain

MAIN = Path(__file__).parents[2] / "app" / "dashboard" / "main.py"


def show_runs() -> None:
    from app.dashboard.views import runs

    runs.show()


def show_live() -> None:
    from app.dashboard.views import live

    live.show()


def show_inject() -> None:
    from app.dashboard.views import inject

    inject.show()


def show_plans() -> None:
    from app.dashboard.views import plans

    plans.show()


PAGES = (show_runs, show_live, show_inject, show_plans)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    opened = open_world(tmp_path, monkeypatch)
    yield opened
    close_world(opened)


@pytest.fixture
def unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the token had been entered (that is tested by the browser)."""
    from app.dashboard import writes

    monkeypatch.setattr(writes, "is_unlocked", lambda: True)


def enabled(at: AppTest) -> dict[str, bool]:
    return {button.key: not button.disabled for button in at.button if button.key}


@pytest.mark.parametrize("show", PAGES)
def test_empty_store_says_what_to_run(store: Store, show: Callable[[], None]) -> None:
    at = page(show)
    assert not at.exception
    assert "malleus demo" in texts(at)


@pytest.mark.parametrize("show", PAGES[1:])
@pytest.mark.parametrize(("run", "said"), [("99", "Unknown run 99"), ("x", "Run must be a number")])
def test_a_wrong_address_says_what_was_expected(store: Store, show: Callable[[], None], run: str, said: str) -> None:
    at = page(show, run=run)
    assert not at.exception
    assert said in texts(at)


@pytest.mark.parametrize("show", PAGES)
@pytest.mark.parametrize(
    "tell",
    [
        seeded_store.healthy_run,
        seeded_store.straggling_run,
        seeded_store.drifting_run,
        seeded_store.manual_run,
        seeded_store.odd_run,
        seeded_store.finished_run,
        seeded_store.lonely_run,
        seeded_store.sixteen_run,
        seeded_store.large_run,
        seeded_store.waiting_run,
    ],
)
def test_every_page_shows_every_story(
    store: Store, show: Callable[[], None], tell: Callable[..., SeededRun], unlocked: None
) -> None:
    story = tell_until_now(store, tell)
    alive(store)
    at = page(show, run=str(story.id), device="0", version="1")
    assert not at.exception
    assert not at.error
    assert story.config.name in texts(at)
    assert "Traceback" not in texts(at)


def test_live_tells_the_whole_story(store: Store) -> None:
    story = tell_until_now(store, seeded_store.straggling_run)
    alive(store)
    at = page(show_live, run=str(story.id), device="3")
    said = plain(texts(at))
    assert "Device 3 (node 0) is 2.5" in said
    assert "Plan v2 absorbs it: +3" in said
    assert "instead of +11" in said
    assert 'data-freshness="fresh"' in said
    assert "samples 2.56, 2.58, 2.57" in said, "the selected device shows its evidence"
    figure = drawings(at)["live_chart"]["figure"]
    assert "Rate of device 3" in str(figure["layout"]["annotations"])
    assert at.query_params["device"] == "3"


def test_stale_data_is_not_shown_as_live(store: Store, unlocked: None) -> None:
    story = tell_until_now(store, seeded_store.healthy_run, ago_s=60)
    alive(store)
    at = page(show_live, run=str(story.id))
    said = texts(at)
    assert 'data-freshness="stale"' in said
    assert "The engine has been silent since" in said
    assert "was training" in said
    assert "silent" in texts(page(show_runs))


def test_a_silent_controller_disables_what_cannot_work(store: Store, unlocked: None) -> None:
    story = tell_until_now(store, seeded_store.straggling_run)
    at = page(show_live, run=str(story.id))
    assert "The controller has never been heard" in texts(at)
    assert not any(enabled(at).values())
    alive(store)
    assert enabled(page(show_live, run=str(story.id)))["live_pause"]


def test_ended_runs_take_no_commands(store: Store, unlocked: None) -> None:
    story = tell_until_now(store, seeded_store.finished_run)
    alive(store)
    for show in PAGES[1:]:
        at = page(show, run=str(story.id), devices="0")
        assert [
            key for key, is_on in enabled(at).items() if is_on and not key.endswith(("_csv", "_json", "_one"))
        ] == []
    assert "ended" in texts(page(show_live, run=str(story.id)))


def test_nan_loss_and_failed_devices_are_said(store: Store) -> None:
    story = tell_until_now(store, seeded_store.odd_run)
    at = page(show_live, run=str(story.id))
    said = texts(at)
    assert "The loss is NaN." in said
    assert 'class="cross"' in said
    assert "silent, nothing measured" in said
    assert "bound unknown" not in said


def test_pause_is_a_command_that_is_acknowledged(store: Store, unlocked: None) -> None:
    story = tell_until_now(store, seeded_store.healthy_run)
    alive(store)
    at = page(show_live, run=str(story.id))
    at.button(key="live_pause").click().run()
    (asked,) = commands.recent(store, story.id)
    assert (asked.kind, asked.status, asked.source) == ("pause", "pending", "dashboard")
    assert "waits for the controller" in texts(at)
    assert not enabled(at)["live_pause"], "one is under way"
    commands.accept(store, asked.id, desired_version=2)
    commands.apply_observed(store, story.id, 2, 61)
    assert "applied at step 61" in texts(at.run())
    assert enabled(at)["live_pause"]


def test_a_checkpoint_is_asked_for_and_acknowledged_once_it_is_saved(store: Store, unlocked: None) -> None:
    story = tell_until_now(store, seeded_store.straggling_run)
    alive(store)
    at = page(show_live, run=str(story.id))
    said = plain(texts(at))
    assert "gradient norm 0." in said
    assert "MFU 16 %" in said
    at.button(key="live_checkpoint").click().run()
    asked = commands.recent(store, story.id)[0]
    assert (asked.kind, asked.status, asked.source) == ("checkpoint", "pending", "dashboard")
    version, request = runs.request_checkpoint(store, story.id)
    commands.accept(store, asked.id, desired_version=version, request=request)
    assert "waits for the engine to save it" in texts(again(at))
    assert not enabled(at)["live_checkpoint"], "one is under way"
    commands.finish(store, asked.id, ok=True, result="saved to /there", step=61)
    assert "applied at step 61: saved to /there" in texts(again(at))
    assert enabled(at)["live_checkpoint"]


def test_without_token_nothing_can_be_pressed(store: Store) -> None:
    story = tell_until_now(store, seeded_store.healthy_run)
    alive(store)
    at = page(show_live, run=str(story.id))
    assert at.button(key="live_pause").disabled
    assert "Read-only" in at.button(key="live_pause").help


def forge() -> None:
    import streamlit as st

    from app.dashboard import writes

    writes.submit(1, "pause", {}, form="pause")
    st.write(writes.form_state("pause").error)


def test_a_forged_submit_without_token_writes_nothing(store: Store) -> None:
    story = tell_until_now(store, seeded_store.healthy_run)
    at = page(forge)
    assert "Read-only" in at.markdown[0].value
    assert commands.recent(store, story.id) == []


def test_inject_from_the_page_acts_once(store: Store, unlocked: None) -> None:
    story = tell_until_now(store, seeded_store.healthy_run)
    alive(store)
    at = page(show_inject, run=str(story.id), devices="3,5,99")
    assert at.multiselect(key="inject_devices_0").value == [3, 5], (
        "the address chooses, what does not exist is left out"
    )
    at.number_input(key="inject_rate_0").set_value(3.0).run()
    at.button(key="inject_submit").click().run()
    at.button(key="inject_submit").click().run()
    (asked,) = commands.recent(store, story.id)
    assert asked.arguments == {"devices": [3, 5], "rate": 3.0, "for_s": None}
    assert "waits for the controller" in texts(at)
    commands.finish(store, asked.id, ok=False, result="device 5 is gone")
    assert "failed: device 5 is gone" in texts(at.run())
    at.button(key="inject_submit").click().run()
    assert len(commands.recent(store, story.id)) == 2, "after an answer the form is a new one"


def test_inject_presets_and_previews(store: Store, unlocked: None) -> None:
    story = tell_until_now(store, seeded_store.straggling_run)
    alive(store)
    at = page(show_inject, run=str(story.id), devices="5")
    at.button_group(key="inject_preset_0").set_value(5.42).run()
    assert at.number_input(key="inject_rate_1").value == 5.42
    said = plain(texts(at))
    assert "Device 5 will compute 5.42x slower than healthy until cleared." in said
    assert "the capacity bound would be" in said
    assert "recovered" in said
    assert "paused 420 ms" in said
    at.button(key="inject_clear_all").click().run()
    assert commands.recent(store, story.id)[0].kind == "clear"


def test_plans_detail_and_comparison(store: Store) -> None:
    story = tell_until_now(store, seeded_store.drifting_run)
    alive(store)
    run = str(story.id)
    said = plain(texts(page(show_plans, run=run, version="2")))
    assert "device 3: 1.00x \u2192 2.57x" in said
    assert "Rates it was made for" in said
    assert "digests equal" in said
    compared = page(show_plans, run=run, version="2", diff="1")
    assert "Plan v1 \u2192 v2" in texts(compared)
    assert 'class="moved new"' in texts(compared)
    assert set(compared.query_params) == {"run", "version", "diff"}
    assert "no document" in texts(page(show_plans, run=run, version="3", diff="1"))
    assert "Run 1 has no plan 99" in texts(page(show_plans, run=run, version="99"))


def test_a_person_approves_with_a_reason(store: Store, unlocked: None) -> None:
    story = tell_until_now(store, seeded_store.manual_run)
    alive(store)
    at = page(show_plans, run=str(story.id), version="2")
    said = plain(texts(at))
    for fact in ("If the job moves to it now", "Expected pause", "Pays back after", "1 step"):
        assert fact in said
    at.text_input(key=f"plans_reason_{story.id}_2").set_value("looks right").run()
    at.button(key="plans_approve").click().run()
    (asked,) = [entry for entry in commands.recent(store, story.id) if entry.kind == "approve"]
    assert asked.arguments == {"version": 2, "reason": "looks right"}
    assert asked.actor == "dashboard"
    assert "approve plan v2 (looks right)" in texts(at)


def test_plans_opens_what_waits_for_a_decision(store: Store) -> None:
    story = tell_until_now(store, seeded_store.manual_run)
    said = texts(page(show_plans, run=str(story.id)))
    assert "Plan v2" in said
    assert "If the job moves to it now" in said
    healthy = tell_until_now(store, seeded_store.healthy_run)
    assert "Plan v1" in texts(page(show_plans, run=str(healthy.id)))


def test_a_plan_equal_to_the_active_one_is_not_moved_to(store: Store, unlocked: None) -> None:
    story = tell_until_now(store, seeded_store.straggling_run)
    version = story.propose(story.plan)
    alive(store)
    at = page(show_plans, run=str(story.id), version=str(version))
    assert not enabled(at)["plans_approve"]
    assert enabled(at)["plans_reject"]


def test_a_superseded_plan_can_be_rolled_back_to(store: Store, unlocked: None) -> None:
    story = tell_until_now(store, seeded_store.straggling_run)
    alive(store)
    at = page(show_plans, run=str(story.id), version="1")
    at.button(key="plans_rollback").click().run()
    assert commands.recent(store, story.id)[0].arguments["version"] == 1


def test_mode_and_replan(store: Store, unlocked: None) -> None:
    story = tell_until_now(store, seeded_store.healthy_run)
    alive(store)
    at = page(show_plans, run=str(story.id))
    assert at.button(key="plans_mode_set").disabled, "it is automatic already"
    at.radio[0].set_value("manual").run()
    at.button(key="plans_mode_set").click().run()
    at.button(key="plans_replan").click().run()
    assert [entry.kind for entry in commands.recent(store, story.id)] == ["replan", "set_mode"]


def test_runs_lists_filters_and_counts(store: Store) -> None:
    tell_until_now(store, seeded_store.straggling_run)
    tell_until_now(store, seeded_store.finished_run)
    at = page(show_runs)
    said = plain(texts(at))
    assert "1 \u00b7 llama-16L" in said
    assert "<b>3</b> 2.5" in said
    assert "<b>1</b> open of 2" in said
    at.text_input(key="runs_text").set_value("finish").run()
    assert "llama-16L" not in texts(at)
    at.text_input(key="runs_text").set_value("").run()
    at.button_group(key="runs_state").set_value("open").run()
    assert "finished" not in texts(at)


def test_router_and_frame(store: Store) -> None:
    tell_until_now(store, seeded_store.straggling_run)
    at = AppTest.from_file(str(MAIN), default_timeout=60).run()
    assert not at.exception
    assert "llama-16L" in texts(at)
    assert at.text_input(key="frame_token").value == ""


def test_unlocking_needs_the_token(store: Store) -> None:
    tell_until_now(store, seeded_store.straggling_run)
    at = AppTest.from_file(str(MAIN), default_timeout=60).run()
    at.text_input(key="frame_token").set_value("guess")
    at.button[0].click().run()
    assert "not the write token" in at.error[0].value
    at.text_input(key="frame_token").set_value(f" {TOKEN} ")
    at.text_input(key="frame_actor").set_value("ada")
    at.button[0].click().run()
    assert not at.error
    assert at.session_state["malleus_actor"] == "ada"
    at.button(key="frame_lock").click().run()
    assert "malleus_token" not in at.session_state


def test_a_broken_store_is_said_and_not_a_traceback(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLEUS_HOME", str(tmp_path / "elsewhere"))
    reads.settings.clear()
    reads.store.clear()
    at = AppTest.from_file(str(MAIN), default_timeout=60).run()
    assert not at.exception
    assert "no database at" in at.error[0].value
    monkeypatch.setenv("MALLEUS_HOME", str(tmp_path))
    reads.settings.clear()
    at.run()
    assert not at.error
