"""How often something may go wrong in a while: slows down who guesses tokens. One for the whole process.

While the limit is reached even the right token is refused, so waiting is the only thing that tells a guesser
anything. Who knows the token loses a minute at most.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

MOST = 5
WITHIN_S = 60.0


class Attempts:
    """Failures of the last while; may be asked from any thread.

    Args:
        most: failures allowed within `within_s` seconds.
    """

    def __init__(
        self, *, most: int = MOST, within_s: float = WITHIN_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._within_s, self._clock = most, within_s, clock
        self._failed_at: deque[float] = deque()
        self._lock = threading.Lock()

    def attempt(self, check: Callable[[], bool]) -> tuple[bool, float]:
        """Runs the check unless there were too many failures; one at a time, so that none slips through.

        Returns:
            Whether it succeeded, and seconds to wait before the next attempt (0: none).
        """
        with self._lock:
            now = self._clock()
            while self._failed_at and now - self._failed_at[0] >= self._within_s:
                self._failed_at.popleft()
            if len(self._failed_at) >= self._most:
                return False, self._within_s - (now - self._failed_at[0])
            if check():
                return True, 0.0
            self._failed_at.append(now)
            return False, 0.0
