"""`malleus up` and `malleus demo`: run the parts of a system in the foreground."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.output import JsonOption, print_json, seconds
from app.commands.surroundings import person
from db.errors import InputError
from db.settings import Settings

if TYPE_CHECKING:
    from app.story_figures import Figures

HostOption = Annotated[
    str | None, typer.Option(help="Address the dashboard listens on.", show_default="MALLEUS_HOST or 127.0.0.1")
]
PortOption = Annotated[
    int | None, typer.Option(min=1, max=65535, help="The dashboard's port.", show_default="MALLEUS_PORT or 8501")
]


def up(host: HostOption = None, port: PortOption = None) -> None:
    """Run broker (if embedded), worker, controller and dashboard until Ctrl-C."""
    from app.local.stop_signals import StopSignals
    from app.local.system import LocalSystem
    from db import runs

    settings = _settings(host, port)
    with StopSignals() as signals, LocalSystem(settings, has_dashboard=True, say=_say, wait=signals.wait) as system:
        _greet(settings)
        _say("Ctrl-C stops everything; `malleus train CONFIG.toml` starts a run")
        while not signals.wait(1.0):
            system.watch()
        _say("stopping")
        for run in runs.open_runs(system.store):
            _say(f"run {run.id} ({run.status}) is not stopped by this: its engine goes on where it was started")


def demo(
    headless: Annotated[bool, typer.Option("--headless", help="No dashboard: end by itself with figures.")] = False,
    as_json: JsonOption = False,
    devices: Annotated[int, typer.Option(help="Emulated devices, on two nodes: 4, 8 or 16.")] = 8,
    situation: Annotated[str, typer.Option(help="What goes wrong: S0 to S6.")] = "S1",
    steps: Annotated[
        int | None, typer.Option(min=1, help="Length of the run, in steps.", show_default="as in the preset")
    ] = None,
    no_replan: Annotated[
        bool, typer.Option("--no-replan", help="Keep the first plan: what a straggler costs.")
    ] = False,
    host: HostOption = None,
    port: PortOption = None,
) -> None:
    """Show the whole loop: a training run, a device that turns slow, a new plan, recovery."""
    from app.demo import DemoOptions, configuration, run_headless, run_viewed

    if as_json and not headless:
        raise InputError("--json needs --headless: a demo that is viewed has no end of its own")
    settings = _settings(host, port)
    options = DemoOptions(
        num_devices=devices, situation=situation.upper(), num_steps=steps, is_replanning=not no_replan
    )
    configuration(options)
    if not headless:
        run_viewed(settings, options, say=_say, greet=lambda: _greet(settings), actor=person())
        return
    figures = run_headless(settings, options, say=_whisper, actor=person())
    if as_json:
        print_json(figures.to_json())
    else:
        _print_figures(figures)
    if not (figures.is_cost_measured if no_replan else figures.is_recovered):
        raise typer.Exit(1)


def _settings(host: str | None, port: int | None) -> Settings:
    settings = Settings.from_env()
    return dataclasses.replace(settings, host=host or settings.host, port=port or settings.port)


def _greet(settings: Settings) -> None:
    from app.local.port import reachable

    host = reachable(settings.host)
    _say(f"dashboard    http://{f'[{host}]' if ':' in host else host}:{settings.port}")
    _say(f"write token  {settings.write_token()}")
    if not settings.host.startswith("127.") and settings.host not in ("::1", "localhost"):
        _say("whoever reaches this address can read; writing needs the token")


def _print_figures(figures: Figures) -> None:
    values = figures.to_json()
    for name, value in values.items():
        shown = seconds(value) if name.endswith("_s") else f"{value:.3g}" if isinstance(value, float) else value
        print(f"{name:<18} {'-' if shown is None else shown}")


def _say(line: str) -> None:
    print(line, flush=True)


def _whisper(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
