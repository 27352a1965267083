"""An answer in words and figures: how the plan in use and the one that was found compare. Pure; shown by `picture`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

from app.dashboard import quantities as q
from app.dashboard.device_grid import rate_style
from app.dashboard.facts import facts
from app.dashboard.memory_bars import largest_share
from app.dashboard.table import Column, Row, table
from app.dashboard.what_if_answer import Answer, Choice
from app.plan_move import PlannedMove
from planner.plan import Plan

MAX_CHIPS = 8
MINUS = "\u2212"


def rate_chips(rates: Mapping[int, float]) -> str:
    """The rates that are asked about."""
    slow = [(device, rate) for device, rate in sorted(rates.items()) if rate != 1.0]
    if not slow:
        return '<span class="muted">every device healthy</span>'
    chips = "".join(
        f'<span class="rate-chip" style="{rate_style(rate)}">{device} <b>{q.rate(rate)}</b></span>'
        for device, rate in slow[:MAX_CHIPS]
    )
    more = f' <span class="muted">and {len(slow) - MAX_CHIPS} more</span>' if len(slow) > MAX_CHIPS else ""
    return chips + more


def gap_words(gap: float | None) -> str:
    """How far above the bound; a healthy job whose layers do not divide evenly may lie below it in the end."""
    return f"{q.percent(-gap)} below" if gap is not None and gap < -0.0005 else q.percent(gap)


def lead(answer: Answer, choice: Choice | None, name: str) -> str:
    """The answer as a sentence a person would say.

    Args:
        name: of the plan in use.
    """
    if choice is None:
        return _line("bad", f"There is no plan: {answer.reason}.")
    if choice.is_current:
        return _line("calm", f"{name} is the best there is: {q.seconds(choice.step_s)} a step.")
    cut = " The search was cut short; better plans may exist." if answer.status == "time-limited" else ""
    if answer.current_s is None:
        return _line("watch", f"The best plan takes {q.seconds(choice.step_s)} a step.{cut}")
    if math.isinf(answer.current_s):
        return _line(
            "slow", f"{name} cannot run like this; the plan below takes {q.seconds(choice.step_s)} a step.{cut}"
        )
    change = choice.step_s / answer.current_s - 1
    words = f"{q.percent(abs(change))} {'less' if change < 0 else 'more'}"
    steps = f"{q.seconds(choice.step_s)} a step instead of {q.seconds(answer.current_s)}"
    return _line("watch", f"The plan below takes {steps}: {words}.{cut}")


def figures(answer: Answer, choice: Choice | None) -> str:
    """The figures at a glance."""
    step_s = None if choice is None else choice.step_s
    share = answer.capacity / answer.num_devices
    cells = [
        ("Step time", q.seconds(step_s), _change(step_s, answer.current_s)),
        ("Capacity bound", q.seconds(answer.bound_s), "all healthy, over capacity"),
        ("Gap to the bound", gap_words(answer.gap(step_s)), "of the plan below"),
        ("Capacity", q.percent(share), f"{q.number(answer.capacity)} of {answer.num_devices} devices"),
        ("All healthy", q.seconds(answer.healthy_s), "best plan found"),
        ("Solver", q.seconds(answer.seconds), answer.status.replace("-", " ")),
    ]
    drawn = "".join(
        f'<div class="figure"><span class="figure-name">{escape(name)}</span>'
        f'<span class="figure-value">{escape(value)}</span><span class="figure-note">{escape(note)}</span></div>'
        for name, value, note in cells
    )
    return f'<div class="figures">{drawn}</div>'


def comparison(answer: Answer, choice: Choice, *, names: tuple[str, str]) -> str:
    """Both plans side by side, a line a quantity."""
    columns = [
        Column(title=""),
        *(Column(title=name, is_number=True) for name in names),
        Column(title="Change", is_number=True),
    ]
    now, new = answer.current, choice.plan
    current_s = answer.current_s
    rows = [
        ("Step time", _seconds(current_s), q.seconds(choice.step_s), _change(choice.step_s, current_s)),
        (
            "Sequences per second",
            _throughput(answer, current_s),
            _throughput(answer, choice.step_s),
            _change(choice.step_s, current_s, is_inverse=True),
        ),
        ("Gap to the bound", gap_words(answer.gap(current_s)), gap_words(answer.gap(choice.step_s)), ""),
        ("Devices at work", _count(now), _count(new), ""),
        ("Fullest device", _memory(answer, now), _memory(answer, new), ""),
    ]
    drawn = table(
        columns,
        [Row(key=name, cells=[escape(name), *(escape(cell) for cell in cells)]) for name, *cells in rows],
        label="The plan in use and the plan that was found",
    )
    return f'<div class="head"><h3>Side by side</h3></div>{drawn}'


def move_facts(move: PlannedMove) -> str:
    """What moving would cost and bring, and whether the planner would do it."""
    decision = move.decision
    steps = move.steps_to_pay_back
    pays = (
        "never" if steps is None else "at once" if steps == 0 else f"{q.count(steps)} step{'s' if steps != 1 else ''}"
    )
    gain = (
        "all of it: the plan in use cannot run"
        if math.isinf(decision.gain_s)
        else f"{q.seconds(decision.gain_s)} a step"
    )
    pairs = [
        ("Devices that change", q.count(len(move.changes.devices))),
        ("Bytes that move", f"about {q.num_bytes(move.changes.moved_bytes)}"),
        ("Expected pause", q.seconds(decision.cost_s)),
        ("Gain", gain),
        ("Pays back after", pays),
        ("The planner would", "move" if decision.is_worth else "stay"),
    ]
    reason = f'<p class="muted" style="margin-top:8px">{escape(q.arrows(decision.reason))}</p>'
    return f'<div class="head"><h3>Moving to it</h3></div>{facts(pairs)}{reason}'


def choices(answer: Answer, chosen: int) -> str:
    """All plans that were found; a tick shows that one below."""
    columns = [
        Column(title="Place", is_number=True),
        Column(title="Step time", is_number=True),
        Column(title="Slower by", is_number=True, tip="Than the fastest one."),
        Column(title="Moves about", is_number=True),
        Column(title="Fullest device", is_number=True, tip="Share of its memory limit."),
        Column(title="Plan", is_wide=True),
    ]
    first_s = answer.choices[0].step_s
    rows = [
        Row(
            key=str(index + 1),
            cells=[
                str(index + 1),
                q.seconds(entry.step_s),
                q.percent(entry.step_s / first_s - 1),
                q.num_bytes(entry.moved_bytes),
                _memory(answer, entry.plan),
                escape(("in use: " if entry.is_current else "") + _shape(entry.plan)),
            ],
            is_picked=index == chosen,
        )
        for index, entry in enumerate(answer.choices)
    ]
    return table(columns, rows, label="Plans that were found", is_tickable=True)


def _line(kind: str, text: str) -> str:
    return f'<div class="alert {kind}" role="status"><b>{escape(text)}</b></div>'


def _seconds(value: float | None) -> str:
    return "cannot run" if value is not None and math.isinf(value) else q.seconds(value)


def _change(new: float | None, old: float | None, *, is_inverse: bool = False) -> str:
    if new is None or old is None or not math.isfinite(new) or not math.isfinite(old) or old <= 0 or new <= 0:
        return ""
    change = old / new - 1 if is_inverse else new / old - 1
    if abs(change) < 0.0005:
        return "the same"
    return ("+" if change > 0 else MINUS) + q.percent(abs(change))


def _throughput(answer: Answer, step_s: float | None) -> str:
    if step_s is None:
        return q.UNKNOWN
    return q.number(answer.global_batch / step_s) if math.isfinite(step_s) else "0"


def _count(plan: Plan | None) -> str:
    if plan is None:
        return q.UNKNOWN
    spare = [f"{len(plan.standby)} standby"] * bool(plan.standby) + [f"{len(plan.failed)} failed"] * bool(plan.failed)
    return ", ".join([str(len(plan.active)), *spare])


def _memory(answer: Answer, plan: Plan | None) -> str:
    if plan is None:
        return q.UNKNOWN
    return q.percent(largest_share(plan, answer.cluster, answer.profile))


def _shape(plan: Plan) -> str:
    """`2 pipelines of 2 stages, TP 2, 8 devices, micro-batches of 1`."""
    depths = sorted({len(pipeline.stages) for pipeline in plan.pipelines})
    degrees = sorted({stage.tp_degree for _, _, stage in plan.places()})

    def span(values: list[int]) -> str:
        return str(values[0]) if len(values) == 1 else f"{values[0]}{q.DASH}{values[-1]}"

    pipelines = f"{plan.dp_degree} pipeline{'s' if plan.dp_degree != 1 else ''}"
    stages = f"{span(depths)} stage{'s' if depths != [1] else ''}"
    size = f"micro-batches of {plan.micro_batch_size}"
    return f"{pipelines} of {stages}, TP {span(degrees)}, {len(plan.active)} devices, {size}"
