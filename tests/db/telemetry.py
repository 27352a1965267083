"""Telemetry as the engine would send it, with everything that a test does not care about filled in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from db.messages import Checkpoint, DeviceInfo, Evaluation, Hello, Observed, Profile, State, Step, Switch, Telemetry

START = datetime(2025, 3, 1, 12, 0, tzinfo=UTC)
NUM_DEVICES = 8


def hello(seq: int = 0, **fields: Any) -> Hello:
    devices = tuple(
        DeviceInfo(device=device, node=device // 4, rank=device, pid=100 + device, host="h", backend="emulated")
        for device in range(NUM_DEVICES)
    )
    return Hello(**{**_base(seq), "devices": devices, "num_parameters": 10, "torch_version": "2", **fields})


def profile(seq: int, **fields: Any) -> Profile:
    return Profile(**{**_base(seq), "profile": {"num_layers": 16}, "seconds": 1.0, **fields})


def state(seq: int, state: str, **fields: Any) -> State:
    return State(**{**_base(seq), "state": state, **fields})


def step(seq: int, number: int | None = None, **fields: Any) -> Step:
    """Step `number` (default `seq`), one second after the one before."""
    number = seq if number is None else number
    return Step(
        **{
            **_base(seq),
            "step": number,
            "plan_version": 1,
            "phase": "train",
            "step_s": 0.5,
            "loss": 2.0,
            "num_tokens": 1024,
            "samples": (number * 16, number * 16 + 16),
            "rates": (1.0,) * NUM_DEVICES,
            "compute_s": (0.1,) * NUM_DEVICES,
            **fields,
        }
    )


def observed(seq: int, version: int, **fields: Any) -> Observed:
    return Observed(**{**_base(seq), "observed_version": version, **fields})


def evaluation(seq: int, number: int, **fields: Any) -> Evaluation:
    """Evaluation before step `number`."""
    return Evaluation(**{**_base(seq), "step": number, "loss": 2.5, "num_tokens": 4096, "seconds": 0.75, **fields})


def checkpoint(seq: int, number: int, **fields: Any) -> Checkpoint:
    """Checkpoint that step `number` goes on from."""
    return Checkpoint(
        **{
            **_base(seq),
            "step": number,
            "outcome": "saved",
            "path": f"/runs/1/checkpoints/step-{number}",
            "num_bytes": 2**40,
            "pause_s": 0.05,
            "seconds": 1.5,
            **fields,
        }
    )


def switch(seq: int, **fields: Any) -> Switch:
    digests = {"layers.0.w": {"weight": "ab", "exp_avg": "cd"}}
    return Switch(
        **{
            **_base(seq),
            "step": 5,
            "plan_version": 2,
            "from_version": 1,
            "outcome": "applied",
            "bytes_moved": 1000,
            "pause_s": 0.25,
            "phases": {"migrate": 0.2},
            "digests_before": digests,
            "digests_after": digests,
            **fields,
        }
    )


def batch(*messages: Telemetry) -> list[tuple[str, Telemetry]]:
    """Messages with stream ids, in order."""
    return [(f"{1000 + index}-0", message) for index, message in enumerate(messages)]


def _base(seq: int) -> dict[str, Any]:
    return {"run": 1, "attempt": "a1", "seq": seq, "at": START + timedelta(seconds=min(seq, 10_000))}
