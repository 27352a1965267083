"""A stand-in for the engine: one process that speaks the real telemetry over the real broker.

`python scripted_engine.py RUN CONFIG CHECKPOINTS [exit=N] [deaths=S,S]` obeys the desired document (plan,
injections, pause, stop, checkpoint, failure); steps take as long as the planner's cost model says for a profile of fast
layers. It saves every `checkpoint.every_steps` steps and on request, and goes on from the newest checkpoint.
`exit=N` ends it with that status at step 3; with `deaths` at the first of these steps in its first attempt, at the
second in its second, and never after that.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Any

from db.bus import Bus
from db.messages import Checkpoint, Desired, DeviceInfo, Hello, Profile, State, Step, Switch, utc_now
from db.run_config import RunConfig
from db.settings import Settings
from planner.cost import plan_step_s
from planner.plan import Plan
from planner.spec import ModelProfile

LAYER_S = 0.001


def main(run: int, config: RunConfig, checkpoints: Path, exit_code: int | None, deaths: list[int] | None) -> int:
    """Runs to the end that the configuration or the desired document asks for."""
    if deaths is not None:
        checkpoints.mkdir(parents=True, exist_ok=True)
        (checkpoints / f"attempt-{secrets.token_hex(4)}").touch()
        num_attempts = len(list(checkpoints.glob("attempt-*")))
        dies_at = deaths[num_attempts - 1] if num_attempts <= len(deaths) else None
    else:
        dies_at = None if exit_code is None else 3
    with Bus(Settings.from_env().broker_url()) as bus:
        return _Script(bus, run, config, checkpoints).play(exit_code or 0, dies_at)


class _Script:
    def __init__(self, bus: Bus, run: int, config: RunConfig, checkpoints: Path) -> None:
        self.bus, self.run, self.config, self.checkpoints = bus, run, config, checkpoints
        self.attempt, self.seq, self.num_requests = secrets.token_hex(4), 0, 0
        origin = Path(config.checkpoint.start_from or "step-0")
        self.step = max(_step_of(path) for path in (origin, *checkpoints.glob("step-*")))
        self.profile = profile(config)
        self.desired: Desired | None = None

    def play(self, exit_code: int, dies_at: int | None) -> int:
        self.send(State, state="starting")
        while (first := self.bus.wait_desired_change(self.run, 60.0)) is None:
            pass
        self.desired, self.num_requests = first, first.checkpoint
        devices = tuple(
            DeviceInfo(device=device, node=node, rank=device, pid=os.getpid(), host="here", backend="emulated")
            for node, ids in enumerate(self.config.nodes)
            for device in ids
        )
        self.send(Hello, devices=devices, num_parameters=1, torch_version="0")
        self.send(State, state="calibrating")
        self.send(Profile, profile=self.profile.to_json(), seconds=0.1)
        self.send(State, state="training")
        is_new_plan = True
        while self.step < self.config.train.num_steps:
            if self.step == dies_at:
                return exit_code
            is_new_plan |= self._obey()
            assert self.desired is not None
            if self.desired.stop:
                self.send(State, state="stopped", step=self.step)
                return 0
            if self.desired.paused:
                self.send(State, state="paused", step=self.step)
                time.sleep(0.1)
                continue
            self._train("first" if is_new_plan else "train")
            is_new_plan = False
            every = self.config.checkpoint.every_steps
            if self.desired.checkpoint > self.num_requests or (every and self.step % every == 0):
                self._save()
        self.send(State, state="finished", step=self.step)
        return 0

    def _obey(self) -> bool:
        document = self.bus.read_desired(self.run)
        if document is None or self.desired is None or document.version == self.desired.version:
            return False
        former, self.desired = self.desired, document
        failure = document.read_by(self.attempt).failure
        if failure is not None:
            reason = f"device {failure.device} failed on request"
            self.send(State, state="failed", step=self.step, reason=reason)
            os.kill(os.getpid(), signal.SIGKILL)
        if former.paused and not document.paused:
            self.send(State, state="training", step=self.step)
        if former.plan_version == document.plan_version:
            return False
        digests = {"weight": {"weight": "00"}}
        self.send(
            Switch,
            step=self.step,
            plan_version=document.plan_version,
            from_version=former.plan_version,
            outcome="applied",
            bytes_moved=1000,
            pause_s=0.01,
            digests_before=digests,
            digests_after=digests,
        )
        return True

    def _train(self, phase: str) -> None:
        assert self.desired is not None
        num = self.config.num_devices
        slow = {injection.device: injection.rate for injection in self.desired.injections}
        rates = {device: slow.get(device, 1.0) for device in range(num)}
        step_s = plan_step_s(Plan.from_json(self.desired.plan), self.profile, rates)
        time.sleep(step_s)
        batch = self.config.train.global_batch
        self.send(
            Step,
            step=self.step,
            plan_version=self.desired.plan_version,
            phase=phase,
            step_s=step_s,
            loss=5.0 / (1 + self.step),
            num_tokens=batch * self.config.model.seq_len,
            samples=(self.step * batch, (self.step + 1) * batch),
            rates=tuple(rates[device] for device in range(num)),
            compute_s=tuple(step_s / 2 for _ in range(num)),
            grad_norm=1.5,
            learning_rate=self.config.train.learning_rate,
            mfu=0.31,
        )
        self.step += 1

    def _save(self) -> None:
        assert self.desired is not None
        self.num_requests = self.desired.checkpoint
        folder = self.checkpoints / f"step-{self.step}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "weights").write_text("w")
        self.send(
            Checkpoint,
            step=self.step,
            request=self.num_requests,
            outcome="saved",
            path=str(folder),
            num_bytes=1,
            pause_s=0.01,
            seconds=0.02,
        )

    def send(self, kind: type[Any], **fields: Any) -> None:
        version = self.desired.version if self.desired else 0
        self.bus.send(
            kind(run=self.run, attempt=self.attempt, seq=self.seq, at=utc_now(), desired_version=version, **fields)
        )
        self.seq += 1


def _step_of(path: Path) -> int:
    return int(path.name.split("-")[1])


def profile(config: RunConfig) -> ModelProfile:
    """Layers of a millisecond; TP divides them evenly and costs a little."""
    degrees = [degree for degree in (1, 2, 4, 8) if degree <= config.parallel.max_tp]

    def table(first_s: float, is_divided: bool = True) -> dict[int, dict[int, float]]:
        return {1: {degree: first_s / (degree if is_divided else 1) for degree in degrees}}

    return ModelProfile(
        num_layers=config.model.num_layers,
        compute_s=table(LAYER_S),
        comm_s={1: {degree: 0.0 if degree == 1 else 0.02 * LAYER_S for degree in degrees}},
        forward_share=0.33,
        embed_s=table(0.0),
        head_s=table(LAYER_S / 4),
        send_s=0.0,
        sync_s=LAYER_S,
        max_tp=max(degrees),
        layer_bytes={1: tuple(1e5 * (in_flight + 1) for in_flight in range(16))},
        first_extra_bytes=1e5,
        last_extra_bytes=1e5,
        reserve_bytes=0.0,
    )


if __name__ == "__main__":
    options = dict(argument.split("=") for argument in sys.argv[4:])
    sys.exit(
        main(
            int(sys.argv[1]),
            RunConfig.from_file(sys.argv[2]),
            Path(sys.argv[3]),
            int(options["exit"]) if "exit" in options else None,
            [int(step) for step in options["deaths"].split(",")] if "deaths" in options else None,
        )
    )
