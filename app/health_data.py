"""The facts about store, runs and versions."""

from __future__ import annotations

from collections.abc import Mapping

from app.dashboard import quantities as q
from app.health_facts import Inputs, Item, Measured, judged, number
from db.levels import LIMITS, Level, level
from db.runs import RunView
from db.store_facts import MAX_COUNTED


def store(inputs: Inputs, measured: Measured) -> list[Item]:
    facts, group = inputs.store, "store"
    log = f" and {q.num_bytes(facts.log_bytes)} of log" if facts.log_bytes else ""
    free, used = "", None
    if facts.free_bytes is not None and facts.disk_bytes:
        used = 1 - facts.free_bytes / facts.disk_bytes
        free = f", {q.num_bytes(facts.free_bytes)} free on its disk"
    state: Level = "ok" if used is None else level("disk_share", used)
    rows = [f"{name.replace('_', ' ')} {_count(number)}" for name, number in facts.num_rows.items()]
    return [
        Item(
            group=group,
            name="store",
            state=state,
            value=f"{facts.kind}, {q.num_bytes(facts.size_bytes)}{log}{free}",
            advice="" if state == "ok" else "The disk fills up: free some space before writes fail.",
            figures={
                "kind": facts.kind,
                "size_bytes": facts.size_bytes,
                "log_bytes": facts.log_bytes,
                "free_bytes": facts.free_bytes,
            },
        ),
        Item(group=group, name="rows", state="ok", value=" · ".join(rows), figures=dict(facts.num_rows)),
        judged(
            measured,
            group=group,
            name="write latency",
            measure="write_s",
            value=_latency(measured.number_of("write_s")),
            state="ok" if measured.number_of("write_s") is None and not measured.why_unknown else None,
            advice="The database is slow or locked: see who else writes, and the disk.",
        ),
    ]


def run_items(inputs: Inputs, measured: Measured, run: RunView) -> list[Item]:
    group, key = f"run {run.id}", str(run.id)
    silent_s = None if run.last_seen_at is None else (inputs.now - run.last_seen_at).total_seconds()
    step_s = run.step_s if run.step_s is not None and run.step_s == run.step_s and run.step_s < 1e6 else 0.0
    limit_s = max(LIMITS["data_age_s"].warn, 3 * step_s)
    engine: Level = "unknown" if silent_s is None else "bad" if run.status == "lost" else "ok"
    if engine == "ok" and silent_s is not None and silent_s > limit_s:
        engine = "bad" if silent_s > 3 * limit_s else "warn"
    refused = run.num_stale + run.num_invalid
    missing = number(measured.part("num_missing").get(key)) or 0.0
    skew_s = number(measured.part("skews_s").get(key))
    attempt_at = inputs.attempts_at.get(run.id)
    is_last = bool(run.max_restarts) and run.num_restarts >= run.max_restarts
    of = f" of {run.max_restarts}" if run.max_restarts else ""
    return [
        Item(
            group=group,
            name="engine",
            run=run.id,
            state=engine,
            value=f"{'was ' if engine in ('warn', 'bad') else ''}{run.status}, "
            + ("never heard" if silent_s is None else f"heard {q.age(silent_s)} ago"),
            since=run.last_seen_at if engine in ("warn", "bad") else attempt_at or run.created_at,
            advice="" if engine in ("ok", "unknown") else f"See `malleus status {run.id}` and the engine's log.",
            figures={"silent_s": silent_s, "status": run.status},
        ),
        Item(
            group=group,
            name="samples refused",
            run=run.id,
            state=level("num_refused", refused),
            value=f"{run.num_stale:,} of an older attempt, {run.num_invalid:,} not of this run",
            advice="Late words of an attempt that ended are harmless; many mean two engines report for one run."
            if refused
            else "",
            figures={"num_stale": run.num_stale, "num_invalid": run.num_invalid},
        ),
        Item(
            group=group,
            name="samples missing",
            run=run.id,
            state="unknown" if measured.why_unknown else level("num_missing", missing),
            value=f"{int(missing):,} messages never arrived" if not measured.why_unknown else q.UNKNOWN,
            since=measured.since(f"num_missing:{key}"),
            advice=measured.why_unknown
            or ("The engine drops what it cannot send: the broker was away or slow for long." if missing else ""),
            figures={"num_missing": None if measured.why_unknown else int(missing)},
        ),
        Item(
            group=group,
            name="clock skew",
            run=run.id,
            state="ok" if skew_s is None and not measured.why_unknown else level("skew_s", _size(skew_s)),
            value="not heard in the last minute" if skew_s is None else _skew(skew_s),
            since=measured.since(f"skew_s:{key}"),
            advice=measured.why_unknown
            or (
                "Set both machines' clocks (NTP): times on the pages are off by that much."
                if _is_skewed(skew_s)
                else ""
            ),
            figures={"skew_s": skew_s},
        ),
        Item(
            group=group,
            name="attempts",
            run=run.id,
            state="bad" if is_last else "warn" if run.num_restarts else "ok",
            value=f"attempt {max(run.num_attempts, 1)}, started again {run.num_restarts:,}{of} times",
            since=attempt_at,
            advice="It will not be started again: see the engine's log." if is_last else "",
            figures={
                "num_attempts": run.num_attempts,
                "num_restarts": run.num_restarts,
                "max_restarts": run.max_restarts,
            },
        ),
    ]


def versions(inputs: Inputs) -> list[Item]:
    """What runs; services of another version than this program are worth a look."""
    own, others = inputs.versions["package"], {}
    for name in ("controller", "worker"):
        found = inputs.beats[name].detail.get("versions") if name in inputs.beats else None
        if isinstance(found, Mapping) and found.get("package") != own:
            others[name] = str(found.get("package"))
    differing = ", ".join(f"{name} {version}" for name, version in others.items())
    torch = sorted({version for version in inputs.torch.values() if version})
    named = {
        "Malleus": own,
        "Python": inputs.versions["python"],
        "torch of the engines": ", ".join(torch) or q.UNKNOWN,
        "Streamlit": inputs.versions["streamlit"],
        "schema": inputs.store.revision,
    }
    return [
        Item(
            group="versions",
            name="versions",
            state="warn" if others else "ok",
            value=" · ".join(f"{name} {version}" for name, version in named.items())
            + (f"; {differing}" if others else ""),
            advice="Services of different versions run together: restart the older ones." if others else "",
            figures={**inputs.versions, "torch": dict(inputs.torch), "schema": inputs.store.revision},
        )
    ]


def _latency(seconds: float | None) -> str:
    return "nothing written yet" if seconds is None else f"{q.seconds(seconds)} a batch (slowest of the last second)"


def _skew(seconds: float) -> str:
    if not _is_skewed(seconds):
        return f"at most {q.seconds(abs(seconds))} between engine and controller"
    ahead = "ahead of" if seconds < 0 else "behind"
    return f"the engine's clock is {q.seconds(abs(seconds))} {ahead} the controller's, or its words take so long"


def _is_skewed(seconds: float | None) -> bool:
    return level("skew_s", _size(seconds)) in ("warn", "bad")


def _size(value: float | None) -> float | None:
    return None if value is None else abs(value)


def _count(number: int) -> str:
    return f"over {MAX_COUNTED:,}" if number > MAX_COUNTED else f"{number:,}"
