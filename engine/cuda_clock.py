"""A GPU's own compute, timed by events on its stream; the host never waits for a segment.

A segment is bracketed by two events. A collective or a receive makes the stream wait before the next
segment's first event is recorded, so waiting for others never counts. Elapsed times are read once a
step, in `take`. An injected rate appends a busy kernel to each segment (`engine.busy`), inside it.

What is measured is the time in which the stream was busy with this rank's work or waited for its own
host to launch it: a slow host shows as a slow device, as it should.

Not here: any wait in the hot path, and any knowledge of CUDA; events and kernel are given.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engine.clock import Work

WARM_UPS = 3
REPETITIONS = 7
_Key = tuple[Work, int, int]


class Event(Protocol):
    """A point in a stream; `torch.cuda.Event(enable_timing=True)` is one."""

    def record(self) -> None:
        """Marks the place that the current stream has reached."""

    def synchronize(self) -> None:
        """Waits on the host until the stream has passed the mark."""

    def elapsed_time(self, end_event: Event, /) -> float:
        """Milliseconds from this mark to that of `end_event`; the stream has passed both."""


class Busy(Protocol):
    """Keeps a device busy; see `engine.busy`."""

    def run(self, seconds: float) -> None:
        """Appends that much busy time to the stream."""

    def observe(self, *, asked_s: float, took_s: float) -> None:
        """How long what was asked for has really taken."""


@dataclass(slots=True)
class _Segment:
    key: _Key
    start: Event
    end: Event
    after: Event | None
    asked_s: float


class CudaClock:
    """Times segments by events and stretches them by the injected rate.

    The busy time of a segment is `rate - 1` times the mean of the segments of its kind, micro-batch size
    and TP degree that the last `take` has read. Their sum over a step is what it must be, though a
    single segment (attention and feed-forward differ) gets more or less than its share. A kind that has
    never been read is not stretched; calibration reads all of them before the first step.

    Args:
        make_event: a new event on the current stream.
        busy: fills the injected time.

    Attributes:
        rate: injected straggling rate; below 1 it is 1, nothing makes a GPU faster.
    """

    def __init__(self, make_event: Callable[[], Event], busy: Busy) -> None:
        self.rate = 1.0
        self._make_event, self._busy = make_event, busy
        self._spare: list[Event] = []
        self._num_sequences, self._tp_degree = 1, 1
        self._work: Work | None = None
        self._start: Event | None = None
        self._segments: list[_Segment] = []
        self._own_s: dict[_Key, float] = {}

    def configure(self, *, num_sequences: int, tp_degree: int) -> None:
        """What the coming segments work on."""
        self._num_sequences, self._tp_degree = num_sequences, tp_degree

    def start(self, work: Work) -> None:
        """Opens a segment."""
        assert self._work is None, f"segment {self._work} is still open"
        self._work, self._start = work, self._mark()

    def stop(self) -> Work:
        """Closes the segment and returns what it computed."""
        work, start = self._work, self._start
        assert work is not None, "no segment is open"
        assert start is not None
        key = (work, self._num_sequences, self._tp_degree)
        end = self._mark()
        asked_s = max(0.0, self.rate - 1) * self._own_s.get(key, 0.0)
        after = None
        if asked_s:
            self._busy.run(asked_s)
            after = self._mark()
        self._segments.append(_Segment(key, start, end, after, asked_s))
        self._work = self._start = None
        return work

    def drop(self) -> None:
        """Closes a segment that holds only left-overs; on a GPU they are work like any other and count."""
        self.stop()

    def settle(self) -> None:
        """Nothing is owed between segments."""

    def take(self) -> dict[Work, float]:
        """Seconds of own compute by kind since the last call, injected ones included; waits for the stream."""
        segments, self._segments = self._segments, []
        seconds = dict.fromkeys(Work, 0.0)
        if not segments:
            return seconds
        (segments[-1].after or segments[-1].end).synchronize()
        own: dict[_Key, list[float]] = {}
        asked_s = took_s = 0.0
        for segment in segments:
            mine = segment.start.elapsed_time(segment.end) / 1e3
            own.setdefault(segment.key, []).append(mine)
            seconds[segment.key[0]] += mine
            if segment.after:
                extra = segment.end.elapsed_time(segment.after) / 1e3
                seconds[segment.key[0]] += extra
                asked_s, took_s = asked_s + segment.asked_s, took_s + extra
        if asked_s:
            self._busy.observe(asked_s=asked_s, took_s=took_s)
        self._own_s |= {key: statistics.fmean(values) for key, values in own.items()}
        for segment in segments:
            self._spare += [event for event in (segment.start, segment.end, segment.after) if event]
        return seconds

    def _mark(self) -> Event:
        event = self._spare.pop() if self._spare else self._make_event()
        event.record()
        return event


def medians(
    clock: CudaClock, action: Callable[[], None], synchronize: Callable[[], None]
) -> tuple[dict[Work, float], float]:
    """Compute seconds by kind and wall seconds of an action: medians over repetitions, warm-ups left out.

    Collective: as far as `action` is.
    """
    for _ in range(WARM_UPS):
        action()
    clock.take()
    rows: list[tuple[dict[Work, float], float]] = []
    for _ in range(REPETITIONS):
        synchronize()
        started = time.perf_counter()
        action()
        synchronize()
        wall = time.perf_counter() - started
        rows.append((clock.take(), wall))
    return (
        {work: statistics.median(seconds[work] for seconds, _ in rows) for work in Work},
        statistics.median(wall for _, wall in rows),
    )
