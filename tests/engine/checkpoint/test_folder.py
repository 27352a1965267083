"""Only a rename makes a checkpoint complete; leftovers go, the newest stay."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from engine.checkpoint import folder as folder_module
from engine.checkpoint.folder import complete, joined_records, name_of, new_partial, remove_leftovers
from engine.checkpoint.manifest import MANIFEST, read_manifest
from engine.errors import CheckpointError
from tests.engine.checkpoint.states import header, save, single_plan, small_config

CONFIG = small_config(model={"num_layers": 1})
PLAN = single_plan(CONFIG)


def saved_steps(folder: Path) -> list[int]:
    return [read_manifest(path).step for path in complete(folder)]


def test_the_newest_stay(tmp_path: Path) -> None:
    for step in (2, 4, 6, 100_000_000):
        save(CONFIG, PLAN, tmp_path, step=step, seed=step, keep=2)
    assert saved_steps(tmp_path) == [6, 100_000_000]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000006", "step-100000000"]


def test_a_step_that_is_saved_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    save(CONFIG, PLAN, tmp_path, step=2, seed=1)
    before = read_manifest(complete(tmp_path)[0])
    save(CONFIG, PLAN, tmp_path, step=2, seed=2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]
    assert read_manifest(complete(tmp_path)[0]).files != before.files


def test_what_is_not_complete_does_not_count_and_goes_at_the_next_start(tmp_path: Path) -> None:
    save(CONFIG, PLAN, tmp_path, step=2, seed=1)
    for name in ("step-00000004.partial", "step-00000001.removed", "step-00000006"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank-00000.safetensors").write_bytes(b"half")
    (tmp_path / "notes.partial").write_text("not ours")
    assert saved_steps(tmp_path) == [2]
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.partial", "step-00000002", "step-00000006"]


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert complete(tmp_path / "none") == []
    remove_leftovers(tmp_path / "none")


class Killed(BaseException):
    """Stands for the end of the process: nothing may catch it."""


CALLS = ["fsync", "rename", "unlink", "rmtree"]


@pytest.mark.parametrize("again", [False, True], ids=["new step", "same step"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_the_end_at_any_moment_of_publishing_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, again: bool
) -> None:
    """Ends at the n-th call of each kind, before it happens."""
    save(CONFIG, PLAN, tmp_path, step=2, seed=1, keep=1)
    step = 2 if again else 4
    done = 0

    def dying(real: object) -> object:
        assert callable(real)

        def action(*arguments: object, **options: object) -> object:
            nonlocal done
            done += 1
            if done > number:
                raise Killed
            return real(*arguments, **options)

        return action

    with monkeypatch.context() as patch:
        if call == "fsync":
            patch.setattr(folder_module.os, "fsync", dying(os.fsync))
        elif call == "rmtree":
            patch.setattr(folder_module.shutil, "rmtree", dying(shutil.rmtree))
        else:
            patch.setattr(Path, call, dying(getattr(Path, call)))
        try:
            save(CONFIG, PLAN, tmp_path, step=step, seed=2, keep=1)
        except Killed:
            pass
        else:
            assert done <= number
    remove_leftovers(tmp_path)
    found = complete(tmp_path)
    assert found
    for path in found:
        manifest = read_manifest(path)
        assert {file.name for file in path.iterdir()} == {MANIFEST, *(file.name for file in manifest.files)}
        assert all((path / file.name).stat().st_size == file.num_bytes for file in manifest.files)


def test_a_rank_whose_record_is_not_there_is_named(tmp_path: Path) -> None:
    partial = new_partial(tmp_path, 2)
    with pytest.raises(CheckpointError, match=r"rank 5 wrote no .*: all ranks must share the folder"):
        joined_records(partial, [5], **header(CONFIG, PLAN, 2))


def test_records_with_a_gap_are_refused(tmp_path: Path) -> None:
    save(CONFIG, PLAN, tmp_path, step=2, seed=1)
    manifest = read_manifest(tmp_path / name_of(2))
    broken = {
        key: entry.model_copy(update={"chunks": entry.chunks[1:]}) if key == "embedding.master" else entry
        for key, entry in manifest.tensors.items()
    }
    (tmp_path / name_of(2) / MANIFEST).write_text(manifest.model_copy(update={"tensors": broken}).model_dump_json())
    with pytest.raises(CheckpointError, match=r"embedding\.master: expected \d+ elements, given 0"):
        read_manifest(tmp_path / name_of(2))


def test_pruning_that_fails_leaves_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(CONFIG, PLAN, tmp_path, step=2, seed=1, keep=1)

    def refuse(newest: Path, keep: int) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(folder_module, "_prune", refuse)
    save(CONFIG, PLAN, tmp_path, step=4, seed=1, keep=1)
    assert saved_steps(tmp_path) == [2, 4]
