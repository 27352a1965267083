"""The Celery app and its tasks: the only place where plans are searched for outside a command line.

A task carries ids only. The plan's row is the truth: `plans.claim` lets one worker have it, however often
the queue delivers it, and the answer goes back into the row; a what-if's row is no different. Nothing returns
through the broker.

    controller --(planner.solve: run, version)--> worker --> planner.solve --> plan row
    controller --(planner.what_if: id)--> worker --> planner.solve --> what-if row
    controller --(planner.canary)--> worker --> heartbeat "worker"

The heartbeat is written by a task that came through the queue, so a worker that is alive but no longer
hears the broker turns red by itself. Such a worker, or one whose search ignores its time limit, also
starts itself again (`_Watchdog`). It does not decide anything about plans.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from celery import Celery, signals
from celery.exceptions import CPendingDeprecationWarning

from db import heartbeats, plans, what_ifs
from db.errors import BusError, InputError, StoreError
from db.messages import utc_now
from db.plans import PlanJob
from db.settings import Settings
from db.store import Store
from db.versions import of_this_process

if TYPE_CHECKING:
    from planner.solve import SolveResult

SOLVE = "planner.solve"
WHAT_IF = "planner.what_if"
CANARY = "planner.canary"
QUEUE = "malleus.plans"
KEY_PREFIX = "malleus.celery."
# Longer than any search may take: what is delivered again sooner would meet its own claim and be dropped.
VISIBILITY_S = 3600
GRACE_S = 30.0
DEAF_S = 45.0

log = logging.getLogger(__name__)


def make_app(broker_url: Callable[[], str]) -> Celery:
    """A Celery app that asks for its broker's URL when it first needs it.

    JSON only, no results. One task at a time in the worker's own process (`solo`): half the memory of a
    pool, no children to leave behind; the search keeps its own time limit, the watchdog stands behind it.
    """
    app = Celery("malleus", set_as_current=False)
    app.add_defaults(
        lambda: {
            "broker_url": broker_url(),
            "broker_connection_retry_on_startup": True,
            "broker_connection_max_retries": None,
            "broker_transport_options": {
                "visibility_timeout": VISIBILITY_S,
                "global_keyprefix": KEY_PREFIX,
                "socket_connect_timeout": 5,
                "socket_keepalive": True,
                "max_retries": 1,
                "interval_start": 0,
                "interval_step": 0.2,
                "interval_max": 0.2,
            },
            "accept_content": ["json"],
            "task_serializer": "json",
            "task_default_queue": QUEUE,
            "task_ignore_result": True,
            "task_acks_late": True,
            "task_publish_retry": False,
            "worker_pool": "solo",
            "worker_concurrency": 1,
            "worker_prefetch_multiplier": 1,
            "worker_hijack_root_logger": False,
            "worker_cancel_long_running_tasks_on_connection_loss": False,
        }
    )
    return app


def _present_url() -> str:
    try:
        return Settings.from_env().broker_url()
    except (BusError, InputError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


app = make_app(_present_url)


@app.task(name=SOLVE, throws=(StoreError,))
def solve(run: int, version: int) -> str:
    """Solves one plan row, if nobody has yet. A database that is away is a second try's business."""
    with _WATCHDOG.busy():
        store = _store()
        heartbeats.beat(
            store, "worker", {"state": "solving", "run": run, "plan": version, "versions": of_this_process()}
        )
        status = solve_plan(store, run, version, worker=_name(), on_limit=_WATCHDOG.set_limit)
        heartbeats.beat(store, "worker", {"state": "idle", "versions": of_this_process()})
    return status


@app.task(name=WHAT_IF, throws=(StoreError,))
def what_if(id: int) -> str:
    """Answers one what-if, if nobody has yet."""
    with _WATCHDOG.busy():
        store = _store()
        heartbeats.beat(store, "worker", {"state": "solving", "what_if": id})
        status = solve_what_if(store, id, worker=_name(), on_limit=_WATCHDOG.set_limit)
        heartbeats.beat(store, "worker", {"state": "idle"})
    return status


@app.task(name=CANARY, throws=(StoreError,))
def canary(said: str = "") -> None:
    """Proves that this worker hears the broker and reaches the database, by saying back what it was told."""
    with _WATCHDOG.busy():
        heartbeats.beat(_store(), "worker", {"state": "idle", "canary": said, "versions": of_this_process()})


def solve_plan(
    store: Store, run: int, version: int, *, worker: str, on_limit: Callable[[float], None] = lambda seconds: None
) -> str:
    """Claims a plan row, searches, and writes the answer back.

    Args:
        on_limit: told the search's time limit before it starts.

    Returns:
        The row's new status, or `skipped` where somebody else has it or it is decided.
    """
    job = plans.claim(store, run, version, worker=worker)
    if job is None:
        return "skipped"
    on_limit(job.time_limit_s)
    try:
        answer = search(job)
    except Exception as error:  # the outermost frame of a task: whatever it is, the row must say so
        if not isinstance(error, ValueError):
            log.exception("plan %s of run %s", version, run)
        answer = _failure(f"{type(error).__name__}: {error}")
    return plans.solved(store, run, version, **answer).status


def solve_what_if(
    store: Store, id: int, *, worker: str, on_limit: Callable[[float], None] = lambda seconds: None
) -> str:
    """Claims a what-if, searches, and writes the answer back.

    Args:
        on_limit: told the search's time limit before it starts.

    Returns:
        The row's new status, or `skipped` where somebody else has it or it has ended.
    """
    request = what_ifs.claim(store, id, worker=worker)
    if request is None:
        return "skipped"
    on_limit(request.time_limit_s)
    try:
        result = _found(request)
    except Exception as error:  # the outermost frame of a task: whatever it is, the row must say so
        if not isinstance(error, ValueError):
            log.exception("what-if %s", id)
        return what_ifs.fail(store, id, f"{type(error).__name__}: {error}", actor=worker).status
    return what_ifs.answered(store, id, result=result.to_json(), seconds=result.seconds).status


