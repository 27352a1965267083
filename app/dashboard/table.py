"""Tables of the dashboard as HTML: sortable heads, tickable rows, numbers to the right.

Pure drawing; shown by `picture`. Cells are HTML that the caller has escaped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its head, how it is aligned, what its head explains."""

    title: str
    is_number: bool = False
    is_wide: bool = False
    tip: str = ""
    sort: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row. `key` is what ticking it selects; a muted row is grey; a click on one with `go` follows it.

    `go` is a page and its parameters. It needs a link in a cell too: a keyboard does not reach a row.
    """

    key: str
    cells: Sequence[str]
    is_picked: bool = False
    is_muted: bool = False
    go: tuple[str, Mapping[str, str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorting:
    """By which column rows are sorted."""

    column: str
    is_descending: bool = True

    def toggled(self, column: str) -> Sorting:
        """What a click on a head asks for: the other direction, or another column."""
        return Sorting(column=column, is_descending=not self.is_descending if column == self.column else True)


def table(
    columns: Sequence[Column],
    rows: Sequence[Row],
    *,
    label: str,
    is_tickable: bool = False,
    sorting: Sorting | None = None,
    empty: str = "Nothing here yet.",
) -> str:
    """The table as HTML. Heads with `sort` follow `[data-go]` to the pseudo page `sort`.

    Args:
        label: what the table lists, for a screen reader.
        is_tickable: the first column is a tick box a row.
    """
    head = "".join(_head(column, sorting) for column in columns)
    ticks = '<th scope="col"><span class="muted" aria-label="select"></span></th>' if is_tickable else ""
    body = "".join(_row(columns, row, is_tickable) for row in rows)
    if not rows:
        body = f'<tr><td colspan="{len(columns) + is_tickable}" class="muted">{escape(empty)}</td></tr>'
    return (
        f'<div class="table-scroll"><table aria-label="{escape(label, quote=True)}">'
        f"<thead><tr>{ticks}{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _head(column: Column, sorting: Sorting | None) -> str:
    kind = ' class="number"' if column.is_number else ""
    tip = f' data-tip="{escape(column.tip, quote=True)}" tabindex="0"' if column.tip else ""
    if not column.sort:
        return f'<th scope="col"{kind}{tip}>{escape(column.title)}</th>'
    is_sorted = sorting is not None and sorting.column == column.sort
    arrow = ("↓" if sorting is not None and sorting.is_descending else "↑") if is_sorted else ""
    go = escape(json.dumps(["sort", {"column": column.sort}]), quote=True)
    state = "none" if not is_sorted else "descending" if arrow == "↓" else "ascending"
    return (
        f'<th scope="col"{kind}{tip} aria-sort="{state}"><button type="button" data-go="{go}">{escape(column.title)}'
        f'<span class="sort" aria-hidden="true"> {arrow}</span></button></th>'
    )


def _row(columns: Sequence[Column], row: Row, is_tickable: bool) -> str:
    tick = ""
    if is_tickable:
        pressed = "true" if row.is_picked else "false"
        tick = (
            f'<td><button type="button" class="tick-box" data-pick="{escape(row.key, quote=True)}" '
            f'aria-pressed="{pressed}" aria-label="select {escape(row.key, quote=True)}"></button></td>'
        )
    cells = "".join(f"<td{_kind(column)}>{cell}</td>" for column, cell in zip(columns, row.cells, strict=True))
    kinds = (("picked", row.is_picked), ("stale-row", row.is_muted), ("leads", row.go is not None))
    classes = " ".join(name for name, wanted in kinds if wanted)
    go = "" if row.go is None else f' data-go="{escape(json.dumps([row.go[0], dict(row.go[1])]), quote=True)}"'
    return f'<tr class="{classes}"{go}>{tick}{cells}</tr>'


def _kind(column: Column) -> str:
    if column.is_number:
        return ' class="number"'
    return ' class="wide"' if column.is_wide else ""
