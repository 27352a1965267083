"""Ctrl-C, SIGTERM and a closed terminal as something a foreground command can wait for."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Counts the requests to stop while it is entered; the former handlers come back afterwards.

    Enter it in the main thread only (Python delivers signals there).
    """

    def __init__(self) -> None:
        self.count = 0
        self._changed = threading.Event()
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # started under nohup: meant to outlive its terminal
            self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def wait(self, timeout_s: float) -> bool:
        """Whether a request has arrived since the last call, waiting for at most `timeout_s`."""
        is_changed = self._changed.wait(timeout_s)
        self._changed.clear()
        return is_changed

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self._changed.set()
