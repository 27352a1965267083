"""A training run on this machine: registered, its engine started under torchrun, followed to its end.

An engine that dies (a rank was killed) is started again a few times; it finds the run's checkpoints by itself.
The row in SQL is the truth; a person's wish to stop goes through a command row like any other.
`python -m app.local.trainer RUN MAX_RESTARTS` does the same in the background for a run that is registered.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from app.errors import LocalError
from app.local import commands
from app.local.part import Part
from app.local.run_file import to_toml
from app.local.stop_signals import StopSignals
from db import checkpoints, heartbeats, history, runs
from db import commands as command_rows
from db.bus import Bus
from db.errors import BusError, InputError, StoreError
from db.messages import utc_now
from db.run_config import RunConfig
from db.runs import RunView
from db.settings import Settings
from db.store import Store
from planner.plan import even_plan
from planner.spec import ClusterSpec
from planner.validate import check

CONTROLLER_SILENT_S = 30.0
POLL_S = 0.5
LAST_WORDS_S = 3.0
MAX_RESTARTS = 3
FIRST_DELAY_S = 2.0
DELAY_GROWTH = 3.0
NOT_STARTED = 127
"""Exit status of an engine whose program is not there."""
STORE_AWAY_S = 60.0
T = TypeVar("T")


def first_plan(config: RunConfig) -> dict[str, Any]:
    """Document of the uniform plan that a run starts with.

    Raises:
        PlanError: the configuration's degrees break a rule of plans.
    """
    micro_batch_size = config.train.micro_batch_sizes[0]
    plan = even_plan(
        config.nodes,
        num_layers=config.model.num_layers,
        num_micro_batches=config.train.global_batch // micro_batch_size,
        micro_batch_size=micro_batch_size,
        dp_degree=config.parallel.dp,
        tp_degree=config.parallel.tp,
        pp_degree=config.parallel.pp,
    )
    devices = [device for node in config.nodes for device in node]
    check(
        plan,
        cluster=ClusterSpec(nodes=config.nodes, memory_bytes=dict.fromkeys(devices, config.cluster.memory_bytes)),
        num_layers=config.model.num_layers,
        global_batch=config.train.global_batch,
        max_tp=config.parallel.max_tp,
    )
    return plan.to_json()


def check_surroundings(store: Store, settings: Settings) -> None:
    """A run needs a broker and a controller that listens.

    Raises:
        BusError: the broker cannot be reached.
        InputError: no controller has been heard lately.
    """
    with Bus(settings.broker_url()) as bus:
        bus.ping()
    check_controller(store)


def check_controller(store: Store) -> None:
    """A run needs a controller that listens.

    Raises:
        InputError: none has been heard lately.
    """
    beat = heartbeats.all_beats(store).get("controller")
    silent_s = None if beat is None else (utc_now() - beat.at).total_seconds()
    if silent_s is None or silent_s > CONTROLLER_SILENT_S:
        when = "ever" if silent_s is None else f"for {silent_s:.0f} s"
        raise InputError(f"expected a running controller (`malleus up` starts one), none was heard {when}")


class Trainer:
    """The engine of one registered run; started again when it dies, if that may help.

    Args:
        engine: builds the engine's command line; tests put a scripted engine here.
        max_restarts: how often an engine that dies is started again. It goes on from the run's newest checkpoint.
        first_delay_s: before the first restart; every further one waits `DELAY_GROWTH` times longer.

    Raises:
        LocalError: it cannot be started; the run is failed then.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        run: RunView,
        *,
        engine: commands.EngineArgv = commands.torchrun,
        max_restarts: int = 0,
        first_delay_s: float = FIRST_DELAY_S,
    ) -> None:
        self.store, self.settings = store, settings
        self.run = run.id
        self.num_restarts = 0
        self._max_restarts, self._first_delay_s = max_restarts, first_delay_s
        self._is_killed = False
        self._why = ""
        config = commands.run_folder(settings, run.id) / "run.toml"
        folder = commands.checkpoint_folder(settings, run.id, run.config)
        self._argv = engine(run.id, run.config.num_devices, config, folder)
        runs.watch_engine(store, run.id, max_restarts=max_restarts)
        try:
            config.parent.mkdir(parents=True, exist_ok=True)
            config.write_text(to_toml(run.config), encoding="utf-8")
        except OSError as error:
            raise self._cannot_start(error) from None
        self._start()

    @property
    def is_running(self) -> bool:
        return self.part.exit_code is None

    def ask_to_stop(self, *, actor: str, source: str) -> bool:
        """Asks for a stop at the next step boundary; False if the database cannot be reached for it."""
        try:
            if runs.get(self.store, self.run).is_open:
                command_rows.submit(self.store, self.run, "stop", {}, actor=actor, source=source, key="trainer-stop")
        except InputError:
            return True  # it ended meanwhile
        except StoreError:
            return False
        return True

    def kill(self) -> None:
        """Ends the engine now, whatever it does, for good."""
        self._is_killed = True
        self.part.kill()

    def restart_delay_s(self) -> float | None:
        """After the engine's end: seconds until it is to be started again; None: it is not.

        The run says so from then on: it is `lost`, with the reason and the outlook.

        Raises:
            StoreError: the database stayed away for `STORE_AWAY_S`.
        """
        code = self.part.stop()
        if self._is_killed or self._max_restarts == 0 or code in (0, runs.INPUT_WRONG, NOT_STARTED):
            return None
        if self.num_restarts and not self._has_progressed():
            self._why = "no new step or checkpoint since it was started again"
            return None
        delay_s = self._first_delay_s * DELAY_GROWTH**self.num_restarts
        if not _insist(lambda: runs.engine_lost(self.store, self.run, code, delay_s=delay_s)):
            if self.num_restarts:
                self._why = f"it was started again {self.num_restarts} times before"
            return None
        return delay_s

    def restart(self) -> None:
        """Starts the engine once more.

        Raises:
            LocalError: it cannot be started; the run is failed then.
        """
        self.num_restarts += 1
        self._start()

    def finish(self) -> RunView:
        """After the engine's end: the run as it stands, ended.

        What the engine said last may still be on its way, so the controller gets a moment to note it.

        Raises:
            StoreError: the database stayed away for `STORE_AWAY_S`.
        """
        code = self.part.stop()
        noted_by = time.monotonic() + LAST_WORDS_S
        while code == 0 and _insist(self._view).is_open and time.monotonic() < noted_by:
            time.sleep(0.1)
        _insist(lambda: runs.engine_exited(self.store, self.run, code, why=self._why))
        return _insist(self._view)

    def _start(self) -> None:
        self._mark = _insist(self._progress)
        try:
            self.part = Part(commands.engine(self.settings, self.run, self._argv))
        except OSError as error:
            raise self._cannot_start(error) from None

    def _cannot_start(self, error: OSError) -> LocalError:
        runs.engine_exited(self.store, self.run, NOT_STARTED)
        return LocalError(f"cannot start the engine of run {self.run}: {error}")

    def _has_progressed(self) -> bool:
        """Whether a step or checkpoint was completed since the last start; what was said last gets a moment."""
        noted_by = time.monotonic() + LAST_WORDS_S
        while (is_same := _insist(self._progress) == self._mark) and time.monotonic() < noted_by:
            time.sleep(0.1)
        return not is_same

    def _progress(self) -> tuple[object, ...]:
        """Changes with every step and every checkpoint that an attempt completes."""
        step = history.last_step(self.store, self.run)
        saved = checkpoints.newest_saved(self.store, self.run)
        return (step and (step.attempt, step.step), saved and saved.id)

    def _view(self) -> RunView:
        return runs.get(self.store, self.run)


