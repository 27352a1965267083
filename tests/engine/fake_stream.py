"""A GPU's stream in place of the GPU: work takes scripted time, events mark it, the host may run ahead."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class FakeStream:
    """Attributes:
    now_s: where the stream will be when all that was appended has run.
    seen_s: how far the host knows the stream to be; it has waited for that.
    num_waits: how often the host has waited.
    cycles_per_s: of the device's clock.
    """

    now_s: float = 5.0
    seen_s: float = 0.0
    num_waits: int = 0
    cycles_per_s: float = 2e9
    events: list[FakeEvent] = field(default_factory=list)

    def work(self, seconds: float) -> None:
        self.now_s += seconds

    def spin(self, cycles: int) -> None:
        self.work(cycles / self.cycles_per_s)

    def synchronize(self) -> None:
        self.num_waits += 1
        self.seen_s = self.now_s

    def make_event(self) -> FakeEvent:
        event = FakeEvent(self)
        self.events.append(event)
        return event


class FakeEvent:
    """Refuses what a real event refuses: times that the host has not waited for."""

    def __init__(self, stream: FakeStream) -> None:
        self._stream = stream
        self.at_s: float | None = None

    def record(self) -> None:
        self.at_s = self._stream.now_s

    def synchronize(self) -> None:
        assert self.at_s is not None, "an event that was never recorded"
        self._stream.num_waits += 1
        self._stream.seen_s = max(self._stream.seen_s, self.at_s)

    def elapsed_time(self, end_event: FakeEvent, /) -> float:
        assert self.at_s is not None, "an event that was never recorded"
        assert end_event.at_s is not None, "an event that was never recorded"
        assert max(self.at_s, end_event.at_s) <= self._stream.seen_s, "the stream may not be there yet"
        return (end_event.at_s - self.at_s) * 1e3
