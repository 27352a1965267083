"""Spawned gloo ranks for tests, and a scripted uplink in place of the broker."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

TIMEOUT_S = 240.0


def run_world(size: int, function: Callable[..., Any], *arguments: Any, backend: str = "gloo") -> list[Any]:
    """Calls `function(rank, *arguments)` on `size` ranks of one world; results by rank.

    Args:
        backend: of its process group.

    Raises:
        AssertionError: a rank raised (with its traceback), died, or did not end in time.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["engine.trainer"])
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(size):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank,
                args=(theirs, rank, size, str(Path(folder) / "store"), backend, function, arguments),
                daemon=True,
            )
            process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        try:
            return [_result(pipe, rank) for rank, pipe in enumerate(pipes)]
        finally:
            for process, pipe in zip(processes, pipes, strict=True):
                process.join(5)
                if process.is_alive():
                    process.kill()
                    process.join()
                process.close()
                pipe.close()


def _result(pipe: Any, rank: int) -> Any:
    assert pipe.poll(TIMEOUT_S), f"rank {rank} did not end within {TIMEOUT_S} s"
    try:
        ok, value = pipe.recv()
    except EOFError:
        raise AssertionError(f"rank {rank} died") from None
    assert ok, f"rank {rank} raised:\n{value}"
    return value


def _rank(
    pipe: Any, rank: int, size: int, store: str, backend: str, function: Callable[..., Any], arguments: Sequence[Any]
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=TIMEOUT_S)
    )
    try:
        pipe.send((True, function(rank, *arguments)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    finally:
        pipe.close()
        dist.destroy_process_group()


class ScriptedUplink:
    """Plays documents by step and keeps what the engine sends.

    Args:
        script: `{step: document}`; the document is there from the end of that step on.
    """

    def __init__(self, script: dict[int, Any]) -> None:
        self._script = script
        self._num_steps = 0
        self._current: Any = None
        self._version = 0
        self.sent: list[Any] = []
        self.states: list[str] = []

    def desired(self) -> Any:
        due = [step for step in self._script if step < self._num_steps]
        return self._script[max(due)] if due else self._current

    def wait(self, timeout_s: float) -> None:
        self._num_steps += 1

    def applied(self, version: int) -> None:
        self._version = version

    def send(self, kind: type[Any], **fields: Any) -> None:
        from db.messages import Step, utc_now

        message = kind(run=1, attempt="test", seq=len(self.sent), at=utc_now(), desired_version=self._version, **fields)
        self.sent.append(message)
        if isinstance(message, Step):
            self._num_steps = message.step + 1

    def set_state(self, state: str, *, step: int, reason: str = "") -> None:
        self.states.append(state)

    def close(self) -> None:
        pass
