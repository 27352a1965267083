"""What tests of whole local systems share: a scripted engine's command line, waiting, and what is left behind."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

SCRIPT = Path(__file__).with_name("scripted_engine.py")


def scripted(*options: str) -> Callable[[int, int, Path, Path], list[str]]:
    """Builds the scripted engine's command line, where `torchrun` would stand."""

    def argv(run: int, num_ranks: int, config: Path, checkpoints: Path) -> list[str]:
        del num_ranks
        return [sys.executable, str(SCRIPT), str(run), str(config), str(checkpoints), *options]

    return argv


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    """Waits until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.05)


def processes_of(home: Path) -> dict[int, str]:
    """Processes that were started for a data folder, other than this one, with their command lines."""
    mark = f"MALLEUS_HOME={home}".encode()
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            continue
    return {pid: line for pid, line in found.items() if line}