def search(job: PlanJob) -> dict[str, Any]:
    """Runs the planner on a job and puts its answer into the words of a plan row (see `db.plans.solved`).

    Raises:
        PlannerError: the job is malformed.
    """
    result = _found(job)
    best = result.plans[0] if result.plans else None
    if best is None:
        status = "failed"
    elif best.is_current:
        status = "rejected"
    else:
        status = "ready"
    return {
        "document": best.plan.to_json() if best is not None and status == "ready" else None,
        "status": status,
        "reason": result.reason,
        "predicted_s": None if best is None else best.step_s,
        "current_s": result.current_s,
        "bound_s": result.bound_s,
        "gap": result.gap,
        "solve_s": result.seconds,
        "solver": "planner.solve",
        "details": {
            "status": result.status,
            "log": list(result.log),
            "healthy_s": result.healthy_s,
            "moved_bytes": None if best is None else best.moved_bytes,
            "runners_up": [ranked.to_json() for ranked in result.plans[1:]],
        },
    }


class _Problem(Protocol):
    """What a search needs of a plan's job or of a what-if: the documents of `planner.spec`, and the rates."""

    @property
    def cluster(self) -> Mapping[str, Any]: ...
    @property
    def profile(self) -> Mapping[str, Any]: ...
    @property
    def train(self) -> Mapping[str, Any]: ...
    @property
    def rates(self) -> Mapping[int, float]: ...
    @property
    def current(self) -> Mapping[str, Any] | None: ...
    @property
    def seed(self) -> int: ...
    @property
    def time_limit_s(self) -> float: ...


def _found(problem: _Problem) -> SolveResult:
    from planner import solve as planner  # here: the controller imports this module and never searches
    from planner.plan import Plan
    from planner.spec import ClusterSpec, ModelProfile, TrainSpec

    return planner.solve(
        cluster=ClusterSpec.from_json(problem.cluster),
        profile=ModelProfile.from_json(problem.profile),
        train=TrainSpec.from_json(problem.train),
        rates=problem.rates,
        current=None if problem.current is None else Plan.from_json(problem.current),
        seed=problem.seed,
        time_limit_s=problem.time_limit_s,
        clock=time.monotonic,
    )


def _failure(reason: str) -> dict[str, Any]:
    unknown = dict.fromkeys(("document", "predicted_s", "current_s", "bound_s", "gap", "solve_s"))
    return {**unknown, "status": "failed", "reason": reason, "solver": "planner.solve", "details": {}}


class _Watchdog:
    """Starts the worker again, in its own process, when it is deaf or stuck.

    Deaf: no task has arrived for `DEAF_S` although the controller is alive and sends a canary every few
    seconds. Stuck: a task runs `GRACE_S` beyond its limit. An idle worker whose broker or database is away
    is neither: Celery reconnects by itself, and without the database nothing is known.
    """

    def __init__(self) -> None:
        self._heard_at = time.monotonic()
        self._deadline: float | None = None

    def start(self) -> None:
        self._heard_at = time.monotonic()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Around a task: it was heard, and it must end in time."""
        self.set_limit(0.0)
        try:
            yield
        finally:
            self._heard_at, self._deadline = time.monotonic(), None

    def set_limit(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds + GRACE_S

    def problem(self, now: float, controller_age_s: Callable[[], float | None]) -> str:
        """Why the worker should start again; empty if it should not."""
        if self._deadline is not None:
            return "a task runs beyond its limit" if now > self._deadline else ""
        if now - self._heard_at <= DEAF_S:
            return ""
        age_s = controller_age_s()
        is_alive = age_s is not None and age_s < DEAF_S / 3
        return f"no task for {now - self._heard_at:.0f} s while the controller sends" if is_alive else ""

    def _watch(self) -> None:
        while True:
            time.sleep(5)
            problem = self.problem(time.monotonic(), _controller_age_s)
            if problem:
                log.warning("the worker starts itself again: %s", problem)
                logging.shutdown()
                os.execv(sys.executable, sys.orig_argv)


_WATCHDOG = _Watchdog()
_STORES: dict[int, Store] = {}


@signals.worker_ready.connect
def _on_ready(**_: Any) -> None:
    """The worker listens: say so at once, and watch from now on."""
    for name in ("celery.worker.strategy", "celery.app.trace"):
        logging.getLogger(name).addFilter(_is_worth_a_line)
    warnings.simplefilter("ignore", CPendingDeprecationWarning)  # ten lines about a default, at every lost connection
    _WATCHDOG.start()
    try:
        heartbeats.beat(_store(), "worker", {"state": "idle"})
    except StoreError as error:
        log.warning("%s", error)
    importlib.import_module("planner.solve")  # so that the first plan does not wait for it


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    return record.levelno > logging.INFO or CANARY not in record.getMessage()


def _controller_age_s() -> float | None:
    """Seconds since the controller's last beat; None if that cannot be told."""
    try:
        beat = heartbeats.all_beats(_store()).get("controller")
    except StoreError:
        return None
    if beat is None or beat.detail.get("broker") != "ok":
        return None
    return (utc_now() - beat.at).total_seconds()


def _store() -> Store:
    """This process's store, opened when first needed."""
    pid = os.getpid()
    if pid not in _STORES:
        _STORES[pid] = Store.open(Settings.from_env().database_url)
    return _STORES[pid]


def _name() -> str:
    return f"worker@{os.uname().nodename}:{os.getpid()}"
