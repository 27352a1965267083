"""Keeps one command and all its descendants from outliving the process that asked for it.

Run as a script (`python -I -S keeper.py GRACE_S -- COMMAND...`), standard library only, so that it
costs little. Its standard input is a lifeline: the byte `k` asks to kill at once, end of file (the
owner closed it, or died in whatever way) asks to stop: SIGTERM to the command, SIGKILL to what is
left after GRACE_S seconds. Descendants that left the process group (torchrun's ranks do) are found
too: on Linux the keeper adopts orphans. Exits with the command's status (128 + n for signal n).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LEFT_ALONE = b"app.local.trainer"
"""A run that was started in the background outlives who started it, with all that it started itself."""
AFTER_END_S = 2.0
"""How long descendants may live on, after SIGTERM, once the command itself has ended."""


def main(arguments: list[str]) -> int:
    """Runs the command to its end, or to the owner's."""
    grace_s, command = float(arguments[0]), arguments[2:]
    wakeup = _wake_on_signals()
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_keeper)
    except OSError as error:
        print(f"cannot start {command[0]}: {error}", file=sys.stderr, flush=True)
        return 127
    return _Watch(child.pid, wakeup, grace_s).run()


class _Watch:
    """The loop: waits for the command's end, the lifeline and signals; nothing else blocks."""

    def __init__(self, pid: int, wakeup: int, grace_s: float) -> None:
        self.pid = pid
        self.wakeup = wakeup
        self.grace_s = grace_s
        self.status: int | None = None
        self.deadline: float | None = None
        self.is_lifeline_open = True

    def run(self) -> int:
        while self.status is None:
            self._wait()
            self._reap()
        self._clear_descendants()
        return self.status

    def _wait(self) -> None:
        watched = [self.wakeup, *([0] if self.is_lifeline_open else [])]
        timeout = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
        readable, _, _ = select.select(watched, [], [], timeout)
        if self.wakeup in readable and signal.SIGTERM in os.read(self.wakeup, 1024):
            self._stop()
        if 0 in readable:
            asked = os.read(0, 1024)
            self.is_lifeline_open = bool(asked)
            if b"k" in asked:
                self._kill()
            elif not asked:
                self._stop()
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self._kill()

    def _stop(self) -> None:
        if self.deadline is None:
            self.deadline = time.monotonic() + self.grace_s
            _signal(self.pid, signal.SIGTERM)

    def _kill(self) -> None:
        self.deadline = time.monotonic() + 1.0
        for pid in [self.pid, *_descendants()]:
            _signal(pid, signal.SIGKILL)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.pid:
                    code = os.waitstatus_to_exitcode(status)
                    self.status = code if code >= 0 else 128 - code

    def _clear_descendants(self) -> None:
        """Ends what the command left behind: SIGTERM, then SIGKILL until nothing is left."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + (AFTER_END_S if self.deadline is None else 0.2)
        is_told = False
        while left := _descendants():
            is_late = time.monotonic() >= deadline
            if is_late or not is_told:
                for pid in left:
                    _signal(pid, signal.SIGKILL if is_late else signal.SIGTERM)
                is_told = True
            time.sleep(0.02)
            self._reap()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def _wake_on_signals() -> int:
    """File descriptor that becomes readable with the numbers of signals that arrived."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return read_end


def _die_with_keeper() -> None:
    """In the child: default signal handling, and SIGKILL should even the keeper be killed."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _descendants() -> list[int]:
    """Process ids of all descendants; empty where there is no /proc (the group is signalled then).

    Runs in the background (`LEFT_ALONE`) and their descendants are not among them.
    """
    parents: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat") as file:
                    state, parent = file.read().rpartition(")")[2].split()[:2]
                    if state != "Z":
                        parents[int(name)] = int(parent)
    found = [os.getpid()]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid and not _is_left_alone(child))
    return found[1:]


def _is_left_alone(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return LEFT_ALONE in file.read().split(b"\0")
    return False


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
