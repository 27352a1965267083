"""How facts are judged: the limits, who is silent, and what is never called ok."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.dashboard import health_table, snapshot
from app.health import Overall, examine, overall, read_inputs
from app.health_facts import Item
from db import heartbeats, recorder
from db.messages import Step
from db.store import SCHEMA_REVISION, Store
from tests.app import seeded_store
from tests.app.healthy_beats import NOW_DETAIL, beat_healthily
from tests.app.seeded_run import clock_at
from tests.app.seeded_store import tell_until_now


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("MALLEUS_HOME", str(tmp_path))
    monkeypatch.delenv("MALLEUS_DATABASE_URL", raising=False)
    with Store.open(seeded_store.database_url(tmp_path), migrate=True) as opened:
        yield opened


def items(store: Store) -> dict[str, Item]:
    return {f"{item.group}/{item.name}": item for item in examine(read_inputs(store))}


def states(store: Store) -> dict[str, str]:
    return {name: item.state for name, item in items(store).items() if item.state != "ok"}


def ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


def test_a_healthy_system_says_so_with_units(store: Store) -> None:
    story = tell_until_now(store, seeded_store.straggling_run)
    beat_healthily(store, run=story.id)
    assert states(store) == {}
    found = items(store)
    assert found["broker/broker"].value == "answers in 310\u202fµs"
    assert found["broker/broker memory"].value == "1.25\u202fMB used of 256\u202fMB"
    assert found["broker/telemetry streams"].value.startswith("812 messages in the longest of 1")
    assert found["services/worker canary"].value.startswith("answered in 42.0\u202fms, ")
    assert found["services/controller lag"].value == "180\u202fms behind the newest step"
    assert found["store/write latency"].value.startswith("6.00\u202fms a batch")
    assert found["store/store"].value.startswith("SQLite, ")
    assert "samples " in found["store/rows"].value
    assert "torch of the engines 2" in found["versions/versions"].value
    assert f"schema {SCHEMA_REVISION}" in found["versions/versions"].value
    assert all(item.advice == "" for item in found.values())
    assert found["services/controller"].since is not None


def test_nothing_was_ever_started(store: Store) -> None:
    found = items(store)
    assert found["services/controller"].state == "bad"
    assert "malleus up" in found["services/controller"].advice
    assert {found[name].state for name in ("broker/broker", "services/worker canary")} == {"unknown"}


def test_a_silent_controller_makes_its_measurements_unknown_not_ok(store: Store) -> None:
    with clock_at(ago(40)):
        beat_healthily(store, run=1)
    found = items(store)
    assert (found["services/controller"].state, found["services/controller"].since is not None) == ("bad", True)
    for name in ("broker/broker", "broker/broker memory", "services/worker canary", "services/controller lag"):
        assert found[name].state == "unknown"
        assert found[name].value == "\u2013"
        assert "silent" in found[name].advice
    heartbeats.beat(store, "controller", {"state": "stopped"})
    assert items(store)["services/controller"].value == "stopped"


@pytest.mark.parametrize(("age_s", "state"), [(3.9, "ok"), (4.1, "warn"), (15.1, "bad")])
def test_the_controller_is_silent_here_when_it_is_on_every_page(store: Store, age_s: float, state: str) -> None:
    tell_until_now(store, seeded_store.healthy_run)
    beat_healthily(store, run=1)
    inputs = read_inputs(store)
    later = replace(inputs, now=inputs.beats["controller"].at + timedelta(seconds=age_s))
    found = {item.name: item for item in examine(later) if item.group == "services"}
    assert found["controller"].state == state
    assert (age_s > snapshot.CONTROLLER_SILENT_S) == (state != "ok")


@pytest.mark.parametrize(("age_s", "state"), [(4.9, "ok"), (5.1, "warn"), (15.1, "bad")])
def test_an_engine_is_silent_here_when_its_page_is_stale(store: Store, age_s: float, state: str) -> None:
    story = tell_until_now(store, seeded_store.healthy_run)
    beat_healthily(store, run=story.id)
    inputs = read_inputs(store)
    run = replace(inputs.runs[0], step_s=1.0)
    assert run.last_seen_at is not None
    found = examine(replace(inputs, runs=[run], now=run.last_seen_at + timedelta(seconds=age_s)))
    assert next(item for item in found if item.name == "engine").state == state
    assert (age_s > snapshot.STALE_AFTER_S) == (state != "ok")


@pytest.mark.parametrize(("waits_s", "state"), [(5, "ok"), (30, "warn"), (61, "bad")])
def test_a_worker_that_is_alive_but_deaf_turns_red_within_a_minute(store: Store, waits_s: float, state: str) -> None:
    canary = {"answer_s": 0.04, "answered_at": ago(waits_s).isoformat()}
    beat_healthily(store, run=1, canary=canary)
    heartbeats.beat(store, "worker", {"state": "idle"})
    found = items(store)["services/worker canary"]
    assert found.state == state
    if state != "ok":
        assert found.since == datetime.fromisoformat(canary["answered_at"])
        assert "does not hear the broker" in found.advice


def test_a_worker_that_never_answered_is_judged_since_the_controller_began(store: Store) -> None:
    canary = {"answer_s": None, "answered_at": None}
    beat_healthily(store, run=1, canary=canary, started_at=ago(10).isoformat())
    assert states(store) == {}
    beat_healthily(store, run=1, canary=canary, started_at=ago(70).isoformat())
    assert states(store) == {"services/worker canary": "bad"}


def test_a_worker_at_work_is_busy_and_not_deaf(store: Store) -> None:
    beat_healthily(store, run=1, canary={"answer_s": 0.04, "answered_at": ago(45).isoformat()})
    with clock_at(ago(40)):
        heartbeats.beat(store, "worker", {"state": "solving", "run": 7, "plan": 3})
    found = items(store)["services/worker canary"]
    assert found.state == "ok"
    assert "solves plan v3 of run 7" in found.value


def test_a_broker_that_is_away(store: Store) -> None:
    beat_healthily(store, run=1, broker="away", broker_facts=None)
    found = items(store)
    assert found["broker/broker"].state == "bad"
    assert "cannot be reached" in found["broker/broker"].value
    assert found["services/worker canary"].state == "unknown", "nobody could ask it"


@pytest.mark.parametrize(
    ("name", "detail", "item", "state"),
    [
        ("slow", {"lag_s": 12.0}, "services/controller lag", "warn"),
        ("late", {"lag_s": 40.0}, "services/controller lag", "bad"),
        ("nan", {"lag_s": float("nan")}, "services/controller lag", "unknown"),
        ("busy", {"loop_s": 2.0}, "services/controller loop", "warn"),
        ("errors", {"num_errors": 3}, "services/controller errors", "warn"),
        ("locked", {"write_s": 9.0}, "store/write latency", "bad"),
        (
            "full",
            {"broker_facts": NOW_DETAIL["broker_facts"] | {"used_memory_bytes": 250_000_000}},
            "broker/broker memory",
            "bad",
        ),
        ("far", {"broker_facts": NOW_DETAIL["broker_facts"] | {"round_trip_s": 0.2}}, "broker/broker", "warn"),
        ("ahead", {"skews_s": {"1": -7.0}}, "run 1/clock skew", "warn"),
        ("behind", {"skews_s": {"1": 90.0}}, "run 1/clock skew", "bad"),
        ("dropped", {"num_missing": {"1": 4}}, "run 1/samples missing", "warn"),
        ("other version", {"versions": {"package": "0.0.1"}}, "versions/versions", "warn"),
    ],
)
def test_each_limit(store: Store, name: str, detail: dict[str, Any], item: str, state: str) -> None:
    tell_until_now(store, seeded_store.healthy_run)
    beat_healthily(store, run=1, **detail)
    assert states(store) == {item: state}
    if state != "unknown":
        assert items(store)[item].advice


def test_a_run_that_is_lost_refused_or_started_again(store: Store) -> None:
    story = tell_until_now(store, seeded_store.healthy_run, ago_s=60)
    beat_healthily(store, run=story.id)
    assert states(store) == {"run 1/engine": "bad"}
    stale = Step(
        run=1, attempt="another", seq=1, at=ago(0), step=1, plan_version=1, phase="train", step_s=1, loss=1,
        num_tokens=1, samples=(0, 1), rates=(1.0,) * 8, compute_s=(1.0,) * 8,
    )  # fmt: skip
    recorder.record(store, 1, [("9-0", stale)])
    assert states(store) == {"run 1/engine": "bad", "run 1/samples refused": "warn"}
    assert items(store)["run 1/samples refused"].value.startswith("1 of an older attempt")


def test_odd_and_large_runs_are_judged_too(store: Store) -> None:
    for tell in (seeded_store.odd_run, seeded_store.large_run, seeded_store.waiting_run, seeded_store.lonely_run):
        tell_until_now(store, tell)
    beat_healthily(store, run=1)
    found = items(store)
    assert found["run 3/engine"].state == "unknown"
    assert found["run 3/engine"].value == "pending, never heard"
    assert found["run 2/engine"].state == "ok"


def test_one_word_for_all() -> None:
    def item(state: Any) -> Item:
        return Item(group="g", name="n", state=state, value="v")

    assert overall([]) == overall([item("ok"), item("unknown")]) == Overall(state="ok", word="healthy")
    assert overall([item("warn"), item("ok")]) == Overall(state="warn", word="1 warning")
    assert overall([item("bad"), item("warn"), item("bad")]) == Overall(state="bad", word="2 problems")


def test_the_tables_tell_states_by_word_and_escape_what_they_show() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    bad = Item(
        group="run 7", name="engine", state="bad", value="<script>", since=now - timedelta(seconds=252),
        advice="look & see", run=7, figures={"x_s": float("nan")},
    )  # fmt: skip
    html = health_table.health_tables([bad], now=now)
    assert '<span class="health bad"><i aria-hidden="true"></i>problem</span>' in html
    assert "<script>" not in html
    assert "look &amp; see" in html
    assert "11:55:48 UTC" in html
    assert "4\u202fm 12\u202fs" in html
    assert 'href="live?run=7"' in html
    assert "Nothing needs a look" in health_table.health_tables([], now=now)
    assert health_table.records([bad])[0]["figures"] == bad.figures


def test_the_command_says_the_same_and_its_status_tells(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    tell_until_now(store, seeded_store.healthy_run)
    beat_healthily(store, run=1)
    assert main(["health"]) == 0
    assert capsys.readouterr().out.startswith("healthy\n")
    assert main(["health", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["word"]) == ("ok", "healthy")
    broker = next(item for item in told["items"] if item["name"] == "broker memory")
    assert broker["figures"]["used_memory_bytes"] == 1_250_000
    beat_healthily(store, run=1, broker="away", broker_facts=None)
    assert main(["health", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["state"] == "bad"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--source", "dashboard", "--result", "pending"], 1),
        (["--action", "plan.switch"], 1),
        (["--text", "COMMAND 1"], 3),
        (["--actor", "nobody"], 0),
        (["--since", "2020-01-01T00:00", "--until", "2020-01-02T00:00"], 0),
        (["--since", "1d", "--action", "run.hello"], 1),
    ],
)
def test_the_audit_command_filters(
    store: Store, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: int
) -> None:
    tell_until_now(store, seeded_store.straggling_run)
    assert main(["audit", "--json", *arguments]) == 0
    assert len(json.loads(capsys.readouterr().out)) == expected


@pytest.mark.parametrize("wrong", [["--since", "soon"], ["--sort", "mood"], ["--until", "99999999999999999d"]])
def test_the_audit_command_says_what_it_expected(
    capsys: pytest.CaptureFixture[str], store: Store, wrong: list[str]
) -> None:
    assert main(["audit", *wrong]) == 2
    assert "must be" in capsys.readouterr().err
