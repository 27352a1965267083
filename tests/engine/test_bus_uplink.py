"""Rank 0's line to a real broker: it never blocks training, survives an absent broker, and says what it has read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from db.broker import EmbeddedBroker
from db.bus import Bus
from db.messages import Desired, Failure, Profile, Telemetry
from engine import bus_uplink
from engine.bus_uplink import BusUplink

RUN = 7


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    broker = EmbeddedBroker(tmp_path)
    yield broker.start()
    broker.stop()


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError("the condition did not come true within 20 s")


def everything(url: str) -> list[Telemetry]:
    bus = Bus(url)
    messages = [message for _, _, message in bus.read({RUN: "0-0"}, block_s=0.1, count=1000)]
    bus.close()
    return messages


def publish(url: str, version: int, **fields: Any) -> None:
    bus = Bus(url)
    bus.publish_desired(Desired(run=RUN, version=version, plan_version=1, plan={}, **fields))
    bus.close()


def test_documents_come_down_and_are_acknowledged(url: str) -> None:
    uplink = BusUplink(lambda: url, RUN)
    assert uplink.desired() is None
    for version in (1, 2):
        publish(url, version)
        document = until(lambda wanted=version: (d := uplink.desired()) and d.version == wanted and d)
        assert document.run == RUN
    uplink.applied(2)
    uplink.set_state("training", step=3)
    uplink.close()
    messages = everything(url)
    assert [m.observed_version for m in messages if m.kind == "observed"] == [1, 2]
    state = next(m for m in messages if m.kind == "state" and m.state == "training")
    assert (state.step, state.desired_version) == (3, 2)


def test_a_failure_of_another_attempt_is_read_past(url: str) -> None:
    uplink = BusUplink(lambda: url, RUN)
    attempt = until(lambda: uplink.set_state("training", step=1) or everything(url))[0].attempt
    for version, meant_for in ((1, "another"), (2, attempt)):
        publish(url, version, failure=Failure(attempt=meant_for, device=1))
        document = until(lambda wanted=version: (d := uplink.desired()) and d.version == wanted and d)
        assert (document.failure is not None) == (meant_for == attempt)
    uplink.close()


def test_messages_are_numbered_and_one_attempt_is_one_start(url: str) -> None:
    for _ in range(2):
        uplink = BusUplink(lambda: url, RUN)
        for _ in range(3):
            uplink.send(Profile, profile={}, seconds=0.1)
        uplink.close()
    messages = everything(url)
    attempts = {message.attempt for message in messages}
    assert len(attempts) == 2
    for attempt in attempts:
        numbers = [message.seq for message in messages if message.attempt == attempt]
        assert numbers == list(range(len(numbers)))


def test_the_state_is_repeated_while_nothing_else_is_sent(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_uplink, "HEARTBEAT_S", 0.05)
    uplink = BusUplink(lambda: url, RUN)
    uplink.set_state("paused", step=4)
    until(lambda: sum(m.kind == "state" and m.state == "paused" for m in everything(url)) >= 3)
    uplink.close()


def test_an_absent_broker_costs_messages_not_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_uplink, "QUEUE_LENGTH", 10)
    monkeypatch.setattr(bus_uplink, "CLOSE_TIMEOUT_S", 0.2)
    uplink = BusUplink(lambda: "redis://127.0.0.1:1/0", RUN)
    for _ in range(50):
        uplink.send(Profile, profile={}, seconds=0.1)
    assert uplink.num_dropped >= 39
    assert uplink.desired() is None
    uplink.close()


def test_a_broker_that_comes_back_elsewhere_is_found(tmp_path: Path) -> None:
    addresses: list[str] = []
    first = EmbeddedBroker(tmp_path / "first")
    addresses.append(first.start())
    uplink = BusUplink(lambda: addresses[-1], RUN)
    publish(addresses[-1], 1)
    until(lambda: uplink.desired())
    first.stop()
    uplink.send(Profile, profile={}, seconds=0.1)
    second = EmbeddedBroker(tmp_path / "second")
    addresses.append(second.start())
    publish(addresses[-1], 2)
    until(lambda: (document := uplink.desired()) and document.version == 2)
    until(lambda: any(message.kind == "profile" for message in everything(addresses[-1])))
    uplink.close()
    second.stop()
