"""Commands that only read the store: runs, status, samples, plans. They need no broker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.commands.output import (
    Column,
    CsvOption,
    JsonOption,
    LimitOption,
    OffsetOption,
    RunArgument,
    age,
    clock,
    number,
    percent,
    print_json,
    print_rows,
    rate,
    rates,
    seconds,
    table,
)
from app.commands.surroundings import open_store

if TYPE_CHECKING:
    from db.history import SampleView, StepView
    from db.runs import RunView
    from db.store import Store

NEXT_RUN = "no runs yet: `malleus train CONFIG.toml` starts one, `malleus demo` shows one"

RUN_COLUMNS: tuple[Column, ...] = (
    ("run", lambda row: row.id),
    ("name", lambda row: row.name),
    ("status", lambda row: row.status),
    ("step", lambda row: row.step),
    ("loss", lambda row: row.loss),
    ("step time", lambda row: seconds(row.step_s)),
    ("plan", lambda row: None if row.active_plan_version is None else f"v{row.active_plan_version}"),
    ("mode", lambda row: row.mode),
    ("started", lambda row: clock(row.started_at)),
    ("last heard", lambda row: age(row.last_seen_at)),
    ("reason", lambda row: row.reason),
)
SAMPLE_COLUMNS: tuple[Column, ...] = (
    ("step", lambda row: row.step),
    ("device", lambda row: row.device),
    ("rate", lambda row: rate(row.rate)),
    ("compute_s", lambda row: row.compute_s),
    ("phase", lambda row: row.phase),
    ("grad norm", lambda row: row.grad_norm),
    ("learning rate", lambda row: row.learning_rate),
    ("tokens/s", lambda row: number(row.tokens_per_s)),
    ("MFU", lambda row: percent(row.mfu)),
)
PLAN_COLUMNS: tuple[Column, ...] = (
    ("version", lambda row: f"v{row.version}"),
    ("requested", lambda row: clock(row.created_at)),
    ("trigger", lambda row: row.trigger),
    ("rates", lambda row: rates(row.rates)),
    ("by", lambda row: row.requested_by),
    ("status", lambda row: row.status),
    ("predicted", lambda row: seconds(row.predicted_s)),
    ("measured", lambda row: seconds(row.measured_s)),
    ("bound", lambda row: seconds(row.bound_s)),
    ("gap", lambda row: row.gap),
    ("solved in", lambda row: seconds(row.solve_s)),
    ("reason", lambda row: row.reason),
    ("decided by", lambda row: row.decided_by),
    ("because", lambda row: row.decided_reason),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLine:
    """What one device measured in one step, and what the step as a whole reported (NaN: nothing)."""

    step: int
    device: int
    rate: float
    compute_s: float
    phase: str
    grad_norm: float
    learning_rate: float
    tokens_per_s: float
    mfu: float


def runs(
    limit: LimitOption = 100, offset: OffsetOption = 0, as_json: JsonOption = False, as_csv: CsvOption = False
) -> None:
    """List runs, newest first."""
    from db import runs as table_of_runs

    with open_store() as store:
        rows = table_of_runs.all_runs(store, limit=limit, offset=offset)
    print_rows(rows, RUN_COLUMNS, as_json=as_json, as_csv=as_csv, empty=NEXT_RUN)


def status(run: RunArgument, as_json: JsonOption = False) -> None:
    """Show how a run stands: state, devices, plan, stragglers."""
    from db import runs as table_of_runs

    with open_store() as store:
        view = table_of_runs.get(store, run)
        found = _status(store, view)
    if as_json:
        print_json(found)
    else:
        _print_status(view, found)


def samples(
    run: RunArgument,
    device: Annotated[
        list[int] | None, typer.Option(help="Only this device (may be given several times).", show_default="all")
    ] = None,
    since_step: Annotated[int | None, typer.Option(min=0, help="First step.")] = None,
    until_step: Annotated[int | None, typer.Option(min=0, help="Last step.")] = None,
    limit: LimitOption = 1000,
    offset: OffsetOption = 0,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """List what every device measured in every step: its straggling rate, compute seconds, and the step's figures."""
    from db import history
    from db import runs as table_of_runs

    with open_store() as store:
        table_of_runs.get(store, run)
        rows = history.samples(
            store,
            run,
            devices=device or None,
            since_step=since_step,
            until_step=until_step,
            limit=limit,
            offset=offset,
        )
        first, last = (rows[0].step, rows[-1].step) if rows else (0, 0)
        steps = history.steps(store, run, since_step=first, until_step=last, max_points=max(len(rows), 5))
    lines = _with_steps(rows, steps)
    print_rows(lines, SAMPLE_COLUMNS, as_json=as_json, as_csv=as_csv, empty=f"run {run} has no samples in this range")


