"""Real ranks save while they go on, and all learn the end at the same boundary."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint.folder import complete
from engine.checkpoint.manifest import read_manifest
from tests.engine.checkpoint.states import a_plan, differences, empty_shard, fill, small_config
from tests.engine.world import run_world

CONFIG = small_config(cluster={"num_nodes": 1, "devices_per_node": 4}, checkpoint={"keep": 2})


def polled(saver: Any) -> tuple[Any, int]:
    """How the save under way ended, and after how many boundaries."""
    for number in range(10_000):
        if ended := saver.poll():
            return ended, number
        time.sleep(0.005)
    raise AssertionError("the save did not end")


def save_and_load(rank: int, folder: Path) -> Any:
    from engine.checkpoint.saver import Saver
    from engine.checkpoint.start import load, start

    saver = Saver(CONFIG, folder)
    reports = []
    for step in range(1, 5):
        shard = fill(empty_shard(CONFIG, a_plan(CONFIG, step), rank), seed=step, num_updates=step)
        assert saver.begin(shard, step=step, request=step) is None
        assert saver.is_running
        for store in shard.tensors().values():  # training goes on: the copies must not notice
            for tensor in store.tensors:
                tensor.fill_(-1.0)
        reports.append(polled(saver))
        assert not saver.is_running
    wrong = []
    for seed in (21, 22, 23):
        fresh = empty_shard(CONFIG, a_plan(CONFIG, seed), rank)
        assert load(fresh, CONFIG, complete(folder)[0]).step == 3
        wrong += differences(fresh, 3)
    fresh = empty_shard(CONFIG, a_plan(CONFIG, 30), rank)
    chosen = start(fresh, CONFIG, folder)
    return reports, wrong, differences(fresh, 4), (chosen.step, chosen.request, chosen.is_own, fresh.num_updates)


def test_ranks_save_behind_training_and_load_under_other_plans(tmp_path: Path) -> None:
    results = run_world(4, save_and_load, tmp_path)
    assert len({tuple(boundary for _, boundary in reports) for reports, *_ in results}) == 1
    for reports, wrong, wrong_at_start, chosen in results:
        assert [(saved.step, saved.request, saved.reason) for saved, _ in reports] == [(n, n, "") for n in range(1, 5)]
        assert (wrong, wrong_at_start) == ([], [])
        assert chosen == (4, 4, True, 4)
    assert [read_manifest(path).step for path in complete(tmp_path)] == [3, 4]
    first = results[0][0][-1][0]
    assert first.num_bytes == sum(file.stat().st_size for file in complete(tmp_path)[-1].glob("*.safetensors"))
    assert 0 < first.pause_s < first.seconds


def fail(rank: int, folder: Path, kind: str) -> Any:
    from engine.checkpoint.saver import Saver

    saver = Saver(CONFIG, folder)
    shard = fill(empty_shard(CONFIG, a_plan(CONFIG, 3), rank), seed=1)
    assert saver.begin(shard, step=1, request=0) is None
    polled(saver)
    if kind == "full" and rank == 2:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limit[1]))
    if kind == "blocked" and rank == 0:
        (folder / "step-00000002.partial").symlink_to("/proc")  # cannot be removed as a folder, nor made again
    ended = saver.begin(shard, step=2, request=0)
    if ended is None:
        ended, _ = polled(saver)
    if kind == "full" and rank == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    if kind == "blocked" and rank == 0:
        (folder / "step-00000002.partial").unlink()
    assert saver.begin(shard, step=3, request=0) is None
    return ended.reason, polled(saver)[0].reason


@pytest.mark.parametrize(("kind", "words"), [("full", "File too large"), ("blocked", "cannot save to")])
def test_a_save_that_fails_on_one_rank_fails_on_all_and_the_next_works(tmp_path: Path, kind: str, words: str) -> None:
    results = run_world(4, fail, tmp_path, kind)
    assert len({reason for reason, _ in results}) == 1
    assert words in results[0][0]
    assert {reason for _, reason in results} == {""}
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-00000001", "step-00000003"]


def give_up(rank: int, folder: Path) -> Any:
    import threading

    from engine.checkpoint import saver as saver_module

    held = threading.Event()
    if rank == 1:
        saver_module._write = lambda *arguments: held.wait() and None  # type: ignore[assignment]
    saver = saver_module.Saver(CONFIG, folder)
    shard = fill(empty_shard(CONFIG, a_plan(CONFIG, 3), rank), seed=1)
    assert saver.begin(shard, step=1, request=0) is None
    assert saver.poll() is None
    ended = saver.poll(is_late=rank == 0)
    held.set()
    return ended.reason


def test_a_disk_that_hangs_is_given_up_by_all_together(tmp_path: Path) -> None:
    assert set(run_world(4, give_up, tmp_path)) == {"it was not written in time"}
    assert complete(tmp_path) == []


def refuse(rank: int, folder: Path, sections: dict[str, Any]) -> str:
    from engine.checkpoint.start import start
    from engine.errors import CheckpointError

    config = small_config(cluster={"num_nodes": 1, "devices_per_node": 4}, **sections)
    try:
        start(empty_shard(config, a_plan(config, 1), rank), config, folder)
    except CheckpointError as error:
        return str(error)
    return "it started"


def make(rank: int, folder: Path) -> None:
    from engine.checkpoint.saver import Saver

    saver = Saver(CONFIG, folder)
    assert saver.begin(fill(empty_shard(CONFIG, a_plan(CONFIG, 3), rank), seed=1), step=1, request=0) is None
    polled(saver)


@pytest.mark.parametrize(
    ("sections", "damage", "words"),
    [
        ({"model": {"vocab_size": 512}}, False, "is of another model: vocab_size: expected 512, given 256"),
        ({"train": {"dtype": "float64"}}, False, "another dtype: expected F64, given F32 (train.dtype was float32)"),
        ({}, True, "is damaged: its checksum is not that of the manifest"),
    ],
)
def test_what_cannot_be_loaded_is_one_error_on_all_ranks(
    tmp_path: Path, sections: dict[str, Any], damage: bool, words: str
) -> None:
    run_world(4, make, tmp_path)
    if damage:
        file = sorted(complete(tmp_path)[0].glob("*.safetensors"))[-1]
        content = bytearray(file.read_bytes())
        content[-1] ^= 255
        file.write_bytes(content)
    answers = set(run_world(4, refuse, tmp_path, sections))
    assert len(answers) == 1
    assert words in answers.pop()
    assert len(complete(tmp_path)) == 1, "nothing is lost"


def test_a_start_from_nothing_names_what_is_expected(tmp_path: Path) -> None:
    missing = str(tmp_path / "gone")
    answers = set(run_world(4, refuse, tmp_path, {"checkpoint": {"start_from": missing}}))
    assert len(answers) == 1
    assert f"given {missing}" in answers.pop()
