"""The report of a drill as a card of figures, and as rows for a download. Pure; the card is shown by `picture`."""

from __future__ import annotations

from datetime import datetime
from html import escape
from typing import Any

from app.dashboard import quantities as q
from app.dashboard.situation_cards import rates_in_words
from app.dashboard.table import Column, Row, table
from app.drill_report import DrillPhase, DrillReport

COLUMNS = (
    Column(title="Stragglers", is_wide=True),
    Column(title="Steps", is_number=True),
    Column(title="Step time", is_number=True, tip="Median of the steady train steps of this phase."),
    Column(title="Bound", is_number=True, tip="Capacity bound with these stragglers; a plan may be slightly faster."),
    Column(title="Efficiency", is_number=True, tip="Capacity bound / step time."),
    Column(title="Detected", is_number=True, tip="From the first step with these stragglers to the request of a plan."),
    Column(title="Solved", is_number=True, tip="Of the planner alone."),
    Column(title="Settled", is_number=True, tip="From the first step of the phase to the first steady step."),
)


def drill_card(report: DrillReport, *, now: datetime) -> str:
    """The figures, and one row a phase where the stragglers changed."""
    state = f"ended {q.clock(report.end_at, now=now)}" if report.is_over else "goes on, figures so far"
    tiles = [
        _tile("Detected", _pair(report.detect_steps, report.detect_s), "until a plan was asked for"),
        _tile("Planned", q.seconds(report.plan_s), f"solver {q.seconds(report.solve_s)}", "Queueing included."),
        _tile("Switched", _pair(report.switch_steps, report.switch_s), "after the plan was solved"),
        _tile("Paused", q.seconds(report.pause_s if report.num_switches else None), _moved(report)),
        _tile("Step before", q.seconds(report.before_step_s), "median before the drill"),
        _tile("Step during", q.seconds(report.during_step_s), _times(report.during_step_s, report.before_step_s)),
        _tile("Step after", q.seconds(report.after_step_s), _times(report.after_step_s, report.before_step_s)),
        _tile(
            "Efficiency reached",
            q.percent(report.efficiency),
            f"bound {q.seconds(report.bound_step_s)}",
            "Capacity bound with these stragglers / step time after.",
        ),
        _tile(
            "Loss over the switch",
            f"{q.number(report.loss_before)} \u2192 {q.number(report.loss_after)}"
            if report.loss_before is not None
            else q.UNKNOWN,
            "step before, step after",
        ),
        _tile(
            "Time lost",
            q.duration(report.lost_s),
            f"in {q.count(report.last_step - report.first_step + 1)} steps",
            "Sum of what its steps took beyond the step before, and of the pauses.",
        ),
    ]
    steps = f"steps {q.count(report.first_step)}{q.DASH}{q.count(report.last_step)}"
    head = (
        f'<div class="head"><h3>Report of {escape(report.name)}</h3><span class="muted">{steps}, {state}</span></div>'
    )
    phases = _phases(report) if len(report.phases) > 1 or any(phase.figures is None for phase in report.phases) else ""
    return f'{head}<div class="figures report">{"".join(tiles)}</div>{phases}'


def report_rows(report: DrillReport) -> list[dict[str, Any]]:
    """One row a phase, each with the figures of the whole, for a CSV."""
    whole = {name: value for name, value in report.to_json().items() if name != "phases"}
    return [
        whole
        | {
            "phase": number,
            "phase_rates": " ".join(f"{device}={rate:g}" for device, rate in sorted(phase.rates.items())),
            "phase_first_step": phase.first_step,
            "phase_last_step": phase.last_step,
            "phase_step_s": None if phase.figures is None else phase.figures.step_s,
            "phase_bound_s": None if phase.figures is None else phase.figures.bound_s,
            "phase_efficiency": None if phase.figures is None else phase.figures.efficiency,
            "phase_plan": None if phase.figures is None else phase.figures.plan,
        }
        for number, phase in enumerate(report.phases, start=1)
    ]


def _phases(report: DrillReport) -> str:
    rows = [Row(key=str(number), cells=_cells(phase)) for number, phase in enumerate(report.phases)]
    note = (
        '<p class="muted">Figures of phases need the run\'s calibrated profile, and this run has none.</p>'
        if all(phase.figures is None for phase in report.phases)
        else ""
    )
    return f'<div class="report-phases">{table(COLUMNS, rows, label="Phases of the drill")}{note}</div>'


def _cells(phase: DrillPhase) -> list[str]:
    slow = escape(rates_in_words(phase.rates)) if phase.rates else '<span class="muted">none</span>'
    steps = f"{q.count(phase.first_step)}{q.DASH}{q.count(phase.last_step)}"
    figures = phase.figures
    if figures is None:
        return [slow, steps, *[q.UNKNOWN] * 6]
    return [
        slow,
        steps,
        q.seconds(figures.step_s),
        q.seconds(figures.bound_s),
        q.percent(figures.efficiency),
        _pair(figures.detect_steps, figures.detect_s),
        q.seconds(figures.solve_s),
        q.seconds(figures.settle_s),
    ]


def _tile(name: str, value: str, note: str, tip: str = "") -> str:
    tooltip = f' data-tip="{escape(tip, quote=True)}" tabindex="0"' if tip else ""
    return (
        f'<div class="figure"{tooltip}><span class="figure-name">{escape(name)}</span>'
        f'<span class="figure-value">{escape(value)}</span>'
        f'<span class="figure-note">{escape(note) or "&nbsp;"}</span></div>'
    )


def _pair(num_steps: int | None, seconds: float | None) -> str:
    if seconds is None:
        return q.UNKNOWN
    steps = "" if num_steps is None else f" ({num_steps} step{'s' if num_steps != 1 else ''})"
    return f"{q.seconds(seconds)}{steps}"


def _times(value: float | None, before: float | None) -> str:
    return f"{value / before:.2f}{q.TIMES} the step before" if value is not None and before else "not measured"


def _moved(report: DrillReport) -> str:
    if not report.num_switches:
        return "no switch"
    return f"{report.num_switches} switch{'es' if report.num_switches != 1 else ''}, {q.num_bytes(report.bytes_moved)}"
