"""A run that is told step by step through the store's own API and the recorder.

The clock of `db/` is set while it is told, so that what happened an hour ago is an hour old. Step
times follow the planner's cost model at the rates of the moment, so the figures make sense.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from unittest import mock

from db import commands, episodes, injections, plans, recorder, runs
from db.messages import DeviceInfo, Evaluation, Hello, Profile, State, Step, Switch
from db.run_config import ClusterConfig, ControlConfig, ModelConfig, ParallelConfig, RunConfig, TrainConfig
from db.runs import RunView
from db.store import Store
from planner.cost import capacity_bound_s, plan_step_s
from planner.plan import Pipeline, Plan, Stage, even_plan
from planner.spec import ModelProfile
from planner.worker import search

CLOCKED = ("audit", "commands", "heartbeats", "injections", "plans", "recorder", "runs")


@contextmanager
def clock_at(moment: datetime) -> Iterator[None]:
    """Everything that `db/` writes inside happens at this moment."""
    with ExitStack() as stack:
        for name in CLOCKED:
            stack.enter_context(mock.patch(f"db.{name}.utc_now", return_value=moment, create=True))
        yield


class SeededRun:
    """One run that is told step by step.

    Args:
        config: of the run.
        begin_at: when it was created; its clock runs from there.
    """

    def __init__(self, store: Store, config: RunConfig, *, begin_at: datetime, actor: str = "ada") -> None:
        self.store = store
        self.config = config
        self.now = begin_at
        self.random = random.Random(config.name)
        parallel = config.parallel
        self.plan = even_plan(
            config.nodes,
            num_layers=config.model.num_layers,
            num_micro_batches=config.train.global_batch,
            micro_batch_size=1,
            dp_degree=parallel.dp,
            tp_degree=parallel.tp,
            pp_degree=parallel.pp,
        )
        self.profile = profile_of(config)
        self.rates: dict[int, float] = {}
        self.version, self.step, self.seq = 1, 0, 0
        self.desired_version = 1
        self.attempt = "first"
        with clock_at(self.now):
            self.run: RunView = runs.create(store, config, plan=self.plan.to_json(), actor=actor)

    @property
    def id(self) -> int:
        return self.run.id

    def start(self, *, has_profile: bool = True) -> SeededRun:
        """The engine comes up and calibrates."""
        self._send(
            Hello(
                **self._head(after_s=12.0),
                devices=tuple(
                    DeviceInfo(
                        device=device, node=node, rank=device, pid=4000 + device, host="alpha", backend="emulated"
                    )
                    for node, devices in enumerate(self.config.nodes)
                    for device in devices
                ),
                num_parameters=1_234_567,
                torch_version="2.9.0",
            )
        )
        if has_profile:
            self._send(Profile(**self._head(after_s=4.0), profile=self.profile.to_json(), seconds=4.0))
        self._send(State(**self._head(after_s=0.1), state="training", step=0))
        if plans.get(self.store, self.id, 1).status == "approved":
            with clock_at(self.now):
                plans.move(self.store, self.id, 1, "active")
        return self

    def steps(
        self, number: int, *, loss: float | None = None, step_s: float | None = None, unknown: tuple[int, ...] = ()
    ) -> SeededRun:
        """Trains; step times follow the rates. `unknown` devices measure nothing."""
        predicted = plan_step_s(self.plan, self.profile, {d: r for d, r in self.rates.items() if math.isfinite(r)})
        batch = []
        for _ in range(number):
            seconds = step_s if step_s is not None else predicted * self.random.uniform(0.985, 1.03)
            head = self._head(after_s=seconds if math.isfinite(seconds) else 1.0)
            rates = tuple(
                math.nan if device in unknown else self.rates.get(device, 1.0) * self.random.uniform(0.985, 1.015)
                for device in range(self.config.num_devices)
            )
            batch.append(
                (
                    f"{self.seq}-0",
                    Step(
                        **head,
                        step=self.step,
                        plan_version=self.version,
                        phase="first" if self.step == 0 else "train",
                        step_s=seconds,
                        loss=self._loss() if loss is None else loss,
                        num_tokens=self.config.train.global_batch * self.config.model.seq_len,
                        samples=(
                            self.step * self.config.train.global_batch,
                            (self.step + 1) * self.config.train.global_batch,
                        ),
                        rates=rates,
                        compute_s=tuple(0.4 * rate for rate in rates),
                        grad_norm=1.8 * math.exp(-self.step / 90) + 0.4,
                        learning_rate=self.config.train.learning_rate,
                        mfu=0.42 / max([1.0, *(rate for rate in self.rates.values() if math.isfinite(rate))]),
                    ),
                )
            )
            self.step += 1
        with clock_at(self.now):
            recorder.record(self.store, self.id, batch)
        return self

    def inject(self, device: int, rate: float, *, actor: str = "ada", source: str = "dashboard") -> int:
        """Somebody injects a straggler, the controller and the engine take it up. Returns the command's id."""
        arguments = {"devices": [device], "rate": rate, "for_s": None}
        with clock_at(self.now):
            command = commands.submit(self.store, self.id, "inject", arguments, actor=actor, source=source)
        self.now += timedelta(seconds=0.3)
        with clock_at(self.now):
            injections.add(self.store, self.id, device, rate, None, command.id)
            self.desired_version = runs.change(self.store, self.id)
            commands.accept(self.store, command.id, desired_version=self.desired_version)
        self.now += timedelta(seconds=0.5)
        with clock_at(self.now):
            injections.observed(self.store, self.id, self.desired_version, self.step, self.now)
            commands.apply_observed(self.store, self.id, self.desired_version, self.step)
        self.rates[device] = rate
        return command.id

    def heal(self, device: int) -> SeededRun:
        """The injection is cleared."""
        with clock_at(self.now):
            injections.clear(self.store, self.id, [device])
            self.desired_version = runs.change(self.store, self.id)
        del self.rates[device]
        return self

    def detect(self, device: int, *, steps_ago: int = 4, cause: str = "device") -> SeededRun:
        """The controller opens an episode."""
        step_s = plan_step_s(self.plan, self.profile, {d: r for d, r in self.rates.items() if math.isfinite(r)})
        rate = self.rates.get(device, 1.0)
        evidence = {
            "samples": {str(device): [round(rate * factor, 3) for factor in (0.996, 1.004, 1.0)]},
            "window": 5,
            "threshold": 0.05,
            "level": {str(device): 1.0},
            "reference": {str(device): 1.0},
            "peers": {"count": self.config.num_devices - 1, "median": 1.0, "highest": 1.014},
        }
        with clock_at(self.now):
            episodes.open_episode(
                self.store,
                self.id,
                device,
                start_step=self.step - steps_ago,
                start_at=self.now - timedelta(seconds=steps_ago * step_s),
                rate=rate,
                cause=cause,
                evidence=evidence,
            )
        return self

    def recover(self, device: int) -> SeededRun:
        """The controller closes the episode."""
        with clock_at(self.now):
            episodes.close(self.store, self.id, device, end_step=self.step, end_at=self.now)
        return self

    def propose(self, plan: Plan, *, trigger: str = "shift", status: str = "ready", reason: str = "") -> int:
        """A plan is asked for and solved. Returns its version."""
        version = self._request(trigger)
        rates = {device: self.rates.get(device, 1.0) for device in range(self.config.num_devices)}
        with clock_at(self.now):
            plans.claim(self.store, self.id, version, worker="worker-1")
        self.now += timedelta(seconds=0.3)
        healthy = plan_step_s(self.plan, self.profile, {})
        with clock_at(self.now):
            plans.solved(
                self.store,
                self.id,
                version,
                document=plan.to_json() if status == "ready" else None,
                status=status,
                reason=reason,
                predicted_s=plan_step_s(plan, self.profile, self.rates),
                current_s=plan_step_s(self.plan, self.profile, self.rates),
                bound_s=capacity_bound_s(healthy, rates),
                gap=0.012,
                solve_s=0.31,
                solver="highs",
                details={"log": ["3 groupings", "12 divisions"], "moved_bytes": 1_860_000, "pause_s": 0.41},
            )
        return version

    def search(self, *, trigger: str = "shift") -> int:
        """The real planner answers for the rates of the moment. Returns the plan's version."""
        version = self._request(trigger)
        with clock_at(self.now):
            job = plans.claim(self.store, self.id, version, worker="worker-1")
        assert job is not None
        answer = search(job)
        self.now += timedelta(seconds=0.3)
        with clock_at(self.now):
            plans.solved(self.store, self.id, version, **answer)
        return version

    def switch(
        self, plan: Plan, version: int, *, outcome: str = "applied", reason: str = "", num_bytes: int = 1_930_000
    ) -> SeededRun:
        """The job moves to a plan (or refuses to)."""
        with clock_at(self.now):
            plans.move(self.store, self.id, version, "approved", actor="controller")
            self.desired_version = runs.change(self.store, self.id, target_plan_version=version)
            plans.move(self.store, self.id, version, "switching")
        digests = {"layers.0.weight": {"weight": "ab12", "master": "cd34"}}
        self._send(
            Switch(
                **self._head(after_s=0.5),
                step=self.step,
                plan_version=version,
                from_version=self.version,
                outcome=outcome,
                reason=reason,
                bytes_moved=num_bytes,
                pause_s=0.42,
                phases={"prepare": 0.1, "migrate": 0.25, "verify": 0.07},
                digests_before=digests,
                digests_after=digests,
            )
        )
        if outcome == "applied":
            with clock_at(self.now):
                plans.move(self.store, self.id, version, "active")
            self.plan, self.version = plan, version
        else:
            with clock_at(self.now):
                plans.move(self.store, self.id, version, "failed", reason=reason)
        return self

    def measured(self, seconds: float) -> SeededRun:
        plans.set_measured(self.store, self.id, self.version, seconds)
        return self

    def evaluate(self) -> SeededRun:
        """Loss on text that is not trained on."""
        loss = 1.05 * self._loss()
        self._send(Evaluation(**self._head(after_s=0.8), step=self.step, loss=loss, num_tokens=4096, seconds=0.8))
        return self

    def state(self, state: str, *, reason: str = "") -> SeededRun:
        """The engine reports its own state (paused, finished, ...)."""
        self._send(State(**self._head(after_s=0.2), state=state, step=self.step, reason=reason))
        return self

    def _request(self, trigger: str) -> int:
        """Asks for a plan, and waits as long as it lies in the queue."""
        with clock_at(self.now):
            row = plans.request(
                self.store,
                self.id,
                trigger=trigger,
                rates={device: self.rates.get(device, 1.0) for device in range(self.config.num_devices)},
                parent=self.version,
                requested_by="controller",
                key=f"{trigger}:{self.step}:{self.random.random()}",
            )
        self.now += timedelta(seconds=0.05)
        return row.version

    def _send(self, message: Evaluation | Hello | Profile | State | Switch) -> None:
        with clock_at(self.now):
            recorder.record(self.store, self.id, [(f"{self.seq}-0", message)])

    def _head(self, *, after_s: float) -> dict[str, object]:
        self.now += timedelta(seconds=after_s)
        self.seq += 1
        return {
            "run": self.id,
            "attempt": self.attempt,
            "seq": self.seq - 1,
            "at": self.now,
            "desired_version": self.desired_version,
        }

    def _loss(self) -> float:
        return 1.6 + 3.9 * math.exp(-self.step / 160) + self.random.uniform(-0.05, 0.05)


