"""The facts about services and broker. The broker is known through the controller's measurements alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from app.dashboard import quantities as q
from app.health_facts import Inputs, Item, Measured, instant, judged, number
from db.bus import MAX_STREAM_LENGTH
from db.levels import level

START = "Start it: `malleus up` (logs lie in the data folder under logs/)."


def services(inputs: Inputs, measured: Measured) -> list[Item]:
    beat, group = measured.beat, "services"
    if beat is None:
        value, advice, since = "never heard", START, None
    elif measured.is_stopped:
        value, advice, since = "stopped", START, beat.at
    else:
        value = f"heard {q.age(measured.silent_s)} ago (process {beat.pid} on {beat.host})"
        advice = "" if measured.state == "ok" else f"No plan is made and no command is taken up meanwhile. {START}"
        since = instant(beat.detail.get("started_at")) if measured.state == "ok" else beat.at
    lag_s, loop_s = measured.number_of("lag_s"), measured.number_of("loop_s")
    num_errors = int(measured.number_of("num_errors") or 0)
    return [
        Item(
            group=group,
            name="controller",
            state=measured.state,
            value=value,
            since=since,
            advice=advice,
            figures={"silent_s": measured.silent_s, "pid": beat.pid if beat else None},
        ),
        judged(
            measured,
            group=group,
            name="controller lag",
            measure="lag_s",
            value=f"{q.seconds(lag_s)} behind the newest step" if lag_s is not None else "no step in the last minute",
            state="ok" if lag_s is None and not measured.why_unknown else None,
            advice="Telemetry waits to be handled: look at the loop and the write latency, or at the clocks.",
        ),
        judged(
            measured,
            group=group,
            name="controller loop",
            measure="loop_s",
            value=f"{q.seconds(loop_s)} a round (longest of the last second)",
            advice="The machine is busy, or the database is slow.",
        ),
        Item(
            group=group,
            name="controller errors",
            state="unknown" if measured.why_unknown else "warn" if num_errors else "ok",
            value=f"{num_errors:,} since it started",
            since=instant(measured.get("started_at")),
            advice=measured.why_unknown
            or ("Each is in logs/controller.log, with its traceback." if num_errors else ""),
            figures={"num_errors": num_errors},
        ),
        _worker(inputs, measured),
    ]


def _worker(inputs: Inputs, measured: Measured) -> Item:
    """Red when nothing that came through the queue was answered for a minute, however alive the process is."""
    beat, canary = inputs.beats.get("worker"), measured.part("canary")
    answered_at, answer_s = instant(canary.get("answered_at")), number(canary.get("answer_s"))
    figures: dict[str, Any] = {"answer_s": answer_s, "answered_at": answered_at}
    item = partial(Item, group="services", name="worker canary", figures=figures)
    if measured.why_unknown:
        return item(state="unknown", value=q.UNKNOWN, advice=measured.why_unknown)
    if beat is not None and beat.detail.get("state") == "solving":
        busy_s = (inputs.now - beat.at).total_seconds()
        state = level("busy_s", busy_s)
        return item(
            state=state,
            value=f"solves plan v{beat.detail.get('plan')} of run {beat.detail.get('run')} for {q.age(busy_s)}",
            since=beat.at,
            advice="" if state == "ok" else "A search takes long; the worker starts itself again if it never ends.",
        )
    if measured.get("broker") == "away":
        return item(state="unknown", value="cannot be asked: the broker is away", since=answered_at)
    since_s = None if answered_at is None else (inputs.now - answered_at).total_seconds()
    started_at = instant(measured.get("started_at"))
    waits_s = since_s if since_s is not None else (inputs.now - started_at).total_seconds() if started_at else None
    state = level("canary_s", waits_s)
    figures["waits_s"] = waits_s
    if answered_at is None:
        value = "has not answered yet"
    else:
        value = f"answered in {q.seconds(answer_s)}, {q.age(since_s)} ago"
    return item(
        state=state,
        value=value,
        since=answered_at if state != "ok" else measured.since("canary_s"),
        advice=""
        if state in ("ok", "unknown")
        else "The worker does not hear the broker: it starts itself again; if it does not, see logs/worker.log.",
    )


def broker(measured: Measured) -> list[Item]:
    facts, group = measured.part("broker_facts"), "broker"
    is_away = measured.get("broker") == "away"
    round_trip_s = number(facts.get("round_trip_s"))
    used, most = number(facts.get("used_memory_bytes")), number(facts.get("max_memory_bytes"))
    share = None if used is None else used / most if most else 0.0
    lengths = facts.get("stream_lengths")
    streams = lengths if isinstance(lengths, Mapping) else {}
    longest = max((int(length) for length in streams.values()), default=0)
    limit = f" of {q.num_bytes(most)}" if most else ", no limit set"
    return [
        judged(
            measured,
            group=group,
            name="broker",
            measure="round_trip_s",
            value="cannot be reached" if is_away else f"answers in {q.seconds(round_trip_s)}",
            state="bad" if is_away else None,
            advice="Telemetry waits in the engine and no order reaches it; training goes on. Is the server up, is "
            "MALLEUS_REDIS_URL right?"
            if is_away
            else "The broker or the network is slow.",
            value_now=round_trip_s,
        ),
        judged(
            measured,
            group=group,
            name="broker memory",
            measure="memory_share",
            value=q.UNKNOWN if used is None else f"{q.num_bytes(used)} used{limit}",
            advice="Raise maxmemory; ended runs give their streams back.",
            value_now=share,
            figures={"used_memory_bytes": used, "max_memory_bytes": most},
        ),
        Item(
            group=group,
            name="telemetry streams",
            state="unknown" if not facts else "ok",
            value=f"{q.count(longest)} messages in the longest of {len(streams)}; {MAX_STREAM_LENGTH:,} are kept"
            if facts
            else q.UNKNOWN,
            advice=measured.why_unknown,
            figures={"stream_lengths": dict(streams), "num_malformed": facts.get("num_malformed")},
        ),
    ]
