"""Commands about plans as such: `plan` searches for one offline, `plan-diff` compares two of a run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.commands.output import JsonOption, RunArgument, print_json
from app.commands.surroundings import open_store
from db.errors import InputError

if TYPE_CHECKING:
    from db.plans import PlanView
    from planner.spec import ClusterSpec, ModelProfile, TrainSpec

Version = Annotated[int, typer.Argument(help="Version of a plan of the run.", show_default=False)]

RELAX_S = 5.0
"""Most seconds to look for settings under which an infeasible problem has a plan."""


def plan(
    model: Annotated[
        str, typer.Option(help='Name of a model, or a JSON file with its "profile" and "train" settings.')
    ] = "demo",
    cluster: Annotated[str, typer.Option(help="Name of a cluster, or a JSON file.")] = "demo",
    rates: Annotated[
        str, typer.Option(help="Straggling rates by device, such as 3=2.57,9=inf.", show_default="all healthy")
    ] = "",
    global_batch: Annotated[
        int | None, typer.Option(min=1, help="Sequences in a step.", show_default="the model's")
    ] = None,
    dp: Annotated[
        str, typer.Option(help="Number of pipelines, or a range such as 1-4.", show_default="the model's")
    ] = "",
    max_tp: Annotated[
        int | None, typer.Option(help="Largest TP degree: 1, 2, 4 or 8.", show_default="the model's")
    ] = None,
    micro_batch: Annotated[
        str, typer.Option(help="Sequences in a micro-batch to try, such as 1,2.", show_default="the model's")
    ] = "",
    current: Annotated[
        Path | None,
        typer.Option(help="JSON file with the plan that runs now: say what moves, for how long, and if it pays."),
    ] = None,
    steps: Annotated[int, typer.Option(min=0, help="Steps that a gain lasts, to weigh a move with.")] = 200,
    write_lp: Annotated[
        Path | None, typer.Option(help="Write the integer program of the plan's division to this file.")
    ] = None,
    timeline: Annotated[
        Path | None, typer.Option(help="Write the plan's 1F1B timeline to this file, an HTML page.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds the search may take.")] = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Search for a plan offline: no run, no broker, no store."""
    from app.plan_files import check_writable, write_files
    from app.plan_move import planned_move, read_plan
    from app.plan_report import report
    from app.relaxation import relaxations
    from planner.solve import solve
    from planner.spec import check_rates

    check_writable({"--write-lp": write_lp, "--timeline": timeline})
    spec = _cluster(cluster)
    profile, train = _model(model, global_batch=global_batch, dp=dp, max_tp=max_tp, micro_batch=micro_batch)
    slow = parse_rates(rates)
    check_rates(slow, spec)
    running = None if current is None else read_plan(current, cluster=spec, profile=profile, train=train)
    result = solve(
        cluster=spec,
        profile=profile,
        train=train,
        rates=slow,
        current=running,
        seed=seed,
        time_limit_s=time_limit,
        clock=time.monotonic,
    )
    move = None if running is None else planned_move(result, running, profile, steps)
    document = result.to_json() | ({} if running is None else {"move": None if move is None else move.to_json()})
    relaxed_by: list[str] = []
    if result.best is None:
        deadline = time.monotonic() + min(time_limit, RELAX_S)
        relaxed_by = relaxations(
            cluster=spec, profile=profile, train=train, rates=slow, is_over=lambda: time.monotonic() > deadline
        )
        document["relaxed_by"] = relaxed_by
    if not as_json:
        print(report(result, slow, move=move, relaxed_by=relaxed_by))
    if result.best is not None:
        files, notes = write_files(
            result.best, spec, profile, slow, write_lp=write_lp, timeline=timeline, title=f"{model} on {cluster}"
        )
        document |= files
        if notes and not as_json:
            print("\n" + "\n".join(notes))
    if as_json:
        print_json(document)
    if result.best is None:
        raise typer.Exit(1)


