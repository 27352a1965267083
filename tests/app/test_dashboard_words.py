"""Numbers, times and sizes as the pages write them."""

from __future__ import annotations

import csv
import io
import json
import math
from datetime import UTC, datetime, timedelta, timezone

import pytest

from app.dashboard import quantities as q
from app.dashboard.downloads import csv_text, json_text


def plain(text: str) -> str:
    return text.replace(q.THIN, " ")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, q.UNKNOWN),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        (0, "0"),
        (2.1374, "2.14"),
        (9.996, "10.0"),  # rounding adds a digit before the point, not a fourth one
        (0.03119, "0.0312"),
        (1284.4, "1,280"),
        (-2.5, "-2.50"),
        (0.0000123, "1.23e-05"),
    ],
)
def test_number_has_three_significant_digits(value: float | None, text: str) -> None:
    assert q.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, q.UNKNOWN),
        (math.nan, "NaN"),
        (0.0, "0 s"),
        (1.414, "1.41 s"),
        (0.3118, "312 ms"),
        (0.9996, "1.00 s"),
        (0.0000451, "45.1 µs"),
        (95.0, "95.0 s"),
        (252.0, "4 m 12 s"),
    ],
)
def test_seconds_choose_their_unit(seconds: float | None, text: str) -> None:
    assert plain(q.seconds(seconds)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(8, "8 s"), (59.6, "1 m"), (252, "4 m 12 s"), (7500, "2 h 5 m"), (7200, "2 h"), (273_600, "3 d 4 h"), (0, "0 s")],
)
def test_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    assert plain(q.duration(seconds)) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.84, "0.8 s"), (-3.0, "0.0 s"), (9.96, "10 s"), (184, "3 m 4 s"), (None, q.UNKNOWN)]
)
def test_age_is_never_negative(seconds: float | None, text: str) -> None:
    assert plain(q.age(seconds)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(64, "64 B"), (1_930_000, "1.93 MB"), (999_900, "1.00 MB"), (2e9, "2.00 GB"), (math.inf, q.UNKNOWN)],
)
def test_num_bytes_is_decimal(value: float, text: str) -> None:
    assert plain(q.num_bytes(value)) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.934, "93 %"), (0.071, "7.1 %"), (-0.0001, "0 %"), (None, q.UNKNOWN), (math.nan, q.UNKNOWN), (4.31, "431 %")],
)
def test_percent(share: float | None, text: str) -> None:
    assert plain(q.percent(share)) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(2.5712, f"2.57{q.TIMES}"), (math.inf, "failed"), (math.nan, "?"), (None, q.UNKNOWN)]
)
def test_rate(rate: float | None, text: str) -> None:
    assert q.rate(rate) == text


def test_clock_carries_the_zone_and_the_date_when_it_is_another_day() -> None:
    now = datetime(2026, 3, 2, 18, 0, tzinfo=UTC)
    at = datetime(2026, 3, 2, 16, 2, 11, tzinfo=timezone(timedelta(hours=2)))
    assert q.clock(at, now=now) == "14:02:11 UTC"
    assert q.clock(at - timedelta(days=1), now=now) == "2026-03-01 14:02:11 UTC"
    assert q.clock(None) == q.UNKNOWN


def test_devices_in_words() -> None:
    assert q.devices([3]) == "device 3"
    assert q.devices([3, 5]) == "devices 3 and 5"
    assert q.devices(list(range(18))) == "devices 0, 1, 2, 3, 4 and 13 more"


def test_csv_keeps_odd_numbers_and_disarms_formulas() -> None:
    at = datetime(2026, 3, 2, 14, 2, 11, tzinfo=UTC)
    rows = [{"name": "=1+1", "rate": math.inf, "loss": math.nan, "at": at, "rates": {3: 2.57}}]
    read = next(csv.DictReader(io.StringIO(csv_text(rows))))
    assert read == {
        "name": "'=1+1",
        "rate": "Infinity",
        "loss": "NaN",
        "at": "2026-03-02T14:02:11+00:00",
        "rates": '{"3": 2.57}',
    }
    assert csv_text([]) == ""


def test_json_is_valid_with_odd_numbers() -> None:
    assert json.loads(json_text([{"loss": math.nan, "rate": -math.inf}])) == [{"loss": "NaN", "rate": "-Infinity"}]
