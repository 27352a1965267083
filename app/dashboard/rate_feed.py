"""Blocks of rates that are read once and kept: what a page has seen of a run's history costs nothing again.

A range is read piece by piece, newest first, for a limited time a call, so that the first paint of a
long run with many devices is as quick as that of a short one; the rest follows with the next
refreshes. Reads nothing itself: `reads` hands it the query.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from db.rates import RateBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePicture:
    """What is known of a range.

    Args:
        blocks: newest block of steps last, devices in any order.
        width: steps a block.
        missing: share of the range that is still to be read, 0 to 1.
    """

    blocks: Sequence[RateBlock]
    width: int
    missing: float


class RateFeed:
    """Grows by what is asked for. May be called from any thread.

    Args:
        fetch: the blocks of all steps from the first to the last one, both included.
        width: steps a block, as `fetch` makes them.
        max_steps: steps to fetch at once.
    """

    def __init__(self, fetch: Callable[[int, int], Sequence[RateBlock]], *, width: int, max_steps: int) -> None:
        self._fetch = fetch
        self._width = width
        self._max_blocks = max(1, max_steps // width)
        self._known: dict[int, list[RateBlock]] = {}
        self._lock = threading.Lock()

    def read(self, first_step: int, last_step: int, *, newest_step: int, budget_s: float) -> RatePicture:
        """The range as far as it is known, after reading for about `budget_s`, one piece at least.

        Args:
            newest_step: the run's last step; the block that holds it is not complete and is read each time.
        """
        if last_step < first_step:
            return RatePicture(blocks=(), width=self._width, missing=0.0)
        low, high = first_step // self._width, min(last_step, newest_step) // self._width
        ends_at = time.monotonic() + budget_s
        with self._lock:
            num_complete = (newest_step + 1) // self._width
            fresh = self._piece(num_complete, high) if high >= num_complete else {}
            while (gap := self._newest_gap(low, min(high, num_complete - 1))) is not None:
                self._known |= self._piece(*gap)
                if time.monotonic() >= ends_at:
                    break
            known = self._known | fresh
            found = [known[block] for block in range(low, high + 1) if block in known]
        missing = 1 - len(found) / max(1, high - low + 1)
        return RatePicture(blocks=[entry for block in found for entry in block], width=self._width, missing=missing)

    def _newest_gap(self, low: int, high: int) -> tuple[int, int] | None:
        last = next((block for block in range(high, low - 1, -1) if block not in self._known), None)
        if last is None:
            return None
        first = last
        while first > low and first - 1 not in self._known and last - first + 1 < self._max_blocks:
            first -= 1
        return first, last

    def _piece(self, first: int, last: int) -> dict[int, list[RateBlock]]:
        piece: dict[int, list[RateBlock]] = {block: [] for block in range(first, last + 1)}
        for entry in self._fetch(first * self._width, (last + 1) * self._width - 1):
            piece[entry.first_step // self._width].append(entry)
        return piece
