"""Files that `malleus plan` writes beside its result: the integer program and the timeline."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.errors import CommandError
from app.plan_program import write_program
from app.plan_timeline import write_timeline
from db.errors import InputError
from planner.solve import RankedPlan
from planner.spec import ClusterSpec, ModelProfile


def check_writable(files: Mapping[str, Path | None]) -> None:
    """Asked before the search, so that nobody waits for a file that cannot be written.

    Args:
        files: path by the option that names it; None where the option was not given.

    Raises:
        InputError: a path that cannot be written, or one file for two options.
    """
    taken: dict[Path, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise InputError(f"{option} must be a file in a folder that exists and may be written, given {str(path)!r}")
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise InputError(f"{other} and {option} must be two files, given {str(path)!r} twice")


def write_files(
    best: RankedPlan,
    cluster: ClusterSpec,
    profile: ModelProfile,
    rates: Mapping[int, float],
    *,
    write_lp: Path | None,
    timeline: Path | None,
    title: str,
) -> tuple[dict[str, Any], list[str]]:
    """Writes what was asked for.

    Args:
        rates: straggling rate by device; devices not named are healthy.
        title: of the page.

    Returns:
        What was written, as JSON for programs and in lines for people.

    Raises:
        CommandError: a file cannot be written after all.
    """
    document: dict[str, Any] = {}
    notes = []
    plan = best.plan
    if write_lp is not None:
        with _reported(write_lp):
            written = write_program(write_lp, plan, best.step_s, cluster=cluster, profile=profile, rates=rates)
        document["lp"] = written.to_json()
        kept = "all of them" if not written.missed else "all but " + ", ".join(written.missed)
        notes.append(
            f"wrote {write_lp}: {written.num_variables} variables, {written.num_rows} rows; the plan keeps {kept}"
        )
    if timeline is not None:
        with _reported(timeline):
            num_pipelines = write_timeline(
                timeline, plan, best.step_s, profile=profile, rates=rates, title=f"Timeline of a step: {title}"
            )
        document["timeline"] = {"path": str(timeline), "num_pipelines": num_pipelines}
        drawn = (
            "" if num_pipelines == plan.dp_degree else f", the {num_pipelines} slowest of {plan.dp_degree} pipelines"
        )
        notes.append(f"wrote {timeline}{drawn}")
    return document, notes


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from None
