"""A training run on this machine: registered, its engine started under torchrun, followed to its end.

The row in SQL is the truth; a person's wish to stop goes through a command row like any other.
`python -m app.local.trainer RUN` does the same in the background for a run that is registered.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.errors import LocalError
from app.local import commands
from app.local.part import Part
from app.local.run_file import to_toml
from app.local.stop_signals import StopSignals
from db import commands as command_rows
from db import heartbeats, runs
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
STORE_AWAY_S = 60.0
STDLIB = "stdlib"
BYTES = "bytes"


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


def with_absolute_source(config: RunConfig, folder: Path) -> RunConfig:
    """The configuration with the paths of its data made absolute: the engine works in another folder.

    Raises:
        InputError: there is nothing at a path.
    """
    source, tokenizer = config.data.source, config.data.tokenizer
    if config.data.format == "megatron":
        source = _absolute(source, folder)
        for path in (f"{source}.idx", f"{source}.bin"):
            if not Path(path).is_file():
                raise InputError(f"data.source must be the common path of an .idx and a .bin file, found no {path}")
    else:
        if source != STDLIB:
            source = _absolute(source, folder)
            if not Path(source).exists():
                raise InputError(f"data.source must be {STDLIB!r} or an existing file or folder, given {source!r}")
        if tokenizer != BYTES:
            tokenizer = _absolute(tokenizer, folder)
            if not Path(tokenizer).is_file():
                raise InputError(f"data.tokenizer must be {BYTES!r} or an existing tokenizer.json, given {tokenizer!r}")
    data = config.data.model_copy(update={"source": source, "tokenizer": tokenizer})
    return config.model_copy(update={"data": data})


def _absolute(path: str, folder: Path) -> str:
    return str((folder / Path(path).expanduser()).absolute())


def check_surroundings(store: Store, settings: Settings) -> None:
    """A run needs a broker and a controller that listens.

    Raises:
        BusError: the broker cannot be reached.
        InputError: no controller has been heard lately.
    """
    with Bus(settings.broker_url()) as bus:
        bus.ping()
    beat = heartbeats.all_beats(store).get("controller")
    silent_s = None if beat is None else (utc_now() - beat.at).total_seconds()
    if silent_s is None or silent_s > CONTROLLER_SILENT_S:
        when = "ever" if silent_s is None else f"for {silent_s:.0f} s"
        raise InputError(f"expected a running controller (`malleus up` starts one), none was heard {when}")


class Trainer:
    """The engine of one registered run.

    Args:
        engine: builds the engine's command line; tests put a scripted engine here.

    Raises:
        LocalError: it cannot be started; the run is failed then.
    """

    def __init__(
        self, store: Store, settings: Settings, run: RunView, *, engine: commands.EngineArgv = commands.torchrun
    ) -> None:
        self.store = store
        self.run = run.id
        config = commands.run_folder(settings, run.id) / "run.toml"
        try:
            config.parent.mkdir(parents=True, exist_ok=True)
            config.write_text(to_toml(run.config), encoding="utf-8")
            self.part = Part(commands.engine(settings, run.id, engine(run.id, run.config.num_devices, config)))
        except OSError as error:
            runs.engine_exited(store, run.id, 127)
            raise LocalError(f"cannot start the engine of run {run.id}: {error}") from None

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
        """Ends the engine now, whatever it does."""
        self.part.kill()

    def finish(self) -> RunView:
        """After the engine's end: the run as it stands, ended.

        What the engine said last may still be on its way, so the controller gets a moment to note it.

        Raises:
            StoreError: the database stayed away for `STORE_AWAY_S`.
        """
        code = self.part.stop()
        noted_by = time.monotonic() + LAST_WORDS_S
        give_up_at = time.monotonic() + STORE_AWAY_S
        while True:
            try:
                if code == 0 and runs.get(self.store, self.run).is_open and time.monotonic() < noted_by:
                    time.sleep(0.1)
                    continue
                runs.engine_exited(self.store, self.run, code)
                return runs.get(self.store, self.run)
            except StoreError:
                if time.monotonic() >= give_up_at:
                    raise
                time.sleep(1.0)


def follow(
    trainer: Trainer,
    signals: StopSignals,
    *,
    actor: str,
    on_stopping: Callable[[], None],
    on_progress: Callable[[RunView], None],
    stop_timeout_s: float = math.inf,
) -> RunView:
    """Waits for the engine's end. The first request to stop asks the run to, the second kills it.

    Training outlives a database that is away for a while: nothing is shown meanwhile.

    Args:
        on_stopping: called once the run has been asked to stop.
        on_progress: called with the run as it stands, about twice a second; what it raises ends the engine.
        stop_timeout_s: kill a run that was asked to stop after this time.
    """
    num_seen = 0
    kill_at: float | None = None
    try:
        while trainer.is_running:
            signals.wait(POLL_S)
            is_second = kill_at is not None and signals.count > num_seen
            if is_second or (kill_at is not None and time.monotonic() >= kill_at):
                trainer.kill()
            elif signals.count > num_seen:
                num_seen += 1
                kill_at = time.monotonic() + stop_timeout_s
                if not trainer.ask_to_stop(actor=actor, source="cli"):
                    trainer.kill()
                on_stopping()
            view = _look(trainer)
            if view is not None:
                on_progress(view)
    except BaseException:
        trainer.kill()
        with contextlib.suppress(StoreError):
            runs.engine_exited(trainer.store, trainer.run, trainer.part.stop())
        raise
    return trainer.finish()


def _look(trainer: Trainer) -> RunView | None:
    try:
        return runs.get(trainer.store, trainer.run)
    except StoreError:
        return None


def main(run: int) -> int:
    """Runs the engine of a registered run to its end, for `malleus train --detach`."""
    settings = Settings.from_env()
    os.chdir(settings.home)
    with StopSignals() as signals, Store.open(settings.database_url) as store:
        trainer = Trainer(store, settings, runs.get(store, run))
        ended = follow(trainer, signals, actor="trainer", on_stopping=lambda: None, on_progress=lambda _: None)
    return 0 if ended.status in ("finished", "stopped") else 1


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1])))
    except (InputError, BusError, StoreError, LocalError) as error:
        sys.exit(f"malleus: {error}")
