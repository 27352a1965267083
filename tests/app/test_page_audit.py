"""The audit page: filters, order, paging, links, and that its address brings all of it back."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.dashboard import audit_table
from app.dashboard.table import Sorting
from db import audit
from db.audit import AuditView
from db.store import Store
from tests.app import seeded_store
from tests.app.seeded_store import tell_until_now
from tests.app.seeded_world import again, close_world, drawings, open_world, page, texts
from tests.app.story_rows import plain


def show_audit() -> None:
    from app.dashboard.views import audit

    audit.show()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    opened = open_world(tmp_path, monkeypatch)
    yield opened
    close_world(opened)


def shown(at: AppTest) -> list[list[str]]:
    """The cells of the table's rows."""
    assert not at.exception
    body = texts(at).partition("<tbody>")[2].partition("</tbody>")[0]
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", body, re.S)
    return [
        [plain(re.sub("<[^>]+>", "", cell)) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.S)] for row in rows
    ]


def count(at: AppTest) -> str:
    found = re.search(r"<b>([\d,]+)</b> entr", texts(at))
    assert found is not None
    return found[1]


def test_nothing_has_been_done(store: Store) -> None:
    at = page(show_audit)
    assert "Nothing has been done yet." in texts(at)
    assert count(at) == "0"


def test_who_did_what_from_where_with_which_result(store: Store) -> None:
    story = tell_until_now(store, seeded_store.drifting_run)
    at = page(show_audit, audit_action="command.inject", audit_actor="grace")
    ((_, run, who, source, action, on, result, _),) = shown(at)
    assert (run, who, source, action, result) == (str(story.id), "grace", "cli", "command.inject", "pending")
    assert on.startswith("command ")
    refused = page(show_audit, audit_action="plan.switch", audit_result="rejected")
    assert shown(refused)[0][-1] == "rank 4: out of memory in prepare", "the reason stands beside the result"


def test_the_address_restores_filters_and_order(store: Store) -> None:
    tell_until_now(store, seeded_store.drifting_run)
    tell_until_now(store, seeded_store.healthy_run)
    at = page(show_audit, audit_run="1", audit_source="engine", audit_text="plan", sort="target", audit_last="24 h")
    rows = shown(at)
    assert rows
    assert {row[1] for row in rows} == {"1"}
    assert {row[3] for row in rows} == {"engine"}
    assert [row[5] for row in rows] == sorted(row[5] for row in rows)
    assert at.selectbox(key="audit_run").value == "1"
    assert at.text_input(key="audit_text").value == "plan"
    assert len(shown(again(at))) == len(rows), "a refresh keeps them"
    unknown = page(show_audit, audit_actor="nobody", audit_run="99")
    assert "No entry matches the filter." in texts(unknown)
    odd = page(show_audit, sort="mood", audit_page="-7", audit_run="x")
    assert shown(odd)


def test_a_time_range(store: Store) -> None:
    tell_until_now(store, seeded_store.healthy_run, ago_s=7200)
    audit.record(store, actor="ann", action="look")
    assert [row[2] for row in shown(page(show_audit, audit_last="15 m"))] == ["ann"]
    at = page(show_audit)
    number = int(count(at))
    at.datetime_input(key="audit_before").set_value(datetime.now(UTC).replace(tzinfo=None) - timedelta(hours=1)).run()
    assert int(count(at)) == number - 1


def test_pages_keep_their_place(store: Store) -> None:
    for number in range(60):
        audit.record(store, actor="ann", action="look", target=f"thing {number}")
    at = page(show_audit)
    assert count(at) == "60"
    assert [row[5] for row in shown(at)][:2] == ["thing 59", "thing 58"]
    at.number_input(key="audit_page_box").set_value(3).run()
    assert [row[5] for row in shown(at)][-1] == "thing 0"
    assert at.query_params["audit_page"] in ("3", ["3"])
    assert len(shown(page(show_audit, audit_page="3"))) == 10


def test_a_download_holds_every_page(store: Store) -> None:
    for number in range(60):
        audit.record(store, actor="ann" if number % 2 else "bob", action="look", target=f"thing {number}")
    at = page(show_audit, audit_actor="ann", sort="target")
    at.button(key="audit_csv").click().run()
    file = drawings(at)["audit_file"]
    assert (file["name"], file["mime"]) == ("audit.csv", "text/csv")
    assert [row["target"] for row in csv.DictReader(io.StringIO(file["text"]))] == sorted(
        f"thing {number}" for number in range(1, 60, 2)
    )


def entry(**fields: Any) -> AuditView:
    given = {"id": 1, "at": datetime(2026, 1, 1, tzinfo=UTC), "run": 7, "actor": "ann", "source": "cli"}
    more = {"action": "a", "target": "", "result": "", "detail": {}}
    return AuditView(**(given | more | fields))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("plan 3", ("plans", {"run": 7, "version": "3"})),
        ("device 5", ("live", {"run": 7, "device": "5"})),
        ("device 5, device 6", ("live", {"run": 7, "device": "5"})),
        ("command 12", ("audit", {"audit_run": 7, "audit_text": "command 12"})),
        ("step 9", ("live", {"run": 7})),
        ("", ("live", {"run": 7})),
    ],
)
def test_an_entry_leads_to_its_object(target: str, expected: tuple[str, dict[str, Any]]) -> None:
    assert audit_table.object_link(entry(target=target)) == expected
    assert audit_table.object_link(entry(target=target, run=None)) is None


def test_what_people_type_is_escaped_and_nan_survives() -> None:
    odd = entry(actor="<b>eve", target="<i>", result='"', detail={"reason": "<u>", "loss": float("nan")})
    html = audit_table.audit_table([odd], Sorting(column="at"), now=datetime(2026, 1, 2, tzinfo=UTC), is_filtered=False)
    for tag in ("<b>eve", "<i>", "<u>"):
        assert tag not in html
    assert "2026-01-01 00:00:00 UTC" in html
    (record,) = audit_table.records([odd])
    assert record["reason"] == "<u>"
    assert json.dumps(record["detail"])
