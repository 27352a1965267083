"""How commands print: a table for people, `--json` and `--csv` for programs.

JSON is strict: NaN and infinity are the strings `"NaN"` and `"Infinity"`, as in the project's messages;
instants are ISO 8601 with their zone.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from db.errors import InputError

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")]
LimitOption = Annotated[int, typer.Option(min=1, help="Most rows to print, the newest.")]
OffsetOption = Annotated[int, typer.Option(min=0, help="Rows to skip, from the newest.")]
RunArgument = Annotated[int, typer.Argument(help="Number of the run (see `malleus runs`).", show_default=False)]

Column = tuple[str, Callable[[Any], object]]
"""Heading and the value in a row; `None` prints as `-`."""


def print_rows(rows: Sequence[Any], columns: Sequence[Column], *, as_json: bool, as_csv: bool, empty: str) -> None:
    """Prints dataclass rows in one of the three forms.

    Args:
        empty: what a person reads when there are no rows: what to do next.

    Raises:
        InputError: both forms for programs at once.
    """
    if as_json and as_csv:
        raise InputError("expected --json or --csv, given both")
    if as_json:
        print_json([plain(row) for row in rows])
    elif as_csv:
        _print_csv([plain(row) for row in rows], [heading for heading, _ in columns])
    elif not rows:
        print(empty)
    else:
        print(table([heading for heading, _ in columns], [[value(row) for _, value in columns] for row in rows]))


def print_json(value: object) -> None:
    """One JSON value on one line (lists: one element a line)."""
    if isinstance(value, list) and value:
        lines = ",\n ".join(json.dumps(plain(entry), allow_nan=False) for entry in value)
        print(f"[{lines}]")
    else:
        print(json.dumps(plain(value), allow_nan=False))


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Aligned columns; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(line[index]) for line in [list(headings), *cells]) for index in range(len(headings))]
    is_right = [all(isinstance(row[index], int | float | None) for row in rows) for index in range(len(headings))]
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, is_right, strict=True)
        ).rstrip()
        for line in [list(headings), *cells]
    ]
    return "\n".join(lines)


def plain(value: object) -> Any:
    """The value as JSON knows it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, datetime):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="python"))
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    return value


def seconds(value: float | None) -> str | None:
    """`1.41 s`, `312 ms`."""
    if value is None or math.isnan(value):
        return None
    return f"{value:.3g} s" if value >= 1 or value == 0 else f"{value * 1e3:.3g} ms"


def number(value: float | None) -> str:
    """`2,480`, `3.21`; `-` for NaN and nothing."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,.0f}" if 1000 <= abs(value) < math.inf else f"{value:.3g}"


def percent(share: float | None) -> str:
    """`31 %` of 0.31; `-` for NaN and nothing."""
    return "-" if share is None or math.isnan(share) else f"{100 * share:.3g} %"


def size(num_bytes: float) -> str:
    """`1.2 GB`, in powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.3g} TB"


def clock(at: datetime | None) -> str | None:
    """`2026-01-31 14:02:11 UTC`."""
    return None if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def age(at: datetime | None) -> str:
    """`3 s ago`, `4 m 12 s ago`, `never`."""
    if at is None:
        return "never"
    total = max(0, round((datetime.now(UTC) - at).total_seconds()))
    if total < 60:
        return f"{total} s ago"
    if total < 3600:
        return f"{total // 60} m {total % 60} s ago"
    return f"{total // 3600} h {total % 3600 // 60} m ago"


def rate(value: float | None) -> str:
    """`2.57x`, `failed` for infinity, `unknown` for NaN and nothing: never "healthy"."""
    if value is None or math.isnan(value):
        return "unknown"
    return "failed" if math.isinf(value) else f"{value:.2f}x"


def rates(values: Mapping[int, float]) -> str:
    """`3=2.57 9=inf`, devices that are not at 1 only."""
    return " ".join(f"{device}={value:.3g}" for device, value in sorted(values.items()) if value != 1)


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.4g}"
    return " ".join(str(value).split())


def _print_csv(rows: Sequence[Mapping[str, Any]], headings: Sequence[str]) -> None:
    names = list(rows[0]) if rows else list(headings)
    writer = csv.writer(sys.stdout)
    writer.writerow(names)
    for row in rows:
        writer.writerow(
            [json.dumps(value) if isinstance(value, dict | list) else value for value in (row[name] for name in names)]
        )
