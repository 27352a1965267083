"""A trace of one step: who computed, sent, waited and synced when, for chrome://tracing or Perfetto.

Every rank records spans between its own clock's readings, from a moment on that all ranks have just
met at. The file is in the trace event format: complete events ("X") in microseconds, a process for
each pipeline, a thread for each device.
Source: "Trace Event Format", the document that chrome://tracing refers to.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist

from engine.agreement import broadcast_text
from engine.layout import Place

_STANDBY = "standby"
_NOTHING: AbstractContextManager[None] = nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A span of time on one rank; seconds since the ranks met."""

    name: str
    category: str
    start_s: float
    end_s: float
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """Write a trace of step `step` to `path` (on rank 0's host)."""

    step: int
    path: Path


class Recorder:
    """Collects the spans of one rank; costs next to nothing while it is off."""

    def __init__(self) -> None:
        self._events: list[Event] | None = None
        self._origin = 0.0

    def start(self) -> None:
        """From now on spans are kept. Collective: ranks meet here, so that their times compare."""
        dist.barrier()
        self._origin, self._events = time.perf_counter(), []

    def span(self, name: str, category: str, **arguments: Any) -> AbstractContextManager[None]:
        """The time that the body takes."""
        return _NOTHING if self._events is None else self._recorded(self._events, name, category, arguments)

    def take(self) -> list[Event]:
        """What was recorded since `start`; the recorder is off again."""
        events, self._events = self._events or [], None
        return events

    @contextmanager
    def _recorded(self, events: list[Event], name: str, category: str, arguments: Mapping[str, Any]) -> Iterator[None]:
        started = time.perf_counter() - self._origin
        try:
            yield
        finally:
            ended = time.perf_counter() - self._origin
            events.append(Event(name=name, category=category, start_s=started, end_s=ended, arguments=arguments))


def write(path: Path, events: list[Event], device: int, place: Place | None) -> None:
    """Gathers every rank's events and writes them on rank 0.

    Args:
        device: this rank; place: where it computes, None on standby.

    Collective: all ranks of the world.

    Raises:
        OSError: on rank 0, the file cannot be written.
    """
    rows: list[dict[str, Any]] = []
    for rank in range(dist.get_world_size()):
        rows += json.loads(broadcast_text(json.dumps(_rows(events, device, place)), source=rank))
    if dist.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {"traceEvents": sorted(rows, key=_order), "displayTimeUnit": "ms"}
        path.write_text(json.dumps(document), encoding="utf-8")


def _rows(events: list[Event], device: int, place: Place | None) -> list[dict[str, Any]]:
    """One rank's events in the trace event format, with the names of its process and thread."""
    pipeline = _STANDBY if place is None else f"pipeline {place.pipeline_index}"
    thread = f"device {device}" if place is None else f"stage {place.stage_index} device {device}"
    where = {"pid": -1 if place is None else place.pipeline_index, "tid": device}
    return [
        {"ph": "M", "name": "process_name", "args": {"name": pipeline}, **where},
        {"ph": "M", "name": "thread_name", "args": {"name": thread}, **where},
        {"ph": "M", "name": "thread_sort_index", "args": {"sort_index": _row_of(device, place)}, **where},
        *(
            {
                "ph": "X",
                "name": event.name,
                "cat": event.category,
                "ts": event.start_s * 1e6,
                "dur": (event.end_s - event.start_s) * 1e6,
                "args": dict(event.arguments),
                **where,
            }
            for event in events
        ),
    ]


def _row_of(device: int, place: Place | None) -> int:
    return device if place is None else 1000 * place.stage_index + place.tp_rank


def _order(row: dict[str, Any]) -> tuple[bool, float, float]:
    """Names first, then by start; of two that start together the longer one, which holds the other."""
    return row["ph"] == "X", row.get("ts", 0.0), -row.get("dur", 0.0)
