"""`malleus trace`: what slowed a job down, read from its production trace, and the plan that would have helped."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from app.commands.output import JsonOption, print_json
from app.commands.surroundings import open_store, person


def trace(
    file: Annotated[Path, typer.Argument(help="Trace (Parquet), one row an operation.", show_default=False)],
    meta: Annotated[
        Path, typer.Option(help="YAML file with dp_size, pp_size, tp_size and world_size.", show_default=False)
    ],
    layers_per_stage: Annotated[
        int, typer.Option(min=1, max=64, help="Layers that a usual stage counts as; a trace does not say.")
    ] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds the search may take.")] = 30.0,
    is_imported: Annotated[
        bool, typer.Option("--import", help="Put it into the store as a finished run, for the dashboard.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Name the cause of a slow job from its trace, and the plan that would have absorbed it."""
    from app.trace_file import read_trace
    from app.trace_report import report_on

    with ExitStack() as stack:
        store = stack.enter_context(open_store()) if is_imported else None  # fails before the work, not after
        report = report_on(
            read_trace(file, meta), layers_per_stage=layers_per_stage, seed=seed, time_limit_s=time_limit
        )
        run = None
        if store is not None:
            from app.trace_import import import_trace

            run = import_trace(store, report, source=file, actor=person())
    if as_json:
        print_json({**report.to_json(), "run": run})
        return
    print(report.to_text())
    if run is not None:
        print(f"\nrun {run}: imported (malleus status {run})")
