"""Whether a service is alive and not merely running: the health check of a container.

    python deploy/health.py controller 30     its heartbeat in the store is at most 30 s old
    python deploy/health.py trainer 60        an open run was heard of in the last 60 s
    python deploy/health.py dashboard 8501    its server answers on this port

Prints one line, ends with status 0 (healthy) or 1. It looks from outside: at the store and at the
port, never into the process.
"""

from __future__ import annotations

import sys
import urllib.request
from datetime import UTC, datetime, timedelta

from db import heartbeats, runs
from db.errors import InputError, StoreError
from db.settings import Settings
from db.store import Store

HEALTH_URL = "http://127.0.0.1:{port}/_stcore/health"
TIMEOUT_S = 5.0
SERVICES = ("controller", "worker", "trainer", "dashboard")


def main(arguments: list[str]) -> int:
    """Checks the service that the arguments name."""
    if len(arguments) != 2 or arguments[0] not in SERVICES or not arguments[1].isdigit():
        return _report(False, f"expected one of {', '.join(SERVICES)} and a number, given {' '.join(arguments)!r}")
    name, number = arguments[0], int(arguments[1])
    if name == "dashboard":
        return _report(*_answers(HEALTH_URL.format(port=number)))
    try:
        return _report(*_sign_of_life(name, timedelta(seconds=number)))
    except (InputError, StoreError) as error:
        return _report(False, str(error))


def _report(is_healthy: bool, sentence: str) -> int:
    print(sentence)
    return 0 if is_healthy else 1


def _answers(url: str) -> tuple[bool, str]:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return True, f"{url} answers {answer.status}"
    except OSError as error:  # urllib's errors are among these
        return False, f"{url} does not answer: {error}"


def _sign_of_life(name: str, limit: timedelta) -> tuple[bool, str]:
    with Store.open(Settings.from_env().database_url) as store:
        if name == "trainer":
            heard = [run.last_seen_at for run in runs.open_runs(store) if run.last_seen_at is not None]
            at = max(heard, default=None)
        else:
            beat = heartbeats.all_beats(store).get(name)
            at = None if beat is None else beat.at
    if at is None:
        return False, f"nothing was heard of the {name} yet"
    age = datetime.now(UTC) - at
    return (
        age <= limit,
        f"{name} was heard of {age.total_seconds():.1f} s ago, expected at most {limit.total_seconds():.0f} s",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
