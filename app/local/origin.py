"""What a new run starts from: the newest checkpoint of another run, or a folder. Looks at the disk of this machine."""

from __future__ import annotations

from pathlib import Path

from db import checkpoints, runs
from db.checkpoints import CheckpointView
from db.errors import InputError
from db.store import Store


def origin(store: Store, given: str, folder: Path) -> Path:
    """The folder that a person means.

    Args:
        given: number of a run, or a path.
        folder: where relative paths begin.

    Raises:
        InputError: unknown run, a run without a checkpoint that is still there, or no folder with something in it.
    """
    path = (folder / Path(given).expanduser()).absolute()
    if given.isascii() and given.isdigit() and not path.exists():
        return Path(checkpoint_of(store, int(given), None).path)
    if not path.is_dir() or not any(path.iterdir()):
        raise InputError(f"--from must be the number of a run or a folder with a checkpoint or a model, given {given}")
    return path


def checkpoint_of(store: Store, run: int, step: int | None) -> CheckpointView:
    """The newest checkpoint of a run (or that of a step) whose folder is there.

    Raises:
        InputError: unknown run, or no such checkpoint.
    """
    runs.get(store, run)
    saved = checkpoints.saved(store, run)
    if step is not None and step not in [entry.step for entry in saved]:
        known = ", ".join(str(entry.step) for entry in saved) or "none"
        raise InputError(f"run {run} has no checkpoint of step {step}, those it has: {known}")
    wanted = [entry for entry in saved if step in (None, entry.step)]
    if not wanted:
        raise InputError(f"run {run} has no checkpoint (`malleus checkpoint {run}` asks for one)")
    for entry in wanted:
        if Path(entry.path).is_dir():
            return entry
    raise InputError(f"expected the checkpoint of run {run} at {wanted[0].path}, found nothing there")
