"""Column types that keep a value the same on SQLite and PostgreSQL.

- `Real`: double precision whose NaN survives. SQLite turns a bound NaN into NULL, so there NaN is
  stored as the text `NaN`, which a REAL column keeps as text. Text sorts after every number there,
  as NaN does in PostgreSQL: comparisons, `ORDER BY`, `min` and `max` agree between the two.
- `Instant`: an aware UTC datetime (SQLite has no zones; stored as UTC).
- `Document`: JSON whose non-finite numbers survive as `{"$float": "NaN"}`, so that what is stored
  is valid JSON; keys of one's own that begin with `$` get a second one.
- `Label`: text without NUL characters, which PostgreSQL cannot hold.

Does not hold tables; see `db.models`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, DateTime, Dialect, Double, Text
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

_FLOAT_KEY = "$float"
_CONTAINERS = (dict, list)


MAX_INTEGER = 2**63 - 1


def fits(value: object) -> bool:
    """Whether a whole number fits the integer columns (64 bits); no key beyond them exists."""
    return isinstance(value, int) and not isinstance(value, bool) and -MAX_INTEGER <= value <= MAX_INTEGER


class Real(TypeDecorator[float]):
    """Double precision; NaN and infinities survive."""

    impl = Double
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(_SqliteReal() if dialect.name == "sqlite" else Double())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if value is None:
            return None
        value = float(value)
        return "NaN" if dialect.name == "sqlite" and math.isnan(value) else value

    def process_result_value(self, value: Any, dialect: Dialect) -> float | None:
        return None if value is None else float(value)


class Instant(TypeDecorator[datetime]):
    """An aware datetime, in UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"an instant needs a zone, given {value!r}")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Document(TypeDecorator[Any]):
    """A JSON value; NaN and infinities inside it survive."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return _encoded(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return _decoded(value)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        """On SQLite the text itself tells whether anything is encoded in it; most documents hold nothing."""
        return _from_text if dialect.name == "sqlite" else super().result_processor(dialect, coltype)


class Label(TypeDecorator[str]):
    """Text; a NUL character becomes U+FFFD."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else _without_nul(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return value


class _SqliteReal(UserDefinedType[Any]):
    """A REAL column that binds what it is given; SQLAlchemy's own would turn the text into a float again."""

    cache_ok = True

    def get_col_spec(self, **_options: Any) -> str:
        return "REAL"


def _encoded(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT_KEY: "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, dict):
        return {_encoded_key(str(key)): _encoded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(entry) for entry in value]
    return _without_nul(value) if isinstance(value, str) else value


def _encoded_key(key: str) -> str:
    return _without_nul(f"${key}" if key.startswith("$") else key)


def _without_nul(text: str) -> str:
    return text.replace("\x00", "\ufffd")


def _from_text(text: Any) -> Any:
    if not isinstance(text, str):
        return text  # a bare number comes as one; None stays
    value = json.loads(text)
    return _decoded(value) if '"$' in text else value


def _decoded(value: Any) -> Any:
    """Containers only are looked into: plans and digests are thousands of plain values."""
    if isinstance(value, dict):
        if len(value) == 1 and _FLOAT_KEY in value:
            return float(value[_FLOAT_KEY])
        return {
            key[1:] if key[:1] == "$" else key: _decoded(entry) if type(entry) in _CONTAINERS else entry
            for key, entry in value.items()
        }
    if isinstance(value, list):
        return [_decoded(entry) if type(entry) in _CONTAINERS else entry for entry in value]
    return value
