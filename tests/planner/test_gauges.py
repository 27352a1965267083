"""What the controller measures for the health page, and that its beat carries it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from db import heartbeats
from db.bus import BrokerFacts
from planner.control.gauges import Gauges
from tests.planner.control_rig import Rig

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_the_least_delay_of_a_minute_is_the_clocks_difference() -> None:
    gauges = Gauges()
    for second, delay_s in ((0, -3.0), (30, 0.4), (50, 0.1), (65, 2.0)):
        gauges.arrived(7, at(second - delay_s), at(second))
    assert gauges.detail(at(50))["skews_s"] == {"7": 0.1}, "the first one is older than a minute"
    assert gauges.detail(at(200))["skews_s"] == {}
    gauges.arrived(7, at(203), at(201))
    assert gauges.detail(at(202))["skews_s"] == {"7": -2.0}, "before it was sent: only a clock can do that"
    gauges.forget(7)
    assert gauges.detail(at(202))["skews_s"] == {}


def test_the_longest_round_and_write_of_a_second_is_kept_until_there_is_another() -> None:
    gauges = Gauges()
    assert gauges.detail(NOW)["loop_s"] is None
    for seconds in (0.1, 0.3, 0.2):
        gauges.worked(seconds)
        gauges.wrote(seconds / 10)
    detail = gauges.detail(NOW)
    assert (detail["loop_s"], detail["write_s"]) == (0.3, 0.03)
    gauges.worked(0.2)
    detail = gauges.detail(NOW)
    assert (detail["loop_s"], detail["write_s"]) == (0.2, 0.03)


def test_since_moves_only_when_the_level_does() -> None:
    gauges = Gauges()
    gauges.lagged(0.1, at(0))
    gauges.detail(at(0))
    gauges.lagged(0.2, at(5))
    assert gauges.detail(at(5))["since"]["lag_s"] == at(0).isoformat()
    gauges.lagged(12.0, at(9))
    assert gauges.detail(at(9))["since"]["lag_s"] == at(9).isoformat()
    gauges.lagged(13.0, at(20))
    assert gauges.detail(at(20))["since"]["lag_s"] == at(9).isoformat()
    assert gauges.detail(at(90))["lag_s"] is None, "old news is no news"


def test_a_canary_is_timed_and_older_ones_say_nothing() -> None:
    gauges = Gauges()
    assert not gauges.is_asking
    gauges.asked("a", 10.0)
    gauges.asked("b", 15.0)
    gauges.heard("b", 15.5, at(15.5))
    assert gauges.detail(at(16))["canary"] == {"answer_s": 0.5, "answered_at": at(15.5).isoformat()}
    assert not gauges.is_asking, "the one before was overtaken"
    gauges.heard("a", 99.0, at(99))
    gauges.heard("stranger", 99.0, at(99))
    assert gauges.detail(at(16))["canary"]["answer_s"] == 0.5
    gauges.asked("c", 20.0)
    gauges.broker(None)
    assert not gauges.is_asking, "it went with the broker"
    for number in range(1000):
        gauges.asked(str(number), 1.0)
    assert len(gauges._asked) <= 20


def test_a_broker_without_a_limit_is_never_full() -> None:
    facts = BrokerFacts(version="8", round_trip_s=0.1, used_memory_bytes=5, max_memory_bytes=0)
    assert facts.memory_share == 0.0


def test_the_beat_tells_of_broker_worker_and_telemetry(rig: Rig) -> None:
    rig.start()
    for _ in range(4):
        rig.engine.take_step()
        rig.turn(1.0)
    rig.turn(1.0)
    detail = heartbeats.all_beats(rig.store)["controller"].detail
    assert detail["broker_facts"]["stream_lengths"] == {str(rig.run.id): len(rig.bus.streams[rig.run.id])}
    assert detail["broker_facts"]["used_memory_bytes"] == 900
    assert detail["canary"]["answer_s"] is not None
    assert detail["write_s"] > 0
    assert detail["loop_s"] is not None
    assert detail["skews_s"] == {str(rig.run.id): pytest.approx(0.2)}, "the start was heard sooner than the steps"
    assert detail["num_missing"] == {}
    assert detail["versions"]["python"].startswith("3.")
    rig.engine.seq += 3  # the engine dropped three
    rig.engine.take_step()
    rig.turn(1.0)
    rig.turn(1.0)
    assert heartbeats.all_beats(rig.store)["controller"].detail["num_missing"] == {str(rig.run.id): 3}


def test_a_deaf_worker_is_not_answered_for(rig: Rig) -> None:
    rig.start()
    rig.turn(6.0)
    answered_at = heartbeats.all_beats(rig.store)["controller"].detail["canary"]["answered_at"]
    rig.queue.is_working = False
    for _ in range(20):
        rig.turn(5.0)
    detail = heartbeats.all_beats(rig.store)["controller"].detail
    waited_s = (rig.clock.now() - datetime.fromisoformat(detail["canary"]["answered_at"])).total_seconds()
    assert detail["canary"]["answered_at"] >= answered_at
    assert waited_s > 60
    assert datetime.fromisoformat(detail["since"]["canary_s"]) < rig.clock.now()


def test_an_absent_broker_is_not_described(rig: Rig) -> None:
    rig.start()
    rig.bus.is_away = True
    rig.turn(2.0)
    rig.turn(2.0)
    detail = heartbeats.all_beats(rig.store)["controller"].detail
    assert (detail["broker"], detail["broker_facts"]) == ("away", None)
