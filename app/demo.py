"""The demo: a whole system, a training run, and a situation played on it, in one command.

Headless it ends by itself with the figures; otherwise it goes on until Ctrl-C, for a viewer in the
browser. The run is a run like any other: `app.local.trainer` starts it, command rows steer it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from app.errors import CommandError, LocalError
from app.local import commands, trainer
from app.local.stop_signals import StopSignals
from app.local.system import LocalSystem
from app.local.trainer import Trainer
from app.situations import Straggler, stragglers
from app.story import NUM_STEPS, Story
from app.story_figures import Figures, measure
from db import runs
from db.errors import InputError
from db.run_config import RunConfig
from db.runs import RunView
from db.settings import Settings

PRESET = Path(__file__).parent / "presets" / "demo.toml"
DEVICES = (4, 8, 16)
VIEWING_STEPS = 30
"""Recovered steps that a viewer gets to see before the stragglers go."""
STOP_TIMEOUT_S = 120.0
SILENT_S = 120.0
"""A headless demo gives up when nothing new has happened for so long."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What to show.

    Args:
        num_devices: emulated devices, on two nodes.
        situation: a name of `app.situations`.
        num_steps: length of the run; None: as in the preset.
        is_replanning: False leaves the job with its first plan, to show what a straggler costs.
    """

    num_devices: int = 8
    situation: str = "S1"
    num_steps: int | None = None
    is_replanning: bool = True


def configuration(options: DemoOptions) -> tuple[RunConfig, tuple[Straggler, ...]]:
    """The demo's run and what happens to it.

    Raises:
        InputError: a number of devices or a situation that the demo does not have.
    """
    if options.num_devices not in DEVICES:
        raise InputError(f"--devices must be one of {', '.join(map(str, DEVICES))}, given {options.num_devices}")
    preset = RunConfig.from_file(PRESET)
    document = preset.model_dump(mode="json")
    per_node = options.num_devices // preset.cluster.num_nodes
    document["cluster"]["devices_per_node"] = per_node
    document["cluster"]["memory_bytes"] *= max(1.0, preset.num_devices / options.num_devices)  # the model must fit
    document["parallel"]["pp"] = options.num_devices // (preset.parallel.dp * preset.parallel.tp)
    document["parallel"]["max_tp"] = min(preset.parallel.max_tp, per_node)
    if options.num_steps is not None:
        document["train"]["num_steps"] = options.num_steps
    if not options.is_replanning:
        document["control"]["mode"] = "off"
    config = RunConfig.model_validate(document)
    return config, stragglers(options.situation, config.nodes)


def run_headless(
    settings: Settings,
    options: DemoOptions,
    *,
    say: Say,
    actor: str,
    engine: commands.EngineArgv = commands.torchrun,
) -> Figures:
    """Plays the situation to its end, stops everything, and returns the figures.

    Raises:
        KeyboardInterrupt: a request to stop came.
        LocalError, CommandError: a part of the system, the engine or a command failed.
    """
    config, slow = configuration(options)
    with StopSignals() as signals, LocalSystem(settings, has_dashboard=False, say=say, wait=signals.wait) as system:
        started = _start(system, config, actor=actor, engine=engine, say=say)
        story = Story(system.store, started.run, slow, is_replanning=options.is_replanning, say=say, actor=actor)
        ended = _play(system, started, signals, _until_told(story, started, actor), actor=actor, say=say)
        if signals.count:
            raise KeyboardInterrupt
        if ended.status == "failed":
            raise LocalError(f"run {ended.id} failed: {ended.reason}; see {started.part.command.log}")
        return measure(story)


def run_viewed(
    settings: Settings,
    options: DemoOptions,
    *,
    say: Say,
    greet: Callable[[], None],
    actor: str,
    engine: commands.EngineArgv = commands.torchrun,
) -> None:
    """Serves the dashboard, plays the situation, and goes on until a request to stop.

    Args:
        greet: called once the dashboard answers.
    """
    config, slow = configuration(options)
    with StopSignals() as signals, LocalSystem(settings, has_dashboard=True, say=say, wait=signals.wait) as system:
        greet()
        started = _start(system, config, actor=actor, engine=engine, say=say)
        story = Story(system.store, started.run, slow, is_replanning=options.is_replanning, say=say, actor=actor)
        ended = _play(system, started, signals, _for_a_viewer(story), actor=actor, say=say)
        say(f"run {ended.id}: {ended.status}{f' ({ended.reason})' if ended.reason else ''}")
        while not signals.count:
            signals.wait(1.0)
            system.watch()


def _start(system: LocalSystem, config: RunConfig, *, actor: str, engine: commands.EngineArgv, say: Say) -> Trainer:
    run = runs.create(system.store, config, plan=trainer.first_plan(config), actor=actor)
    say(f"run {run.id}: {config.num_devices} emulated devices, {config.model.num_layers} layers; ranks are starting")
    return Trainer(system.store, system.settings, run, engine=engine)


def _play(
    system: LocalSystem, started: Trainer, signals: StopSignals, story: Iterator[None], *, actor: str, say: Say
) -> RunView:
    """Follows the engine to its end, and the story with it."""

    def advance(_: RunView) -> None:
        system.watch()
        next(story, None)

    return trainer.follow(
        started,
        signals,
        actor=actor,
        on_stopping=lambda: say("stopping the run; Ctrl-C again kills it"),
        on_progress=advance,
        stop_timeout_s=STOP_TIMEOUT_S,
    )


def _until_told(story: Story, started: Trainer, actor: str) -> Iterator[None]:
    """The story, then a stop; a job that does nothing new for long ends it."""
    last, deadline = None, time.monotonic() + SILENT_S
    for _ in story.tell():
        run = runs.get(story.store, story.run)
        now = (run.status, run.step)
        if now != last:
            last, deadline = now, time.monotonic() + SILENT_S
        if time.monotonic() >= deadline:
            raise CommandError(f"run {run.id} has been {run.status} without a new step for {SILENT_S:g} s")
        yield
    started.ask_to_stop(actor=actor, source="demo")


def _for_a_viewer(story: Story) -> Iterator[None]:
    yield from story.tell()
    if not story.stragglers or story.applied_step is None:
        return
    seen = runs.get(story.store, story.run).step or 0
    while (run := runs.get(story.store, story.run)).is_open:
        if (run.step or 0) >= seen + VIEWING_STEPS - NUM_STEPS:
            yield from story.clear()
            return
        yield
