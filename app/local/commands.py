"""The command lines of the local processes.

Secrets travel in the environment, never here. Each works in the data folder, so that whatever a
library drops lands there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from app.dashboard import launch
from app.local.environment import child_environment
from app.local.part import Command
from db.run_config import RunConfig
from db.settings import Settings

EngineArgv = Callable[[int, int, Path, Path], list[str]]
"""From run, number of ranks, configuration file and folder of checkpoints to the engine's command line."""


def worker(settings: Settings) -> Command:
    """The Celery worker that solves plans, one at a time."""
    argv = [
        *(sys.executable, "-m", "celery", "-A", "planner.worker", "worker"),
        *("--concurrency", "1", "--loglevel", "INFO", "--without-gossip", "--without-mingle"),
    ]
    return _command(settings, "worker", argv)


def controller(settings: Settings) -> Command:
    """The control loop."""
    return _command(settings, "controller", [sys.executable, "-m", "planner.controller"])


def dashboard(settings: Settings) -> Command:
    """The dashboard; it finds its theme beside its script."""
    argv, environment = launch.command(settings, child_environment(settings))
    return _command(settings, "dashboard", argv, environment)


def engine(settings: Settings, run: int, argv: list[str]) -> Command:
    """The engine of one run; one thread a rank, since ranks share this machine's cores."""
    return Command(
        name=f"engine of run {run}",
        argv=argv,
        environment=child_environment(settings) | {"OMP_NUM_THREADS": "1"},
        folder=settings.home,
        log=engine_log(settings, run),
    )


def torchrun(run: int, num_ranks: int, config: Path, checkpoints: Path) -> list[str]:
    """`torchrun` on this machine alone; its own files lie beside the configuration."""
    return [
        *(sys.executable, "-m", "engine.launch", "--standalone", "--nproc-per-node", str(num_ranks)),
        *("--log-dir", str(config.parent / "ranks")),
        *("-m", "engine", "--run-id", str(run), "--config", str(config), "--checkpoints", str(checkpoints)),
    ]


def exporter(checkpoint: Path, config: Path, out: Path) -> list[str]:
    """Turns a checkpoint into a folder in the form of Hugging Face."""
    return [
        *(sys.executable, "-m", "engine.export", "--checkpoint", str(checkpoint)),
        *("--config", str(config), "--out", str(out)),
    ]


def torchrun_with_trace(step: int) -> EngineArgv:
    """`torchrun` whose ranks write a trace of step `step` beside the configuration."""

    def argv(run: int, num_ranks: int, config: Path, checkpoints: Path) -> list[str]:
        trace = ["--trace-step", str(step), "--trace-out", str(trace_path(config.parent, step))]
        return [*torchrun(run, num_ranks, config, checkpoints), *trace]

    return argv


def trace_path(folder: Path, step: int) -> Path:
    """Where the trace of a step lies in a run's folder."""
    return folder / f"step-{step}-trace.json"


def run_folder(settings: Settings, run: int) -> Path:
    """Files of one run."""
    return settings.home / "runs" / str(run)


def engine_log(settings: Settings, run: int) -> Path:
    """What a run's engine printed."""
    return run_folder(settings, run) / "engine.log"


def trainer_log(settings: Settings, run: int) -> Path:
    """What the trainer of a run in the background printed."""
    return run_folder(settings, run) / "trainer.log"


def checkpoint_folder(settings: Settings, run: int, config: RunConfig) -> Path:
    """Where the checkpoints of a run go, as an absolute path."""
    given = config.checkpoint.folder
    return (Path(given).expanduser() if given else run_folder(settings, run) / "checkpoints").absolute()


def _command(settings: Settings, name: str, argv: list[str], environment: dict[str, str] | None = None) -> Command:
    return Command(
        name=name,
        argv=argv,
        environment=environment or child_environment(settings),
        folder=settings.home,
        log=settings.home / "logs" / f"{name}.log",
    )
