"""How a device tells time: its own compute, never its waiting for others.

Compute happens in segments that a collective ends. `EmulatedClock` really waits at the end of each
segment until the emulated time, times the device's straggling rate, has passed; waiting costs no
CPU, so a few cores carry many honest devices.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

MAX_DEBT_S = 0.05


class Work(Enum):
    """What a segment computes."""

    FORWARD = "forward"
    BACKWARD = "backward"
    EMBED = "embed"
    HEAD = "head"


class Clock(Protocol):
    """How a device tells time; `EmulatedClock` here, `CudaClock` in `engine.cuda_clock`."""

    rate: float

    def configure(self, *, num_sequences: int, tp_degree: int) -> None:
        """What the coming segments work on."""

    def start(self, work: Work) -> None:
        """Opens a segment."""

    def stop(self) -> Work:
        """Closes the segment, stretched by the rate, and returns what it computed."""

    def drop(self) -> None:
        """Closes a segment that holds only left-overs."""

    def settle(self) -> None:
        """Lets what is measured next not pay for what came before."""

    def take(self) -> dict[Work, float]:
        """Seconds of own compute by kind since the last call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """Emulated seconds on a healthy device.

    Args:
        layer_s: one layer, forward + backward, one sequence, TP degree 1; a group of n takes 1/n.
        head_s: head and loss, forward + backward, one sequence, TP degree 1 (three segments).
        forward_share: share of it that is forward.
    """

    layer_s: float
    head_s: float
    forward_share: float = 1 / 3

    def segment_s(self, work: Work, num_sequences: int, tp_degree: int) -> float:
        """Emulated seconds of one segment; a layer has two forward and two backward segments."""
        scale = num_sequences / tp_degree
        if work is Work.FORWARD:
            return self.layer_s * self.forward_share / 2 * scale
        if work is Work.BACKWARD:
            return self.layer_s * (1 - self.forward_share) / 2 * scale
        if work is Work.HEAD:
            return self.head_s / 3 * scale
        return 0.0


class EmulatedClock:
    """Times segments and stretches them to the emulated duration.

    A segment that overshoots (the real work took longer, or the operating system woke us late)
    leaves a debt, at most `MAX_DEBT_S`, that later segments pay back by waiting less.
    """

    def __init__(self, emulation: Emulation) -> None:
        self.emulation = emulation
        self.rate = 1.0
        self.seconds: dict[Work, float] = dict.fromkeys(Work, 0.0)
        self._num_sequences = 1
        self._tp_degree = 1
        self._work: Work | None = None
        self._started = 0.0
        self._debt = 0.0

    def configure(self, *, num_sequences: int, tp_degree: int) -> None:
        """What the coming segments work on."""
        self._num_sequences, self._tp_degree = num_sequences, tp_degree

    def start(self, work: Work) -> None:
        """Opens a segment."""
        assert self._work is None, f"segment {self._work} is still open"
        self._work, self._started = work, time.perf_counter()

    def stop(self) -> Work:
        """Closes the segment at its emulated end and returns what it computed."""
        work = self._work
        assert work is not None, "no segment is open"
        target = self.emulation.segment_s(work, self._num_sequences, self._tp_degree) * self.rate
        wait = target - self._debt - (time.perf_counter() - self._started)
        if wait > 0:
            time.sleep(wait)
        elapsed = time.perf_counter() - self._started
        self._debt = min(MAX_DEBT_S, max(0.0, self._debt + elapsed - target))
        self.seconds[work] += elapsed
        self._work = None
        return work

    def drop(self) -> None:
        """Closes a segment that holds only left-overs: it is neither stretched nor counted."""
        self._work = None

    def settle(self) -> None:
        """Forgets the debt, so that what is measured next does not pay for what came before."""
        self._debt = 0.0

    def take(self) -> dict[Work, float]:
        """Seconds of own compute by kind since the last call."""
        seconds, self.seconds = self.seconds, dict.fromkeys(Work, 0.0)
        return seconds
