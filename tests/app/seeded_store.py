"""Stories of runs for the dashboard's tests, from the empty one to the whole loop.

python -m tests.app.seeded_store FOLDER [SECONDS]     a store of all stories to look at, one of which goes on
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from db import heartbeats
from db.store import Store
from tests.app.seeded_run import SeededRun, absorbing_plan, clock_at, config_of


def healthy_run(store: Store, *, begin_at: datetime, num_steps: int = 60) -> SeededRun:
    return SeededRun(store, config_of("healthy"), begin_at=begin_at).start().steps(num_steps)


def straggling_run(store: Store, *, begin_at: datetime, name: str = "llama-16L") -> SeededRun:
    """Healthy, then device 3 slows down by injection, a plan absorbs it: the whole loop."""
    story = SeededRun(store, config_of(name), begin_at=begin_at).start()
    story.steps(40).evaluate().steps(40).evaluate().steps(10)
    story.inject(3, 2.57)
    story.steps(4).detect(3)
    version = story.propose(absorbing_plan())
    story.steps(1).switch(absorbing_plan(), version).steps(60)
    return story.measured(2.44)


def drifting_run(store: Store, *, begin_at: datetime) -> SeededRun:
    """Several stragglers, several plans, one rejected and one refused switch."""
    story = straggling_run(store, begin_at=begin_at, name="drift")
    story.inject(5, 5.42, actor="grace", source="cli")
    story.steps(3).detect(5, steps_ago=3)
    story.propose(story.plan, status="rejected", reason="no-better-plan: gain 0.4 % per step")
    version = story.propose(absorbing_plan())
    story.switch(absorbing_plan(), version, outcome="rejected", reason="rank 4: out of memory in prepare")
    return story.steps(20)


def manual_run(store: Store, *, begin_at: datetime) -> SeededRun:
    """A plan waits for a person."""
    story = SeededRun(store, config_of("manual", mode="manual"), begin_at=begin_at).start().steps(40)
    story.inject(3, 2.57)
    story.steps(4).detect(3)
    story.propose(absorbing_plan())
    return story.steps(6)


def odd_run(store: Store, *, begin_at: datetime) -> SeededRun:
    """NaN loss, a failed device, one that measures nothing, no profile."""
    story = SeededRun(store, config_of("odd"), begin_at=begin_at).start(has_profile=False).steps(12)
    story.rates[5] = math.inf
    story.steps(6, unknown=(2,)).steps(3, loss=math.nan, unknown=(2,))
    return story.steps(1, step_s=math.nan, loss=math.nan, unknown=(2,))


def finished_run(store: Store, *, begin_at: datetime) -> SeededRun:
    return SeededRun(store, config_of("finished"), begin_at=begin_at).start().steps(30).state("finished")


def waiting_run(store: Store, *, begin_at: datetime) -> SeededRun:
    """Registered; the engine has not been heard."""
    return SeededRun(store, config_of("waiting"), begin_at=begin_at)


def lonely_run(store: Store, *, begin_at: datetime) -> SeededRun:
    """One device."""
    config = config_of("lonely", num_nodes=1, per_node=1, num_layers=4, dp=1, tp=1, pp=1, global_batch=4)
    return SeededRun(store, config, begin_at=begin_at).start().steps(10)


def large_run(store: Store, *, begin_at: datetime, num_steps: int = 20) -> SeededRun:
    """256 devices on 32 nodes, three of them slow."""
    config = config_of(
        "large-64L", num_nodes=32, per_node=8, num_layers=64, dp=16, tp=4, pp=4, global_batch=128, mode="manual"
    )
    story = SeededRun(store, config, begin_at=begin_at).start().steps(num_steps)
    for device, rate in ((17, 2.57), (90, 5.42), (201, 12.53)):
        story.rates[device] = rate
    story.steps(5)
    for device in (17, 90, 201):
        story.detect(device)
    return story.steps(5)


def sixteen_run(store: Store, *, begin_at: datetime) -> SeededRun:
    config = config_of("sixteen", num_nodes=4, per_node=4, dp=4, global_batch=32)
    return SeededRun(store, config, begin_at=begin_at).start().steps(12)


def alive(store: Store, *, at: datetime | None = None) -> None:
    """Controller and worker beat."""
    with clock_at(at or datetime.now(UTC)):
        for name in ("controller", "worker"):
            heartbeats.beat(store, name, {"version": "0.1.0"})


def database_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'malleus.db'}"


STORIES: Mapping[str, Callable[..., SeededRun]] = {
    "finished": finished_run,
    "odd": odd_run,
    "lonely": lonely_run,
    "large": large_run,
    "sixteen": sixteen_run,
    "manual": manual_run,
    "drift": drifting_run,
    "healthy": healthy_run,
    "straggling": straggling_run,
}


@cache
def length_s(tell: Callable[..., SeededRun]) -> float:
    """How long a story lasts, from creation to its last message (the same every time it is told)."""
    began_at = datetime(2026, 1, 1, tzinfo=UTC)
    with TemporaryDirectory() as folder, Store.open(database_url(Path(folder)), migrate=True) as store:
        return (tell(store, begin_at=began_at).now - began_at).total_seconds()


def tell_until_now(store: Store, tell: Callable[..., SeededRun], *, ago_s: float = 0.5) -> SeededRun:
    """Tells a story so that its last message is `ago_s` old."""
    return tell(store, begin_at=datetime.now(UTC) - timedelta(seconds=length_s(tell) + ago_s))


def main() -> None:
    folder, play_s = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    with Store.open(database_url(folder), migrate=True) as store:
        told = [tell_until_now(store, tell) for tell in STORIES.values()]
        alive(store)
        ends_at = time.monotonic() + play_s
        while time.monotonic() < ends_at:  # the last run goes on, for a person to watch
            time.sleep(1.4)
            told[-1].now = datetime.now(UTC) - timedelta(seconds=1.45)
            told[-1].steps(1)
            alive(store)


if __name__ == "__main__":
    main()
