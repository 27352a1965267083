"""The checks behind `malleus doctor`: what is there, and what to do where it is not.

Nothing is changed and nothing is started, but for two short processes that try the solver and the
engine's library (which stay out of this one).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Literal

from app.local.lock import holder
from app.local.port import answers, check_free
from app.local.system import HEALTH_PATH
from db.bus import Bus
from db.errors import BusError, InputError, StoreError
from db.heartbeats import all_beats
from db.messages import utc_now
from db.settings import Settings
from db.store import SCHEMA_REVISION, Store

State = Literal["ok", "off", "failed"]
LEAST_PYTHON = (3, 11)
LEAST_FREE_BYTES = 1_000_000_000
SILENT_S = 30.0
MOST_AHEAD_S = 5.0
TRY_TIMEOUT_S = 120.0
_SOLVER = """
import json, pulp
x, y = (pulp.LpVariable(name, 0, 4, cat="Integer") for name in "xy")
model = pulp.LpProblem("doctor", pulp.LpMaximize)
model += 2 * x + 3 * y
model += x + 2 * y <= 7
model += x + y <= 5
model.solve(pulp.HiGHS(msg=False, timeLimit=10))
print(json.dumps({"version": pulp.__version__, "best": round(pulp.value(model.objective)),
                  "expected": max(2 * a + 3 * b for a in range(5) for b in range(5) if a + 2 * b <= 7 and a + b <= 5)}))
