"""A run in the background: its trainer is a process of its own, which outlives who started it.

Shared by `malleus train --detach` and the page Runs. The trainer (`app.local.trainer`) starts the engine, again if it
dies, and says in SQL how it ended; its own words go to a log beside the run's configuration.
"""

from __future__ import annotations

import os
import sys
import threading

from app.errors import LocalError
from app.local import commands
from app.local.environment import child_environment
from app.local.trainer import NOT_STARTED
from db import runs
from db.errors import InputError, StoreError
from db.settings import Settings
from db.store import Store

MODULE = "app.local.trainer"


def start(store: Store, settings: Settings, run: int, *, max_restarts: int) -> int:
    """Hands a registered run to a trainer that nobody needs to wait for.

    Returns:
        The trainer's process id.

    Raises:
        LocalError: it cannot be started; the run is failed then.
    """
    log = commands.trainer_log(settings, run)
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", MODULE, str(run), str(max_restarts)],
            child_environment(settings),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
    except OSError as error:
        runs.engine_exited(store, run, NOT_STARTED, why=f"its trainer could not be started: {error}")
        raise LocalError(f"cannot start the trainer of run {run}: {error}") from None


def attend(store: Store, run: int, pid: int) -> threading.Thread:
    """For a starter that lives on: waits for the trainer in the background, so that it leaves no zombie.

    A trainer that ends with an error while its run is open was killed, or never came to its work: the run is failed.
    """
    thread = threading.Thread(target=_attend, args=(store, run, pid), name=f"trainer of run {run}", daemon=True)
    thread.start()
    return thread


def _attend(store: Store, run: int, pid: int) -> None:
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # somebody else has waited for it
        return
    if code == 0:
        return
    try:
        code = code if code > 0 else 128 - code
        runs.engine_exited(store, run, code, why="its trainer ended before it")
    except (InputError, StoreError):
        return  # nothing can be said of the run; the controller notices the silence
