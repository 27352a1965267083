"""The folder of a run's checkpoints: what is complete, what is left over, and how a save becomes complete.

    step-00000120.partial/   being written; worth nothing if the save does not end
    step-00000120/           complete: renamed only after everything is on the disk
    step-00000100.removed/   on its way out

Only a rename makes a checkpoint complete, so a process may be killed at any moment.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.checkpoint.manifest import MANIFEST, Manifest, Record, joined
from engine.errors import CheckpointError

log = logging.getLogger("malleus.engine")

PARTIAL, REMOVED = ".partial", ".removed"
_COMPLETE = re.compile(r"step-(\d{8,})")


def name_of(step: int) -> str:
    """The name of a complete checkpoint."""
    return f"step-{step:08d}"


def share_name(rank: int) -> str:
    """The name of the files that a rank writes, without the ending."""
    return f"rank-{rank:05d}"


def complete(folder: Path) -> list[Path]:
    """The complete checkpoints, oldest first; none if the folder is not there."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _COMPLETE.fullmatch(path.name))]
    return [path for _, path in sorted(found) if (path / MANIFEST).is_file()]


def remove_leftovers(folder: Path) -> None:
    """Clears what ended saves and removals have left. Nobody may be saving there.

    A checkpoint that was being replaced and whose place is empty is put back.
    """
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if path.suffix not in (PARTIAL, REMOVED) or not _COMPLETE.fullmatch(path.stem):
            continue
        place = path.with_suffix("")
        if path.suffix == REMOVED and (path / MANIFEST).is_file() and not place.exists():
            path.rename(place)
        else:
            shutil.rmtree(path, ignore_errors=True)


def new_partial(folder: Path, step: int) -> Path:
    """An empty place for a save; leftovers of earlier ones go first.

    Raises:
        OSError: it cannot be made.
    """
    remove_leftovers(folder)
    path = folder / (name_of(step) + PARTIAL)
    path.mkdir(parents=True)
    return path


def joined_records(partial: Path, writers: Sequence[int], **header: Any) -> Manifest:
    """The manifest of a save whose ranks have all written; their records are removed.

    Args:
        header: the other fields of the manifest.

    Raises:
        CheckpointError: a rank's record is not there, or the records do not fit together.
        OSError: the folder cannot be written.
    """
    records = []
    for rank in writers:
        path = partial / f"{share_name(rank)}.json"
        try:
            records.append(Record.model_validate_json(path.read_bytes()))
        except FileNotFoundError as error:
            raise CheckpointError(f"rank {rank} wrote no {path}: all ranks must share the folder") from error
    manifest = joined(records, **header)
    for rank in writers:
        (partial / f"{share_name(rank)}.json").unlink()
    return manifest


def publish(partial: Path, manifest: Manifest, keep: int) -> Path:
    """Makes a written save complete, then lets the oldest go.

    Args:
        keep: how many complete checkpoints stay.

    Returns:
        The complete checkpoint.

    Raises:
        OSError: the disk is full or the folder is not writable; then it is not complete.
    """
    write_synced(partial / MANIFEST, manifest.model_dump_json())
    _sync_folder(partial)
    place = partial.with_suffix("")
    if place.exists():
        _set_aside(place)
    partial.rename(place)
    _sync_folder(place.parent)
    try:
        _prune(place, keep)
    except OSError as error:  # the new one is complete all the same
        log.warning("old checkpoints in %s stay: %s", place.parent, error)
    return place


def write_synced(path: Path, text: str) -> None:
    """Writes a small file and waits for the disk.

    Raises:
        OSError: it cannot be written.
    """
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _prune(newest: Path, keep: int) -> None:
    for old in complete(newest.parent)[:-keep]:
        if old != newest:
            _discard(_set_aside(old))
    aside = newest.with_suffix(REMOVED)
    if aside.exists():
        _discard(aside)


def _set_aside(path: Path) -> Path:
    aside = path.with_suffix(REMOVED)
    if aside.exists():
        shutil.rmtree(aside)
    return path.rename(aside)


def _discard(path: Path) -> None:
    """The manifest goes first: a half removed folder must not look whole."""
    (path / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
