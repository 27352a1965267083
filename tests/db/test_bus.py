"""The two channels, on Valkey and on Redis."""

from __future__ import annotations

import logging
import math
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from db.broker import EmbeddedBroker
from db.bus import MAX_STREAM_LENGTH, Bus, desired_key, telemetry_key
from db.errors import BusError
from db.messages import Desired, Injection, Telemetry
from tests.db.conftest import PLAN
from tests.db.telemetry import hello, state, step


def desired(version: int, **fields: object) -> Desired:
    return Desired.model_validate({"run": 1, "version": version, "plan_version": 1, "plan": PLAN, **fields})


def test_the_desired_document(bus: Bus) -> None:
    assert bus.read_desired(1) is None
    document = desired(3, injections=(Injection(id=1, device=2, rate=2.57),), paused=True)
    bus.publish_desired(document)
    assert bus.read_desired(1) == document
    assert bus.read_desired(2) is None
    bus.publish_desired(desired(4))
    assert bus.read_desired(1) == desired(4)


def test_waiting_for_a_change(bus: Bus, broker_url: str) -> None:
    assert bus.wait_desired_change(1, 0.0) is None
    bus.publish_desired(desired(1))
    assert bus.wait_desired_change(1, 10.0) == desired(1)  # one that was not read yet
    assert bus.wait_desired_change(1, 0.0) is None
    is_waiting = threading.Event()
    found: list[Desired | None] = []

    def wait() -> None:
        with Bus(broker_url) as reader:
            reader.read_desired(1)
            is_waiting.set()
            found.append(reader.wait_desired_change(1, 30.0))

    thread = threading.Thread(target=wait)
    thread.start()
    is_waiting.wait(30)
    bus.publish_desired(desired(2))
    thread.join(30)
    assert found == [desired(2)]


def test_a_change_without_a_wake_is_found_too(bus: Bus) -> None:
    bus.publish_desired(desired(1))
    bus.read_desired(1)
    bus._redis.set(desired_key(1), desired(2).model_dump_json())  # the publish was lost
    assert bus.wait_desired_change(1, 10.0) == desired(2)


def test_telemetry_comes_in_order_after_the_cursor(bus: Bus) -> None:
    messages: list[Telemetry] = [hello(0), step(1, rates=(math.nan, math.inf, *(1.0,) * 6)), state(2, "finished")]
    ids = [bus.send(message) for message in messages]
    read = bus.read({1: "0-0"})
    assert [stream_id for _, stream_id, _ in read] == ids
    assert [run for run, _, _ in read] == [1, 1, 1]
    texts = [message.model_dump_json() for _, _, message in read]  # NaN does not equal itself
    assert texts == [message.model_dump_json() for message in messages]
    assert math.isnan(read[1][2].rates[0])  # type: ignore[union-attr]
    assert [stream_id for _, stream_id, _ in bus.read({1: ids[0]})] == ids[1:]
    assert [stream_id for _, stream_id, _ in bus.read({1: "0-0"}, count=2)] == ids[:2]
    assert bus.read({1: ids[-1]}) == []
    assert bus.read({1: ids[-1]}, block_s=0.01) == []
    assert bus.read({}) == []


def test_several_runs_at_once(bus: Bus) -> None:
    for run in (1, 2, 1):
        bus.send(hello(0, run=run))
    assert sorted(run for run, _, _ in bus.read({1: "0-0", 2: "0-0", 3: "0-0"})) == [1, 1, 2]


def test_a_blocked_reader_wakes_up(bus: Bus, broker_url: str) -> None:
    found: list[int] = []

    def read() -> None:
        with Bus(broker_url) as reader:
            found.extend(run for run, _, _ in reader.read({1: "0-0"}, block_s=30.0))

    thread = threading.Thread(target=read)
    thread.start()
    bus.send(hello(0))
    thread.join(30)
    assert found == [1]


