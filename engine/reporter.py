"""What a run tells the control plane, in one place; silent on ranks without an uplink.

Turns what the training loop knows into telemetry messages. It decides nothing, and never waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from db.messages import Desired, DeviceInfo, Evaluation, Hello, Phase, Profile, Step, Switch
from db.run_config import RunConfig
from engine.agreement import Exchanged, broadcast_text
from engine.flops import mfu
from engine.migration import Outcome
from engine.uplink import Uplink
from planner.spec import ModelProfile

PROGRESS_S = 1.0
"""Seconds between two words about a long migration."""


class Reporter:
    """One rank's voice.

    Args:
        uplink: on rank 0; None elsewhere.
        peak_flops: of a device, what MFU is measured against.
    """

    def __init__(self, uplink: Uplink | None, config: RunConfig, peak_flops: float) -> None:
        self._uplink, self._config, self._peak_flops = uplink, config, peak_flops

    def hello(self, own: DeviceInfo, num_parameters: int) -> None:
        """Introduces every rank. Collective: all ranks of the world."""
        infos = [broadcast_text(own.model_dump_json(), source=rank) for rank in range(dist.get_world_size())]
        if self._uplink:
            devices = tuple(DeviceInfo.model_validate_json(info) for info in infos)
            self._uplink.send(Hello, devices=devices, num_parameters=num_parameters, torch_version=torch.__version__)

    def state(self, state: str, step: int) -> None:
        """The engine's own state."""
        if self._uplink:
            self._uplink.set_state(state, step=step)

    def profile(self, profile: ModelProfile, seconds: float) -> None:
        """The result of the calibration."""
        if self._uplink:
            self._uplink.send(Profile, profile=profile.to_json(), seconds=seconds)

    def step(
        self,
        told: Exchanged,
        *,
        step: int,
        plan_version: int,
        phase: Phase,
        step_s: float,
        grad_norm: float,
        learning_rate: float,
    ) -> None:
        """A step that is done."""
        if not self._uplink:
            return
        batch = self._config.train.global_batch
        self._uplink.send(
            Step,
            step=step,
            plan_version=plan_version,
            phase=phase,
            step_s=step_s,
            loss=told.loss,
            num_tokens=batch * self._config.model.seq_len,
            samples=(step * batch, (step + 1) * batch),
            rates=told.rates,
            compute_s=told.compute_s,
            grad_norm=grad_norm,
            learning_rate=learning_rate,
            mfu=mfu(self._config, step_s, self._peak_flops),
        )

    def evaluation(self, *, step: int, loss: float, num_tokens: int, seconds: float) -> None:
        """Loss on text that is not trained on."""
        if self._uplink:
            self._uplink.send(Evaluation, step=step, loss=loss, num_tokens=num_tokens, seconds=seconds)

    def switch(self, outcome: Outcome, document: Desired, *, step: int, from_version: int, pause_s: float) -> None:
        """A switch of plan that is over, one way or the other."""
        if not self._uplink:
            return
        self._uplink.applied(document.version)
        self._uplink.send(
            Switch,
            step=step,
            plan_version=document.plan_version,
            from_version=from_version,
            outcome="rejected" if outcome.reason else "applied",
            reason=outcome.reason,
            bytes_moved=outcome.bytes_moved,
            pause_s=pause_s,
            phases=outcome.phases,
            digests_before=outcome.digests_before,
            digests_after=outcome.digests_after,
        )

    def migrating(self, step: int) -> Callable[[int, int], None]:
        """To be called with rounds done and rounds in all: tells of a long migration now and then."""
        told_at, has_told = time.monotonic(), False

        def tell(done: int, total: int) -> None:
            nonlocal told_at, has_told
            if self._uplink and done < total and time.monotonic() - told_at >= PROGRESS_S:
                told_at, has_told = time.monotonic(), True
                self._uplink.set_state("training", step=step, reason=f"migrating {done}/{total} rounds")
            elif self._uplink and done == total and has_told:
                self._uplink.set_state("training", step=step)

        return tell
