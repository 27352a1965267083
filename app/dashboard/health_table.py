"""How the system is, as HTML: one table a group, and the mark in the frame's corner. Pure; shown by `picture`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any

from app.dashboard import quantities as q
from app.dashboard.links import link
from app.dashboard.table import Column, Row, table
from app.health_facts import WORDS

if TYPE_CHECKING:
    from app.health import Overall
    from app.health_facts import Item
    from db.levels import Level

COLUMNS = (
    Column(title="What"),
    Column(title="State", tip="Judged by fixed limits; unknown where whoever measures it is silent."),
    Column(title="Value, and what to do", is_wide=True),
    Column(title="Since", tip="Since when the state is what it is."),
)


def mark(state: Level, word: str | None = None) -> str:
    """A state as a shape and a word; the shapes differ, so colour is not needed."""
    return f'<span class="health {state}"><i aria-hidden="true"></i>{escape(word or WORDS[state])}</span>'


def corner_mark(found: Overall) -> str:
    """The line in the corner of every page; leads to the health page."""
    label = link(found.word, "health", {}, title="How controller, worker, broker, store and engines are.")
    return (
        f'<div class="health-corner"><span class="health {found.state}"><i aria-hidden="true"></i></span>{label}</div>'
    )


def health_tables(items: Sequence[Item], *, now: datetime) -> str:
    """The groups, in the order given."""
    if not items:
        return '<p class="empty">Nothing needs a look.</p>'
    groups = [(name, list(entries)) for name, entries in groupby(items, key=lambda item: item.group)]
    return f'<div class="health-groups">{"".join(_group(name, entries, now) for name, entries in groups)}</div>'


def records(items: Sequence[Item]) -> list[dict[str, Any]]:
    """The same as plain values, for a download."""
    return [
        {
            "group": item.group,
            "name": item.name,
            "state": item.state,
            "value": item.value,
            "since": item.since,
            "advice": item.advice,
            "run": item.run,
            "figures": dict(item.figures),
        }
        for item in items
    ]


def _group(name: str, items: Sequence[Item], now: datetime) -> str:
    run = items[0].run
    title = link(name.capitalize(), "live", {"run": run}) if run is not None else escape(name.capitalize())
    rows = [Row(key=item.name, cells=_cells(item, now)) for item in items]
    return (
        f'<section><div class="head"><h3>{title}</h3></div>{table(COLUMNS, rows, label=f"Health of {name}")}</section>'
    )


def _cells(item: Item, now: datetime) -> list[str]:
    since = q.UNKNOWN
    if item.since is not None:
        age = q.duration((now - item.since).total_seconds())
        since = f'<span data-tip="{item.since:%Y-%m-%d %H:%M:%S} UTC">{q.clock(item.since, now=now)}</span> '
        since += f'<span class="muted">({age})</span>'
    advice = f'<p class="muted">{_with_commands(item.advice)}</p>' if item.advice else ""
    return [escape(item.name.capitalize()), mark(item.state), escape(item.value) + advice, since]


def _with_commands(text: str) -> str:
    """Plain text whose `commands` are set as such."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