def plan_diff(run: RunArgument, old: Version, new: Version, as_json: JsonOption = False) -> None:
    """Show what changes between two plans of a run, device by device."""
    from db import plans, runs
    from planner.diff import diff
    from planner.flows import flows
    from planner.plan import Plan
    from planner.spec import ModelProfile

    with open_store() as store:
        view = runs.get(store, run)
        first, second = (_document(plans.get(store, run, version)) for version in (old, new))
    profile = None if view.profile is None else ModelProfile.from_json(view.profile)
    before, after = Plan.from_json(first), Plan.from_json(second)
    changes = diff(before, after, profile)
    links = flows(before, after, nodes=view.config.nodes, profile=profile)
    if as_json:
        sent = [flow.to_json() for flow in links]
        print_json({"run": run, "old": old, "new": new, **changes.to_json(), "flows": sent})
    else:
        print(f"run {run}, plan v{old} -> v{new}")
        for sentence in changes.sentences() or ["no change"]:
            print(f"  {sentence}")
        for flow in links:
            size = "" if flow.num_bytes is None else f", about {flow.num_bytes / 1e6:.1f} MB"
            where = {True: "within the node", False: "between nodes", None: ""}[flow.is_within_node]
            print(f"  {flow.source} -> {flow.target}: {flow.num_layers:g} layers{size}{where and f' ({where})'}")


def parse_rates(text: str) -> dict[int, float]:
    """`{device: x}` of `3=2.57,9=inf`.

    Raises:
        InputError: malformed, or a device that is named twice. Values are checked by the planner.
    """
    found: dict[int, float] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        device, _, value = item.partition("=")
        try:
            key, number = int(device), float(value)
        except ValueError:
            raise InputError(f"--rates must be device=rate pairs such as 3=2.57,9=inf, given {item!r}") from None
        if key in found:
            raise InputError(f"--rates must name a device once, given {key} twice")
        found[key] = number
    return found


def _cluster(name: str) -> ClusterSpec:
    from planner import presets
    from planner.spec import ClusterSpec

    document = _file(name, presets.CLUSTERS, "--cluster")
    return presets.cluster(name) if document is None else ClusterSpec.from_json(document)


def _model(
    name: str, *, global_batch: int | None, dp: str, max_tp: int | None, micro_batch: str
) -> tuple[ModelProfile, TrainSpec]:
    from planner import presets
    from planner.spec import ModelProfile, TrainSpec

    document = _file(name, presets.MODELS, "--model")
    if document is None:
        profile, train = presets.model(name)
    else:
        unknown = sorted(set(document) ^ {"profile", "train"})
        if unknown:
            raise InputError(
                f'{name} must hold "profile" and "train", given {", ".join(sorted(document)) or "nothing"}'
            )
        profile, train = ModelProfile.from_json(document["profile"]), TrainSpec.from_json(document["train"])
    changes: dict[str, Any] = {"global_batch": global_batch, "max_tp": max_tp}
    if dp:
        changes["dp_range"] = _range(dp)
    if micro_batch:
        changes["micro_batch_sizes"] = _sizes(micro_batch)
    return profile, TrainSpec.from_json(
        train.to_json() | {field: value for field, value in changes.items() if value is not None}
    )


def _range(text: str) -> tuple[int, int]:
    """`2` or `1-4`."""
    low, _, high = text.partition("-")
    try:
        return int(low), int(high or low)
    except ValueError:
        raise InputError(f"--dp must be a number such as 2 or a range such as 1-4, given {text!r}") from None


def _sizes(text: str) -> list[int]:
    """`1` or `1,2`."""
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise InputError(f"--micro-batch must be numbers such as 1,2, given {text!r}") from None


def _file(name: str, presets: tuple[str, ...], option: str) -> dict[str, Any] | None:
    """The JSON object in a file; None if the name is that of a preset."""
    if name in presets:
        return None
    path = Path(name)
    if not path.is_file():
        raise InputError(f"{option} must be one of {', '.join(presets)} or a JSON file, given {name!r}")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{name} is not readable JSON: {error}") from None
    if not isinstance(document, dict):
        raise InputError(f"{name} must hold a JSON object, given {type(document).__name__}")
    return document


def _document(plan: PlanView) -> dict[str, Any]:
    if plan.document is None:
        raise InputError(f"plan {plan.version} of run {plan.run} has no document: it is {plan.status}")
    return plan.document