def follow(
    trainer: Trainer,
    signals: StopSignals,
    *,
    actor: str,
    on_stopping: Callable[[], None],
    on_progress: Callable[[RunView], None],
    stop_timeout_s: float = math.inf,
) -> RunView:
    """Waits for the engine's end, the last one if it dies and is started again.

    The first request to stop asks the run to, the second kills it. Training outlives a database that is away for a
    while: nothing is shown meanwhile.

    Args:
        on_stopping: called once the run has been asked to stop.
        on_progress: called with the run as it stands, about twice a second; what it raises ends the engine.
        stop_timeout_s: kill a run that was asked to stop after this time.
    """
    following = _Following(trainer, signals, actor, on_stopping, on_progress, stop_timeout_s)
    try:
        following.to_the_end()
        while (delay_s := trainer.restart_delay_s()) is not None and following.waits(delay_s):
            trainer.restart()
            following.to_the_end()
    except BaseException:
        trainer.kill()
        with contextlib.suppress(StoreError):
            runs.engine_exited(trainer.store, trainer.run, trainer.part.stop())
        raise
    return trainer.finish()


@dataclass
class _Following:
    """Requests to stop, and what is shown, while the engine runs and while it is to be started again."""

    trainer: Trainer
    signals: StopSignals
    actor: str
    on_stopping: Callable[[], None]
    on_progress: Callable[[RunView], None]
    stop_timeout_s: float
    num_seen: int = 0
    kill_at: float | None = None

    def to_the_end(self) -> None:
        """Until the engine has ended."""
        while self.trainer.is_running:
            self.signals.wait(POLL_S)
            is_new = self.signals.count > self.num_seen
            is_over = self.kill_at is not None and (is_new or time.monotonic() >= self.kill_at)
            if is_over or (is_new and not self._ask_to_stop()):
                self.trainer.kill()
            self._look()

    def waits(self, delay_s: float) -> bool:
        """Waits before a restart; False if the run is to stop instead."""
        restart_at = time.monotonic() + delay_s
        give_up_at = None if self.kill_at is None else time.monotonic() + LAST_WORDS_S
        while True:
            left_s = restart_at - time.monotonic()
            self.signals.wait(min(POLL_S, max(left_s, 0.01)))
            if self.signals.count > self.num_seen:
                if give_up_at is not None or not self._ask_to_stop():
                    return False
                give_up_at = time.monotonic() + LAST_WORDS_S  # a controller takes the request up before that
            view = self._look()
            if view is not None and (view.is_stopping or not view.is_open):
                return False
            if give_up_at is not None and time.monotonic() >= give_up_at:
                return False
            if give_up_at is None and left_s <= 0:
                return True

    def _ask_to_stop(self) -> bool:
        self.num_seen += 1
        self.kill_at = time.monotonic() + self.stop_timeout_s
        is_asked = self.trainer.ask_to_stop(actor=self.actor, source="cli")
        self.on_stopping()
        return is_asked

    def _look(self) -> RunView | None:
        try:
            view = runs.get(self.trainer.store, self.trainer.run)
        except StoreError:
            return None
        self.on_progress(view)
        return view


def _insist(action: Callable[[], T]) -> T:
    """Does something with the database, which may be away for a while.

    Raises:
        StoreError: it stayed away for `STORE_AWAY_S`.
    """
    give_up_at = time.monotonic() + STORE_AWAY_S
    while True:
        try:
            return action()
        except StoreError:
            if time.monotonic() >= give_up_at:
                raise
            time.sleep(1.0)


def main(run: int, max_restarts: int) -> int:
    """Runs the engine of a registered run to its end, for `malleus train --detach`."""
    settings = Settings.from_env()
    os.chdir(settings.home)
    with StopSignals() as signals, Store.open(settings.database_url) as store:
        trainer = Trainer(store, settings, runs.get(store, run), max_restarts=max_restarts)
        ended = follow(trainer, signals, actor="trainer", on_stopping=lambda: None, on_progress=lambda _: None)
    return 0 if ended.status in ("finished", "stopped") else 1


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
    except (InputError, BusError, StoreError, LocalError) as error:
        sys.exit(f"malleus: {error}")
