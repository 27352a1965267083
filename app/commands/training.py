"""`malleus train`: registers a run and follows its engine on this machine to the end."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.output import JsonOption, print_json
from app.commands.surroundings import open_store, person
from db.errors import InputError
from db.settings import Settings

if TYPE_CHECKING:
    from db.runs import RunView


def train(
    config: Annotated[Path, typer.Argument(help="Configuration of the run (TOML).", show_default=False)],
    follow: Annotated[
        bool, typer.Option("--follow/--detach", help="Wait for the end, or go on in the background.")
    ] = True,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN|DIR",
            help="Start from the newest checkpoint of a run, or from a folder with a checkpoint or a model.",
            show_default="random weights",
        ),
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often an engine that dies is started again, from the newest checkpoint.")
    ] = 3,
    trace_step: Annotated[
        int | None,
        typer.Option(
            min=0, help="Write a trace of this step (chrome://tracing, Perfetto); needs --follow.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start a run on this machine and register it. Ctrl-C stops it after the step it is in; twice kills it."""
    from app.commands.progress import Progress
    from app.commands.saving import start_from
    from app.local import commands, trainer
    from app.local.run_paths import starting_from, with_absolute_source, with_checkpoint_paths
    from app.local.stop_signals import StopSignals
    from db import runs
    from db.run_config import RunConfig

    settings = Settings.from_env()
    if trace_step is not None and not follow:
        raise InputError("--trace-step needs --follow")
    checked = with_absolute_source(RunConfig.from_file(config), Path.cwd())
    checked = with_checkpoint_paths(checked, Path.cwd())
    plan = trainer.first_plan(checked)
    with open_store(settings) as store:
        if source is not None:
            checked = starting_from(checked, start_from(store, source, Path.cwd()))
        trainer.check_surroundings(store, settings)
        progress = Progress(store, sys.stderr if as_json else sys.stdout)
        with StopSignals() as signals:
            run = runs.create(store, checked, plan=plan, actor=person())
            progress.say(f"run {run.id}")
            if not follow:
                _detach(settings, run.id, max_restarts)
                if as_json:
                    print_json({"run": run.id, "status": run.status})
                return
            ended = trainer.follow(
                trainer.Trainer(store, settings, run, max_restarts=max_restarts)
                if trace_step is None
                else trainer.Trainer(
                    store, settings, run, max_restarts=max_restarts, engine=commands.torchrun_with_trace(trace_step)
                ),
                signals,
                actor=person(),
                on_stopping=lambda: progress.say(f"run {run.id}: stopping; Ctrl-C again kills it"),
                on_progress=progress.show,
            )
            progress.end()
    _report(ended, settings, as_json=as_json)
    if trace_step is not None:
        path = commands.trace_path(commands.run_folder(settings, run.id), trace_step)
        progress.say(f"trace: {path}" if path.exists() else "trace: none, the run did not reach that step")
    if ended.status not in ("finished", "stopped"):
        raise typer.Exit(1)


def _detach(settings: Settings, run: int, max_restarts: int) -> None:
    """Hands the run to a process of its own, which nobody waits for."""
    from app.local import commands
    from app.local.environment import child_environment

    log = commands.run_folder(settings, run) / "trainer.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "app.local.trainer", str(run), str(max_restarts)],
        child_environment(settings),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


def _report(run: RunView, settings: Settings, *, as_json: bool) -> None:
    from app.local import commands

    if as_json:
        print_json({"run": run.id, "status": run.status, "reason": run.reason, "step": run.step, "loss": run.loss})
        return
    print(f"run {run.id}: {run.status}{f' ({run.reason})' if run.reason else ''}")
    if run.status == "failed":
        print(f"log: {commands.run_folder(settings, run.id) / 'engine.log'}")
