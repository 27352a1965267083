"""What a replay of a bundle came to, in a line and the differences. Pure drawing; shown by `picture`."""

from __future__ import annotations

from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any

from app.dashboard import quantities as q

if TYPE_CHECKING:
    from app.dashboard.replays import ReplayView

MAX_LENGTH = 400


def replay_result(replay: ReplayView | None, *, now: datetime) -> str:
    """The result: running, same, different with the differences, or failed with the reason."""
    if replay is None:
        return '<p class="empty">This replay is no longer known: the server has started anew since.</p>'
    name = f"<b>{escape(replay.name)}</b>"
    if replay.state == "running":
        return (
            f'<div class="replay running" role="status">{name}: searching again, for '
            f"{q.age((now - replay.started_at).total_seconds())}</div>"
        )
    if replay.state == "failed":
        return f'<div class="replay failed" role="alert">{name}: not replayed, {escape(replay.problem)}</div>'
    about = f"plan v{escape(str(replay.outcome.get('version')))} of run {escape(str(replay.outcome.get('run')))}"
    took = q.seconds(_number(replay.outcome.get("seconds")))
    if replay.state == "same":
        return (
            f'<div class="replay same" role="status"><span aria-hidden="true">✓</span> {name}: same. {about} comes out '
            f"again: the plan, its predicted step, the bound and every runner-up are equal (searched {took}).</div>"
        )
    rows = "".join(
        f"<tr><td>{escape(str(entry.get('what')))}</td><td>{_shown(entry.get('recorded'))}</td>"
        f"<td>{_shown(entry.get('replayed'))}</td></tr>"
        for entry in replay.outcome.get("differences", [])
        if isinstance(entry, dict)
    )
    cut = (
        '<p class="muted">The time limit cut a search short: on a machine of another speed the answer may differ.</p>'
        if replay.outcome.get("cut_short")
        else ""
    )
    return (
        f'<div class="replay different" role="alert"><span aria-hidden="true">✕</span> {name}: different. {about} does '
        f"not come out again (searched {took}).</div>{cut}"
        '<div class="table-scroll"><table aria-label="Differences"><thead><tr><th scope="col">What</th>'
        f'<th scope="col">In the bundle</th><th scope="col">Now</th></tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        plan = value.get("plan", value)
        pipelines = plan.get("pipelines", []) if isinstance(plan, dict) else []
        shape = "; ".join(
            f"{pipeline.get('num_micro_batches')} micro-batches: "
            + ", ".join(_stage(stage) for stage in pipeline.get("stages", []))
            for pipeline in pipelines
            if isinstance(pipeline, dict)
        )
        step = f"{q.seconds(_number(value.get('step_s')))}: " if "step_s" in value else ""
        return f'<span class="wrap">{escape((step + shape)[:MAX_LENGTH])}</span>'
    number = _number(value)
    return q.UNKNOWN if value is None else escape(f"{number:.9g}" if isinstance(value, float) else str(value))


def _stage(stage: Any) -> str:
    devices, layers = ("+".join(map(str, stage.get("devices", []))), list(map(str, stage.get("layers", []))))
    return f"{devices} layers {q.DASH.join(layers)}"


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
