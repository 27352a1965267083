"""When a run saves: every n steps, on request, and at its end. What the training loop calls.

Every decision follows from what all ranks know alike (step, desired document, what ended), so no
rank needs to be told.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from db.messages import Checkpoint
from db.run_config import RunConfig
from engine.checkpoint.folder import name_of
from engine.checkpoint.saver import Saved, Saver
from engine.checkpoint.start import Start, start
from engine.shard import Shard
from engine.uplink import Uplink

log = logging.getLogger("malleus.engine")

END_TIMEOUT_S = 600.0
END_POLL_S = 0.02
NO_FOLDER = "no folder for checkpoints is given: start with --checkpoints PATH or set checkpoint.folder"


class Checkpoints:
    """A run's checkpoints, seen from one rank.

    Collective: every rank calls every method at the same boundaries with equal arguments.

    Args:
        folder: where they go; None: `checkpoint.folder` of the configuration.
        uplink: on rank 0; None elsewhere.
    """

    def __init__(self, config: RunConfig, folder: Path | None, uplink: Uplink | None) -> None:
        if folder is None and config.checkpoint.folder:
            folder = Path(config.checkpoint.folder).expanduser()
        self._config, self._folder, self._uplink = config, folder, uplink
        self._saver = Saver(config, folder) if folder else None
        self._start = Start()
        self._request = 0
        self._due_step = 0
        self._last: Saved | None = None

    def start(self, shard: Shard) -> int:
        """Fills a fresh shard from where the run starts.

        Returns:
            The next step to run.

        Raises:
            CheckpointError: what should be loaded cannot be; equal on all ranks.
        """
        self._start = start(shard, self._config, self._folder)
        self._request = self._start.request
        self._due_step = self._start.step
        if self._start.is_own and self._start.path is not None:
            self._last = Saved(
                step=self._start.step,
                request=self._request,
                reason="",
                path=self._start.path,
                num_bytes=self._start.num_bytes,
            )
        return self._start.step

    def at_boundary(self, shard: Shard, step: int, request: int) -> bool:
        """Looks after the save under way, and starts one if it is time; may be called again at the same step.

        Args:
            step: the next step to run.
            request: `Desired.checkpoint` of the document in force.

        Returns:
            Whether a save was started here.
        """
        self._look_after()
        every = self._config.checkpoint.every_steps
        is_due = bool(every) and step % every == 0 and step > self._due_step
        is_requested = request > self._request
        if is_due:
            self._due_step = step
        if self._saver is not None and self._saver.is_running:
            if is_due and not is_requested:
                reason = "the save before it was still being written; this one was skipped"
                self._tell(Saved(step=step, request=self._request, reason=reason, path=self._path(step)))
            return False  # a request waits
        return self._save(shard, step, request) if is_due or is_requested else False

    def at_end(self, shard: Shard, step: int, request: int) -> None:
        """Waits for the save under way; saves once more if the run saves at all, or was asked to."""
        self._wait()
        wants_last = self._config.checkpoint.every_steps > 0 and step > self._start.step and not self._is_saved(step)
        if (wants_last or request > self._request) and self._save(shard, step, request):
            self._wait()

    def _save(self, shard: Shard, step: int, request: int) -> bool:
        self._request = max(request, self._request)
        if self._saver is None:
            self._tell(Saved(step=step, request=self._request, reason=NO_FOLDER, path=Path()))
            return False
        if self._last is not None and self._is_saved(step):
            answer = self._last
            self._tell(Saved(step=step, request=self._request, reason="", path=answer.path, num_bytes=answer.num_bytes))
            return False
        failed = self._saver.begin(shard, step=step, request=self._request)
        if failed:
            self._tell(failed)
        return failed is None

    def _look_after(self, *, is_late: bool = False) -> None:
        ended = self._saver.poll(is_late=is_late) if self._saver else None
        if ended:
            if not ended.reason:
                self._last = ended
            self._tell(ended)

    def _wait(self) -> None:
        deadline = time.monotonic() + END_TIMEOUT_S
        while self._saver is not None and self._saver.is_running:
            self._look_after(is_late=time.monotonic() > deadline)
            time.sleep(END_POLL_S)

    def _is_saved(self, step: int) -> bool:
        return self._last is not None and self._last.step == step

    def _path(self, step: int) -> Path:
        return (self._folder or Path()) / name_of(step)

    def _tell(self, saved: Saved) -> None:
        if self._uplink is None:
            return
        if saved.reason:
            log.error("no checkpoint at step %d: %s", saved.step, saved.reason)
        else:
            log.info("checkpoint %s: %.1f MB in %.2f s", saved.path, saved.num_bytes / 1e6, saved.seconds)
        self._uplink.send(
            Checkpoint,
            step=saved.step,
            request=saved.request,
            outcome="failed" if saved.reason else "saved",
            reason=saved.reason,
            path=str(saved.path) if saved.path != Path() else "",
            num_bytes=saved.num_bytes,
            pause_s=saved.pause_s,
            seconds=saved.seconds,
        )