@pytest.mark.parametrize(
    "fields",
    [
        {"json": "{"},
        {"json": '{"kind": "dance"}'},
        {"json": hello(0, run=2).model_dump_json()},
        {"json": hello(0).model_dump_json().replace('"schema_version":1', '"schema_version":2')},
        {"json": b"\xff\xfe"},
        {"other": "x"},
    ],
)
def test_a_malformed_message_is_counted_and_passed(
    bus: Bus, caplog: pytest.LogCaptureFixture, fields: dict[str, str | bytes]
) -> None:
    bus._redis.xadd(telemetry_key(1), fields)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "db.bus"):
        assert bus.read({1: "0-0"}) == []
        assert bus.read({1: "0-0"}) == []  # not read again, though the cursor stands before it
    assert bus.num_malformed == 1
    assert caplog.text.count("malformed telemetry message") == 1
    bus.send(hello(0))
    bus._redis.xadd(telemetry_key(1), fields)  # type: ignore[arg-type]
    bus.send(step(1))
    assert [message.kind for _, _, message in bus.read({1: "0-0"})] == ["hello", "step"]
    assert bus.num_malformed == 2


def test_a_malformed_document_is_counted_and_passed(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    bus._redis.set(desired_key(1), '{"version": "secret"}')
    with caplog.at_level(logging.WARNING, "db.bus"):
        assert bus.read_desired(1) is None
    assert bus.num_malformed == 1
    assert "secret" not in caplog.text


def test_the_stream_is_bounded(bus: Bus) -> None:
    pipe = bus._redis.pipeline()
    for _ in range(MAX_STREAM_LENGTH + 500):
        pipe.xadd(telemetry_key(1), {"json": "x"})
    pipe.execute()
    bus.send(hello(0))
    assert bus._redis.xlen(telemetry_key(1)) <= MAX_STREAM_LENGTH + 200


def test_a_new_run_under_an_old_id_starts_empty(bus: Bus) -> None:
    bus.publish_desired(desired(9))
    bus.send(hello(0))
    bus.reset(1)
    assert bus.read_desired(1) is None
    assert bus.read({1: "0-0"}) == []


CALLS: list[Callable[[Bus], object]] = [
    lambda bus: bus.ping(),
    lambda bus: bus.publish_desired(desired(1)),
    lambda bus: bus.read_desired(1),
    lambda bus: bus.wait_desired_change(1, 1.0),
    lambda bus: bus.send(hello(0)),
    lambda bus: bus.read({1: "0-0"}, block_s=1.0),
    lambda bus: bus.reset(1),
]


@pytest.mark.parametrize("call", CALLS)
def test_broker_down_is_one_line_without_password(call: Callable[[Bus], object]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        with (
            Bus(f"redis://ann:secret@127.0.0.1:{port}/0?client_name=x") as bus,
            pytest.raises(BusError, match=rf"^broker redis://127.0.0.1:{port}/0: .*refused") as caught,
        ):
            call(bus)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "secret" not in repr(bus)


def test_a_wrong_password_is_one_line_without_it(bus: Bus, broker_url: str) -> None:
    port = broker_url.rsplit(":", 1)[1]
    with Bus(f"redis://:wrong-secret@127.0.0.1:{port}") as other, pytest.raises(BusError, match="password") as caught:
        other.ping()
    assert "wrong-secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "http://secret@host", "redis://h:secret"])
def test_not_a_broker_url(url: str) -> None:
    with pytest.raises(BusError, match="redis://host:port") as caught:
        Bus(url)
    assert "secret" not in str(caught.value)


def test_a_broker_that_comes_back_is_found_again(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker, Bus(broker.url) as bus:
        bus.publish_desired(desired(1))
        bus.wait_desired_change(1, 0.0)
        bus._redis.client_kill_filter(_type="normal", skipme=False)
        bus._redis.client_kill_filter(_type="pubsub", skipme=False)
        assert bus.read_desired(1) == desired(1)
        bus.publish_desired(desired(2))
        assert bus.wait_desired_change(1, 10.0) == desired(2)
        broker.stop()
        with pytest.raises(BusError):
            bus.read({1: "0-0"}, block_s=1.0)
        with pytest.raises(BusError):
            bus.wait_desired_change(1, 1.0)


def test_the_broker_tells_how_it_is(bus: Bus) -> None:
    for seq in range(3):
        bus.send(state(seq, "training"))
    facts = bus.facts([1, 2])
    assert facts.stream_lengths == {1: 3, 2: 0}
    assert facts.used_memory_bytes > 100_000
    assert 0 <= facts.memory_share <= 1
    assert facts.round_trip_s > 0
    assert facts.version[0].isdigit()
