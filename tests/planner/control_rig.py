"""A controller on a bench: real SQLite store, scripted clock, broker, queue and engine. Nothing waits.

`Rig.turn()` is one round of the control loop; `Rig.steps(n)` lets the engine take n steps with a round after
each. The engine obeys the desired document as the real one does.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from db import heartbeats, plans, runs
from db.bus import BrokerFacts
from db.errors import BusError
from db.messages import Checkpoint, Desired, DeviceInfo, Hello, Observed, Profile, State, Step, Switch, Telemetry
from db.run_config import RunConfig
from db.runs import RunView
from db.store import Store
from planner import presets
from planner.control.context import Clock, Context
from planner.control.lease import Lease
from planner.control.loop import Loop
from planner.plan import even_plan
from planner.worker import solve_plan, solve_what_if

NUM_DEVICES = 8


class FakeClock:
    """Stands still until told."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.start_at = datetime.now(UTC)

    def now(self) -> datetime:
        return self.start_at + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds


class FakeBus:
    """Both channels in memory; `is_away` makes it unreachable, `forget` empties it."""

    def __init__(self) -> None:
        self.documents: dict[int, Desired] = {}
        self.streams: dict[int, list[Telemetry]] = {}
        self.published: list[Desired] = []
        self.is_away = False

    def publish_desired(self, document: Desired) -> None:
        self._check()
        self.documents[document.run] = document
        self.published.append(document)

    def read_desired(self, run: int) -> Desired | None:
        self._check()
        return self.documents.get(run)

    def send(self, message: Telemetry) -> None:
        self.streams.setdefault(message.run, []).append(message)

    def read(
        self, cursors: Mapping[int, str], *, block_s: float = 0.0, count: int = 500
    ) -> list[tuple[int, str, Telemetry]]:
        self._check()
        found = []
        for run, cursor in cursors.items():
            first = int(cursor.split("-")[0])
            waiting = self.streams.get(run, [])[first : first + count]
            found += [(run, f"{first + index + 1}-0", message) for index, message in enumerate(waiting)]
        return found

    def reset(self, run: int) -> None:
        self._check()
        self.documents.pop(run, None)
        self.streams.pop(run, None)

    def ping(self) -> float:
        self._check()
        return 0.0

    def facts(self, runs: Iterable[int]) -> BrokerFacts:
        self._check()
        return BrokerFacts(
            version="8",
            round_trip_s=0.001,
            used_memory_bytes=900,
            max_memory_bytes=1000,
            stream_lengths={run: len(self.streams.get(run, [])) for run in runs},
        )

    def close(self) -> None:
        pass

    def _check(self) -> None:
        if self.is_away:
            raise BusError("broker redis://nowhere: gone")