def config_of(
    name: str,
    *,
    num_nodes: int = 2,
    per_node: int = 4,
    num_layers: int = 16,
    dp: int = 2,
    tp: int = 2,
    pp: int = 2,
    global_batch: int = 16,
    mode: str = "automatic",
) -> RunConfig:
    """A configuration of a given size."""
    return RunConfig(
        name=name,
        model=ModelConfig(num_layers=num_layers),
        train=TrainConfig(global_batch=global_batch, num_steps=2_000),
        cluster=ClusterConfig(num_nodes=num_nodes, devices_per_node=per_node),
        parallel=ParallelConfig(dp=dp, tp=tp, pp=pp, max_tp=min(4, per_node), max_dp=max(4, dp)),
        control=ControlConfig(mode=mode),
    )


def profile_of(config: RunConfig) -> ModelProfile:
    """A profile of the configuration's emulated devices."""
    degrees = [degree for degree in (1, 2, 4) if degree <= config.parallel.max_tp]
    layer_s = config.device.layer_s
    return ModelProfile(
        num_layers=config.model.num_layers,
        compute_s={1: {degree: layer_s / degree for degree in degrees}},
        comm_s={1: {degree: 0.0 if degree == 1 else 0.002 * degree for degree in degrees}},
        forward_share=1 / 3,
        embed_s={1: dict.fromkeys(degrees, 0.002)},
        head_s={1: dict.fromkeys(degrees, 0.01)},
        send_s=0.001,
        sync_s=0.05,
        max_tp=max(degrees),
        layer_bytes={1: (40_000.0, 48_000.0, 56_000.0, 64_000.0)},
        first_extra_bytes=16_000.0,
        last_extra_bytes=16_000.0,
        reserve_bytes=0.0,
        provenance="measured",
    )


