"""One local process: started under a keeper, logged to a file, stopped with all its descendants.

The keeper (see `app.local.keeper`) ends the process when this one closes the lifeline, and also
when this one is killed. This module knows nothing of what the process does.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

KEEPER = Path(__file__).with_name("keeper.py")
MAX_LOG_BYTES = 10_000_000
KILL_MARGIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run.

    Args:
        name: what a person calls it ("worker").
        argv: program and arguments; no secrets (other users can read them).
        environment: the whole environment.
        folder: working directory.
        log: file that stdout and stderr are appended to.
        grace_s: seconds between SIGTERM and SIGKILL.
    """

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    log: Path
    grace_s: float = 10.0


class Part:
    """A running command.

    Raises:
        OSError: the log or the folder cannot be written, or no process can be started.
    """

    def __init__(self, command: Command) -> None:
        self.command = command
        command.log.parent.mkdir(parents=True, exist_ok=True)
        _rotate(command.log)
        with command.log.open("ab") as log:
            log.write(f"--- {command.name} starts at {datetime.now(UTC).isoformat(timespec='seconds')}\n".encode())
            log.flush()
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(KEEPER), str(command.grace_s), "--", *command.argv],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(command.environment),
                cwd=command.folder,
                start_new_session=True,
            )

    @property
    def name(self) -> str:
        return self.command.name

    @property
    def exit_code(self) -> int | None:
        """Exit status (128 + n for signal n), `None` while it runs."""
        code = self._keeper.poll()
        if code is None:
            return None
        self.ask_to_stop()  # closes the lifeline, which nobody holds any more
        return code if code >= 0 else 128 - code

    def ask_to_stop(self) -> None:
        """SIGTERM, then SIGKILL after the grace time; returns at once."""
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):
            self._keeper.stdin.close()

    def kill(self) -> int:
        """SIGKILL to the process and all its descendants; returns its exit status."""
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._keeper.stdin.write(b"k")
            self._keeper.stdin.flush()
        self.ask_to_stop()
        return self._end(time.monotonic() + KILL_MARGIN_S)

    def stop(self) -> int:
        """Asks to stop and waits; returns the exit status."""
        self.ask_to_stop()
        return self._end(time.monotonic() + self.command.grace_s + KILL_MARGIN_S)

    def last_lines(self, num_lines: int = 1) -> str:
        """End of the log, for a message."""
        with contextlib.suppress(OSError), self.command.log.open("rb") as log:
            log.seek(max(0, log.seek(0, 2) - 8192))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
            return "\n".join([line for line in lines if line][-num_lines:])
        return ""

    def _end(self, deadline: float) -> int:
        try:
            code = self._keeper.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            # The keeper itself is stuck: its child dies with it (PR_SET_PDEATHSIG).
            self._keeper.kill()
            code = self._keeper.wait()
        return code if code >= 0 else 128 - code


def stop_all(parts: Sequence[Part]) -> None:
    """Stops all, side by side."""
    for part in parts:
        part.ask_to_stop()
    for part in parts:
        part.stop()


def _rotate(log: Path) -> None:
    with contextlib.suppress(OSError):
        if log.stat().st_size > MAX_LOG_BYTES:
            log.replace(log.with_name(log.name + ".1"))
