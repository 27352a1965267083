"""Injected stragglers on a real GPU: a kernel that does nothing for a given time.

One thread block spins on the clock of its multiprocessor after each compute segment. It is appended
to the device's own stream, so the device is late exactly as a slow one would be, for its group, its
pipeline and the gradient sync. Communication in other streams goes on: a rate slows compute, not
links, which is what the planner assumes.

The paper slows devices by other jobs on the same GPU. That is the real thing with its noise, but
its rate can be neither set nor held; here a person says 2.57 and gets it. Memory bandwidth, caches and
clock frequency are not disturbed as by a second job.

The clock rate of a GPU changes with load and heat, so the spun time is measured and corrected.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.cuda_clock import Event

CALIBRATION_CYCLES = 20_000_000
"""About 10 ms at 2 GHz: long against a launch, short against a start."""
_TRUST = 0.5
_MOST = 2.0


class BusyKernel:
    """Busy time of a given length on the current stream.

    Args:
        spin: appends a kernel that spins for that many cycles; `torch.cuda._sleep` is one.
        make_event: a new event on the current stream.
    """

    def __init__(self, spin: Callable[[int], None], make_event: Callable[[], Event]) -> None:
        self._spin = spin
        self.cycles_per_s = _measured(spin, make_event)

    def run(self, seconds: float) -> None:
        """Appends `seconds` of busy time; returns at once."""
        self._spin(max(1, round(seconds * self.cycles_per_s)))

    def observe(self, *, asked_s: float, took_s: float) -> None:
        """Corrects the clock rate by what the last step has shown, half of the way and at most by two."""
        assert asked_s > 0, f"observed busy time must have been asked for, given {asked_s}"
        if took_s > 0:
            ratio = min(_MOST, max(1 / _MOST, asked_s / took_s))
            self.cycles_per_s *= 1 + _TRUST * (ratio - 1)


def _measured(spin: Callable[[int], None], make_event: Callable[[], Event]) -> float:
    """Cycles per second; the first of two runs loads the kernel and wakes the clocks."""
    seconds = 0.0
    for _ in range(2):
        start, end = make_event(), make_event()
        start.record()
        spin(CALIBRATION_CYCLES)
        end.record()
        end.synchronize()
        seconds = start.elapsed_time(end) / 1e3
    assert seconds > 0, f"{CALIBRATION_CYCLES} cycles must take time, given {seconds} s"
    return CALIBRATION_CYCLES / seconds
