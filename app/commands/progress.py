"""How far a run is, as one line: rewritten in place in a terminal, printed now and then elsewhere."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO

from app.commands.output import number, percent, rate, seconds

if TYPE_CHECKING:
    from db.episodes import EpisodeView
    from db.history import StepView
    from db.runs import RunView
    from db.store import Store

PLAIN_S = 10.0
BETWEEN = ("lost", "starting", "calibrating")
"""What it is while an engine starts again: the figures are those of the attempt before."""
CLEAR_TO_END = "\x1b[K"


class Progress:
    """Shows a run's progress on a stream; lines of other people go through `say`.

    Args:
        clock: seconds that never jump.
    """

    def __init__(self, store: Store, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._stream, self._clock = store, stream, clock
        self._is_tty = stream.isatty()
        self._is_line_open = False
        self._shown: tuple[object, ...] = ()
        self._next_at = -math.inf

    def show(self, run: RunView) -> None:
        """Shows the run as it stands, if that is new."""
        from db.errors import StoreError

        state = (run.status, run.step, run.active_plan_version, run.num_attempts)
        is_new_status = state[:1] != self._shown[:1]
        if state == self._shown or not (self._is_tty or is_new_status or self._clock() >= self._next_at):
            return
        try:
            line = progress_line(run, *_details(self._store, run))
        except StoreError:
            return  # away for a moment; training goes on
        self._shown, self._next_at = state, self._clock() + PLAIN_S
        if not self._is_tty:
            self.say(line)
            return
        if is_new_status:
            self._end_line()
        width = shutil.get_terminal_size().columns
        self._stream.write(f"\r{line if len(line) < width else line[: width - 2] + '…'}{CLEAR_TO_END}")
        self._stream.flush()
        self._is_line_open = True

    def say(self, line: str) -> None:
        """Prints a line that stays."""
        self._end_line()
        print(line, file=self._stream, flush=True)

    def end(self) -> None:
        """What is printed next begins a line of its own."""
        self._end_line()
        self._stream.flush()

    def _end_line(self) -> None:
        if self._is_line_open:
            self._stream.write("\n")
            self._is_line_open = False


def progress_line(run: RunView, step: StepView | None, stragglers: Sequence[EpisodeView]) -> str:
    """`run 3: training, step 12 of 1000, loss 2.31, grad norm 1.2, 412 ms a step, 2,480 tokens/s, MFU 31 %, plan v1`.

    Args:
        step: the last one that is recorded.
        stragglers: open episodes; the slowest device of them is named.
    """
    parts = [f"run {run.id}: {run.status}"]
    if run.num_restarts:
        parts[0] += f" (attempt {run.num_restarts + 1})"
    if run.status != "training" and run.reason:
        parts.append(run.reason)
    if run.step is not None and run.status not in BETWEEN:
        parts += [f"step {run.step + 1:,} of {run.config.train.num_steps:,}", f"loss {number(run.loss)}"]
        if step is not None:
            parts.append(f"grad norm {number(step.grad_norm)}")
        parts.append(f"{seconds(run.step_s) or '-'} a step")
        if step is not None:
            parts += [f"{number(step.tokens_per_s)} tokens/s", f"MFU {percent(step.mfu)}"]
        parts.append(f"plan v{run.active_plan_version or run.target_plan_version}")
    if stragglers:
        slowest = max(stragglers, key=lambda episode: -math.inf if math.isnan(episode.rate) else episode.rate)
        parts.append(f"device {slowest.device} is the slowest at {rate(slowest.rate)}")
    return ", ".join(parts)


def _details(store: Store, run: RunView) -> tuple[StepView | None, Sequence[EpisodeView]]:
    from db import episodes, history

    return history.last_step(store, run.id), episodes.all_episodes(store, run.id, is_open=True)
