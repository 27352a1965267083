"""`malleus train`: registers a run and follows its engine on this machine to the end."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.output import JsonOption, print_json, seconds
from app.commands.surroundings import open_store, person
from db.errors import InputError
from db.settings import Settings

if TYPE_CHECKING:
    from db.runs import RunView

PROGRESS_S = 5.0


def train(
    config: Annotated[Path, typer.Argument(help="Configuration of the run (TOML).", show_default=False)],
    follow: Annotated[
        bool, typer.Option("--follow/--detach", help="Wait for the end, or go on in the background.")
    ] = True,
    trace_step: Annotated[
        int | None,
        typer.Option(
            min=0, help="Write a trace of this step (chrome://tracing, Perfetto); needs --follow.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start a run on this machine and register it. Ctrl-C stops it after the step it is in; twice kills it."""
    from app.local import commands, trainer
    from app.local.stop_signals import StopSignals
    from db import runs
    from db.run_config import RunConfig

    settings = Settings.from_env()
    if trace_step is not None and not follow:
        raise InputError("--trace-step needs --follow")
    checked = trainer.with_absolute_source(RunConfig.from_file(config), Path.cwd())
    plan = trainer.first_plan(checked)
    with open_store(settings) as store:
        trainer.check_surroundings(store, settings)
        with StopSignals() as signals:
            run = runs.create(store, checked, plan=plan, actor=person())
            _say(f"run {run.id}", as_json=as_json)
            if not follow:
                _detach(settings, run.id)
                if as_json:
                    print_json({"run": run.id, "status": run.status})
                return
            progress = _Progress(as_json=as_json)
            ended = trainer.follow(
                trainer.Trainer(store, settings, run)
                if trace_step is None
                else trainer.Trainer(store, settings, run, engine=commands.torchrun_with_trace(trace_step)),
                signals,
                actor=person(),
                on_stopping=lambda: _say(f"run {run.id}: stopping; Ctrl-C again kills it", as_json=as_json),
                on_progress=progress.show,
            )
    _report(ended, settings, as_json=as_json)
    if trace_step is not None:
        _say_trace(commands.trace_path(commands.run_folder(settings, run.id), trace_step), as_json=as_json)
    if ended.status not in ("finished", "stopped"):
        raise typer.Exit(1)


def _say_trace(path: Path, *, as_json: bool) -> None:
    found = path.exists()
    _say(f"trace: {path}" if found else "trace: none, the run did not reach that step", as_json=as_json)


class _Progress:
    """One line every few seconds, when there is something new."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._shown: tuple[object, ...] = ()
        self._next_at = 0.0

    def show(self, run: RunView) -> None:
        state = (run.status, run.step, run.active_plan_version)
        is_new_status = state[:1] != self._shown[:1]
        if state == self._shown or (time.monotonic() < self._next_at and not is_new_status):
            return
        self._shown, self._next_at = state, time.monotonic() + PROGRESS_S
        line = f"run {run.id}: {run.status}"
        if run.step is not None:
            line += f", step {run.step + 1} of {run.config.train.num_steps}, loss {run.loss:.4g}, {seconds(run.step_s)}"
            line += f" a step, plan v{run.active_plan_version}"
        _say(line, as_json=self._as_json)


def _say(line: str, *, as_json: bool) -> None:
    print(line, file=sys.stderr if as_json else sys.stdout, flush=True)


def _detach(settings: Settings, run: int) -> None:
    """Hands the run to a process of its own, which nobody waits for."""
    from app.local import commands
    from app.local.environment import child_environment

    log = commands.run_folder(settings, run) / "trainer.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "app.local.trainer", str(run)],
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