def absorbing_plan() -> Plan:
    """The plan of the dashboard's own drawing: device 3 slow, alone, with few layers."""
    return Plan(
        num_layers=16,
        micro_batch_size=1,
        pipelines=(
            Pipeline(
                num_micro_batches=7,
                stages=(
                    Stage(devices=(3,), layers=(0, 3)),
                    Stage(devices=(0, 1), layers=(3, 12)),
                    Stage(devices=(2,), layers=(12, 16)),
                ),
            ),
            Pipeline(
                num_micro_batches=9,
                stages=(Stage(devices=(4, 5), layers=(0, 8)), Stage(devices=(6, 7), layers=(8, 16))),
            ),
        ),
    )


def standby_plan() -> Plan:
    """Device 3 stands by, device 5 has failed."""
    return Plan(
        num_layers=16,
        micro_batch_size=1,
        pipelines=(
            Pipeline(
                num_micro_batches=9,
                stages=(Stage(devices=(0, 1), layers=(0, 11)), Stage(devices=(2,), layers=(11, 16))),
            ),
            Pipeline(
                num_micro_batches=7,
                stages=(Stage(devices=(4,), layers=(0, 5)), Stage(devices=(6, 7), layers=(5, 16))),
            ),
        ),
        standby=(3,),
        failed=(5,),
    )