def plans(
    run: RunArgument,
    status: Annotated[
        list[str] | None, typer.Option(help="Only plans in this status (may be given several times).")
    ] = None,
    trigger: Annotated[
        list[str] | None, typer.Option(help="Only plans that this asked for (may be given several times).")
    ] = None,
    sort: Annotated[str, typer.Option(help="version, status, trigger, predicted_s, measured_s, ...")] = "version",
    limit: LimitOption = 100,
    offset: OffsetOption = 0,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """List the plans of a run, newest first."""
    from db import plans as table_of_plans
    from db import runs as table_of_runs

    with open_store() as store:
        table_of_runs.get(store, run)
        selection = table_of_plans.Selection(statuses=tuple(status or ()), triggers=tuple(trigger or ()), sort=sort)
        rows = table_of_plans.all_plans(store, run, limit=limit, offset=offset, selection=selection)
    print_rows(
        rows,
        PLAN_COLUMNS,
        as_json=as_json,
        as_csv=as_csv,
        empty=f"run {run} has no {'such ' if status or trigger else ''}plans",
    )


def _with_steps(rows: Sequence[SampleView], steps: Sequence[StepView]) -> list[SampleLine]:
    known = {step.step: step for step in steps}
    return [
        SampleLine(
            step=row.step,
            device=row.device,
            rate=row.rate,
            compute_s=row.compute_s,
            phase=row.phase,
            grad_norm=known[row.step].grad_norm if row.step in known else math.nan,
            learning_rate=known[row.step].learning_rate if row.step in known else math.nan,
            tokens_per_s=known[row.step].tokens_per_s if row.step in known else math.nan,
            mfu=known[row.step].mfu if row.step in known else math.nan,
        )
        for row in rows
    ]


def _status(store: Store, view: RunView) -> dict[str, Any]:
    from db import checkpoints, commands, episodes, history, injections
    from db import plans as table_of_plans

    plan = None if view.active_plan_version is None else table_of_plans.get(store, view.id, view.active_plan_version)
    latest = history.latest_rates(store, view.id)
    places = _places(None if plan is None else plan.document)
    devices = [
        {
            "device": device.device,
            "node": device.node,
            "host": device.host,
            "pid": device.pid,
            "place": places.get(device.device),
            "rate": latest[device.device].rate if device.device in latest else None,
            "at": latest[device.device].at if device.device in latest else None,
        }
        for device in history.devices(store, view.id)
    ]
    waiting = [row for row in table_of_plans.all_plans(store, view.id, limit=20) if row.status == "ready"]
    last = history.last_step(store, view.id)
    return {
        "run": view,
        "last_step": last,
        "tokens_per_s": None if last is None else last.tokens_per_s,
        "evaluation": next(iter(history.evaluations(store, view.id, limit=1)), None),
        "checkpoint": checkpoints.newest_saved(store, view.id),
        "devices": devices,
        "plan": plan,
        "plans_ready": [row.version for row in waiting],
        "injections": injections.open_injections(store, view.id),
        "episodes": episodes.all_episodes(store, view.id, is_open=True),
        "commands": commands.recent(store, view.id, 5),
    }


def _print_figures(view: RunView, found: dict[str, Any]) -> None:
    last, evaluation, checkpoint = found["last_step"], found["evaluation"], found["checkpoint"]
    if last is not None:
        print(
            f"grad norm {number(last.grad_norm)}  learning rate {number(last.learning_rate)}  "
            f"{number(last.tokens_per_s)} tokens/s  MFU {percent(last.mfu)}"
        )
    if evaluation is not None:
        print(f"evaluation before step {evaluation.step:,}: loss {evaluation.loss:.4g}, {clock(evaluation.at)}")
    if checkpoint is not None:
        print(f"checkpoint of step {checkpoint.step:,}, saved {age(checkpoint.at)}: {checkpoint.path}")
    if view.num_attempts > 1 or view.num_restarts:
        again = f", started again {view.num_restarts} of {view.max_restarts} times" if view.max_restarts else ""
        print(f"attempt {max(view.num_attempts, 1)}{again}")


def _places(document: dict[str, Any] | None) -> dict[int, str]:
    if document is None:
        return {}
    from planner.diff import places
    from planner.plan import Plan

    return {device: str(place) for device, place in places(Plan.from_json(document)).items()}


def _print_status(view: RunView, found: dict[str, Any]) -> None:
    from app.plan_text import plan_text
    from planner.plan import Plan

    ended = f" ({view.reason})" if view.reason else ""
    version = "no plan yet" if view.active_plan_version is None else f"plan v{view.active_plan_version}"
    print(f"run {view.id}  {view.name}  {view.status}{ended}  {version} ({view.mode})")
    step = "-" if view.step is None else f"{view.step:,}"
    loss = "-" if view.loss is None else f"{view.loss:.4g}"
    print(f"step {step}  loss {loss}  step time {seconds(view.step_s) or '-'}  last heard {age(view.last_seen_at)}")
    _print_figures(view, found)
    for episode in found["episodes"]:
        print(
            f"! device {episode.device} is {rate(episode.rate)} slow since {clock(episode.start_at)} "
            f"(step {episode.start_step}), cause: {episode.cause}"
        )
    for injection in found["injections"]:
        until = f" until {clock(injection.until_at)}" if injection.until_at else ""
        print(f"injected: device {injection.device} at {rate(injection.rate)} ({injection.status}){until}")
    for waiting in found["plans_ready"] if view.is_open else ():
        print(f"plan v{waiting} waits for a decision: `malleus approve {view.id} {waiting}` or reject")
    print()
    print(
        table(
            ["device", "node", "rate", "measured", "place"],
            [
                [device["device"], device["node"], rate(device["rate"]), age(device["at"]), device["place"]]
                for device in found["devices"]
            ],
        )
    )
    if found["plan"] is not None:
        shown = {
            device["device"]: device["rate"]
            for device in found["devices"]
            if device["rate"] is not None and (math.isnan(device["rate"]) or abs(device["rate"] - 1) >= 0.05)
        }
        print()
        print(plan_text(Plan.from_json(found["plan"].document), shown))
