"""What will start: devices, parameters, and the plan that the run begins with. Pure; shown by `picture` in the form."""

from __future__ import annotations

from html import escape

from app.dashboard import plan_map
from app.dashboard import quantities as q
from app.run_draft import Draft
from app.situations import DESCRIPTIONS


def run_summary(draft: Draft, *, situation: str = "", origin: str = "") -> str:
    """Facts and first plan; where something is wrong, what and where."""
    listed = _problems(draft)
    config, plan = draft.config, draft.plan
    if config is None:
        return f'<div class="will-start"><div class="head"><h3>Nothing can start yet</h3></div>{listed}</div>'
    cluster, train, model = config.cluster, config.train, config.model
    facts = [
        ("Devices", f"{config.num_devices} {config.device.backend} on {_nodes(cluster.num_nodes)}"),
        ("Parameters", f"{q.number(model.num_parameters)} in {model.num_layers} layers"),
        ("Steps", f"{q.count(train.num_steps)}, {q.count(train.global_batch * model.seq_len)} tokens each"),
        (
            "Checkpoints",
            f"every {q.count(config.checkpoint.every_steps)} steps" if config.checkpoint.every_steps else "on request",
        ),
        ("Re-planning", config.control.mode),
        ("Starts from", origin or config.checkpoint.start_from or "random weights"),
        ("Situation", DESCRIPTIONS[situation] if situation else "none"),
    ]
    told = "".join(
        f'<div><span class="name">{name}</span><span class="value">{escape(value)}</span></div>'
        for name, value in facts
    )
    head = '<div class="head"><h3>What will start</h3></div>'
    if plan is None:
        return f'<div class="will-start">{head}<div class="facts">{told}</div>{listed}</div>'
    drawing = plan_map.plan_map(plan, rates={})
    return (
        f'<div class="will-start">{head}<div class="facts">{told}</div>'
        f'<div class="head"><h3>First plan</h3><span class="muted">{escape(plan_map.summary(plan))}; valid: '
        f"it obeys every rule of plans</span></div>{drawing}{listed}</div>"
    )


def _problems(draft: Draft) -> str:
    if not draft.problems:
        return ""
    lines = "".join(
        f"<li><b>{escape(_place(problem.field, problem.line))}</b> {escape(problem.text)}</li>"
        for problem in draft.problems
    )
    return f'<ul class="line-problems" role="alert">{lines}</ul>'


def _place(field: str, line: int | None) -> str:
    if field == "plan":
        return "first plan"
    return " ".join(part for part in (f"line {line}" if line is not None else "", field) if part)


def _nodes(number: int) -> str:
    return f"{number} node{'s' if number != 1 else ''}"
