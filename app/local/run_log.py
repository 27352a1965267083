"""What a run's processes on this machine printed last."""

from __future__ import annotations

from pathlib import Path

from app.local import commands
from db.settings import Settings

TAIL_BYTES = 16_384


def last_lines(settings: Settings, run: int, num_lines: int = 15) -> list[str]:
    """The end of the engine's log, or of its trainer's if the engine has printed nothing; empty if there is none."""
    for path in (commands.engine_log(settings, run), commands.trainer_log(settings, run)):
        found = _tail(path)
        if found:
            return found[-num_lines:]
    return []


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, 2) - TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()]
