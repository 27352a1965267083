"""Rows as CSV and JSON texts for the download buttons. Instants are ISO 8601 in UTC; NaN and infinity survive."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """A CSV with one head line; nested values are JSON. A text that a spreadsheet would run is quoted."""
    if not rows:
        return ""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def json_text(value: Any) -> str:
    """JSON whose non-finite numbers are the strings `"NaN"` and `"Infinity"`, as in the messages."""
    return json.dumps(_plain(value), indent=2, allow_nan=False)


def _cell(value: Any) -> Any:
    plain = _plain(value)
    if isinstance(plain, dict | list):
        return json.dumps(plain)
    if isinstance(value, str) and value[:1] in "=+-@\t\r" and value:
        return f"'{value}"
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value
