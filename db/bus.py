"""The two channels between engine and controller, on Redis or Valkey.

Down: one key `malleus:{run}:desired` that holds the whole desired document (level-triggered); a
publish on a channel of the same name only wakes readers. Up: one stream `malleus:{run}:telemetry`.

Nothing is decided or remembered here, and nothing here is the truth: SQL is. A `Bus` is for one
thread; `send` and `publish_desired` may be called from others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import redis
from pydantic import ValidationError
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from db.errors import BusError
from db.messages import Desired, Telemetry, parse_telemetry

MAX_STREAM_LENGTH = 10_000
CONNECT_TIMEOUT_S = 5.0
REPLY_TIMEOUT_S = 15.0
MAX_BLOCK_S = 5.0
POLL_S = 0.5

_FIELD = b"json"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """How the broker is.

    Args:
        round_trip_s: seconds until it answered.
        max_memory_bytes: 0: no limit of its own.
        stream_lengths: messages kept, by run.
        num_malformed: messages that this connection could not read.
    """

    version: str
    round_trip_s: float
    used_memory_bytes: int
    max_memory_bytes: int
    stream_lengths: dict[int, int] = field(default_factory=dict)
    num_malformed: int = 0

    @property
    def memory_share(self) -> float:
        """Of its limit, 0 if it has none."""
        return self.used_memory_bytes / self.max_memory_bytes if self.max_memory_bytes else 0.0


class Bus:
    """A connection to the broker; connects on first use and again when the connection broke.

    Args:
        url: `redis://[[user]:password@]host:port[/db]`, `rediss://...` or `unix://...`.

    Raises:
        BusError: not such a URL.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.num_malformed = 0
        self._skipped: dict[int, str] = {}
        self._seen: dict[int, int] = {}
        self._waker: redis.client.PubSub | None = None
        self._wake_run: int | None = None
        try:
            self._redis = redis.Redis.from_url(
                url,
                protocol=2,
                socket_connect_timeout=CONNECT_TIMEOUT_S,
                socket_timeout=REPLY_TIMEOUT_S,
                socket_keepalive=True,
                health_check_interval=30,
                retry=Retry(ConstantBackoff(0.1), 2),
            )
        except (ValueError, redis.RedisError):
            raise BusError("the broker URL must be redis://host:port, given another kind of URL") from None

    def publish_desired(self, document: Desired) -> None:
        """Replaces the run's desired document and wakes its readers."""
        text = document.model_dump_json()
        with self._errors():
            pipe = self._redis.pipeline(transaction=True)
            pipe.set(desired_key(document.run), text)
            pipe.publish(desired_key(document.run), str(document.version))
            pipe.execute()

    def read_desired(self, run: int) -> Desired | None:
        """The run's desired document, or None if there is none yet (or none that can be read)."""
        with self._errors():
            text = self._redis.get(desired_key(run))
        if text is None:
            return None
        try:
            document = Desired.model_validate_json(text)
        except ValidationError as error:
            self.num_malformed += 1
            logger.warning("run %s: malformed desired document: %s", run, _short(error))
            return None
        self._seen[run] = document.version
        return document

    def wait_desired_change(self, run: int, timeout_s: float) -> Desired | None:
        """Waits for a document of another version than this bus read last.

        Returns:
            The new document at once when there is one, None after `timeout_s` without.
        """
        deadline = time.monotonic() + timeout_s
        seen = self._seen.get(run)
        with self._errors():
            waker = self._subscribed(run)
        while True:
            document = self.read_desired(run)
            if document is not None and document.version != seen:
                return document
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return None
            with self._errors():
                waker.get_message(ignore_subscribe_messages=True, timeout=min(remaining_s, POLL_S))

    def send(self, message: Telemetry) -> str:
        """Appends a telemetry message to its run's stream, whose oldest messages give way.

        Returns:
            The id of the message in the stream.
        """
        with self._errors():
            stream_id = self._redis.xadd(
                telemetry_key(message.run),
                {_FIELD: message.model_dump_json()},
                maxlen=MAX_STREAM_LENGTH,
                approximate=True,
            )
        return _text(stream_id)

    def read(
        self, cursors: Mapping[int, str], *, block_s: float = 0.0, count: int = 500
    ) -> list[tuple[int, str, Telemetry]]:
        """Reads the messages after each run's cursor.

        A malformed message, or one that names another run, is logged, counted in `num_malformed`
        and skipped.

        Args:
            cursors: `{run: id of the last message read}`, `0-0` for all.
            block_s: how long to wait for the first message; 0 does not wait.
            count: at most so many messages a run.

        Returns:
            `(run, stream_id, message)`, in order within each run.
        """
        deadline = time.monotonic() + block_s
        if not cursors:
            time.sleep(max(block_s, 0.0))
            return []
        while True:
            remaining_s = deadline - time.monotonic()
            streams: dict[Any, Any] = {telemetry_key(run): self._after(run, cursor) for run, cursor in cursors.items()}
            block = None if remaining_s <= 0 else max(1, int(min(remaining_s, MAX_BLOCK_S) * 1000))
            with self._errors():
                reply: Any = self._redis.xread(streams, count=count, block=block)
            messages = list(self._parsed(cursors, reply or []))
            if messages or remaining_s <= 0:
                return messages

    def reset(self, run: int) -> None:
        """Forgets both channels of a run: for a run that is new, under an id that was used before."""
        with self._errors():
            self._redis.delete(desired_key(run), telemetry_key(run))
        self._skipped.pop(run, None)
        self._seen.pop(run, None)

    def ping(self) -> float:
        """Seconds that the broker takes to answer.

        Raises:
            BusError: (as everything here) one line without password: it cannot be reached.
        """
        start = time.monotonic()
        with self._errors():
            self._redis.ping()
        return time.monotonic() - start

    def facts(self, runs: Iterable[int]) -> BrokerFacts:
        """How the broker is, and how much of these runs' telemetry it keeps."""
        wanted = list(runs)
        round_trip_s = self.ping()
        with self._errors():
            pipe = self._redis.pipeline(transaction=False)
            pipe.info("server", "memory")
            for run in wanted:
                pipe.xlen(telemetry_key(run))
            info, *lengths = pipe.execute()
        return BrokerFacts(
            version=str(info.get("valkey_version") or info.get("redis_version") or "unknown"),
            round_trip_s=round_trip_s,
            used_memory_bytes=int(info.get("used_memory", 0)),
            max_memory_bytes=int(info.get("maxmemory", 0)),
            stream_lengths=dict(zip(wanted, map(int, lengths), strict=True)),
            num_malformed=self.num_malformed,
        )

    def close(self) -> None:
        """Closes the connections. A bus may be closed twice."""
        if self._waker is not None:
            self._waker.close()
            self._waker = None
        self._redis.close()
        self._redis.connection_pool.disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Bus({_shown(self._url)})"

    def _subscribed(self, run: int) -> redis.client.PubSub:
        if self._waker is not None and self._wake_run != run:
            self._waker.close()
            self._waker = None
        if self._waker is None:
            self._waker = self._redis.pubsub()
            self._wake_run = run
            self._waker.subscribe(desired_key(run))
        return self._waker

    def _after(self, run: int, cursor: str) -> str:
        skipped = self._skipped.get(run, "0-0")
        return max(cursor, skipped, key=_order)

    def _parsed(self, cursors: Mapping[int, str], reply: list[Any]) -> Iterator[tuple[int, str, Telemetry]]:
        runs = {telemetry_key(run): run for run in cursors}
        for key, entries in reply:
            run = runs[_text(key)]
            for raw_id, fields in entries:
                stream_id = _text(raw_id)
                message = self._message(run, stream_id, fields)
                if message is not None:
                    yield run, stream_id, message

    def _message(self, run: int, stream_id: str, fields: Mapping[bytes, bytes] | None) -> Telemetry | None:
        try:
            message = parse_telemetry((fields or {}).get(_FIELD, b""))
            if message.run != run:
                raise ValueError(f"expected run {run}, given {message.run}")
        except ValueError as error:
            self.num_malformed += 1
            self._skipped[run] = stream_id
            logger.warning("run %s: malformed telemetry message %s: %s", run, stream_id, _short(error))
            return None
        return message

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (redis.RedisError, OSError) as error:
            if self._waker is not None:
                self._waker.close()
                self._waker = None
            raise BusError(f"broker {_shown(self._url)}: {_first_line(error, self._url)}") from None


def desired_key(run: int) -> str:
    """Key (and wake channel) of a run's desired document."""
    return f"malleus:{run}:desired"


def telemetry_key(run: int) -> str:
    """Key of a run's telemetry stream."""
    return f"malleus:{run}:telemetry"


def _order(stream_id: str) -> tuple[int, int]:
    milliseconds, _, number = stream_id.partition("-")
    return int(milliseconds), int(number or 0)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _short(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {first['msg']}" if where else str(first["msg"])
    return str(error)


def _shown(url: str) -> str:
    parts = urlsplit(url)
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        port = ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"


def _first_line(error: BaseException, url: str) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    password = urlsplit(url).password
    return line.replace(password, "***") if password else line
