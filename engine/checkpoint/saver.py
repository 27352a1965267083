"""Saving while training goes on: copy at the boundary, write behind, agree at later boundaries.

    begin   every rank copies its share (that is the pause) and starts a thread that writes it
    poll    at every boundary while a save is under way: one small reduction tells who has ended;
            once all have, rank 0 makes the save complete in its thread
    ended   all ranks learn it at the same boundary, so all take the same decisions

The threads never communicate: a rank that dies is noticed by the collectives of training, and what
it leaves is an incomplete folder. Source of each choice: docs/decisions/checkpoints.md.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from db.messages import utc_now
from db.run_config import RunConfig
from engine.agreement import vote
from engine.checkpoint.folder import PARTIAL, joined_records, name_of, new_partial, publish
from engine.checkpoint.pieces import Pieces, staged
from engine.shard import Shard

log = logging.getLogger("malleus.engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """How a save ended; `path`, `num_bytes` and `seconds` are rank 0's, the rest equal on all ranks."""

    step: int
    request: int
    reason: str
    path: Path
    num_bytes: int = 0
    pause_s: float = 0.0
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Job:
    """A save under way."""

    step: int
    request: int
    partial: Path
    header: dict[str, Any]
    writers: list[int]
    started: float
    pause_s: float = 0.0
    is_publishing: bool = False
    work: _Work | None = None
    num_bytes: int = 0


class Saver:
    """Saves of one rank, one at a time.

    Args:
        folder: where all ranks can write and read.

    Collective: every rank calls `begin` and `poll` at the same boundaries.
    """

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._job: _Job | None = None

    @property
    def is_running(self) -> bool:
        """Whether a save is under way; equal on all ranks."""
        return self._job is not None

    def begin(self, shard: Shard, *, step: int, request: int) -> Saved | None:
        """Copies the state and starts to write. Collective.

        Returns:
            How it ended if it could not start, else None.
        """
        assert self._job is None, "one save at a time"
        job = _Job(
            step=step,
            request=request,
            partial=self._folder / (name_of(step) + PARTIAL),
            header=self._header(shard, step, request),
            writers=sorted(device for device, spans in shard.layout.states.items() if spans),
            started=time.perf_counter(),
        )
        problem, pieces = "", {}
        try:
            if dist.get_rank() == 0:
                new_partial(self._folder, step)
            pieces = staged(shard)
        except (OSError, RuntimeError, MemoryError) as error:
            problem = f"cannot save to {self._folder}: {_text(error)}"
        reason = vote(problem)
        if reason:
            return self._ended(job, reason)
        if shard.device in job.writers:
            job.work = _Work(lambda: _write(pieces, job.partial, shard.device))
        job.pause_s = time.perf_counter() - job.started
        self._job = job
        return None

    def poll(self, *, is_late: bool = False) -> Saved | None:
        """Looks how the save under way is doing; returns at once. Collective while one is under way.

        Args:
            is_late: this rank waits no longer: unless the save has ended, it has failed.

        Returns:
            How it ended, on all ranks at the same call; None while it goes on or if there is none.
        """
        job = self._job
        if job is None:
            return None
        is_writing = job.work is not None and not job.work.has_ended
        states = torch.tensor([int(is_writing), int(bool(job.work and job.work.problem)), int(is_late)])
        dist.all_reduce(states)
        num_writing, num_failed, num_late = states.tolist()
        if num_writing:
            return self._ended(job, "it was not written in time") if num_late else None
        if num_failed:
            return self._ended(job, vote(job.work.problem if job.work else ""))
        if not job.is_publishing:
            job.is_publishing = True
            job.work = _Work(lambda: self._publish(job)) if dist.get_rank() == 0 else None
            return None
        return self._ended(job, "")

    def _header(self, shard: Shard, step: int, request: int) -> dict[str, Any]:
        return {
            "step": step,
            "num_updates": shard.num_updates,
            "request": request,
            "torch_version": torch.__version__,
            "plan": shard.layout.plan.to_json(),
            "config": self._config.model_dump(mode="json"),
        }

    def _publish(self, job: _Job) -> None:
        manifest = joined_records(job.partial, job.writers, saved_at=utc_now(), **job.header)
        publish(job.partial, manifest, self._config.checkpoint.keep)
        job.num_bytes = manifest.num_bytes

    def _ended(self, job: _Job, reason: str) -> Saved:
        self._job = None
        if reason and dist.get_rank() == 0:
            shutil.rmtree(job.partial, ignore_errors=True)
        return Saved(
            step=job.step,
            request=job.request,
            reason=reason,
            path=self._folder / name_of(job.step),
            num_bytes=0 if reason else job.num_bytes,
            pause_s=job.pause_s or time.perf_counter() - job.started,
            seconds=(job.work.ended_at if job.work else time.perf_counter()) - job.started,
        )


class _Work:
    """Something that runs in a thread of its own, and how it ended."""

    def __init__(self, action: Callable[[], None]) -> None:
        self.problem = ""
        self.ended_at = 0.0
        self._action: Callable[[], None] | None = action
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            assert self._action is not None
            self._action()
        except Exception as error:  # the outermost frame of this thread; a failed save never ends training
            log.exception("saving a checkpoint failed")
            self.problem = _text(error)
        finally:
            self._action = None  # lets the copies go
            self.ended_at = time.perf_counter()


def _write(pieces: dict[str, Pieces], partial: Path, rank: int) -> None:
    from engine.checkpoint.storage import write_share  # a second of imports, in the thread that needs them

    write_share(pieces, partial, rank)


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
