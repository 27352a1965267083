"""Every page in every state a run can be in, odd ones first: it renders, and says what it knows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from streamlit.testing.v1 import AppTest

from app.dashboard import reads, snapshot, writes
from app.dashboard.reads.source import FRESH_S
from app.dashboard.views import live
from db import commands, plans
from db.models import PlanRow
from db.store import Store
from tests.app import seeded_store
from tests.app.seeded_run import SeededRun, config_of
from tests.app.seeded_store import alive, tell_until_now
from tests.app.seeded_world import again, close_world, drawings, open_world, texts
from tests.app.story_rows import plain

VIEWS = sorted(
    path.stem
    for path in (Path(live.__file__).parent).glob("*.py")
    if "\ndef show() " in path.read_text(encoding="utf-8")
)
ABOUT_ONE_RUN = ("live", "inject", "plans")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A state, how it comes about, and what the pages must say of it, by page."""

    name: str
    tell: Callable[..., SeededRun] | None
    says: dict[str, str]
    ago_s: float = 0.5
    is_controller_alive: bool = True
    is_document: bool = True


def nan_loss(store: Store, *, begin_at: datetime) -> SeededRun:
    return SeededRun(store, config_of("nan"), begin_at=begin_at).start().steps(8).steps(3, loss=math.nan)


def all_failed(store: Store, *, begin_at: datetime) -> SeededRun:
    story = SeededRun(store, config_of("inf"), begin_at=begin_at).start().steps(8)
    story.rates = dict.fromkeys(range(8), math.inf)
    return story.steps(4, step_s=math.inf)


def vanished(store: Store, *, begin_at: datetime) -> SeededRun:
    return SeededRun(store, config_of("vanished"), begin_at=begin_at).start().steps(8).steps(6, unknown=(6,))


CASES = (
    Case(name="no runs", tell=None, says=dict.fromkeys(("runs", *ABOUT_ONE_RUN), "malleus demo")),
    Case(name="NaN loss", tell=nan_loss, says={"live": "The loss is NaN.", "runs": "nan"}),
    Case(name="infinite rates", tell=all_failed, says={"live": 'class="cross"', "runs": 'class="failed"'}),
    Case(name="one device", tell=seeded_store.lonely_run, says={"live": "The device runs at healthy speed."}),
    Case(name="16 devices", tell=seeded_store.sixteen_run, says={"live": "16 emulated on 4 nodes"}),
    Case(
        name="256 devices",
        tell=seeded_store.large_run,
        says={"live": "256 emulated on 32 nodes", "inject": "node 31", "plans": "16 pipelines", "runs": "node 31"},
    ),
    Case(name="a device that vanished", tell=vanished, says={"live": "silent, nothing measured, last heard"}),
    Case(
        name="no plan document",
        tell=seeded_store.healthy_run,
        is_document=False,
        says={"live": "The plan has no document yet.", "plans": "This version has no plan document."},
    ),
    Case(name="not started", tell=seeded_store.waiting_run, says=dict.fromkeys(ABOUT_ONE_RUN, "no data yet")),
    Case(name="ended", tell=seeded_store.finished_run, says=dict.fromkeys(("runs", *ABOUT_ONE_RUN), "ended")),
    Case(
        name="engine dead",
        tell=seeded_store.straggling_run,
        ago_s=60,
        says=dict.fromkeys(ABOUT_ONE_RUN, "The engine has been silent since") | {"runs": "was training"},
    ),
    Case(
        name="controller dead",
        tell=seeded_store.straggling_run,
        is_controller_alive=False,
        says=dict.fromkeys(ABOUT_ONE_RUN, "The controller has been silent for 2"),
    ),
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    opened = open_world(tmp_path, monkeypatch)
    monkeypatch.setattr(writes, "is_unlocked", lambda: True)
    yield opened
    close_world(opened)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_page_renders_every_state(store: Store, case: Case, view: str) -> None:
    run = _told(store, case)
    at = _page(view, run)
    assert not at.exception
    said = plain(texts(at))
    assert "Traceback" not in said
    assert case.says.get(view, "") in said
    json.dumps(drawings(at), allow_nan=False)  # what the browser's JSON knows


@pytest.mark.parametrize("name", ["engine dead", "controller dead"])
def test_what_cannot_work_is_disabled(store: Store, name: str) -> None:
    case = next(entry for entry in CASES if entry.name == name)
    run = _told(store, case)
    buttons = {button.key: button for view in ABOUT_ONE_RUN for button in _page(view, run).button}
    for key in ("live_pause", "live_checkpoint", "inject_submit", "inject_clear_all"):
        assert buttons[key].disabled, key
        assert "silent" in buttons[key].help
    is_engine = name == "engine dead"  # then the controller still notes a stop and the mode
    assert [buttons[key].disabled for key in ("live_stop_confirm", "plans_replan")] == [not is_engine] * 2


@pytest.mark.parametrize("name", ["engine dead", "controller dead"])
def test_a_plan_can_be_rejected_as_long_as_the_controller_is_heard(store: Store, name: str) -> None:
    case = next(entry for entry in CASES if entry.name == name)
    at = _page("plans", _told(store, replace(case, tell=seeded_store.manual_run)))
    (reason,) = [entry for entry in at.text_input if entry.key.startswith("plans_reason")]
    approve, reject = (at.button(key=f"plans_{kind}") for kind in ("approve", "reject"))
    is_engine = name == "engine dead"
    assert approve.disabled
    assert [reject.disabled, reason.disabled] == [not is_engine] * 2


def test_a_silent_engine_stands_in_the_way_of_what_it_would_have_to_do(store: Store) -> None:
    run = _told(store, next(entry for entry in CASES if entry.name == "engine dead"))
    assert run is not None
    silent = reads.snapshot(run)
    possible = {kind for kind in commands.KINDS if not writes.refusal(silent, kind)}
    assert possible == {"set_mode", "replan", "reject", "propose", "stop"}


def test_a_silent_controller_is_known_before_the_engine_is_blamed() -> None:
    """The engine is heard through the controller; all is said within ten seconds, a refresh included."""
    assert snapshot.CONTROLLER_SILENT_S < snapshot.STALE_AFTER_S
    assert snapshot.STALE_AFTER_S + FRESH_S + 2 * live.REFRESH_S < 10


def _told(store: Store, case: Case) -> int | None:
    story = None if case.tell is None else tell_until_now(store, case.tell, ago_s=case.ago_s)
    if story is not None and not case.is_document:
        with store.session() as session:
            session.execute(update(PlanRow).where(PlanRow.run == story.id).values(document=None))
        assert plans.get(store, story.id, 1).document is None
    alive(store, at=datetime.now(UTC) - timedelta(seconds=0 if case.is_controller_alive else 20))
    return None if story is None else story.id


def _page(view: str, run: int | None) -> AppTest:
    at = AppTest.from_string(f"from app.dashboard.views import {view}\n\n{view}.show()\n", default_timeout=60)
    params: dict[str, Any] = {} if run is None else {"run": str(run), "device": "0", "devices": "0"}
    for name, value in params.items():
        at.query_params[name] = value
    return again(at)