"""
_TORCH = """
import json, torch, torch.distributed as dist
there = dist.is_available()
gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
nccl = bool(gpus) and there and dist.is_nccl_available()
print(json.dumps({"version": torch.__version__, "gloo": there and dist.is_gloo_available(),
                  "cuda": torch.version.cuda, "gpus": [torch.cuda.get_device_name(i) for i in range(gpus)],
                  "nccl": ".".join(map(str, torch.cuda.nccl.version())) if nccl else None}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at.

    Args:
        state: `ok`; `off`: not running, and not expected to; `failed`: needed, and not as it must be.
        found: what is there, or what to do.
    """

    name: str
    state: State
    found: str


def examine(settings: Settings) -> list[Check]:
    """All checks, each independent of the others."""
    is_up = holder(settings.home) is not None
    return [
        _python(),
        _disk(settings),
        _store(settings, is_up),
        _broker(settings, is_up),
        *(_service(settings, name, is_up) for name in ("controller", "worker")),
        _dashboard(settings, is_up),
        _clock(settings),
        _solver(),
        *_engine(_tried(_TORCH) if importlib.util.find_spec("torch") else {}),
    ]


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    is_enough = sys.version_info >= LEAST_PYTHON
    expected = "" if is_enough else f", expected at least {'.'.join(map(str, LEAST_PYTHON))}"
    return Check(name="python", state="ok" if is_enough else "failed", found=version + expected)


def _disk(settings: Settings) -> Check:
    folder = settings.home
    while not folder.exists():
        folder = folder.parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check(name="disk", state="failed", found=f"{folder}: {error.strerror}")
    found = f"{free / 1e9:.1f} GB free for {settings.home}"
    if not os.access(folder, os.W_OK | os.X_OK):
        return Check(name="disk", state="failed", found=f"{folder} must be writable (MALLEUS_HOME)")
    if free < LEAST_FREE_BYTES:
        return Check(name="disk", state="failed", found=f"{found}, expected at least {LEAST_FREE_BYTES / 1e9:g} GB")
    return Check(name="disk", state="ok", found=found)


def _store(settings: Settings, is_up: bool) -> Check:
    try:
        with Store.open(settings.database_url) as store:
            kind = "SQLite" if store.is_sqlite else "PostgreSQL"
            return Check(name="store", state="ok", found=f"{kind}, schema {SCHEMA_REVISION}")
    except StoreError as error:
        is_new = str(error).startswith("no database") and not is_up
        return Check(name="store", state="off" if is_new else "failed", found=str(error))


def _broker(settings: Settings, is_up: bool) -> Check:
    try:
        with Bus(settings.broker_url()) as bus:
            kind = "configured" if settings.redis_url else "embedded"
            return Check(name="broker", state="ok", found=f"{kind}, answers in {bus.ping() * 1e3:.1f} ms")
    except BusError as error:
        return Check(name="broker", state="failed" if is_up or settings.redis_url else "off", found=str(error))


def _service(settings: Settings, name: str, is_up: bool) -> Check:
    try:
        with Store.open(settings.database_url) as store:
            beat = all_beats(store).get(name)
    except StoreError:
        return Check(name=name, state="failed" if is_up else "off", found="unknown: no store")
    if beat is None:
        return Check(name=name, state="failed" if is_up else "off", found="never heard: `malleus up` starts it")
    silent_s = (utc_now() - beat.at).total_seconds()
    where = f"process {beat.pid} on {beat.host}, heard {silent_s:.0f} s ago"
    if silent_s <= SILENT_S:
        return Check(name=name, state="ok", found=where)
    return Check(name=name, state="failed" if is_up else "off", found=f"{where}: `malleus up` starts it")


def _dashboard(settings: Settings, is_up: bool) -> Check:
    address = f"{settings.host} port {settings.port}"
    if answers(settings.host, settings.port, HEALTH_PATH):
        return Check(name="dashboard", state="ok", found=f"answers at {address}")
    try:
        check_free(settings.host, settings.port)
    except InputError as error:
        return Check(name="dashboard", state="failed", found=str(error))
    return Check(name="dashboard", state="off", found=f"{address} is free")


def _clock(settings: Settings) -> Check:
    """Services stamp their beats with their own clock; one from the future shows that clocks differ."""
    now = utc_now()
    try:
        with Store.open(settings.database_url) as store:
            beats = list(all_beats(store).values())
    except StoreError:
        beats = []
    ahead = max(((beat.at - now).total_seconds() for beat in beats), default=0.0)
    if ahead > MOST_AHEAD_S:
        return Check(
            name="clock", state="failed", found=f"a service's clock is at least {ahead:.0f} s ahead of this one"
        )
    return Check(name="clock", state="ok", found=f"{now:%Y-%m-%d %H:%M:%S} UTC")


def _solver() -> Check:
    answer = _tried(_SOLVER)
    if answer is None:
        return Check(
            name="solver", state="failed", found="PuLP cannot run HiGHS: expected pulp and highspy to be installed"
        )
    if answer["best"] != answer["expected"]:
        found = f"PuLP {answer['version']} with HiGHS answers {answer['best']}, expected {answer['expected']}"
        return Check(name="solver", state="failed", found=found)
    return Check(name="solver", state="ok", found=f"PuLP {answer['version']} with HiGHS solves")


def _engine(answer: dict[str, Any] | None) -> list[Check]:
    """What the engine computes with.

    Args:
        answer: of `_TORCH`; empty without torch, None if it cannot be imported.
    """
    if answer is None:
        version = importlib.metadata.version("torch")
        return [Check(name="engine", state="failed", found=f"torch {version} cannot be imported")]
    if not answer:
        return [Check(name="engine", state="failed", found="torch is not installed: the engine needs it")]
    version = f"torch {answer['version']}"
    if not answer["gloo"]:
        return [Check(name="engine", state="failed", found=f"{version} without gloo"), _gpus(answer)]
    return [Check(name="engine", state="ok", found=f"{version}, gloo"), _gpus(answer)]


def _gpus(answer: dict[str, Any]) -> Check:
    """GPUs are not needed: without them devices are emulated."""
    if not answer["gpus"]:
        why = f"CUDA {answer['cuda']}" if answer["cuda"] else "torch built without CUDA"
        return Check(name="gpus", state="off", found=f"none found ({why}): emulated devices only")
    counts = {name: answer["gpus"].count(name) for name in answer["gpus"]}
    found = ", ".join(f"{count} x {name}" for name, count in counts.items()) + f", CUDA {answer['cuda']}"
    if not answer["nccl"]:
        return Check(name="gpus", state="off", found=f"{found}, torch without NCCL: emulated devices only")
    return Check(name="gpus", state="ok", found=f"{found}, NCCL {answer['nccl']}")


def _tried(script: str) -> dict[str, Any] | None:
    """What a short Python process prints as JSON; None if it fails or takes too long."""
    command = [sys.executable, "-P", "-c", script]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=TRY_TIMEOUT_S, stdin=subprocess.DEVNULL, check=False
        )
        found = json.loads(answer.stdout.strip().splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return None
    return found if isinstance(found, dict) else None
