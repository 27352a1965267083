"""A rank, or all of them, killed at any moment of a save: the checkpoint before it is whole and is found."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint.folder import complete, remove_leftovers
from engine.checkpoint.manifest import read_manifest
from engine.checkpoint.pieces import to_fill
from engine.checkpoint.start import check_files
from engine.checkpoint.storage import read_share
from planner.plan import even_plan
from tests.engine.checkpoint.states import a_plan, differences, empty_shard, fill, small_config
from tests.engine.world import TIMEOUT_S

CONFIG = small_config(cluster={"num_nodes": 1, "devices_per_node": 2}, checkpoint={"keep": 1}, parallel={"max_tp": 2})
PLAN = even_plan(
    CONFIG.nodes, num_layers=6, num_micro_batches=8, micro_batch_size=1, dp_degree=1, tp_degree=2, pp_degree=1
)
MOMENTS = (
    "begin",
    "first tensor",
    "sync of a file",
    "record",
    "records joined",
    "manifest",
    "rename",
    "old one set aside",
    "old one removed",
)
"""From `records joined` on they happen on rank 0 alone."""
CASES = [(moment, (0,)) for moment in MOMENTS] + [
    (moment, victims) for moment in MOMENTS[:4] for victims in ((1,), (0, 1))
]


def die_at(moment: str) -> None:
    """From now on this process kills itself where the named thing is about to happen."""
    from engine.checkpoint import folder, saver, storage
    from engine.tensor_file import TensorFile

    def dying(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    places: dict[str, tuple[Any, str]] = {
        "begin": (saver, "staged"),
        "first tensor": (TensorFile, "write"),
        "sync of a file": (TensorFile, "close"),
        "record": (storage, "write_synced"),
        "records joined": (saver, "joined_records"),
        "manifest": (folder, "write_synced"),
        "rename": (Path, "rename"),
        "old one set aside": (folder, "_set_aside"),
        "old one removed": (folder, "_discard"),
    }
    setattr(*places[moment], dying)


def save_forever(rank: int, store: str, folder: Path, moment: str, victims: tuple[int, ...]) -> None:
    """Saves steps 1 and 2; the victims die in the save of step 2, the others fail in a collective."""
    import torch
    import torch.distributed as dist

    from engine.checkpoint.saver import Saver

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    saver = Saver(CONFIG, folder)
    for step in (1, 2):
        if step == 2 and rank in victims:
            die_at(moment)
        shard = fill(empty_shard(CONFIG, PLAN, rank), seed=step, num_updates=step)
        try:
            assert saver.begin(shard, step=step, request=0) is None
            while saver.poll() is None:
                pass
        except RuntimeError:
            if rank in victims:
                signal.pause()  # its own end is on the way
            os._exit(3)  # what training would do when a peer is gone


@pytest.mark.parametrize(("moment", "victims"), CASES)
def test_killed_in_the_middle_of_a_save(tmp_path: Path, moment: str, victims: tuple[int, ...]) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["engine.trainer"])
    folder = tmp_path / "checkpoints"
    ranks = [
        context.Process(target=save_forever, args=(rank, str(tmp_path / "store"), folder, moment, victims), daemon=True)
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(TIMEOUT_S)
    codes = [process.exitcode for process in ranks]
    assert all(codes[rank] == -signal.SIGKILL for rank in victims), codes
    assert None not in codes, "a survivor hangs"
    is_complete = moment in ("old one set aside", "old one removed")  # of step 2, before its end was told
    assert read_manifest(complete(folder)[-1]).step == (2 if is_complete else 1)
    remove_leftovers(folder)
    newest = complete(folder)[-1]
    manifest = read_manifest(newest)
    assert [path for path in folder.iterdir() if path not in complete(folder)] == []
    check_files(manifest, newest)
    other = a_plan(CONFIG, 9)
    for device in range(2):
        shard = empty_shard(CONFIG, other, device)
        read_share(to_fill(shard), newest, manifest)
        assert differences(shard, manifest.step) == []
