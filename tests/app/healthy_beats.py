"""Beats of a controller and a worker for tests of health: all is well, but for what a test says."""

from __future__ import annotations

from typing import Any

from db import heartbeats
from db.store import Store
from db.versions import of_this_process

NOW_DETAIL: dict[str, Any] = {
    "broker": "ok",
    "num_runs": 1,
    "num_errors": 0,
    "lag_s": 0.18,
    "loop_s": 0.021,
    "write_s": 0.006,
    "num_missing": {},
    "broker_facts": {
        "version": "8.1",
        "round_trip_s": 0.00031,
        "used_memory_bytes": 1_250_000,
        "max_memory_bytes": 256_000_000,
        "stream_lengths": {"1": 812},
        "num_malformed": 0,
    },
}


def beat_healthily(store: Store, *, run: int, **detail: Any) -> None:
    """Both services beat now (the clock of `db/`); `detail` replaces parts of the controller's."""
    now = heartbeats.utc_now()
    names = ("lag_s", "loop_s", "write_s", "canary_s", "round_trip_s", "memory_share", f"skew_s:{run}")
    told = {
        **NOW_DETAIL,
        "started_at": now.isoformat(),
        "versions": of_this_process(),
        "skews_s": {str(run): 0.09},
        "canary": {"answer_s": 0.042, "answered_at": now.isoformat()},
        "since": dict.fromkeys(names, now.isoformat()),
        **detail,
    }
    heartbeats.beat(store, "controller", told)
    heartbeats.beat(store, "worker", {"state": "idle", "versions": of_this_process()})
