"""The result of a search for people: status, figures, the plan drawn, the move, runners-up, and how it was found.

`malleus plan` prints it; programs read `SolveResult.to_json` instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from app.commands.output import rate, table
from app.commands.output import seconds as short_seconds
from app.plan_move import PlannedMove
from app.plan_text import plan_text
from planner.decide import BYTES_PER_S, PAUSE_S
from planner.plan import Plan
from planner.solve import SolveResult

MOST_SENTENCES = 20


def report(
    result: SolveResult,
    rates: Mapping[int, float],
    *,
    move: PlannedMove | None = None,
    relaxed_by: Sequence[str] = (),
) -> str:
    """The result, several paragraphs.

    Args:
        rates: straggling rates as they were given.
        move: from the current plan to the best one, if there is a current plan.
        relaxed_by: options that would make an infeasible problem feasible.
    """
    paragraphs = [list(_figures(result, rates))]
    if relaxed_by:
        paragraphs[0].append(f"would help  {' or '.join(relaxed_by)}")
    if result.best is not None:
        paragraphs.append([plan_text(result.best.plan, rates)])
    if move is not None:
        paragraphs.append(list(_move(move)))
    if len(result.plans) > 1:
        paragraphs.append(["runners-up", _runners_up(result, has_current=move is not None)])
    if result.log:
        paragraphs.append(["search", *(f"  {line}" for line in result.log)])
    return "\n\n".join("\n".join(lines) for lines in paragraphs)


def _figures(result: SolveResult, rates: Mapping[int, float]) -> Iterator[str]:
    yield f"{result.status}: {result.reason}"
    if result.best is not None:
        yield f"step time   {_seconds(result.best.step_s)}"
        if math.isfinite(result.gap):
            yield f"bound       {_seconds(result.bound_s)} (gap {100 * result.gap:.1f} %)"
            yield f"healthy     {_seconds(result.healthy_s)}"
        else:
            yield "bound       unknown: no plan for the healthy cluster was found in time"
        if result.current_s is not None:
            yield f"current     {'cannot run' if math.isinf(result.current_s) else _seconds(result.current_s)}"
        if rates:
            yield "rates       " + ", ".join(
                f"device {device} {rate(value)}" for device, value in sorted(rates.items())
            )
    yield f"solved in   {_seconds(result.seconds)}"


def _move(move: PlannedMove) -> Iterator[str]:
    yield move.decision.reason
    if move.changes.is_empty:
        return
    moved = "unknown" if move.changes.moved_bytes is None else f"{move.changes.moved_bytes / 1e6:,.1f} MB"
    yield f"moves       {moved} to {len(move.changes.devices)} devices"
    assumed = f"{_seconds(PAUSE_S)}, then {BYTES_PER_S / 1e6:g} MB a second"
    yield f"pause       {_seconds(move.decision.cost_s)} (assumed: {assumed})"
    steps = move.steps_to_pay_back
    if steps is None:
        yield "pays back   never"
    else:
        yield f"pays back   {'at once' if steps == 0 else f'after {steps} step' + ('s' if steps != 1 else '')}"
    sentences = move.changes.sentences()
    yield from (f"  {sentence}" for sentence in sentences[:MOST_SENTENCES])
    if len(sentences) > MOST_SENTENCES:
        yield f"  and {len(sentences) - MOST_SENTENCES} more changes"


def _runners_up(result: SolveResult, *, has_current: bool) -> str:
    first = result.plans[0].step_s
    headings = ["plan", "step", "slower", "b", "dp", "micro-batches", "stages", "TP degrees", "standby"]
    rows: list[list[object]] = []
    for place, ranked in enumerate(result.plans[1:], start=2):
        plan = ranked.plan
        row: list[object] = [
            "current" if ranked.is_current else str(place),
            f"{ranked.step_s:.6g} s",
            f"{100 * (ranked.step_s / first - 1):.2f} %",
            plan.micro_batch_size,
            plan.dp_degree,
            _counts([pipeline.num_micro_batches for pipeline in plan.pipelines]),
            _counts([len(pipeline.stages) for pipeline in plan.pipelines]),
            _degrees(plan),
            len(plan.standby),
        ]
        rows.append([*row, f"{ranked.moved_bytes / 1e6:,.1f} MB"] if has_current else row)
    return table([*headings, "moves"] if has_current else headings, rows)


def _seconds(value: float) -> str:
    """`312 ms`, `1.41 s`, `3,469 s`: never in powers of ten."""
    return short_seconds(value) or "unknown" if value < 1000 else f"{value:,.0f} s"


def _counts(values: Sequence[int]) -> str:
    """`27 37`, `16 x 4`."""
    runs = [(value, len(list(same))) for value, same in groupby(sorted(values, reverse=True))]
    return " ".join(f"{value} x {number}" if number > 2 else " ".join([str(value)] * number) for value, number in runs)


def _degrees(plan: Plan) -> str:
    """How many groups of each TP degree: `8:4 4:2 1:1`."""
    degrees = sorted((stage.tp_degree for _, _, stage in plan.places()), reverse=True)
    return " ".join(f"{degree}:{len(list(same))}" for degree, same in groupby(degrees))