class FakeQueue:
    """Keeps what was sent; `is_working` solves at once, as a worker in the same moment would."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sent: list[tuple[int, int]] = []
        self.what_ifs: list[int] = []
        self.num_canaries = 0
        self.is_working = True

    def send_solve(self, run: int, version: int) -> bool:
        self.sent.append((run, version))
        if self.is_working:
            solve_plan(self.store, run, version, worker="worker")
        return True

    def send_what_if(self, id: int) -> bool:
        self.what_ifs.append(id)
        if self.is_working:
            solve_what_if(self.store, id, worker="worker")
        return True

    def send_canary(self, canary: str) -> bool:
        self.num_canaries += 1
        if self.is_working:
            heartbeats.beat(self.store, "worker", {"state": "idle", "canary": canary})
        return True


class FakeEngine:
    """Rank 0 as the control plane sees it."""

    def __init__(self, bus: FakeBus, run: int, clock: FakeClock, *, attempt: str = "a") -> None:
        self.bus, self.run, self.clock, self.attempt = bus, run, clock, attempt
        self.seq = 0
        self.step = 0
        self.applied = 0
        self.plan_version = 0
        self.refusal = ""
        self.is_mute_about_switches = False
        self.phase = "first"
        self.rates: dict[int, float] = {}
        self.refused: set[int] = set()
        self.num_checkpoints = 0
        self.is_saving = True
        self.checkpoint_problem = ""
        self.num_deaths = 0

    def send(self, kind: type[Any], **fields: Any) -> None:
        self.bus.send(
            kind(
                run=self.run,
                attempt=self.attempt,
                seq=self.seq,
                at=self.clock.now(),
                desired_version=self.applied,
                **fields,
            )
        )
        self.seq += 1

    def start(self) -> None:
        document = self.bus.documents[self.run]
        self.send(Observed, observed_version=document.version)
        devices = tuple(
            DeviceInfo(device=device, node=device // 4, rank=device, pid=100 + device, host="h", backend="emulated")
            for device in range(NUM_DEVICES)
        )
        self.send(Hello, devices=devices, num_parameters=1000, torch_version="2")
        self.send(State, state="calibrating")
        self.send(Profile, profile=presets.model("demo")[0].to_json(), seconds=1.0)
        self.plan_version, self.applied = document.plan_version, document.version
        self.num_checkpoints = document.checkpoint
        self.rates = {injection.device: injection.rate for injection in document.injections}
        self.send(State, state="training")

    def obey(self) -> Desired:
        document = self.bus.documents[self.run]
        if document.version != self.applied:
            self.rates = {injection.device: injection.rate for injection in document.injections}
            self.applied = document.version
            failure = document.read_by(self.attempt).failure
            if failure is not None:
                self.num_deaths += 1
                reason = f"device {failure.device} failed on request"
                self.send(State, state="failed", step=self.step, reason=reason)
                return document
            if document.plan_version != self.plan_version and document.plan_version not in self.refused:
                self._switch(document)
        if self.is_saving and document.checkpoint > self.num_checkpoints:
            self.save(document.checkpoint)
        return document

    def save(self, request: int = 0) -> None:
        """A checkpoint, or what hinders it."""
        self.num_checkpoints = max(request, self.num_checkpoints)
        self.send(
            Checkpoint,
            step=self.step,
            request=self.num_checkpoints,
            outcome="failed" if self.checkpoint_problem else "saved",
            reason=self.checkpoint_problem,
            path=f"/runs/{self.run}/checkpoints/step-{self.step}",
            num_bytes=1000,
        )

    def take_step(self, **rates: float) -> None:
        """One step; `d3=2.57` overrides the injected rate of a device."""
        document = self.obey()
        if self.num_deaths:
            return
        if document.stop:
            self.send(State, state="stopped", step=self.step)
            return
        if document.paused:
            self.send(State, state="paused", step=self.step)
            return
        vector = tuple(rates.get(f"d{device}", self.rates.get(device, 1.0)) for device in range(NUM_DEVICES))
        self.send(
            Step,
            step=self.step,
            plan_version=self.plan_version,
            phase=self.phase,
            step_s=max((rate for rate in vector if math.isfinite(rate)), default=1.0),
            loss=3.0,
            num_tokens=1024,
            samples=(self.step * 16, self.step * 16 + 16),
            rates=vector,
            compute_s=vector,
        )
        self.step += 1
        self.phase = "train"

    def _switch(self, document: Desired) -> None:
        former, version = self.plan_version, document.plan_version
        if self.refusal:
            self.refused.add(version)
        else:
            self.plan_version = version
        self.phase = "switch"
        if not self.is_mute_about_switches:
            self.send(
                Switch,
                step=self.step,
                plan_version=version,
                from_version=former,
                outcome="rejected" if self.refusal else "applied",
                reason=self.refusal,
                bytes_moved=1_000_000,
                pause_s=0.4,
            )


class Rig:
    """Store, loop and one engine of one run."""

    def __init__(self, folder: Path, *, config: RunConfig | None = None) -> None:
        self.folder = folder
        self.store = Store.open(f"sqlite:///{folder / 'malleus.db'}", migrate=True)
        self.clock = FakeClock()
        self.bus = FakeBus()
        self.queue = FakeQueue(self.store)
        self.stop = threading.Event()
        self.stop.set()  # waits return at once
        self.loop = self.new_loop()
        self.run = create_run(self.store, config or RunConfig())
        self.engine = FakeEngine(self.bus, self.run.id, self.clock)

    def new_loop(self) -> Loop:
        """A controller that starts now, from what SQL holds; the one before it is gone."""
        heartbeats.beat(self.store, "controller", {})
        clock = Clock(now=self.clock.now, monotonic=self.clock.monotonic)
        self.context = Context(store=self.store, bus=self.bus, queue=self.queue, clock=clock)
        return Loop(self.context, Lease(self.store, self.folder, clock), self.stop, connect=lambda context: None)

    def turn(self, seconds: float = 0.2) -> None:
        self.clock.seconds += seconds
        self.loop.tick()
        assert self.loop.num_errors == 0, self.loop._troubles

    def start(self) -> None:
        self.turn()
        self.engine.start()
        self.turn()

    def steps(self, number: int, **rates: float) -> None:
        for _ in range(number):
            self.engine.take_step(**rates)
            self.turn()

    def restart(self, *, attempt: str, step: int, exit_code: int = 137) -> None:
        """The engine dies, its launcher starts it again, and it goes on from the checkpoint before `step`."""
        runs.watch_engine(self.store, self.run.id, max_restarts=10)
        assert runs.engine_lost(self.store, self.run.id, exit_code, delay_s=2.0)
        self.turn()
        self.engine = FakeEngine(self.bus, self.run.id, self.clock, attempt=attempt)
        self.engine.step = step
        self.engine.send(State, state="starting")
        self.engine.start()
        self.turn()

    def view(self) -> RunView:
        return runs.get(self.store, self.run.id)

    def statuses(self) -> dict[int, str]:
        return {plan.version: plan.status for plan in plans.all_plans(self.store, self.run.id)}

    def close(self) -> None:
        self.store.close()


def create_run(store: Store, config: RunConfig) -> RunView:
    plan = even_plan(
        config.nodes,
        num_layers=config.model.num_layers,
        num_micro_batches=config.train.global_batch,
        micro_batch_size=1,
        dp_degree=config.parallel.dp,
        tp_degree=config.parallel.tp,
        pp_degree=config.parallel.pp,
    )
    return runs.create(store, config, plan=plan.to_json(), actor="test")
