"""The What-if page on seeded stores, with a stand-in for controller and worker in this process (AppTest)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from db import commands, heartbeats, what_ifs
from db.store import Store
from planner.worker import solve_what_if
from tests.app import seeded_store
from tests.app.seeded_run import SeededRun, clock_at
from tests.app.seeded_store import alive, tell_until_now
from tests.app.seeded_world import again, close_world, drawings, open_world, page, texts
from tests.app.story_rows import plain


def show_what_if() -> None:
    from app.dashboard.views import what_if

    what_if.show()


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


@pytest.fixture
def story(store: Store, unlocked: None) -> SeededRun:
    """A run with device 3 slow, everything alive."""
    told = tell_until_now(store, seeded_store.straggling_run)
    alive(store)
    return told


def press(at: AppTest, key: str) -> AppTest:
    at.button(key=key).click()
    return again(at)


def solved(store: Store) -> int:
    """The worker answers the oldest one; its id."""
    asked = what_ifs.waiting(store)[0]
    solve_what_if(store, asked.id, worker="stand-in")
    return asked.id


def asked_and_answered(store: Store, at: AppTest) -> tuple[AppTest, int]:
    at = press(at, "what_if_ask")
    id = solved(store)
    return again(at), id


def test_an_empty_store_starts_with_the_demo(store: Store) -> None:
    at = page(show_what_if)
    assert not at.exception
    assert "Demo model on 8 devices" in texts(at)
    assert at.button(key="what_if_ask").disabled
    assert "never been heard" in texts(at)
    assert "No question has been asked yet" in texts(at)


def test_read_only_without_the_token(store: Store) -> None:
    tell_until_now(store, seeded_store.straggling_run)
    alive(store)
    at = page(show_what_if)
    assert at.button(key="what_if_ask").disabled
    assert "Read-only" in texts(at)


@pytest.mark.parametrize(
    "tell",
    [
        seeded_store.healthy_run,
        seeded_store.drifting_run,
        seeded_store.manual_run,
        seeded_store.finished_run,
        seeded_store.lonely_run,
        seeded_store.sixteen_run,
        seeded_store.large_run,
    ],
)
def test_every_calibrated_story_can_be_asked_about(
    store: Store, tell: Callable[..., SeededRun], unlocked: None
) -> None:
    story = tell_until_now(store, tell)
    alive(store)
    at = page(show_what_if, run=str(story.id))
    assert not at.exception
    assert not at.error
    assert f"run {story.id} {story.config.name}" in texts(at)
    assert not at.button(key="what_if_ask").disabled
    assert drawings(at)["what_if_grid"]["html"].count("data-pick") == story.config.num_devices


@pytest.mark.parametrize("tell", [seeded_store.odd_run, seeded_store.waiting_run])
def test_a_run_without_a_profile_says_so(store: Store, tell: Callable[..., SeededRun], unlocked: None) -> None:
    story = tell_until_now(store, tell)
    alive(store)
    at = page(show_what_if, run=str(story.id))
    assert not at.exception
    assert f"Run {story.id} is not calibrated yet" in texts(at)
    assert "Demo model on 8 devices" in texts(at), "what can be asked instead"


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"whatif": "99"}, "Unknown what-if 99"),
        ({"whatif": "x"}, "Whatif must be a number, given &#x27;x&#x27;"),
        ({"from": "140b"}, "From must be a run such as run-7 or one of demo, 32b-32"),
        ({"from": "run-99"}, "Unknown run 99"),
        ({"from": "demo", "rates": "3:x,77:2,4:-1,5:nan", "dp": "9-1", "tp": "3", "b": "x"}, "every device healthy"),
    ],
)
def test_a_wrong_address_does_not_break_the_page(
    store: Store, unlocked: None, params: dict[str, str], said: str
) -> None:
    alive(store)
    at = page(show_what_if, **params)
    assert not at.exception
    if said == "every device healthy":
        at, _ = asked_and_answered(store, at)
    assert said in texts(at)


def test_from_a_run_to_an_answer(store: Store, story: SeededRun) -> None:
    at = page(show_what_if, run=str(story.id))
    assert "3:2.5" in str(at.query_params["rates"])
    at = press(at, "what_if_ask")
    asked = what_ifs.recent(store)[0]
    assert (asked.status, asked.run, asked.source) == ("queued", story.id, "dashboard")
    assert asked.request.current == story.plan.to_json()
    assert asked.request.moves[0] == (1_930_000.0, 0.42)
    assert "waits for a worker" in texts(at)
    assert at.button(key="what_if_cancel")
    solve_what_if(store, asked.id, worker="stand-in")
    at = again(at)
    assert not at.exception
    said = plain(texts(at))
    assert f"What-if #{asked.id}" in said
    assert "Capacity bound" in said
    assert "Memory per device" in said
    assert dict(at.query_params) == {"whatif": str(asked.id)}


def test_the_answer_compares_maps_memory_moves_and_timelines(store: Store, story: SeededRun) -> None:
    at = page(show_what_if, **{"from": f"run-{story.id}", "rates": "6:5.42"})
    at, id = asked_and_answered(store, at)
    assert not at.exception
    found = drawings(at)
    assert "layers that leave" in found["what_if_old"]["html"]
    assert "layers that arrive" in found["what_if_new"]["html"]
    assert found["what_if_new_memory"]["html"].count("memory-row") == 8
    move = plain(found["what_if_move"]["html"])
    for word in ("Bytes that move", "Expected pause", "Pays back after", "The planner would"):
        assert word in move
    assert "1 earlier switch measured" in move, "the pause is scaled by the run's own switch"
    comparison = plain(found["what_if_comparison"]["html"])
    assert "Step time" in comparison
    assert "Gap to the bound" in comparison
    for number in (0, 1):
        lanes = found[f"what_if_timeline_{number}"]["figure"]["layout"]["yaxis"]["categoryarray"]
        assert any("device" in lane for lane in lanes)
    assert "6 <b>5.42" in found["what_if_title"]["html"]
    assert f"#{id}" in found["what_if_history"]["html"]


def test_the_address_restores_question_and_answer(store: Store, story: SeededRun) -> None:
    at = page(show_what_if, **{"from": f"run-{story.id}", "rates": "6:5.42,1:inf"})
    at, id = asked_and_answered(store, at)
    later = page(show_what_if, whatif=str(id))
    assert not later.exception
    assert "6 <b>5.42" in drawings(later)["what_if_title"]["html"]
    assert "device 1, node 0: failed" in texts(later)
    assert drawings(later)["what_if_new"]["html"] == drawings(at)["what_if_new"]["html"]
    second = page(show_what_if, whatif=str(id), plan="2")
    assert "Plan in place 2" in texts(second)


def test_a_draft_survives_in_the_address(store: Store, story: SeededRun) -> None:
    at = page(show_what_if, **{"from": "70b-64", "rates": "3:2.57,9:inf", "dp": "1-4", "tp": "4"})
    assert not at.exception
    assert at.number_input(key="what_if_low_0").value == 1
    assert at.number_input(key="what_if_high_0").value == 4
    for name, value in {"from": "70b-64", "rates": "3:2.57,9:inf", "dp": "1-4", "tp": "4"}.items():
        assert value in str(at.query_params[name])
    asked = what_ifs.get(store, press_and_id(store, at))
    assert asked.run is None
    assert asked.request.rates == {3: 2.57, 9: math.inf}
    assert asked.request.train["dp_range"] == [1, 4]
    assert asked.request.train["max_tp"] == 4


def press_and_id(store: Store, at: AppTest) -> int:
    press(at, "what_if_ask")
    return what_ifs.recent(store)[0].id


@pytest.mark.parametrize(("state", "may_ask"), [("solving", True), ("idle", False)])
def test_a_worker_that_searches_is_not_silent(store: Store, unlocked: None, state: str, may_ask: bool) -> None:
    alive(store)
    with clock_at(datetime.now(UTC) - timedelta(seconds=20)):
        heartbeats.beat(store, "worker", {"state": state})
    at = page(show_what_if, **{"from": "demo"})
    assert at.button(key="what_if_ask").disabled != may_ask
    assert ("The worker has been silent for 20" in texts(at)) != may_ask


def test_asking_twice_is_one_question(store: Store, story: SeededRun) -> None:
    at = page(show_what_if, run=str(story.id))
    at = press(at, "what_if_ask")
    press(at, "what_if_ask")
    assert what_ifs.count(store) == 1


def test_contradicting_settings_are_refused_before_they_are_asked(store: Store, story: SeededRun) -> None:
    at = page(show_what_if, **{"from": "demo"})
    at.number_input(key="what_if_low_0").set_value(3)
    at.number_input(key="what_if_high_0").set_value(2)
    at = again(at)
    assert at.button(key="what_if_ask").disabled
    assert "Dp_range must be 1" in texts(at)


def test_a_rate_for_the_selected_devices(store: Store, story: SeededRun) -> None:
    at = page(show_what_if, **{"from": "demo"})
    draft = at.session_state["what_if_draft"]
    draft.selected = [2, 5]
    at = again(at)
    at.number_input(key="what_if_rate_0").set_value(4.5)
    at = again(at)
    assert at.session_state["what_if_draft"].rates == {2: 4.5, 5: 4.5}
    at.button(key="what_if_healthy").click()
    at = again(at)
    assert at.session_state["what_if_draft"].rates == {}


def test_cancel(store: Store, story: SeededRun) -> None:
    at = press(page(show_what_if, run=str(story.id)), "what_if_ask")
    at = press(at, "what_if_cancel")
    assert what_ifs.recent(store)[0].status == "cancelled"
    assert "cancelled by dashboard" in texts(at)
    assert not at.button(key="what_if_ask").disabled


def test_a_failed_one_says_why(store: Store, story: SeededRun) -> None:
    at = press(page(show_what_if, run=str(story.id)), "what_if_ask")
    what_ifs.fail(store, what_ifs.recent(store)[0].id, "no worker took it within 60 s")
    assert "no worker took it within 60 s" in texts(again(at))


def test_no_plan_says_what_binds(store: Store, story: SeededRun) -> None:
    rates = ",".join(f"{device}:inf" for device in range(8))
    at, _ = asked_and_answered(store, page(show_what_if, **{"from": f"run-{story.id}", "rates": rates}))
    assert not at.exception
    assert "There is no plan: devices: at least 1 must be alive, given 0" in texts(at)


def test_a_proposal_becomes_a_command_of_the_run(store: Store, story: SeededRun) -> None:
    at, id = asked_and_answered(store, page(show_what_if, **{"from": f"run-{story.id}", "rates": "6:inf"}))
    at.text_input(key=f"what_if_reason_{id}").set_value("to be serviced")
    at = press(at, "what_if_propose")
    command = commands.recent(store, story.id)[0]
    assert (command.kind, command.status, command.arguments["what_if"]) == ("propose", "pending", id)
    document = command.arguments["document"]
    assert document["failed"] == [], "device 6 is alive: it stands by instead"
    assert 6 in document["standby"]
    assert command.arguments["reason"] == "to be serviced", "typed and pressed without a refresh between"
    assert f"propose a plan (what-if {id})" in plain(texts(at))
    commands.finish(store, command.id, ok=True, result="plan 3 is ready and waits for approval")
    assert "plan 3 is ready and waits for approval" in texts(again(at))


def test_what_cannot_be_proposed(store: Store, unlocked: None) -> None:
    ended = tell_until_now(store, seeded_store.finished_run)
    alive(store)
    at, _ = asked_and_answered(store, page(show_what_if, **{"from": f"run-{ended.id}", "rates": "6:5.42"}))
    assert "what_if_propose_ask" not in str([button.key for button in at.button])
    popovers = [entry.proto for entry in at.get("popover")]
    assert all(entry.popover.disabled for entry in popovers if "Propose" in entry.popover.label)
    preset, _ = asked_and_answered(store, page(show_what_if, **{"from": "demo", "rates": "6:5.42"}))
    assert not [button for button in preset.button if button.key == "what_if_propose"]


def test_the_list_pages_and_filters(store: Store, story: SeededRun) -> None:
    for number in range(10):
        request = _question(store, story, number)
        what_ifs.submit(
            store, request, run=story.id if number < 3 else None, actor="ada", source="cli", key=str(number)
        )
    at = page(show_what_if, run=str(story.id))
    assert "#10" in texts(at)
    assert ">#2<" not in texts(at)
    at.number_input(key="what_if_page").set_value(2)
    assert ">#2<" in texts(again(at))


def _question(store: Store, story: SeededRun, number: int) -> dict[str, object]:
    from app.dashboard.what_if_origin import as_request, preset_origin

    origin = preset_origin("demo")
    return as_request(origin, origin.train, {number % 8: 2.0}).model_dump()
