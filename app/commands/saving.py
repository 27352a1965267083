"""Commands about what a run has saved: ask for a checkpoint, list them, turn one into a Hugging Face folder."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from app.commands.control import NoWaitOption, TimeoutOption, submit
from app.commands.output import (
    Column,
    CsvOption,
    JsonOption,
    LimitOption,
    OffsetOption,
    RunArgument,
    clock,
    print_json,
    print_rows,
    seconds,
    size,
)
from app.commands.surroundings import open_store
from app.errors import CommandError
from db.errors import InputError
from db.settings import Settings

INPUT_WRONG = 2

CHECKPOINT_COLUMNS: tuple[Column, ...] = (
    ("step", lambda row: row.step),
    ("status", lambda row: row.status),
    ("at", lambda row: clock(row.at)),
    ("size", lambda row: size(row.num_bytes)),
    ("pause", lambda row: seconds(row.pause_s)),
    ("took", lambda row: seconds(row.seconds)),
    ("path", lambda row: row.path),
    ("reason", lambda row: row.reason),
)


def checkpoint(
    run: RunArgument, no_wait: NoWaitOption = False, timeout: TimeoutOption = 120.0, as_json: JsonOption = False
) -> None:
    """Save a run at its next step boundary; waits until the checkpoint is complete."""
    submit(run, "checkpoint", {}, no_wait=no_wait, timeout_s=timeout, as_json=as_json)


def checkpoints(
    run: RunArgument,
    limit: LimitOption = 100,
    offset: OffsetOption = 0,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """List the checkpoints of a run, newest first: those that are there, were removed, or failed."""
    from db import checkpoints as table_of_checkpoints
    from db import runs

    with open_store() as store:
        runs.get(store, run)
        rows = table_of_checkpoints.all_checkpoints(store, run, limit=limit, offset=offset)
    empty = f"run {run} has no checkpoints: `malleus checkpoint {run}` asks for one, checkpoint.every_steps for many"
    print_rows(rows, CHECKPOINT_COLUMNS, as_json=as_json, as_csv=as_csv, empty=empty)


def export_model(
    run: RunArgument,
    out: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty folder for the model.", show_default=False)],
    step: Annotated[int | None, typer.Option(min=0, help="Checkpoint of this step.", show_default="the newest")] = None,
    as_json: JsonOption = False,
) -> None:
    """Turn a checkpoint into a folder in the form of Hugging Face, which `transformers` loads."""
    from app.local import commands
    from app.local.environment import child_environment
    from app.local.origin import checkpoint_of
    from app.local.run_file import to_toml
    from db import runs

    settings = Settings.from_env()
    folder = out.expanduser().absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"the model needs a new or an empty folder, given {folder}")
    with open_store(settings) as store:
        config = runs.get(store, run).config
        found = checkpoint_of(store, run, step)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "run.toml"
        file.write_text(to_toml(config), encoding="utf-8")
        done = subprocess.run(
            commands.exporter(Path(found.path), file, folder),
            env=child_environment(settings),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    if done.returncode:
        said = " ".join(done.stderr.split()) or "nothing was said"
        problem = f"the export of {found.path} ended with status {done.returncode}: {said}"
        raise InputError(problem) if done.returncode == INPUT_WRONG else CommandError(problem)
    if as_json:
        print_json({"run": run, "step": found.step, "checkpoint": found.path, "out": str(folder)})
    else:
        print(f"run {run}, step {found.step}: exported to {folder}")
