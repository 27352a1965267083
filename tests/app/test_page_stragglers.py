"""The Stragglers page on seeded stores: the address is the view, every story can be shown (AppTest)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.dashboard import reads
from db import rollup
from db.store import Store
from tests.app import seeded_store
from tests.app.seeded_run import SeededRun
from tests.app.seeded_store import alive, tell_until_now
from tests.app.seeded_world import again, close_world, drawings, open_world, page, texts
from tests.app.story_rows import plain

LONG_AGO = datetime(2026, 3, 2, 14, 0, tzinfo=UTC)


def show() -> None:
    from app.dashboard.views import stragglers

    stragglers.show()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    opened = open_world(tmp_path, monkeypatch)
    yield opened
    close_world(opened)


def figure(at: AppTest) -> dict[str, Any]:
    return drawings(at)["stragglers_chart"]["figure"]  # type: ignore[no-any-return]


def lines(at: AppTest) -> list[str]:
    return [trace["name"] for trace in figure(at)["data"] if trace.get("name")]


def said(at: AppTest) -> str:
    return plain(texts(at))


def test_empty_store_says_what_to_run(store: Store) -> None:
    at = page(show)
    assert not at.exception
    assert "malleus demo" in texts(at)


@pytest.mark.parametrize(("run", "words"), [("99", "Unknown run 99"), ("x", "Run must be a number")])
def test_a_wrong_run_says_what_was_expected(store: Store, run: str, words: str) -> None:
    assert words in texts(page(show, run=run))


@pytest.mark.parametrize("x", ["step", "time"])
@pytest.mark.parametrize(
    "tell",
    [
        seeded_store.healthy_run,
        seeded_store.straggling_run,
        seeded_store.drifting_run,
        seeded_store.odd_run,
        seeded_store.finished_run,
        seeded_store.lonely_run,
        seeded_store.large_run,
        seeded_store.waiting_run,
    ],
)
def test_every_story_can_be_shown(store: Store, tell: Callable[..., SeededRun], x: str) -> None:
    story = tell_until_now(store, tell)
    alive(store)
    at = page(show, run=str(story.id), x=x, devices="all")
    assert not at.exception
    assert not at.error
    assert story.config.name in texts(at)
    if story.step:
        json.dumps(figure(at), allow_nan=False)
        strip = next(trace for trace in figure(at)["data"] if trace.get("meta") == "pick")
        assert len(strip["z"]) == story.config.num_devices
    else:
        assert "Rates appear with the first step" in texts(at)


def test_the_slow_device_its_episode_and_the_plan_that_absorbs_it(store: Store) -> None:
    story = tell_until_now(store, seeded_store.straggling_run)
    alive(store)
    at = page(show, run=str(story.id))
    assert lines(at) == ["device 3"], "nobody chose, so the slow one is shown"
    band = next(trace for trace in figure(at)["data"] if trace.get("meta") == "go")
    assert band["text"] == [["v1", "v2"]]
    assert json.loads(band["customdata"][0][1]) == ["plans", {"run": str(story.id), "version": "2"}]
    assert band["x"][1] == 95 - 0.5, "the very step of the switch"
    shades = [shape for shape in figure(at)["layout"]["shapes"] if shape["type"] == "rect"]
    assert len(shades) == 1
    words = said(at)
    assert "Steps 0 to 154. Raw samples, every train step." in words
    assert "samples 2.56, 2.58, 2.57" in words
    assert "1 open of 1" in words
    assert f'href="plans?run={story.id}&amp;version=2"' in words
    assert 'download="run-1-episode-1-evidence.json"' in words


def test_the_address_is_the_view(store: Store) -> None:
    story = tell_until_now(store, seeded_store.straggling_run)
    at = page(show, run=str(story.id), devices="0,3-5", range="80-120", x="time", data="raw", episode="1")
    assert lines(at) == ["device 0", "device 4", "device 5", "device 3"], "what deviates lies on top"
    assert at.text_input(key="stragglers_devices").value == "0,3-5"
    assert at.text_input(key="stragglers_between").value == "80-120"
    assert drawings(at)["stragglers_grid"]["selected"] == ["0", "3", "4", "5"]
    assert figure(at)["layout"]["xaxis"]["type"] == "date"
    marked = [shape for shape in figure(at)["layout"]["shapes"] if shape.get("opacity") == 0.2]
    assert len(marked) == 1
    again(at)
    assert dict(at.query_params) == {
        "run": str(story.id), "devices": "0,3-5", "range": "80-120", "x": "time", "data": "raw",
        "episode": "1",
    }  # fmt: skip


def test_typing_changes_the_address_and_errors_say_what_was_expected(store: Store) -> None:
    story = tell_until_now(store, seeded_store.straggling_run)
    at = page(show, run=str(story.id))
    at.text_input(key="stragglers_devices").set_value("1, 2, 3").run()
    assert at.query_params["devices"] == "1-3"
    assert set(lines(at)) == {"device 1", "device 2", "device 3"}
    at.text_input(key="stragglers_between").set_value("1,0 - 50").run()
    assert at.query_params["range"] == "10-50"
    assert "Steps 10 to 50." in said(at)
    at.text_input(key="stragglers_devices").set_value("1-9").run()
    assert "expected devices 0 to 7 as in 3, 5, 8-15, given &#x27;1-9&#x27;" in texts(at)
    at.text_input(key="stragglers_between").set_value("50-10").run()
    assert "expected steps as in 1200-1500, given &#x27;50-10&#x27;" in texts(at)
    assert not at.exception


def test_a_refresh_adds_steps_and_keeps_the_view(store: Store) -> None:
    story = tell_until_now(store, seeded_store.straggling_run)
    at = page(show, run=str(story.id), devices="3", range="100")
    revision = figure(at)["layout"]["uirevision"]
    story.steps(5)
    again(at)
    assert "Steps 60 to 159" in said(at)
    assert figure(at)["layout"]["uirevision"] == revision, "the zoom survives"
    assert figure(at)["data"][0]["customdata"][-1][0] == 159


def test_a_peak_of_one_step_survives_thinning(store: Store) -> None:
    story = seeded_store.healthy_run(store, begin_at=LONG_AGO, num_steps=700)
    story.rates[6] = 9.0
    story.steps(1)
    del story.rates[6]
    story.steps(900)
    at = page(show, run=str(story.id), devices="all", range="all")
    line = next(trace for trace in figure(at)["data"] if trace.get("name") == "device 6")
    assert len(line["x"]) < 1_000
    assert max(value for value in line["y"] if value is not None) > 8.5
    strip = next(trace for trace in figure(at)["data"] if trace.get("meta") == "pick")
    assert max(strip["z"][6]) > 8.5
    assert max(strip["z"][5]) < 1.05
    assert "lowest and highest of each 4 train steps" in said(at)


def test_rolled_up_samples_follow_by_themselves(store: Store) -> None:
    story = seeded_store.healthy_run(store, begin_at=LONG_AGO, num_steps=300)
    rollup.roll_up(store, older_than=timedelta(days=1))
    at = page(show, run=str(story.id), devices="0", range="all")
    first_raw = reads.sample_span(story.id).raw
    assert first_raw is not None
    assert f"Per minute (rolled up) before step {first_raw[0]}, then raw samples, every train step" in said(at)
    assert figure(at)["data"][0]["customdata"][0] == [1, pytest.approx(50, abs=30)]
    at = page(show, run=str(story.id), devices="0", range="all", data="minute")
    assert f"Per minute, up to step {first_raw[0] - 1}" in said(at)
    at = page(show, run=str(story.id), devices="0", range="0-50", data="raw")
    assert "No raw samples here: they were rolled up by the minute" in said(at)
    at = page(show, run=str(story.id), devices="0", range="100", data="minute")
    assert "Nothing of this range is rolled up yet" in said(at)
    assert not at.exception


def test_odd_rates_are_holes_and_crosses(store: Store) -> None:
    story = tell_until_now(store, seeded_store.odd_run)
    at = page(show, run=str(story.id), devices="2,5")
    strip = next(trace for trace in figure(at)["data"] if trace.get("meta") == "pick")
    assert strip["z"][2][-1] is None
    assert any("5" in str(trace["customdata"]) for trace in figure(at)["data"] if "failed" in trace["hovertemplate"])


def test_the_list_filters_sorts_and_links(store: Store) -> None:
    story = seeded_store.healthy_run(store, begin_at=LONG_AGO, num_steps=20)
    for device, rate, cause in ((3, 2.57, "device"), (5, 8.0, "data"), (1, math.inf, "device")):
        story.rates[device] = rate
        story.steps(6).detect(device, cause=cause)
        if device != 1:
            story.recover(device)
    at = page(show, run=str(story.id))
    assert "1 open of 3" in texts(at)
    assert "devices=3&amp;range=2-46&amp;episode=1" in texts(at)
    at = page(show, run=str(story.id), state="ended", sort="-peak")
    table = drawings(at)["stragglers_episodes"]["html"]
    assert table.index("<b>5</b>") < table.index("<b>3</b>")
    assert "<b>1</b>" not in table
    at = page(show, run=str(story.id), cause="data")
    assert "<b>3</b>" not in drawings(at)["stragglers_episodes"]["html"]
    at = page(show, run=str(story.id), text="device 5 samples")
    assert "<b>5</b>" in drawings(at)["stragglers_episodes"]["html"]
    at.text_input(key="episodes_text").set_value("nothing like it").run()
    assert "No episode matches the filters" in texts(at)
    assert at.query_params["text"] == "nothing like it"


def test_many_episodes_are_paged(store: Store) -> None:
    story = seeded_store.healthy_run(store, begin_at=LONG_AGO, num_steps=6)
    story.rates[3] = 2.0
    for _ in range(20):
        story.steps(5).detect(3).recover(3)
    at = page(show, run=str(story.id), page="2")
    assert drawings(at)["stragglers_episodes"]["html"].count("<tr") == 1 + 5
    assert "20 listed" in texts(at)
    assert at.number_input(key="episodes_page").value == 2


def test_a_healthy_run_says_how_to_see_an_episode(store: Store) -> None:
    story = seeded_store.healthy_run(store, begin_at=LONG_AGO)
    assert "malleus inject" in texts(page(show, run=str(story.id)))


def test_what_a_refresh_brings_late_does_not_undo_a_link() -> None:
    def follow_a_link() -> None:
        import streamlit as st

        from app.dashboard.views import stragglers

        st.session_state["stragglers_between"] = ""
        stragglers._set("between", "70-")
        found = [stragglers._sent("between")]
        for value in ("", "5-9"):
            st.session_state["stragglers_between"] = value
            found.append(stragglers._sent("between"))
        st.session_state["found"] = found

    at = AppTest.from_function(follow_a_link).run()
    assert not at.exception
    assert at.session_state["found"] == ["70-", None, "5-9"]
