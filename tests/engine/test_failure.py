"""A device that is asked to fail: its process dies once rank 0 has said so, the run goes on from its checkpoint."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from db.messages import Checkpoint, Desired, Failure, Step
from engine.checkpoint.folder import complete
from planner.plan import even_plan
from tests.engine.checkpoint.states import small_config
from tests.engine.reference import reference_losses
from tests.engine.world import TIMEOUT_S, ScriptedUplink, run_world

CONFIG = small_config(
    train={"num_steps": 10, "dtype": "float64"},
    cluster={"num_nodes": 1, "devices_per_node": 2},
    parallel={"max_tp": 2},
)
PLAN = even_plan(
    CONFIG.nodes, num_layers=6, num_micro_batches=8, micro_batch_size=1, dp_degree=1, tp_degree=2, pp_degree=1
)


def document(version: int, **fields: Any) -> Desired:
    return Desired(run=1, version=version, plan_version=1, plan=PLAN.to_json(), **fields)


class Uplink(ScriptedUplink):
    """Asks for a checkpoint while step 6 is run, and for the failure once it is saved.

    What is said until it is closed is written down, so that it outlives the process.
    """

    def __init__(self, attempt: str, victim: int, said: Path) -> None:
        super().__init__({5: document(2, checkpoint=1, paused=True)} if attempt == "first" else {})
        self._attempt, self._said = attempt, said
        self._failure = Failure(attempt="first", device=victim)

    def desired(self) -> Any:
        if self._attempt == "second" or any(isinstance(message, Checkpoint) for message in self.sent):
            return document(3, checkpoint=1, failure=self._failure).read_by(self._attempt)
        return super().desired()

    def set_state(self, state: str, *, step: int, reason: str = "") -> None:
        with self._said.open("a") as file:
            file.write(f"{state} {step} v{self._version} {reason}\n")

    def close(self) -> None:
        self._said = self._said.with_name("after the last words")


def train_until_it_dies(rank: int, store: str, folder: Path, said: Path, victim: int) -> None:
    import torch
    import torch.distributed as dist

    from engine.trainer import Trainer

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    uplink = Uplink("first", victim, said) if rank == 0 else None
    try:
        Trainer(CONFIG, uplink, checkpoints=folder).train(document(1))
    except RuntimeError:
        os._exit(3)  # what a survivor does when a peer is gone


def go_on(rank: int, folder: Path, said: Path, victim: int) -> Any:
    from engine.trainer import Trainer

    uplink = Uplink("second", victim, said) if rank == 0 else None
    ending = Trainer(CONFIG, uplink, checkpoints=folder).train(document(1))
    return ending, (uplink.sent if uplink else None)


@pytest.mark.parametrize("victim", [0, 1])
def test_the_device_dies_once_and_the_next_attempt_goes_on(tmp_path: Path, victim: int) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["engine.trainer"])
    folder, said = tmp_path / "checkpoints", tmp_path / "said"
    arguments = (str(tmp_path / "store"), folder, said, victim)
    ranks = [context.Process(target=train_until_it_dies, args=(rank, *arguments), daemon=True) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(TIMEOUT_S)
    codes = [process.exitcode for process in ranks]
    assert codes[victim] == -signal.SIGKILL, codes
    assert codes[1 - victim] == 3, "the survivor ends because its peer is gone"
    assert [path.name for path in complete(folder)] == ["step-00000007"]
    last = said.read_text().splitlines()[-1]
    assert last == f"failed 7 v3 device {victim} failed on request"

    ending, sent = run_world(2, go_on, folder, tmp_path / "said again", victim)[0]
    assert ending == "finished", "the same document does not kill again"
    steps = [message for message in sent if isinstance(message, Step)]
    assert [message.step for message in steps] == [7, 8, 9]
    reference = reference_losses(CONFIG, 10)
    assert [message.loss for message in steps] == pytest.approx(reference[7:], rel=1e-9)
